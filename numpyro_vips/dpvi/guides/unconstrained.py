"""The globals on the unconstrained space, where guides live: each, and all in a vector.

As in NumPyro's `AutoNormal` it is that of every latent's support.
"""

import dataclasses
import math
from collections.abc import Mapping
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
      correlated_by: Name of a Cholesky factor of correlations that it is divided by
        then. None for none.
    """

    name: str
    support: Any
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    unit: float | tuple[float, ...] = 1.0
    over: str | None = None
    correlated_by: str | None = None

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
        return self.over_scales(numbers)

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
        values = dict(numbers)
        for site in self.sites:
            if site.over is not None:
                values[site.name], log_volume = self._divided(site, numbers)
                log_determinant -= log_volume
        return values, log_determinant

    def over_scales(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """The values that numbers in their supports stand for; see `GuideSite.over`."""
        divided = [site for site in self.sites if site.over is not None]
        return numbers | {s.name: self._divided(s, numbers)[0] for s in divided}

    def _divided(
        self, site: GuideSite, numbers: Mapping[str, Any]
    ) -> tuple[Float[Array, "..."], Float[Array, ""]]:
        """A site's value, and the log volume that dividing by its scale takes.

        Args:
          site: One that has a scale.
          numbers: Of all sites, in their supports, with the same leading axes, over
            which log volumes are added up.
        """
        assert site.over is not None
        scale = numbers[site.over]
        if site.correlated_by is not None:
            return _uncorrelated(
                numbers[site.name], scale, numbers[site.correlated_by], site.shape
            )
        (of_scale,) = (s.shape for s in self.sites if s.name == site.over)
        leading = jnp.ndim(scale) - len(of_scale)
        axes = tuple(range(leading, leading + len(site.shape) - len(of_scale)))
        effects_of_each = math.prod(site.shape) // math.prod(of_scale)
        log_volume = effects_of_each * jnp.sum(jnp.log(scale))
        return numbers[site.name] / jnp.expand_dims(scale, axes), log_volume


def _uncorrelated(
    effects: Float[Array, "..."],
    scale: Float[Array, "... kinds"],
    cholesky: Float[Array, "... kinds kinds"],
    shape: tuple[int, ...],
) -> tuple[Float[Array, "..."], Float[Array, ""]]:
    """Effects z of correlated ones a = diag(scale) · cholesky · z, for each group.

    Row by row of the triangular matrix, which is small; `positive_matrices.py` says
    what many systems at once do to LAPACK under XLA.

    Args:
      effects: Those of the groups, (groups, kinds) or (kinds, groups).
      scale, cholesky: Of one group's effects.
      shape: Of `effects`, but for leading axes.

    Returns:
      The effects z, shaped alike, and the log volume of a over that of z, summed over
      all of `shape` and over leading axes.
    """
    num_kinds = cholesky.shape[-1]
    is_last = shape[-1] == num_kinds
    given = effects if is_last else jnp.swapaxes(effects, -1, -2)
    found: list[Any] = []
    for kind in range(num_kinds):
        rest = given[..., kind] / scale[..., None, kind]
        for other, z in enumerate(found):
            rest = rest - cholesky[..., None, kind, other] * z
        found.append(rest / cholesky[..., None, kind, kind])
    stacked = jnp.stack(found, axis=-1)
    diagonal = jnp.diagonal(cholesky, axis1=-2, axis2=-1)
    num_groups = math.prod(shape) // num_kinds
    log_volume = num_groups * jnp.sum(jnp.log(scale) + jnp.log(diagonal))
    return stacked if is_last else jnp.swapaxes(stacked, -1, -2), log_volume
