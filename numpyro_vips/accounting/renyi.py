"""Rényi divergences of the events, and their conversion to epsilon."""

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from numpyro_vips.accounting.events import GaussianEvent, Groups, StepGroup, groups_of
from numpyro_vips.accounting.quadrature import log_gaussian_integral

RENYI_ORDERS = tuple(
    [1 + k / 10 for k in range(1, 100)]
    + [float(k) for k in range(11, 65)]
    + [float(round(64 * 2 ** (k / 2))) for k in range(1, 24)]
)
# Bound on the error of a step's log moment where this is small: a sum of numbers near 1
# is rounded, and steps may be as many as their moments are small. The largest error
# found is 2e-15.
_ROUNDING = 1e-14


def renyi_of_events(
    events: Sequence[GaussianEvent], orders: Sequence[float] = RENYI_ORDERS
) -> np.ndarray:
    """Rényi divergence bounds of all the events together, one for each order."""
    return _renyi(groups_of(events), tuple(orders))


def renyi_to_epsilon(order: float, divergence: float, delta: float) -> float:
    """Converts one order (Canonne, Kamath and Steinke 2020, proposition 12)."""
    return _at_least_zero(
        divergence
        + math.log1p(-1 / order)
        - (math.log(delta) + math.log(order)) / (order - 1)
    )


def renyi_epsilon(groups: Groups, delta: float) -> float:
    """The least epsilon that the Rényi divergences of some steps prove at `delta`."""
    divergences = _renyi(groups, RENYI_ORDERS)
    return min(
        renyi_to_epsilon(order, float(divergence), delta)
        for order, divergence in zip(RENYI_ORDERS, divergences, strict=True)
    )


def renyi_delta(groups: Groups, epsilon: float) -> float:
    """The least delta that the Rényi divergences of some steps prove at `epsilon`."""
    orders = np.array(RENYI_ORDERS)
    exponents = (orders - 1) * (
        _renyi(groups, RENYI_ORDERS) - epsilon + np.log1p(-1 / orders)
    ) - np.log(orders)
    return float(min(1.0, math.exp(min(0.0, np.min(exponents)))))


def _renyi(groups: Groups, orders: tuple[float, ...]) -> np.ndarray:
    total = np.zeros(len(orders))
    for group in groups:
        if group.noise_multiplier == 0:
            return np.full(len(orders), math.inf)
        total += group.num_steps * _single_step_renyi(
            group._replace(num_steps=1), orders
        )
    return total


@functools.lru_cache(maxsize=64)
def _single_step_renyi(group: StepGroup, orders: tuple[float, ...]) -> np.ndarray:
    """Divergences of one step's dominating pair, never above the unsampled ones.

    For Poisson batches the pair is P = (1−q)·N(0, 1) + q·N(μ, 1) against N(0, 1), whose
    divergence in this direction is the larger one (Mironov, Talwar and Zhang 2019).
    """
    unsampled = np.array(orders) * group.mu**2 / 2
    if group.sampling == "full" or group.mu > 20:
        return unsampled
    sampled = np.array([_sampled_divergence(group, order) for order in orders])
    return np.minimum(sampled, unsampled)


def _sampled_divergence(group: StepGroup, order: float) -> float:
    mu, rate = group.mu, group.sampling_rate
    if order * mu > 300:
        # The sampled bound is long past its use there.
        return math.inf
    if group.sampling == "poisson":
        moment = _log_ratio_moment(mu, rate, order, -14.0)
    else:
        # Positive losses, their mirror image, and the atom at zero between them.
        near = special.ndtr(-mu / 2)
        atom = 1 - ((1 - rate) * near + rate * special.ndtr(mu / 2)) - near
        parts = [
            _log_ratio_moment(mu, rate, order, mu / 2),
            _log_ratio_moment(mu, rate, 1 - order, mu / 2),
            math.log(atom) if atom > 0 else -math.inf,
        ]
        moment = float(special.logsumexp(parts))
    return (_at_least_zero(moment) + _ROUNDING) / (order - 1)


def _at_least_zero(value: float) -> float:
    """`max` would take NaN for zero: here it is no privacy."""
    return math.inf if math.isnan(value) else max(0.0, value)


def _log_ratio_moment(mu: float, rate: float, power: float, start: float) -> float:
    """log ∫ N(x; 0, 1)·(1 − q + q·exp(μx − μ²/2))^power dx from `start` up."""

    def log_factor(x: np.ndarray) -> np.ndarray:
        loss = mu * x - mu**2 / 2
        return power * np.logaddexp(math.log1p(-rate), math.log(rate) + loss)

    end = max(power, 0.0) * mu + 14 + abs(start)
    return log_gaussian_integral(log_factor, start, end, mu)
