"""Integrals against the normal density, in log space."""

import math
from collections.abc import Callable

import numpy as np
from scipy import special


def log_gaussian_integral(
    log_factor: Callable[[np.ndarray], np.ndarray], start: float, end: float, mu: float
) -> float:
    """log ∫ N(x; 0, 1)·factor(x) dx, for factors that vary on the scale 1 / mu.

    Gauss-Legendre panels in log space: every term is positive, so nothing cancels.
    """
    panels = math.ceil((end - start) * 2 * max(1.0, mu))
    nodes, weights = np.polynomial.legendre.leggauss(10)
    edges = np.linspace(start, end, panels + 1)
    half = (edges[1] - edges[0]) / 2
    x = (edges[:-1, None] + half * (nodes + 1)).ravel()
    exponents = log_factor(x) - x**2 / 2 - 0.5 * math.log(2 * math.pi)
    return float(special.logsumexp(exponents + np.tile(np.log(weights * half), panels)))
