"""The Gaussian mechanism, exactly."""

import math
from collections.abc import Callable

import numpy as np
from scipy import special

# Of Gauss-Legendre quadrature over an interval of length 1 at most, where what is
# integrated is known to the last digits by as many nodes.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)
_LEAST = math.ulp(0.0)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Delta of the Gaussian mechanism with mean shift `mu` (Balle and Wang 2018).

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), for any real ε. It is never zero: below the
    least positive number it is rounded up.

        >>> round(gaussian_delta(mu=0.5, epsilon=1.0), 4)
        0.0068

    Args:
      mu: Sensitivity over the standard deviation of the noise, positive. Not checked.
      epsilon: At which epsilon.

    Returns:
      The least delta at which the mechanism is (epsilon, delta)-private.
    """
    mu, epsilon = float(mu), float(epsilon)
    if epsilon < 0:  # Swaps the two distributions; nothing cancels.
        swapped = gaussian_delta(mu, -epsilon)
        return -math.expm1(epsilon) + math.exp(epsilon) * swapped
    below = epsilon / mu - mu / 2
    above = epsilon / mu + mu / 2
    if below <= -5:
        larger = math.exp(epsilon + special.log_ndtr(-above))
        return float(special.ndtr(-below)) - larger
    if below > 40:
        return _LEAST
    density = math.exp(-0.5 * below**2) / math.sqrt(2 * math.pi)
    # NaN, which comes first, stays.
    return max(density * _fall_of_mills_ratio(below, mu), _LEAST)


def _fall_of_mills_ratio(start: float, length: float) -> float:
    """R(start) − R(start + length) of R(x) = Φ(−x) / φ(x), of which no part cancels.

    Args:
      start: At least −5.
      length: Positive. A short one leaves no difference between two ratios, or between
        the two places; R'(x) = x R(x) − 1 is integrated then.
    """
    if length > 1:
        return float(_mills_ratio(start) - _mills_ratio(start + length))
    x = start + length / 2 * (1 + _NODES)
    return length / 2 * float(np.dot(_WEIGHTS, 1 - x * _mills_ratio(x)))


def _mills_ratio(x: float | np.ndarray) -> np.ndarray:
    return math.sqrt(math.pi / 2) * np.asarray(special.erfcx(x * math.sqrt(0.5)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least epsilon of a Gaussian mechanism with mean shift `mu`, rounded up."""
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # From zero-concentrated DP with rho = mu²/2: an upper end that is always enough.
    enough = mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta))
    return enough - last_true(
        lambda back: gaussian_delta(mu, enough - back) <= delta, 0.0, enough
    )


def largest_mu(epsilon: float, delta: float) -> float:
    """The largest mean shift that is (epsilon, delta)-private."""
    high = 1.0
    while gaussian_delta(high, epsilon) <= delta:
        high *= 2
    return last_true(
        lambda mu: mu == 0 or gaussian_delta(mu, epsilon) <= delta, 0, high
    )


def sampled_loss(loss: float, rate: float) -> float:
    """log(1 − q + q·e^L): a privacy loss L after sampling at a rate q."""
    if loss < 30:
        return math.log1p(rate * math.expm1(loss))
    return float(np.logaddexp(special.log1p(-rate), math.log(rate) + loss))


def last_true(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number found in [low, high] at which a falling condition holds.

    `holds(low)` is presumed. Bisection, to the last bits.
    """
    if holds(high):
        return high
    for _ in range(200):
        middle = 0.5 * (low + high)
        if not low < middle < high or high - low < 1e-13 * high:
            break
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
