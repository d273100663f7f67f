"""The posteriors that DPVI's guides become.

Normals live on the unconstrained space. Parameters of the model without a prior are
part of a posterior as points.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from numpyro_vips.dpvi.guides.monte_carlo_bound import NUM_DRAWS, monte_carlo_bound
from numpyro_vips.dpvi.guides.row_queries import (
    NO_POSTERIOR,
    NUM_GLOBAL_DRAWS,
    local_posterior,
)
from numpyro_vips.dpvi.guides.supports import support_from_json, support_to_json
from numpyro_vips.dpvi.guides.unconstrained import GuideSite, UnconstrainedSpace
from numpyro_vips.jax_tools.double_precision import evaluate_in_double
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized
from numpyro_vips.jax_tools.random_keys import as_threefry, threefry_key
from numpyro_vips.model.row_queries import RowQuery
from numpyro_vips.points import named_points, paths_of_points, points_at
from numpyro_vips.posterior import MeanAndStddev, register_posterior
from numpyro_vips.uncertainty import VarianceParts

# Draws that are looked at before a posterior is handed out, and those that show what
# mean and standard deviation about are.
_CHECKED_DRAWS = 16
_MOMENT_DRAWS = 200


def _moments_of(draws: Mapping[str, Any]) -> dict[str, MeanAndStddev]:
    arrays = {name: np.asarray(array, np.float64) for name, array in draws.items()}
    return {
        name: MeanAndStddev(mean=array.mean(0), stddev=array.std(0))
        for name, array in arrays.items()
    }


def _unit_from_json(unit: float | Sequence[float]) -> float | tuple[float, ...]:
    return tuple(unit) if isinstance(unit, Sequence) else float(unit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _GuidePosterior(abc.ABC):
    """What DPVI's posteriors have in common.

    Attributes:
      kind: What a file calls a posterior of this class.
      arrays: Fields that hold an array, or one by site.
      sites: The latents.
      points: Values of the parameters without a prior, by name, as
        `Predictive(model, samples, params=points)` takes them. After loading a network
        is nested dicts, and what `private` marks takes these for its own.
    """

    kind: ClassVar[str]
    arrays: ClassVar[tuple[str, ...]]
    sites: tuple[GuideSite, ...]
    points: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def site_dims(self) -> dict[str, tuple[str, ...]]:
        return {site.name: site.dims for site in self.sites}

    def moments(self) -> dict[str, MeanAndStddev]:
        """Mean and standard deviation by site, about: those of draws."""
        return _moments_of(self._public_draws(_MOMENT_DRAWS))

    def weighable(self, rng_key: PRNGKeyArray, count: int) -> None:
        """None: weighing draws adds nothing to a fit of the model's own density."""
        return None

    def problems(self) -> dict[str, str]:
        """Why sites have no usable posterior, by site; empty if all have one."""
        draws = self._public_draws(_CHECKED_DRAWS)
        dtype = jnp.result_type(float)  # In which a draw may well overflow.
        checked = {"its draws are": draws, "it is": self.params}
        with np.errstate(over="ignore"):
            return {
                name: f"{what} not finite"
                for what, arrays in checked.items()
                for name, array in arrays.items()
                if not np.isfinite(np.asarray(array).astype(dtype)).all()
            }

    def _public_draws(self, number: int) -> Mapping[str, Any]:
        """The same draws in every fit, for what is said of the posterior."""
        key = threefry_key(0)
        try:  # In NumPy, which compiles nothing.
            return evaluate_in_double(lambda key: self.sample(key, (number,)), key)
        # NumPyro's transforms of correlations take no single precision among doubles.
        except TypeError:
            return self.sample(key, (number,))

    def local_posterior(self, query: RowQuery) -> Mapping[str, Any]:
        """The posterior of the latents of rows that the caller may see, by VIPS.

        Raises:
          ValueError: VIPS cannot run the model.
        """
        if self.points:  # Of parameters without a prior VIPS knows nothing.
            raise ValueError(NO_POSTERIOR)
        draws = self.sample(threefry_key(0), (NUM_GLOBAL_DRAWS,))
        return local_posterior(query, draws)

    def elbo(self, query: RowQuery) -> Float[np.ndarray, " rows"]:
        """The average of the rows' log densities over draws of the globals."""
        draws = self.sample(threefry_key(0), (NUM_DRAWS,))
        return monte_carlo_bound(query, draws, self.points)

    @abc.abstractmethod
    def sample(
        self, rng_key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()
    ) -> dict[str, Float[Array, "..."]]:
        """Independent draws of every global latent."""

    @property
    def params(self) -> dict[str, Float[Array, "..."]]:
        """The arrays as `{site}.{field}` or `joint.{field}`, and the points."""
        found = named_points(self.points)
        for field in self.arrays:
            value = getattr(self, field)
            if isinstance(value, Mapping):
                found |= {f"{name}.{field}": array for name, array in value.items()}
            elif value is not None:
                found[f"joint.{field}"] = value
        return found

    @property
    def specification(self) -> dict[str, Any]:
        """What a saved result keeps of the posterior beside `params`, JSON-able."""
        return {
            "kind": self.kind,
            "points": paths_of_points(self.points),
            "sites": [
                {
                    "name": site.name,
                    "support": support_to_json(site.support),
                    "shape": list(site.shape),
                    "dims": list(site.dims),
                    "unit": np.asarray(site.unit).tolist(),
                    "over": site.over,
                    "correlated_by": site.correlated_by,
                }
                for site in self.sites
            ],
        }

    @classmethod
    def from_specification(
        cls, specification: Mapping[str, Any], params: Mapping[str, Float[Array, "..."]]
    ) -> Self:
        """The posterior that `specification` and `params` describe."""
        # Single precision unless an array says otherwise; bounds follow the parameters.
        dtype = jnp.result_type(*params.values()) if params else jnp.float32
        sites = [
            GuideSite(
                name=described["name"],
                support=support_from_json(described["support"], dtype),
                shape=tuple(described["shape"]),
                dims=tuple(described["dims"]),
                unit=_unit_from_json(described["unit"]),
                over=described["over"],
                correlated_by=described.get("correlated_by"),
            )
            for described in specification["sites"]
        ]
        arrays = {field: cls._array(field, sites, params) for field in cls.arrays}
        points = points_at(specification["points"], params)
        return cls(sites=tuple(sites), points=points, **arrays)

    @classmethod
    def _array(
        cls, field: str, sites: Sequence[GuideSite], params: Mapping[str, Any]
    ) -> Any:
        """A field of `arrays`, by site in most posteriors."""
        return {site.name: params[f"{site.name}.{field}"] for site in sites}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormalPosterior(_GuidePosterior):
    """Independent Normals on the unconstrained space of every global latent.

    Attributes:
      loc: Means by site, on the unconstrained space.
      scale: Standard deviations by site, on the unconstrained space.
    """

    kind = "dpvi_normal"
    arrays = ("loc", "scale")
    loc: Mapping[str, Float[Array, "..."]]
    scale: Mapping[str, Float[Array, "..."]]

    def sample(
        self, rng_key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()
    ) -> dict[str, Float[Array, "..."]]:
        """Independent draws of every global latent, in its support."""
        keys = jax.random.split(rng_key, len(self.sites))
        free = {}
        for site, key in zip(self.sites, keys, strict=True):
            loc, scale = self.loc[site.name], self.scale[site.name]
            noise = jax.random.normal(key, (*sample_shape, *loc.shape), loc.dtype)
            free[site.name] = loc + scale * noise
        return UnconstrainedSpace(sites=self.sites).values(free)

    def problems(self) -> dict[str, str]:
        """Why sites have no usable posterior, by site; empty if all have one."""
        degenerate = {}
        for name, scale in self.scale.items():
            loc, deviation = np.asarray(self.loc[name]), np.asarray(scale)
            if not (deviation > 0).all():
                degenerate[name] = "its scale is not positive"
            elif (loc + deviation == loc).any():
                degenerate[name] = "its scale is lost in the rounding of its mean"
        return super().problems() or degenerate


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointNormalPosterior(_GuidePosterior):
    """A Normal on the joint unconstrained space of the global latents.

    Attributes:
      loc: Mean, with the sites' coordinates one after the other.
      factor: Matrix F of the covariance FFᵀ + D².
      diagonal: Diagonal of D; None for zero.
    """

    kind = "dpvi_joint_normal"
    arrays = ("loc", "factor", "diagonal")
    loc: Float[Array, " size"]
    factor: Float[Array, "size rank"]
    diagonal: Float[Array, " size"] | None

    @classmethod
    def _array(
        cls, field: str, sites: Sequence[GuideSite], params: Mapping[str, Any]
    ) -> Any:
        return params.get(f"joint.{field}")

    def sample(
        self, rng_key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()
    ) -> dict[str, Float[Array, "..."]]:
        """Independent draws of the global latents together, in their supports."""
        factor_key, diagonal_key = jax.random.split(rng_key)
        shape = (*sample_shape, self.factor.shape[1])
        noise = jax.random.normal(factor_key, shape, self.loc.dtype)
        z = self.loc + noise @ self.factor.T
        if self.diagonal is not None:
            shape = (*sample_shape, *self.loc.shape)
            noise = jax.random.normal(diagonal_key, shape, self.loc.dtype)
            z += self.diagonal * noise
        space = UnconstrainedSpace(sites=self.sites)
        return space.values(space.split(z))


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoiseAwarePosterior(JointNormalPosterior):
    """A joint Normal that knows how much of its variance is due to noise.

    Attributes:
      data_stddev: What the standard deviations on the unconstrained space would be
        without noise.
    """

    kind = "dpvi_noise_aware"
    arrays = (*JointNormalPosterior.arrays, "data_stddev")
    data_stddev: Float[Array, " size"]

    def variance_parts(self) -> dict[str, VarianceParts]:
        """By site, the parts of its variance that are due to data and to privacy.

        The parts of a constrained number are in the ratio of those on the unconstrained
        space. Sites whose numbers there are not one to one are left out.
        """
        space = UnconstrainedSpace(sites=self.sites)
        ratios = space.split(self.data_stddev**2 / jnp.sum(self.factor**2, axis=1))
        moments, found = self.moments(), {}
        for site in self.sites:
            if site.unconstrained_shape == tuple(site.shape):
                total = moments[site.name].stddev ** 2
                data = (
                    np.minimum(np.asarray(ratios[site.name], np.float64), 1.0) * total
                )
                found[site.name] = VarianceParts(data=data, privacy=total - data)
        return found


