"""The globals on the unconstrained space, where guides live: each, and all in a vector.

As in NumPyro's `AutoNormal` it is that of every latent's support.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Shaped
from numpyro.distributions import biject_to
from numpyro.distributions.transforms import AffineTransform, ComposeTransform

from numpyro_vips.model.synthetic.prior_centre import is_identity


class _InUnits(AffineTransform):
    """Numbers times units of their own, in the numbers' precision."""

    def __call__(self, x: Any) -> Any:
        return self._like(x) * x

    def _inverse(self, y: Any) -> Any:
        return y / self._like(y)

    def log_abs_det_jacobian(self, x: Any, y: Any, intermediates: Any = None) -> Any:
        return jnp.broadcast_to(jnp.log(self._like(x)), jnp.shape(x))

    def _like(self, numbers: Any) -> Float[Array, "..."]:
        return jnp.asarray(self.scale, jnp.result_type(numbers))


def in_current_precision(support: Any) -> Any:
    """A support whose bounds, where they are arrays, have the precision that JAX works
    in now. A fit works in both, and the model has written them in one."""

    def converted(bound: Any) -> Any:
        is_array = isinstance(bound, np.ndarray | jax.Array)
        return jnp.asarray(bound, jnp.result_type(float)) if is_array else bound

    bounds = jax.tree.leaves(support)
    if all(converted(bound) is bound for bound in bounds):
        return support  # Those without bounds are known by being the same object.
    return jax.tree.map(converted, support)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuideSite:
    """A global latent, as the guide sees it.

    Attributes:
      name: Name of the latent.
      support: Where its value lies.
      shape: Shape of its value.
      dims: Names of its leading axes, as in `Posterior.site_dims`.
      unit: What unconstrained numbers are multiples of: one number, or one for each of
        them, in the order in which they stand in a flat vector.
      over: Name of a global that the number, in its support, is divided by to give the
        value; see `centred_effects.py`. None for none.
    """

    name: str
    support: Any
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    unit: float | tuple[float, ...] = 1.0
    over: str | None = None

    @property
    def transform(self) -> Any:
        """The bijection from the unconstrained space to the support, but for `over`."""
        to_support = biject_to(in_current_precision(self.support))
        if self.unit == 1.0:
            return to_support
        if isinstance(self.unit, float):
            scaled = AffineTransform(0.0, self.unit)
        else:
            scaled = _InUnits(0.0, self.units)
        return ComposeTransform([scaled, to_support])

    @property
    def is_real(self) -> bool:
        """Whether its value may be any number."""
        return is_identity(biject_to(self.support))

    @property
    def units(self) -> Float64[np.ndarray, "..."]:
        """The site's `unit` for each of its unconstrained numbers."""
        each = np.asarray(self.unit, np.float64)
        shape = self.unconstrained_shape
        return each.reshape(shape) if each.ndim else np.broadcast_to(each, shape)

    @property
    def unconstrained_shape(self) -> tuple[int, ...]:
        return tuple(biject_to(self.support).inverse_shape(self.shape))

    @property
    def size(self) -> int:
        """How many unconstrained numbers it has."""
        return math.prod(self.unconstrained_shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnconstrainedSpace:
    """The unconstrained values of several latents as one flat vector."""

    sites: tuple[GuideSite, ...]

    @property
    def size(self) -> int:
        return sum(site.size for site in self.sites)

    def split(
        self, vectors: Shaped[Array | np.ndarray, "*draws size"]
    ) -> dict[str, Any]:
        """The unconstrained value of every site, in each vector.

        In NumPy where the vectors are, which compiles nothing.
        """
        values, start = {}, 0
        for site in self.sites:
            shape = site.unconstrained_shape
            stop = start + site.size
            part = vectors[..., start:stop]
            values[site.name] = part.reshape((*part.shape[:-1], *shape))
            start = stop
        return values

    def join(self, values: Mapping[str, Any]) -> Float[Array, " size"]:
        """One vector, (size,), of all sites' unconstrained values: undoes `split`."""
        if not self.sites:
            return jnp.zeros(0)
        return jnp.concatenate([jnp.ravel(values[site.name]) for site in self.sites])

    def values(self, free: Mapping[str, Any]) -> dict[str, Any]:
        """The latents' values of unconstrained ones: arrays, with any leading axes."""
        numbers = {site.name: site.transform(free[site.name]) for site in self.sites}
        return self._over_scales(numbers)

    def constrain(
        self, vector: Float[Array, " size"]
    ) -> tuple[dict[str, Float[Array, "..."]], Float[Array, ""]]:
        """The latents' values, and the log determinant of the map's Jacobian."""
        numbers, log_determinant = {}, jnp.zeros((), vector.dtype)
        for site, z in zip(self.sites, self.split(vector).values(), strict=True):
            numbers[site.name] = site.transform(z)
            log_determinant += jnp.sum(
                site.transform.log_abs_det_jacobian(z, numbers[site.name])
            )
        for site, scale in self._scales(numbers):
            logs = jnp.broadcast_to(jnp.log(scale), site.shape)
            log_determinant -= jnp.sum(logs)
        return self._over_scales(numbers), log_determinant

    def _over_scales(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """The values that numbers in their supports stand for; see `GuideSite.over`."""
        return numbers | {
            site.name: numbers[site.name] / scale
            for site, scale in self._scales(numbers)
        }

    def _scales(self, values: Mapping[str, Any]) -> Iterator[tuple[GuideSite, Any]]:
        """What values are divided by, with axes that fit; see `GuideSite.over`."""
        shapes = {site.name: site.shape for site in self.sites}
        for site in self.sites:
            if site.over is not None:
                scale = values[site.over]
                leading = jnp.ndim(scale) - len(shapes[site.over])
                missing = len(site.shape) - len(shapes[site.over])
                axes = tuple(range(leading, leading + missing))
                yield site, jnp.expand_dims(scale, axes)
