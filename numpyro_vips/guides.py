"""The mean-field Normal guide of DPVI and the posterior that it becomes.

Semantics are those of `numpyro.infer.autoguide.AutoNormal`: an independent Normal for
every coordinate of every global latent, on the unconstrained space of its support.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to, constraints

from numpyro_vips.result import register_posterior

# Supports with a name of their own, and those made from bounds or another support.
_NAMED = {
    name: getattr(constraints, name)
    for name in (
        *("real", "real_vector", "real_matrix", "positive", "nonnegative"),
        *("unit_interval", "circular", "simplex", "softplus_positive", "l1_ball"),
        *("ordered_vector", "positive_ordered_vector", "lower_cholesky"),
        *("softplus_lower_cholesky", "scaled_unit_lower_cholesky", "corr_cholesky"),
        *("corr_matrix", "positive_definite", "positive_semidefinite"),
    )
}
_BOUNDED = {
    "greater_than": (constraints.greater_than, ("lower_bound",)),
    "greater_than_eq": (constraints.greater_than_eq, ("lower_bound",)),
    "less_than": (constraints.less_than, ("upper_bound",)),
    "less_than_eq": (constraints.less_than_eq, ("upper_bound",)),
    "interval": (constraints.interval, ("lower_bound", "upper_bound")),
    "open_interval": (constraints.open_interval, ("lower_bound", "upper_bound")),
}


def support_to_json(support: Any) -> dict[str, Any] | None:
    """Describes a support, so that a saved posterior needs no model; None if unknown.

    Every support described here has a bijection to the unconstrained space.
    """
    for name, known in _NAMED.items():
        if type(support) is type(known):
            return {"name": name}
    for name, (kind, bounds) in _BOUNDED.items():
        if type(support) is kind:
            values = [np.asarray(getattr(support, bound)).tolist() for bound in bounds]
            return {"name": name, "bounds": values}
    if type(support) is type(constraints.zero_sum(1)):
        return {"name": "zero_sum", "event_dim": int(support.event_dim)}
    if type(support) is constraints.independent:
        base = support_to_json(support.base_constraint)
        count = int(support.reinterpreted_batch_ndims)
        return base and {"name": "independent", "base": base, "count": count}
    return None


def support_from_json(described: Mapping[str, Any], dtype: Any) -> Any:
    """The inverse of `support_to_json`; arrays of bounds get `dtype`."""
    name = described["name"]
    if name in _NAMED:
        return _NAMED[name]
    if name in _BOUNDED:
        kind, _ = _BOUNDED[name]
        return kind(
            *(
                jnp.asarray(bound, dtype) if isinstance(bound, list) else bound
                for bound in described["bounds"]
            )
        )
    if name == "zero_sum":
        return constraints.zero_sum(described["event_dim"])
    if name == "independent":
        base = support_from_json(described["base"], dtype)
        return constraints.independent(base, described["count"])
    raise ValueError(
        f"The posterior has the support {name!r}, which this version of numpyro_vips "
        "does not know. Upgrade numpyro_vips."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuideSite:
    """A global latent, as the guide sees it.

    Attributes:
      name: Of the latent.
      support: Where its value lies.
      shape: Of its value.
      dims: Names of its leading axes, as in `Posterior.site_dims`.
    """

    name: str
    support: Any
    shape: tuple[int, ...]
    dims: tuple[str, ...]

    @property
    def transform(self) -> Any:
        """From the unconstrained space to the support."""
        return biject_to(self.support)

    @property
    def unconstrained_shape(self) -> tuple[int, ...]:
        return tuple(self.transform.inverse_shape(self.shape))


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnconstrainedSpace:
    """The unconstrained values of several latents as one flat vector."""

    sites: tuple[GuideSite, ...]

    @property
    def size(self) -> int:
        return sum(math.prod(site.unconstrained_shape) for site in self.sites)

    def split(self, vector: jax.Array) -> dict[str, jax.Array]:
        """The unconstrained value of every site."""
        values, start = {}, 0
        for site in self.sites:
            stop = start + math.prod(site.unconstrained_shape)
            values[site.name] = vector[start:stop].reshape(site.unconstrained_shape)
            start = stop
        return values

    def join(self, values: Mapping[str, Any]) -> jax.Array:
        """The inverse of `split`."""
        return jnp.concatenate([jnp.ravel(values[site.name]) for site in self.sites])

    def constrain(self, vector: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        """The latents' values, and the log determinant of the map's Jacobian."""
        values, log_determinant = {}, jnp.zeros((), vector.dtype)
        for site, z in zip(self.sites, self.split(vector).values(), strict=True):
            values[site.name] = site.transform(z)
            log_determinant += jnp.sum(
                site.transform.log_abs_det_jacobian(z, values[site.name])
            )
        return values, log_determinant


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormalPosterior:
    """Independent Normals on the unconstrained space of every global latent.

    Attributes:
      sites: The latents.
      loc: Means by site, on the unconstrained space.
      scale: Standard deviations by site, on the unconstrained space.
    """

    sites: tuple[GuideSite, ...]
    loc: Mapping[str, jax.Array]
    scale: Mapping[str, jax.Array]

    @property
    def params(self) -> dict[str, jax.Array]:
        """`{site}.loc` and `{site}.scale`."""
        return {
            f"{site.name}.{name}": values[site.name]
            for site in self.sites
            for name, values in (("loc", self.loc), ("scale", self.scale))
        }

    @property
    def specification(self) -> dict[str, Any]:
        return {
            "kind": "dpvi_normal",
            "sites": [
                {
                    "name": site.name,
                    "support": support_to_json(site.support),
                    "shape": list(site.shape),
                    "dims": list(site.dims),
                }
                for site in self.sites
            ],
        }

    @property
    def site_dims(self) -> dict[str, tuple[str, ...]]:
        return {site.name: site.dims for site in self.sites}

    def sample(
        self, rng_key: jax.Array, sample_shape: tuple[int, ...] = ()
    ) -> dict[str, jax.Array]:
        """Independent draws of every global latent, in its support."""
        keys = jax.random.split(rng_key, len(self.sites))
        draws = {}
        for site, key in zip(self.sites, keys, strict=True):
            loc, scale = self.loc[site.name], self.scale[site.name]
            noise = jax.random.normal(key, (*sample_shape, *loc.shape), loc.dtype)
            draws[site.name] = site.transform(loc + scale * noise)
        return draws

    @classmethod
    def from_specification(
        cls, specification: Mapping[str, Any], params: Mapping[str, jax.Array]
    ) -> Self:
        sites = []
        for described in specification["sites"]:
            dtype = params[f"{described['name']}.loc"].dtype
            sites.append(
                GuideSite(
                    name=described["name"],
                    support=support_from_json(described["support"], dtype),
                    shape=tuple(described["shape"]),
                    dims=tuple(described["dims"]),
                )
            )
        return cls(
            sites=tuple(sites),
            loc={site.name: params[f"{site.name}.loc"] for site in sites},
            scale={site.name: params[f"{site.name}.scale"] for site in sites},
        )


register_posterior("dpvi_normal", NormalPosterior)
