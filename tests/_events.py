"""Releases that tests of accounting price, and the papers' runs."""

from typing import Any

import mpmath

from numpyro_vips.accounting.events import GaussianEvent, Relation, Sampling

# Sampling rate, noise multiplier, steps and delta.
ADULT = [(0.004, noise, 100, 1e-3) for noise in (1.0, 6.0, 12.0)]
SBN = [
    (size / 60_000, 1.0, steps, 1e-4)
    for size, steps in [(400, 150), (800, 75), (1600, 37), (3200, 18)]
]
LDA = [(0.05, 1.24, 20, 1e-4)]
PAPERS = ADULT + SBN + LDA


def event(
    noise: float = 1.0,
    rate: float = 0.01,
    steps: int = 1,
    sampling: Sampling = "poisson",
    relation: Relation = "add_or_remove",
    **other: Any,
) -> GaussianEvent:
    return GaussianEvent(
        noise_stddev=noise,
        sensitivity=1.0,
        relation="replace_one" if sampling == "without_replacement" else relation,
        sampling=sampling,
        sampling_rate=rate,
        num_steps=steps,
        **other,
    )


def exact_gaussian_delta(mu: float, epsilon: float) -> Any:
    """Balle and Wang (2018), theorem 8, to 60 digits."""
    with mpmath.workdps(60):
        return hockey_stick(mu, epsilon)


def hockey_stick(mu: float, epsilon: float) -> Any:
    """Their formula in as many digits as the context has."""
    m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
    first = mpmath.ncdf(m / 2 - e / m)
    return first - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
