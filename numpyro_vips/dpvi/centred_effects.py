"""Effects z of groups that rows know only times their scale: fitted as a = τ z.

In a predictor μ + τ z[group] with z ~ Normal(0, 1), as LocScaleReparam makes it, rows
say nothing of more of μ and less of all z, nor of a larger τ and smaller z, and how
much less depends on where μ and τ are. In a = τ z the directions are the same
everywhere, so that noise can be kept out of them (`gradients/silent_directions.py`),
and no row depends on τ: nothing is released of it, as of the scale of any prior. It is
the same model, and draws of z are a / τ.

That rows know of τ z alone is tried, on synthetic rows at random places of the globals.
No private value is read.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.extend.core as jex_core
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, Float64, Shaped

from numpyro_vips.dpvi.gradients.trial_gradients import picks_entries, trial_gradients
from numpyro_vips.dpvi.guides.public_ranges import is_positive
from numpyro_vips.dpvi.guides.unconstrained import GuideSite, UnconstrainedSpace
from numpyro_vips.model.distributions import unwrapped

# Effects for each scale, from which on they are those of groups.
_FEWEST_EFFECTS = 3
# Places at which gradients are looked at.
_TRIALS = 3
# What is left of a difference that is zero, in single precision, relative to its parts.
_ROUNDING = 1e-4


def centred_effects(
    density: Callable[[Mapping[str, Any], Mapping[str, Any]], Float[Array, ""]],
    program: Callable[[], jex_core.ClosedJaxpr],
    space: UnconstrainedSpace,
    priors: Mapping[str, Any],
    start: Mapping[str, Any],
    rows: Callable[[], Mapping[str, Shaped[np.ndarray, "rows ..."]]],
) -> dict[str, str]:
    """Names of such effects, and of the scale of each.

    Args:
      density: A row's log density, of the globals' values and of the row.
      program: Traces the same.
      space: The globals.
      priors: Their distributions given the globals before them.
      start: Unconstrained values of all globals, about which trials are made.
      rows: Makes synthetic rows, some of whose integers number the effects.
    """
    pairs = [*_candidates(space.sites, priors)]
    if not pairs or not picks_entries(program()):
        return {}
    trials = [
        *trial_gradients(
            density, start, rows(), number=_TRIALS, seed=7, values=space.values
        )
    ]
    found: dict[str, str] = {}
    for effects, scale in pairs:
        is_free = effects.name not in found and scale.name not in found.values()
        if is_free and all(_known_as_product(effects, scale, *t) for t in trials):
            found[effects.name] = scale.name
    return found


def _candidates(
    sites: Sequence[GuideSite], priors: Mapping[str, Any]
) -> Iterator[tuple[GuideSite, GuideSite]]:
    """Normal effects about zero, each with each scale that may multiply them."""
    for effects in sites:
        if not (effects.is_real and _is_about_zero(priors[effects.name])):
            continue
        for scale in sites:
            last = effects.shape[len(effects.shape) - len(scale.shape) :]
            has_many = math.prod(effects.shape) >= _FEWEST_EFFECTS * math.prod(last)
            if is_positive(scale.support) and scale.shape == last and has_many:
                yield effects, scale


def _is_about_zero(prior: Any) -> bool:
    base, _ = unwrapped(prior)
    return isinstance(base, dist.Normal) and not np.any(np.asarray(base.loc))


def _known_as_product(
    effects: GuideSite,
    scale: GuideSite,
    values: Mapping[str, Float[Array, "..."]],
    gradients: Mapping[str, Float[Array, "rows ..."]],
) -> bool:
    """Whether each row's density stays where scales grow and effects shrink."""
    of_effects = _slopes(effects, values, gradients)
    of_scale = _slopes(scale, values, gradients)
    added = tuple(range(1, 1 + len(effects.shape) - len(scale.shape)))
    total, parts = np.sum(of_effects, added), np.sum(np.abs(of_effects), added)
    is_finite = np.isfinite(total + of_scale).reshape(len(total), -1).all(1)
    total, parts, of_scale = (a[is_finite] for a in (total, parts, of_scale))
    is_alike: Bool[np.ndarray, ...] = np.abs(total - of_scale) <= _ROUNDING * (
        parts + np.abs(of_scale)
    )
    return bool(np.any(parts > 0) and np.all(is_alike))


def _slopes(
    site: GuideSite, values: Mapping[str, Any], gradients: Mapping[str, Any]
) -> Float64[np.ndarray, "rows ..."]:
    """What each row's density gains per relative growth of each number."""
    value = np.asarray(values[site.name], np.float64)
    return value * np.asarray(gradients[site.name], np.float64)