# How many draws stand for a guide of the user's own in a file.
_MOST_DRAWS = 4096
_MOST_DRAW_NUMBERS = 2**22


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawsPosterior(_GuidePosterior):
    """A posterior that a guide of the user's own describes.

    A file cannot hold the guide, which is a function. It holds draws in its place, and
    a loaded posterior resamples these.

    Attributes:
      draws: Draws by site along a leading axis; they need no privacy of their own.
      draw: Draws the globals anew from a key; None after loading.
    """

    kind = "dpvi_draws"
    arrays = ("draws",)
    draws: Mapping[str, Float[Array, "draws ..."]]
    draw: Callable[[PRNGKeyArray], dict[str, Float[Array, "..."]]] | None = None

    @classmethod
    def of(
        cls,
        sites: tuple[GuideSite, ...],
        points: Mapping[str, Any],
        draw: Callable[[PRNGKeyArray], dict[str, Float[Array, "..."]]],
    ) -> Self:
        """The posterior of a guide that draws all globals from a key."""
        numbers = sum(math.prod(site.shape) for site in sites)
        count = max(100, min(_MOST_DRAWS, _MOST_DRAW_NUMBERS // max(numbers, 1)))
        keys = jax.random.split(threefry_key(0), count)
        draws = jit_unoptimized(jax.vmap(draw))(keys) if sites else {}
        return cls(sites=sites, points=points, draws=draws, draw=draw)

    def sample(
        self, rng_key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()
    ) -> dict[str, Float[Array, "..."]]:
        """Draws of the globals: from the guide, after loading among its saved draws."""
        if not self.sites:
            return {}
        count = math.prod(sample_shape)
        if self.draw is not None:
            keys = jax.random.split(as_threefry(rng_key), count)
            found = jax.vmap(self.draw)(keys)
        else:
            total = len(next(iter(self.draws.values())))
            chosen = jax.random.randint(rng_key, (count,), 0, total)
            found = {name: draws[chosen] for name, draws in self.draws.items()}
        return {
            name: draws.reshape(*sample_shape, *draws.shape[1:])
            for name, draws in found.items()
        }

    def local_posterior(self, query: RowQuery) -> Mapping[str, Any]:
        """Refuses: the guide is what knows about latents of single rows."""
        raise ValueError(NO_POSTERIOR)

    def moments(self) -> dict[str, MeanAndStddev]:
        """Mean and standard deviation by site, about: those of the saved draws."""
        return _moments_of(self.draws)


for _kind in (
    NormalPosterior,
    JointNormalPosterior,
    NoiseAwarePosterior,
    DrawsPosterior,
):
    register_posterior(_kind.kind, _kind)
