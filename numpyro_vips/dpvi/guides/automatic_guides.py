"""The automatic guides of DPVI: Normals on the unconstrained globals.

All three have the form z = loc + s·(ε + F·ε′) with s = exp(log_scale) and standard
Normal ε, ε′:

| family       | F                       | ε′      | as in NumPyro                   |
|--------------|-------------------------|---------|---------------------------------|
| `mean_field` | none                    |         | `AutoNormal`                    |
| `full_rank`  | strictly lower triangle | ε       | `AutoMultivariateNormal`        |
| `low_rank`   | coordinates × rank      | its own | `AutoLowRankMultivariateNormal` |

A draw is smooth in the parameters, so their gradient follows from the gradient in z by
the chain rule. This is what lets `dpvi` release the latter alone.
"""

import functools
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Float64, PRNGKeyArray

from numpyro_vips.dpvi.guides.posteriors import JointNormalPosterior, NormalPosterior
from numpyro_vips.dpvi.guides.unconstrained import UnconstrainedSpace
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized
from numpyro_vips.model.synthetic.prior_centre import is_identity

# Parameters: vectors and a matrix, whose rows are the coordinates.
Arrays = Mapping[str, Float[Array, "size ..."]]

GuideFamily = Literal["mean_field", "full_rank", "low_rank"]
FAMILIES: tuple[GuideFamily, ...] = ("mean_field", "full_rank", "low_rank")

# Largest initial standard deviation; with many rows posteriors are narrower.
LARGEST_SCALE = 0.1
# Of the start around the prior's centre. It tells hidden units of a network apart.
_JITTER = 0.1


@functools.partial(jit_unoptimized, static_argnums=(3, 4))
def _initial(
    start: Float[Array, " size"],
    unit: Float[Array, " size"],
    rng_key: PRNGKeyArray,
    rank: int,
    is_low_rank: bool,
) -> dict[str, Float[Array, "size ..."]]:
    """A mean near `start`, and a factor of this rank, which is zero or small."""
    loc_key, factor_key = jax.random.split(rng_key)
    jitter = jax.random.normal(loc_key, start.shape, start.dtype)
    arrays = {"loc": start + _JITTER * unit * jitter}
    shape = (*start.shape, rank)
    if rank:
        arrays["factor"] = jnp.zeros(shape, start.dtype)
    if is_low_rank:
        # At zero the expected gradient vanishes by symmetry.
        noise = jax.random.normal(factor_key, shape, start.dtype)
        arrays["factor"] = _JITTER * noise
    return arrays


class NormalGuide:
    """A Normal on the globals' unconstrained coordinates.

    Attributes:
      space: The globals and their layout in flat vectors.
      family: Which covariance it may have.
      rank: Columns of F; zero for `mean_field`.
      initial_scale: Where exp(log_scale) starts.
    """

    def __init__(
        self, space: UnconstrainedSpace, family: GuideFamily, *, num_rows: int
    ) -> None:
        """The guide of these globals; `num_rows` is the public number of rows."""
        self.initial_scale = min(LARGEST_SCALE, num_rows**-0.5)
        self.space = space
        self.family = family
        ranks = {
            "mean_field": 0,
            "full_rank": space.size,
            "low_rank": round(space.size**0.5),
        }
        self.rank = ranks[family]

    def initial(
        self,
        start: Float[Array, " size"],
        rng_key: PRNGKeyArray,
        unit: Float[np.ndarray, " size"] | None = None,
    ) -> dict[str, Float[Array, "size ..."]]:
        """Parameters near `start`, slightly jittered, with small scales.

        Args:
          start: Where the mean is.
          rng_key: Decides the jitter.
          unit: What is one, by coordinate, for jitter and scales; public. One itself by
            default.
        """
        unit = np.ones(start.shape) if unit is None else unit
        unit = unit.astype(start.dtype)
        arrays = _initial(
            start, jax.device_put(unit), rng_key, self.rank, self.family == "low_rank"
        )
        log_scale = np.log(self.initial_scale * unit).astype(start.dtype)
        return {**arrays, "log_scale": jnp.asarray(log_scale)}

    def arrays_of(
        self, loc: Float64[np.ndarray, " size"], tril: Float64[np.ndarray, "size size"]
    ) -> dict[str, Float[Array, "size ..."]]:
        """Parameters of the Normal of this mean and triangular root of the covariance.

        Not of the family `low_rank`.
        """
        scale = np.diag(tril)
        arrays = {"loc": loc, "log_scale": np.log(scale)}
        if self.family == "full_rank":
            arrays["factor"] = np.tril(tril, -1) / scale[:, None]
        dtype = jnp.result_type(float)
        return {name: jnp.asarray(array, dtype) for name, array in arrays.items()}

    @property
    def num_draws(self) -> int:
        """How many standard Normal numbers a draw is made of."""
        return self.space.size + (self.rank if self.family == "low_rank" else 0)

    def value(
        self, arrays: Arrays, noise: Float[Array, " numbers"]
    ) -> Float[Array, " size"]:
        """The draw z that `num_draws` numbers stand for."""
        unit = noise[: self.space.size]
        if self.family == "full_rank":
            unit = unit + jnp.tril(arrays["factor"], -1) @ noise
        elif self.family == "low_rank":
            unit = unit + arrays["factor"] @ noise[self.space.size :]
        return arrays["loc"] + jnp.exp(arrays["log_scale"]) * unit

    def entropy(self, arrays: Arrays) -> Float[Array, ""]:
        """Differential entropy of q(z) in nats, up to a constant that depends on the
        space alone."""
        entropy = jnp.sum(arrays["log_scale"])
        if self.family == "low_rank":
            factor = arrays["factor"]
            inner = jnp.eye(self.rank, dtype=factor.dtype) + factor.T @ factor
            entropy += 0.5 * jnp.linalg.slogdet(inner)[1]
        return entropy

    def marginals(
        self, arrays: Arrays, event_dims: Mapping[str, int]
    ) -> dict[str, Any]:
        """The distribution of every site in its support, by name, under a mean-field
        guide."""
        scale = self.space.split(jnp.exp(arrays["log_scale"]))
        found = {}
        for site, loc in zip(
            self.space.sites, self.space.split(arrays["loc"]).values(), strict=True
        ):
            normal: Any = dist.Normal(loc, scale[site.name])
            if is_identity(site.transform):
                found[site.name] = normal.to_event(event_dims[site.name])
            else:
                normal = normal.to_event(site.transform.domain.event_dim)
                found[site.name] = dist.TransformedDistribution(normal, site.transform)
        return found

    def posterior(
        self, arrays: Arrays, points: Mapping[str, Any]
    ) -> NormalPosterior | JointNormalPosterior:
        """The guide as a posterior; `points` are the model's point estimates."""
        loc, scale = arrays["loc"], jnp.exp(arrays["log_scale"])
        if self.family == "mean_field":
            return NormalPosterior(
                sites=self.space.sites,
                points=points,
                loc=self._by_site(loc),
                scale=self._by_site(scale),
            )
        factor = scale[:, None] * arrays["factor"]
        if self.family == "full_rank":
            factor, diagonal = jnp.tril(factor, -1) + jnp.diag(scale), None
        else:
            diagonal = scale
        return JointNormalPosterior(
            sites=self.space.sites,
            points=points,
            loc=loc,
            factor=factor,
            diagonal=diagonal,
        )

    def _by_site(self, vector: Float[Array, " size"]) -> dict[str, Float[Array, "..."]]:
        """A flat vector's entries by site, in the site's shape."""
        parts = self.space.split(np.asarray(vector))
        return {name: jnp.asarray(part) for name, part in parts.items()}
