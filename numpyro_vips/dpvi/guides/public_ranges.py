"""Where iterates may go: so far that no posterior is lost, and no draw overflows.

Noise may drive an iterate anywhere, and the scale of a guide most of all: a positive
latent is the exponential of what is fitted, so a Normal that is wide there has draws
that are infinite. The ranges are the model's and the number format's alone, so they are
public, and they are so wide that rows do not come near them: e^±40 about the prior's
centre for a positive latent in single precision.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64
from numpyro.distributions import constraints

from numpyro_vips.dpvi.guides.unconstrained import GuideSite, UnconstrainedSpace
from numpyro_vips.jax_tools.double_precision import evaluate_in_double

# Distances that are tried, in the units of the unconstrained space. Squares of the
# last one are finite, and so are those of numbers that are multiplied by it.
_DISTANCES = 2.0 ** np.arange(0.0, 50.125, 0.125)
# Of the distance half is for the mean; the rest is so many standard deviations, which
# no draw is away.
_STDDEVS = 8.0
# Standard deviations, relative to the mean, that are not lost in its rounding.
_ROUNDINGS = 8.0


class PublicRanges(NamedTuple):
    """How far from a place the globals may be, by coordinate.

    Attributes:
      centre: The place, unconstrained.
      distance: At this and any smaller distance the latents are finite, and positive
        if they are to be.
    """

    centre: Float[np.ndarray, " size"]
    distance: Float[np.ndarray, " size"]

    def holding(
        self, arrays: Mapping[str, Float[Array, "size ..."]]
    ) -> dict[str, Float[Array, "size ..."]]:
        """The arrays of an automatic guide, moved to where all of its draws are.

        Inside the ranges nothing is changed. A mean or a scale that is not a number
        stays so; entries of a factor that are not finite become zero.

        Args:
          arrays: `loc` and `log_scale`, and `factor` if there is one.
        """
        loc, log_scale = arrays["loc"], arrays["log_scale"]
        dtype = loc.dtype
        centre = jnp.asarray(self.centre, dtype)
        distance = jnp.asarray(self.distance, dtype)
        loc = jnp.clip(loc, centre - 0.5 * distance, centre + 0.5 * distance)
        largest = jnp.log(0.5 / _STDDEVS * distance)
        resolution = _ROUNDINGS * jnp.finfo(dtype).eps
        smallest = jnp.log(resolution * jnp.maximum(jnp.abs(loc), resolution))
        held = {
            "loc": loc,
            "log_scale": jnp.clip(log_scale, jnp.minimum(smallest, largest), largest),
        }
        if "factor" in arrays:
            # The scale of a draw is e^log_scale times the root of one and this square.
            factor = jnp.nan_to_num(arrays["factor"], posinf=0.0, neginf=0.0)
            most = jnp.exp(largest - held["log_scale"])
            size = jnp.max(jnp.abs(factor), axis=1)
            unit = factor / jnp.maximum(size, 1e-30)[:, None]
            length = size * jnp.sqrt(jnp.sum(unit**2, axis=1))
            room = jnp.sqrt(jnp.maximum(most**2 - 1.0, 0.0))
            shorter = jnp.minimum(length, room) / jnp.maximum(length, 1e-30)
            held["factor"] = jnp.where(
                (length > room)[:, None], factor * shorter[:, None], factor
            )
        return held


def public_ranges(
    space: UnconstrainedSpace, start: Float[Array, " size"]
) -> PublicRanges:
    """Ranges about the prior's centre, found by trying distances on both sides.

    Args:
      space: The globals.
      start: The prior's centre, unconstrained.
    """
    centre = np.asarray(start, np.float64)
    distances = [
        np.full(place.size, _distance_of(site, place))
        for site, place in zip(space.sites, space.split(centre).values(), strict=True)
    ]
    return PublicRanges(centre, np.concatenate([np.zeros(0), *distances]))


def _distance_of(site: GuideSite, place: Float64[np.ndarray, "*site"]) -> float:
    """The largest distance up to which all that were tried are inside."""
    dtype = jnp.result_type(float)
    steps = np.concatenate([_DISTANCES, -_DISTANCES])
    tried = place + steps.reshape(-1, *(1,) * place.ndim)
    try:
        # The transform has the precision in which it is asked for.
        found = evaluate_in_double(lambda z: jax.vmap(site.transform)(z), tried)
    # NumPyro's transforms of correlations take no single precision among doubles.
    except TypeError:
        found = jax.vmap(site.transform)(jnp.asarray(tried, dtype))
    with np.errstate(over="ignore"):
        values = np.asarray(found).astype(dtype).reshape(len(steps), -1)
    inside: Any = np.all(np.isfinite(values), axis=1)
    if is_positive(site.support):
        # JAX rounds what is smaller to zero; NumPy does not.
        inside &= np.all(values >= np.finfo(dtype).tiny, axis=1)
    outside = ~(inside[: len(_DISTANCES)] & inside[len(_DISTANCES) :])
    number = int(np.argmax(outside)) if outside.any() else len(outside)
    return float(_DISTANCES[max(0, number - 1)])


def is_positive(support: Any) -> bool:
    """Whether numbers of this support are above zero, which is no edge of others."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    bound = getattr(support, "lower_bound", None)
    return bound is not None and np.ndim(bound) == 0 and float(bound) == 0.0
