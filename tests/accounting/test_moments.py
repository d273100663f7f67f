"""The moments accountant, against autodp, the papers and its own definition."""

import math
from typing import Any

import mpmath
import pytest
from _events import PAPERS, event
from scipy import optimize

from numpyro_vips import accounting
from numpyro_vips.accounting import moments
from numpyro_vips.accounting.events import StepGroup, groups_of
from numpyro_vips.accounting.moments import moments_epsilon

# What autodp's accountant gives, with its improved bound and 500 orders.
MOMENTS = [0.816, 0.052, 0.0258, 1.345, 1.743, 2.448, 3.368, 2.3826]


@pytest.mark.parametrize(("run", "price"), list(zip(PAPERS, MOMENTS, strict=True)))
def test_moments_gives_the_papers_prices(run, price):
    rate, noise, steps, delta = run
    got = accounting.epsilon(
        noise_multiplier=noise,
        sampling_rate=rate,
        num_steps=steps,
        delta=delta,
        sampling="without_replacement",
        accountant="moments",
    )
    assert got == pytest.approx(price, abs=6e-4)


@pytest.mark.parametrize(
    ("sampling", "noise", "rate", "steps", "delta"),
    [("without_replacement", 1.5, 0.03, 60, 1e-5), ("poisson", 1.1, 0.01, 200, 1e-5)],
)
def test_moments_agrees_with_autodp(sampling, noise, rate, steps, delta):
    from autodp import rdp_acct, rdp_bank

    accountant = rdp_acct.anaRDPacct(m=100, m_max=100)

    def divergence(order):
        return rdp_bank.RDP_gaussian({"sigma": noise}, order)

    if sampling == "poisson":
        accountant.compose_poisson_subsampled_mechanisms(divergence, rate, steps)
    else:
        accountant.compose_subsampled_mechanism(
            divergence, rate, steps, improved_bound_flag=True
        )
    got = accounting.epsilon(
        noise_multiplier=noise,
        sampling_rate=rate,
        num_steps=steps,
        delta=delta,
        sampling=sampling,
        accountant="moments",
    )
    assert got == pytest.approx(accountant.get_eps(delta), rel=1e-6)


def moment_by_powers(order: int, mu: float, rate: float) -> float:
    """log E[(P/Q)^order] / (order - 1), with P's powers multiplied out in 50 digits."""
    with mpmath.workdps(50):
        m: Any = mpmath.mpf(mu)
        q: Any = mpmath.mpf(rate)
        total = mpmath.fsum(
            mpmath.binomial(order, j)
            * (1 - q) ** (order - j)
            * q**j
            * mpmath.exp(j * (j - 1) * m**2 / 2)
            for j in range(order + 1)
        )
        return float(mpmath.log(total) / (order - 1))


@pytest.mark.parametrize(("noise", "rate"), [(0.8, 0.001), (3.0, 0.2)])
def test_moments_of_poisson_batches_are_exact_at_integers(noise, rate):
    group = StepGroup("poisson", noise, rate, 1)
    found = moments._moments(group)
    for order in (2, 3, 17, 200):
        wanted = moment_by_powers(order, 1 / noise, rate)
        assert found[order - 2] == pytest.approx(wanted, rel=1e-7, abs=1e-15)


@pytest.mark.parametrize("mu", [0.02, 0.5, 2.0])
@pytest.mark.parametrize("power", [2, 6, 20])
def test_central_moments_are_their_alternating_sum(mu, power):
    """Which loses up to 60 digits: hence the integral."""
    with mpmath.workdps(120):
        m: Any = mpmath.mpf(mu)
        wanted = mpmath.log(
            mpmath.fsum(
                mpmath.binomial(power, j)
                * (-1) ** (power - j)
                * mpmath.exp(j * (j - 1) * m**2 / 2)
                for j in range(power + 1)
            )
        )
    assert moments._log_central_moment(mu, power) == pytest.approx(float(wanted))


def test_full_batches_are_priced_at_the_best_real_order():
    groups = groups_of([event(2.0, 1.0, 3, "full"), event(5.0, 1.0, 1, "full")])
    half, log_inverse = (3 / 4 + 1 / 25) / 2, math.log(1e6)
    best: Any = optimize.minimize_scalar(
        lambda order: order * half + log_inverse / (order - 1),
        bounds=(1.001, 100.0),
        method="bounded",
    )
    assert moments_epsilon(groups, 1e-6) == pytest.approx(float(best.fun), rel=1e-6)


@pytest.mark.parametrize("sampling", ["poisson", "without_replacement"])
def test_a_sampled_step_is_never_dearer_than_a_full_one(sampling):
    full = moments_epsilon(groups_of([event(0.1, 1.0, 2, "full")]), 1e-5)
    sampled = moments_epsilon(groups_of([event(0.1, 0.9, 2, sampling)]), 1e-5)
    assert sampled <= full
