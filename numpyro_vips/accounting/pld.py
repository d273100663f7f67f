"""Prices by privacy loss distributions, on a grid that is refined until they stay."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from numpyro_vips.accounting.dominating_pairs import (
    MOST_REACH,
    loss_range,
    single_step_pld,
)
from numpyro_vips.accounting.events import (
    Groups,
    StepGroup,
    scaled_groups,
    total_mu,
)
from numpyro_vips.accounting.gaussian import gaussian_delta, gaussian_epsilon
from numpyro_vips.accounting.renyi import renyi_delta, renyi_epsilon

# Fast Fourier transforms leave about this much error in every composed probability
# (measured against exact Gaussian curves, up to 10⁵ steps). It grows with the number of
# steps: at 10⁷ a delta of 1e-9 was a fifth too small.
_FFT_ERROR = 1e-12
_MOST_PLD_STEPS = 10**5
_SMALLEST_PLD_DELTA = 1e-10
_REFINEMENT = 0.002
_FEWEST_GRID_POINTS = 2**11
_MOST_GRID_POINTS = 2**18
_LEAST_NOISE_MULTIPLIER = 0.05


def pld_epsilon(groups: Groups, delta: float) -> float:
    """The epsilon of steps by their privacy loss distributions, rounded up.

    Steps on full batches are priced exactly. Where the grid of losses cannot resolve
    the answer, other bounds that hold take over; see `accounting`.

    Args:
      groups: The steps, each with noise.
      delta: Target delta, in (0, 1).
    """
    groups = _with_one_full_step(groups)
    if all(group.sampling == "full" for group in groups):
        return gaussian_epsilon(total_mu(groups), delta)
    if not _pld_is_reliable(groups, delta):
        return _fallback_epsilon(groups, delta)
    read = functools.partial(_epsilon_of, delta=delta)
    price, converged, _ = _refine(groups, read, reach_of(groups, delta))
    return price if converged else min(price, _fallback_epsilon(groups, delta))


def pld_delta(groups: Groups, epsilon: float) -> float:
    """The delta of steps by their privacy loss distributions, rounded up.

    Args:
      groups: The steps, each with noise.
      epsilon: Target epsilon, finite.
    """
    groups = _with_one_full_step(groups)
    if all(group.sampling == "full" for group in groups):
        return gaussian_delta(total_mu(groups), epsilon)
    fallback = min(
        gaussian_delta(total_mu(groups), epsilon), renyi_delta(groups, epsilon)
    )
    if not _pld_is_reliable(groups, 1.0):
        return fallback
    delta, converged, _ = _refine(
        groups,
        lambda pld: float(pld.get_delta_for_epsilon(epsilon)) + _FFT_ERROR,
        MOST_REACH,
    )
    if converged and delta >= _SMALLEST_PLD_DELTA:
        return delta
    return min(fallback, max(delta, _SMALLEST_PLD_DELTA))


def single_grid_price(
    groups: Groups, delta: float, factor: float
) -> Callable[[float], float]:
    """The price on the grid that resolves it at `factor`, scaled with the losses."""
    groups = _with_one_full_step(groups)
    scaled = scaled_groups(groups, factor)
    if not _pld_is_reliable(scaled, delta):
        return lambda other: pld_epsilon(scaled_groups(groups, other), delta)
    reach, read = reach_of(scaled, delta), functools.partial(_epsilon_of, delta=delta)
    ratio = _refine(scaled, read, reach).spacing / _loss_stddev(scaled)

    def price(factor: float) -> float:
        scaled = scaled_groups(groups, factor)
        if not _pld_is_reliable(scaled, delta):
            return _fallback_epsilon(scaled, delta)
        spacing = max(ratio * _loss_stddev(scaled), _smallest_spacing(scaled, reach))
        unsampled = gaussian_epsilon(total_mu(scaled), delta)
        return min(read(composed_pld(scaled, spacing, reach)), unsampled)

    return price


def _epsilon_of(pld: Any, delta: float) -> float:
    return float(pld.get_epsilon_for_delta(delta - _FFT_ERROR))


def _with_one_full_step(groups: Groups) -> Groups:
    """Full-batch steps compose exactly into one with their total mu."""
    sampled = tuple(group for group in groups if group.sampling != "full")
    full = tuple(group for group in groups if group.sampling == "full")
    if not full:
        return sampled
    return (*sampled, StepGroup("full", 1 / total_mu(full), 1.0, 1))


def _pld_is_reliable(groups: Groups, delta: float) -> bool:
    return (
        delta >= _SMALLEST_PLD_DELTA
        and sum(group.num_steps for group in groups) <= _MOST_PLD_STEPS
        and all(group.noise_multiplier >= _LEAST_NOISE_MULTIPLIER for group in groups)
    )


def _fallback_epsilon(groups: Groups, delta: float) -> float:
    return min(gaussian_epsilon(total_mu(groups), delta), renyi_epsilon(groups, delta))


def _loss_stddev(groups: Groups) -> float:
    """Root mean variance of one step's privacy loss, over all steps.

    Connecting the dots over an interval of length h adds at most h²/4 to the variance
    of one step's loss, so this is the scale that a grid has to resolve.
    """
    num_steps = sum(group.num_steps for group in groups)
    variance = sum(group.num_steps * group.loss_stddev**2 for group in groups)
    return math.sqrt(variance / num_steps)


def reach_of(groups: Groups, delta: float) -> float:
    """How many standard deviations of the signal the grid has to cover.

    Larger losses count as infinite, which adds their mass to delta: a ten-thousandth
    of it at most. A larger delta thus gets by with a shorter grid. At a reach of r a
    step's mass is q·Φ(−r) + (1 − q)·Φ(−r − μ), where Φ(−r − μ) ≤ Φ(−r)·exp(−rμ).
    It is rounded up, so that prices at several deltas share most of their grids.
    """

    def reach(weight: float) -> float:
        return -float(special.ndtri(min(0.5, 1e-4 * delta / weight)))

    least = reach(sum(g.num_steps * g.sampling_rate for g in groups))
    weight = sum(
        g.num_steps
        * (g.sampling_rate + (1 - g.sampling_rate) * math.exp(-least * g.mu))
        for g in groups
    )
    return min(MOST_REACH, 1.5 * math.ceil(reach(weight) / 1.5))


def _smallest_spacing(groups: Groups, reach: float) -> float:
    return loss_range(groups, reach) / _MOST_GRID_POINTS


class _Refined(NamedTuple):
    value: float
    converged: bool
    spacing: float


def _refine(groups: Groups, read: Callable[[Any], float], reach: float) -> _Refined:
    """Halves the grid until the reading moves by less than a fifth of a per cent.

    Every reading is an upper bound, so the smallest of them is the answer.
    """
    spacing = max(
        0.4 * _loss_stddev(groups), loss_range(groups, reach) / _FEWEST_GRID_POINTS
    )
    best = math.inf
    while spacing >= _smallest_spacing(groups, reach):
        finer = read(composed_pld(groups, spacing, reach))
        if best < math.inf and abs(best - finer) <= _REFINEMENT * finer:
            return _Refined(min(best, finer), True, spacing)
        best = min(best, finer)
        spacing /= 2
    return _Refined(best, False, 2 * spacing)


@functools.lru_cache(maxsize=16)
def composed_pld(groups: Groups, spacing: float, reach: float) -> Any:
    """The privacy loss distribution of all the steps, rounded up to the grid."""
    total = None
    for group in groups:
        one = single_step_pld(group, spacing, reach)
        # Masses below the smallest normal number overflow in its search for tails.
        with np.errstate(over="ignore"):
            many = one if group.num_steps == 1 else one.self_compose(group.num_steps)
        total = many if total is None else total.compose(many)
    return total
