"""The Gaussian mechanism, exactly."""

import math
from collections.abc import Callable

import numpy as np
from scipy import special


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Delta of the Gaussian mechanism with mean shift `mu` (Balle and Wang 2018).

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), for any real ε.

        >>> round(gaussian_delta(mu=0.5, epsilon=1.0), 4)
        0.0068

    Args:
      mu: Sensitivity over the standard deviation of the noise, positive. Not checked.
      epsilon: At which epsilon.

    Returns:
      The least delta at which the mechanism is (epsilon, delta)-private.
    """
    below = epsilon / mu - mu / 2
    above = epsilon / mu + mu / 2
    if below > -5:
        # With Mills ratios nothing cancels in the far tail.
        root = math.sqrt(0.5)
        ratios = special.erfcx(below * root) - special.erfcx(above * root)
        return float(0.5 * math.exp(-0.5 * below**2) * ratios)
    return float(special.ndtr(-below) - math.exp(epsilon + special.log_ndtr(-above)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least epsilon of a Gaussian mechanism with mean shift `mu`, rounded up."""
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # From zero-concentrated DP with rho = mu²/2: an upper end that is always enough.
    enough = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
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
