"""The privacy losses of one step, on a grid: what the sampling's worst pair gives."""

import math
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from numpyro_vips.accounting.events import Groups, StepGroup
from numpyro_vips.accounting.gaussian import sampled_loss

MOST_REACH = 10.0  # Standard deviations.


def single_step_pld(group: StepGroup, spacing: float, reach: float = MOST_REACH) -> Any:
    """The step's losses on dp-accounting's distributions.

    `"poisson"`, `"full"`: the pair P = (1−q)·N(0, 1) + q·N(μ, 1), Q = N(0, 1) for
    removing a row, and its mirror image for adding one.

    `"without_replacement"`: amplification (Balle, Barthe and Gaboardi 2018, theorem 11)
    gives δ(ε) = q·δ_Gauss(log(1 + (e^ε − 1)/q)) for ε ≥ 0, which is the curve of the
    same P and Q. The relation is symmetric, so δ(−ε) = 1 − e^−ε + e^−ε·δ(ε). The pair
    with that curve has the losses of P where they are positive, their mirror image with
    the masses of Q where negative, and the rest of its mass at zero.
    """
    # dp-accounting takes a second to import: only those who need it wait for it.
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    def distribution(first: int, masses: np.ndarray, infinite: float) -> Any:
        return pld_pmf.DensePLDPmf(spacing, first, masses, infinite, True)

    last = math.ceil(highest_loss(group, reach) / spacing)
    if group.sampling == "without_replacement":
        half = _connected_masses(group, spacing, 0, last)
        half.mirrored[-1] += half.lower_above
        masses = np.concatenate([half.mirrored[:0:-1], half.masses])
        moved = half.masses.sum() + half.upper_above + half.mirrored.sum()
        masses[last] += half.mirrored[0] + max(0.0, 1 - moved)
        return privacy_loss_distribution.PrivacyLossDistribution(
            distribution(-last, masses, half.upper_above)
        )
    first = -math.ceil(lowest_loss(group) / spacing)
    whole = _connected_masses(group, spacing, first, last)
    # What lies outside the grid goes up: to its lowest point, or to infinity.
    whole.masses[0] += whole.upper_below
    whole.mirrored[-1] += whole.lower_above
    return privacy_loss_distribution.PrivacyLossDistribution(
        distribution(first, whole.masses, whole.upper_above),
        distribution(-last, whole.mirrored[::-1], whole.lower_below),
    )


class _ConnectedMasses(NamedTuple):
    """A step's losses on the grid points from `first` to `last`.

    Attributes:
      masses: Under P, of the loss log(P/Q), at each grid point.
      mirrored: Under Q, of the loss log(Q/P), at minus each grid point.
      upper_below: Mass of P below the grid; likewise the other three.
    """

    masses: np.ndarray
    mirrored: np.ndarray
    upper_below: float
    upper_above: float
    lower_below: float
    lower_above: float


def _connected_masses(
    group: StepGroup, spacing: float, first: int, last: int
) -> _ConnectedMasses:
    """Connects the dots (Doroshenko et al. 2022) of the step's pair, P against Q.

    Between two grid points both members' masses move to the two ends so that both sums
    stay: pessimistic, and second order in the spacing. Working from the masses, and not
    from differences of delta, keeps the relative precision of the tails.
    """
    mu, rate = group.mu, group.sampling_rate
    losses = spacing * np.arange(first, last + 1)
    # Where the likelihood ratio 1 − q + q·exp(μx − μ²/2) equals exp(loss).
    inner = losses
    if rate < 1:
        with np.errstate(divide="ignore"):
            inner = np.log1p(np.maximum(-1.0, np.expm1(losses) / rate))
    points = np.concatenate([[-np.inf], inner / mu + mu / 2, [np.inf]])
    lower = _interval_masses(points)
    upper = (1 - rate) * lower + rate * _interval_masses(points - mu)
    p, q = upper[1:-1], lower[1:-1]

    shrink = -math.expm1(-spacing)
    to_right = np.clip((p - q * np.exp(losses[:-1])) / shrink, 0, p)
    masses = np.append(p - to_right, 0.0)
    masses[1:] += to_right
    # The mirrored loss is highest on the left.
    to_left = np.clip((q - p * np.exp(-losses[1:])) / shrink, 0, q)
    mirrored = np.append(to_left, 0.0)
    mirrored[1:] += q - to_left
    return _ConnectedMasses(masses, mirrored, upper[0], upper[-1], lower[0], lower[-1])


def _interval_masses(points: np.ndarray) -> np.ndarray:
    """Standard normal mass between successive points, exact in both tails."""
    below, above = special.ndtr(points), special.ndtr(-points)
    return np.where(points[1:] < 0, np.diff(below), -np.diff(above))


def loss_range(groups: Groups, reach: float) -> float:
    """How wide the interval of losses of one step is, for the widest of some steps."""
    return max(lowest_loss(group) + highest_loss(group, reach) for group in groups)


def highest_loss(group: StepGroup, reach: float) -> float:
    """The step's loss log(1 − q + q·e^L) where the Gaussian's is L, at the reach."""
    return sampled_loss(_largest_loss(group.mu, reach), group.sampling_rate)


def lowest_loss(group: StepGroup) -> float:
    """Minus the lowest loss: sampling keeps it above log(1 − q)."""
    lowest = _largest_loss(group.mu)
    if group.sampling_rate == 1:
        return lowest
    return min(lowest, -math.log1p(-group.sampling_rate))


def _largest_loss(mu: float, reach: float = MOST_REACH) -> float:
    """The Gaussian's privacy loss at `reach` standard deviations."""
    return mu**2 / 2 + reach * mu
