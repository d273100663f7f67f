"""The analytical moments accountant of Wang, Balle and Kasiviswanathan (2019)."""

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from numpyro_vips.accounting.events import Groups, StepGroup, total_mu
from numpyro_vips.accounting.quadrature import log_gaussian_integral

_MOST_EXACT_ORDER = 500
_MOMENT_ORDERS = tuple(range(2, _MOST_EXACT_ORDER + 1)) + tuple(
    round(_MOST_EXACT_ORDER * 2 ** (k / 4)) for k in range(1, 21)
)
_ROUNDING = 2.0**-50


def moments_epsilon(groups: Groups, delta: float) -> float:
    """min over integer α of RDP(α) + log(1/δ)/(α − 1) (Mironov 2017, proposition 3).

    Between two integers the bound is monotone, because the log moments are
    interpolated linearly, so integers suffice.
    """
    log_inverse = math.log(1 / delta)
    mu = total_mu(groups)
    unsampled = mu**2 / 2 + mu * math.sqrt(2 * log_inverse)
    if all(group.sampling == "full" for group in groups):
        return unsampled
    orders = np.array(_MOMENT_ORDERS)
    divergences = sum(
        group.num_steps * _moments(group._replace(num_steps=1)) for group in groups
    )
    return min(unsampled, float(np.min(divergences + log_inverse / (orders - 1))))


@functools.lru_cache(maxsize=64)
def _moments(group: StepGroup) -> np.ndarray:
    orders = np.array(_MOMENT_ORDERS, float)
    if group.sampling == "full":
        return orders * group.mu**2 / 2
    terms = (
        _poisson_moment_terms(group)
        if group.sampling == "poisson"
        else _without_replacement_moment_terms(group)
    )
    log_factorial = special.gammaln(np.arange(_MOMENT_ORDERS[-1] + 1) + 1.0)
    log_moments: list[float] = []
    for order in _MOMENT_ORDERS:
        powers = np.arange(order + 1)
        binomial = log_factorial[order] - log_factorial[: order + 1]
        binomial = binomial - log_factorial[order::-1]
        log_moments.append(special.logsumexp(binomial + terms(order, powers)))
    # The rounding of the binomials, which is what matters of steps whose moments are as
    # small as their number is large.
    rounding = _ROUNDING * (1.0 + log_factorial[list(_MOMENT_ORDERS)])
    return (np.maximum(0.0, log_moments) + rounding) / (orders - 1)


_MomentTerms = Callable[[int, np.ndarray], np.ndarray]


def _poisson_moment_terms(group: StepGroup) -> _MomentTerms:
    """Exact for integer orders, adding or removing one row.

    The moment is Σ_j C(α, j)·(1−q)^(α−j)·q^j·exp(j(j−1)μ²/2).
    """
    rate, half_squared_mu = group.sampling_rate, group.mu**2 / 2

    def terms(order: int, powers: np.ndarray) -> np.ndarray:
        return (
            powers * math.log(rate)
            + (order - powers) * math.log1p(-rate)
            + powers * (powers - 1) * half_squared_mu
        )

    return terms


def _without_replacement_moment_terms(group: StepGroup) -> _MomentTerms:
    """Theorem 27 of Wang, Balle and Kasiviswanathan, as autodp evaluates it.

    exp of the log moment is at most 1 + Σ_{j≥2} C(α, j) qʲ·b(j), where b(j) is the
    smaller of 2·exp((j−1)·RDP(j)) and 4·sqrt(B(2⌊j/2⌋)·B(2⌈j/2⌉)) with
    B(k) = E_Q[(P/Q − 1)ᵏ]. (autodp finds B by repeated differences, which lose all
    digits for weak signals; the integral here loses none.)
    """
    mu, rate = group.mu, group.sampling_rate
    powers = np.arange(_MOMENT_ORDERS[-1] + 1, dtype=float)
    bounds = math.log(2) + powers * (powers - 1) * mu**2 / 2
    # Beyond j·mu² = 20 the first bound is the smaller one.
    last = min(_MOST_EXACT_ORDER, math.floor(20 / mu**2))
    even = {j: _log_central_moment(mu, j) for j in range(2, last + 1, 2)}
    for j in range(2, last):
        low, high = 2 * (j // 2), 2 * ((j + 1) // 2)
        if high in even:
            second = math.log(4) + 0.5 * (even[low] + even[high])
            bounds[j] = min(bounds[j], second)
    bounds = bounds + powers * math.log(rate)
    bounds[0], bounds[1] = 0.0, -math.inf

    def terms(order: int, powers: np.ndarray) -> np.ndarray:
        return bounds[: order + 1]

    return terms


def _log_central_moment(mu: float, power: int) -> float:
    """log ∫ N(x; 0, 1)·(exp(μx − μ²/2) − 1)^power dx for an even power."""

    def log_factor(x: np.ndarray) -> np.ndarray:
        loss = mu * x - mu**2 / 2
        with np.errstate(divide="ignore"):
            size = np.log(np.abs(np.expm1(np.minimum(loss, 30))))
        return power * np.where(loss > 30, loss, size)

    return log_gaussian_integral(log_factor, -14.0, power * mu + 14, mu)
