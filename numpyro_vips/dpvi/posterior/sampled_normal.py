"""The Normal that has the intervals of a density, from draws of it.

The Normal with the largest ELBO stands for a density that is nearly one itself. Where
scales of effects are learnt from few groups the density is a funnel (Neal, 2003): the
smaller the scale, the narrower the effects. The best Normal may then lie in its neck,
several times too narrow, or wherever the ascent has ended. What the rows said is known
by now, so that the density costs no row, and it is drawn from: Hamiltonian Monte Carlo
(Neal, 2011) in the coordinates in which the best Normal is standard, with many chains
side by side.
"""

import math

import numpy as np
from jaxtyping import Float64

from numpyro_vips.dpvi.posterior.variational_newton import (
    Draws,
    Target,
    VectorNormal,
)

# Where the log ratio of the density and the Normal varies by no more over draws, the
# Normal stands for it.
_NEARLY_NORMAL = 0.1
# Chains start from draws that are so many times as wide, and the first third of their
# steps finds the length of a leap, at which so many are accepted.
_CHAINS, _WIDER, _STEPS, _LEAPS = 64, 1.5, 180, 8
_FIRST_LEAP, _ACCEPTED, _ENOUGH = 0.3, 0.8, 0.4
# The normal quantile of 95 %.
_QUANTILE = 1.6448536


def with_its_intervals(
    target: Target, normal: VectorNormal, draws: Draws
) -> VectorNormal:
    """The Normal with a density's central 90 % intervals and correlations.

    Args:
      target: The log density.
      normal: The Normal with the largest ELBO.
      draws: At these it is looked at whether that stands for the density.

    Returns:
      `normal` where it does, or where next to no draw is accepted. The draws of the
      chains are the same in every fit.
    """
    values, _ = target(normal.at(draws.points))
    ratios = values + 0.5 * np.sum(draws.points**2, axis=1)
    if not np.isfinite(ratios).all() or np.std(ratios) <= _NEARLY_NORMAL:
        return normal
    found = _drawn(target, normal)
    if found is None:
        return normal
    low, high = np.quantile(found, [0.05, 0.95], axis=0)
    stddev = (high - low) / (2.0 * _QUANTILE)
    correlation = np.corrcoef(found.T).reshape(2 * (len(stddev),))
    try:
        root = stddev[:, None] * np.linalg.cholesky(correlation)
    except np.linalg.LinAlgError:
        return normal
    return VectorNormal(0.5 * (low + high), root)


def _drawn(
    target: Target, normal: VectorNormal
) -> Float64[np.ndarray, "draws size"] | None:
    """Draws of the density; None where too few steps are accepted to call them so."""

    def at(
        points: Float64[np.ndarray, "chains size"],
    ) -> tuple[Float64[np.ndarray, " chains"], Float64[np.ndarray, "chains size"]]:
        values, gradients = target(normal.at(points))
        return values, gradients @ normal.tril

    rng = np.random.default_rng(0)
    place = _WIDER * rng.normal(size=(_CHAINS, len(normal.loc)))
    value, gradient = at(place)
    leap, accepted, kept = _FIRST_LEAP, 0.0, []
    for step in range(_STEPS):
        momentum = rng.normal(size=place.shape)
        start = value - 0.5 * np.sum(momentum**2, axis=1)
        length = leap * rng.uniform(0.6, 1.2, size=(_CHAINS, 1))
        end, there, slope = place, value, gradient
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(_LEAPS):
                momentum = momentum + 0.5 * length * slope
                end = end + length * momentum
                there, slope = at(end)
                momentum = momentum + 0.5 * length * slope
            gain = there - 0.5 * np.sum(momentum**2, axis=1) - start
        chance = np.exp(np.minimum(np.where(np.isfinite(gain), gain, -math.inf), 0.0))
        moves = rng.uniform(size=_CHAINS) < chance
        place = np.where(moves[:, None], end, place)
        value = np.where(moves, there, value)
        gradient = np.where(moves[:, None], slope, gradient)
        if step < _STEPS // 3:
            leap *= math.exp(0.2 * (np.mean(chance) - _ACCEPTED))
        else:
            kept.append(place)
            accepted += np.mean(chance)
    return normal.at(np.concatenate(kept)) if accepted > _ENOUGH * len(kept) else None
