"""How well a posterior's tails match: the shape of the largest importance ratios.

Where the k̂ of a generalised Pareto distribution, fitted to the largest ratios p/q of
draws from q, is above 0.7, estimates under q may be far from those under p, however
well its optimisation has converged (Yao, Vehtari, Simpson and Gelman, 2018).
"""

import math

import numpy as np
from jaxtyping import Float64

# Above which q does not stand for p.
LARGEST_GOOD_SHAPE = 0.7
_FEWEST_IN_TAIL = 5
_ALIKE = 1e-6


def pareto_shape(log_ratios: Float64[np.ndarray, " draws"]) -> float:
    """k̂ of importance ratios, as in ArviZ's `psislw`.

    The estimate is that of Zhang and Stephens (2009), with the prior of Vehtari,
    Simpson, Gelman, Yao and Gabry (2024, appendix C). Fitting needs nothing else of
    ArviZ, which takes seconds to import.

    Args:
      log_ratios: Logarithms of the ratios, up to a constant.

    Returns:
      The shape; zero where the ratios are all alike, and infinity where one is not
      finite or the tail is too short.
    """
    if not np.all(np.isfinite(log_ratios)):
        return math.inf
    if np.ptp(log_ratios) < _ALIKE:
        return 0.0
    ordered = np.sort(log_ratios - np.max(log_ratios))
    in_tail = min(len(ordered) // 5, math.ceil(3.0 * math.sqrt(len(ordered))))
    cutoff = np.exp(max(ordered[-in_tail - 1], math.log(np.finfo(float).tiny)))
    tail = np.exp(ordered[-in_tail:]) - cutoff
    tail = tail[tail > 0]
    if len(tail) < _FEWEST_IN_TAIL:
        return math.inf
    count = len(tail)
    number = 30 + math.isqrt(count)
    quartile = tail[int(count / 4 + 0.5) - 1]
    places = np.arange(1, number + 1) - 0.5
    rates = (1.0 - np.sqrt(number / places)) / (3.0 * quartile) + 1.0 / tail[-1]
    shapes = np.mean(np.log1p(-rates[:, None] * tail), axis=1)
    log_likelihoods = count * (np.log(-rates / shapes) - shapes - 1.0)
    weights = np.exp(log_likelihoods - np.max(log_likelihoods))
    rate = np.sum(rates * weights) / np.sum(weights)
    shape = np.mean(np.log1p(-rate * tail))
    return float((count * shape + 10 * 0.5) / (count + 10))
