"""The best Normal posterior without noise: from where, with which draws, until when.

Newton's method (`variational_newton.py`) runs from several starts with few draws, goes
on with more from the one that is best at others, and is repeated with fresh draws, each
time with twice as many, until these say the same. What is known of the posterior then
comes from draws that it was not fitted to.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from numpyro_vips.dpvi.posterior.importance_ratios import (
    LARGEST_GOOD_SHAPE,
    pareto_shape,
)
from numpyro_vips.dpvi.posterior.variational_newton import (
    Draws,
    Target,
    VectorNormal,
    ascend,
)

# More globals than these have a covariance of too many numbers.
MOST_GLOBALS = 300

# Log densities that differ by less, at the draws, are as good as the same: where log
# ratios have a small standard deviation s, the divergence of the densities is about
# s²/2, and means differ by about s standard deviations of the Normal at most (Talagrand
# 1996).
_ALIKE = 0.1

_EXPLORING_DRAWS = 8
_EXPLORING_STEPS = 60
_EXPLORING_PATIENCE = 2
_DRAWS = 64
_FEWEST_DRAWS = 16
_STEPS = 60
_MOST_ROUNDS = 6
# Points at which a step looks at the gradient, for its curvatures, at first.
_CURVATURE_POINTS = 512
_MOST_BASES = 64
_FRESH_DRAWS = 1000
_FEWEST_FRESH_DRAWS = 200
# By how many standard deviations, or what share of them, fresh draws may move a
# posterior that counts as found.
_MOVED_BY_DRAWS = 0.1


class Fit(NamedTuple):
    """A fit and what is known of it.

    Attributes:
      normal: The posterior.
      num_steps: Newton steps so far, from the best start.
      diagnostics: See `result.diagnostics`; None while it goes on.
    """

    normal: VectorNormal
    num_steps: int
    diagnostics: dict[str, Any] | None = None


def fit_normal(
    target: Target,
    starts: Sequence[VectorNormal],
    rng: np.random.Generator,
    *,
    diagonal: bool = False,
    most_points: int = 4096,
) -> Iterator[Fit]:
    """Finds the Normal with the largest ELBO.

    Args:
      target: The log joint density of globals and rows.
      starts: Where to try.
      rng: Where draws come from.
      diagonal: Whether coordinates are to be independent.
      most_points: At how many points a step may look at the density for the ELBO, and
        for curvatures, but for the fewest that it needs.

    Yields:
      A fit after every step from the best start; the last one has diagnostics.
    """
    size = len(starts[0].loc)
    few = Draws.of(rng, size, points=_EXPLORING_DRAWS, bases=1)
    tried = [_explored(target, start, few, diagonal=diagonal) for start in starts]
    q = _best(target, tried, rng, most_points)
    num_steps, moved, is_still = 0, math.inf, False
    for number in range(_MOST_ROUNDS):
        before = q
        count = max(_FEWEST_DRAWS, min(_DRAWS * 2**number, most_points // 2 * 2))
        points = min(_CURVATURE_POINTS * 2**number, most_points)
        bases = int(np.clip(points // (2 * size), 2, _MOST_BASES))
        draws = Draws.of(rng, size, points=count, bases=bases)
        is_still = False
        for step, found in enumerate(ascend(target, q, draws, diagonal=diagonal)):
            q, is_still = found.normal, found.moved <= _MOVED_BY_DRAWS
            num_steps += 1
            yield Fit(q, num_steps)
            if step + 1 == _STEPS:
                break
        moved = _distance(before, q)
        if is_still and number and moved <= _MOVED_BY_DRAWS:
            break
    fresh = int(np.clip(4 * most_points, _FEWEST_FRESH_DRAWS, _FRESH_DRAWS))
    diagnostics = _diagnostics(target, q, rng.normal(size=(fresh, size)))
    diagnostics["moved_by_fresh_draws"] = moved
    converged = is_still and moved <= _MOVED_BY_DRAWS
    yield Fit(q, num_steps, with_warnings(diagnostics | {"converged": converged}))


def _explored(
    target: Target, start: VectorNormal, draws: Draws, *, diagonal: bool
) -> VectorNormal:
    """The Normal after a few steps from a start, or fewer if it no longer improves."""
    last = start
    steps = ascend(
        target, start, draws, diagonal=diagonal, patience=_EXPLORING_PATIENCE
    )
    for number, found in enumerate(steps):
        last = found.normal
        if number + 1 == _EXPLORING_STEPS:
            break
    return last


def _best(
    target: Target,
    tried: Sequence[VectorNormal],
    rng: np.random.Generator,
    most_points: int,
) -> VectorNormal:
    """The one with the largest ELBO at draws that none of them was fitted to.

    At its own few draws a Normal of many coordinates may be 60 nats better than it is.
    """
    count = int(np.clip(most_points, _DRAWS, _FEWEST_FRESH_DRAWS))
    draws = rng.normal(size=(count, len(tried[0].loc)))

    def elbo(q: VectorNormal) -> float:
        found = float(np.mean(target(q.at(draws))[0])) + q.entropy
        return found if math.isfinite(found) else -math.inf

    return max(tried, key=elbo)


def _distance(one: VectorNormal, other: VectorNormal) -> float:
    """How far apart two Normals are: means, and variances as a share of them."""
    scale = np.sqrt(np.sum(other.tril**2, axis=1))
    ratio = np.sqrt(np.sum(one.tril**2, axis=1)) / scale
    loc = abs(one.loc - other.loc) / scale
    return float(max(np.max(loc), np.max(abs(np.log(ratio)))))


def _diagnostics(
    target: Target, q: VectorNormal, draws: Float64[np.ndarray, "draws size"]
) -> dict[str, Any]:
    """What draws say that the posterior was not fitted to."""
    values, _ = target(q.at(draws))
    log_q = -0.5 * np.sum(draws**2 - 1.0, axis=1) - q.entropy
    ratios = values - log_q
    return {
        "elbo": float(np.mean(ratios)),
        "elbo_standard_error": float(np.std(ratios) / math.sqrt(len(draws))),
        "log_ratio_stddev": float(np.std(ratios)),
        "pareto_k": pareto_shape(ratios),
    }


def with_warnings(diagnostics: dict[str, Any]) -> dict[str, Any]:
    """Diagnostics of a fit with `"warnings"`: sentences on what is wrong with it."""
    warnings = []
    if not diagnostics["converged"]:
        warnings.append(
            "The fit has not converged: its means and standard deviations may be far "
            "off. Scale the data, choose tighter priors, or look for latents that "
            "neither the rows nor their priors determine."
        )
    k = diagnostics["pareto_k"]
    # The shape of the tail says nothing of its size.
    if k > LARGEST_GOOD_SHAPE and diagnostics["log_ratio_stddev"] > _ALIKE:
        warnings.append(
            f"The posterior is far from a Normal (Pareto k = {k:.2f}, above "
            f"{LARGEST_GOOD_SHAPE}): means may be off, and standard deviations and "
            "tails more so. Try another parametrisation, or a guide of your own; "
            "without privacy, NUTS runs the same model."
        )
    return diagnostics | {"warnings": warnings}
