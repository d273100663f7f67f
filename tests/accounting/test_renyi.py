"""Rényi divergences against integrals and dp-accounting's."""

import math
from typing import Any

import dp_accounting
import mpmath
import numpy as np
import pytest
from _events import event
from dp_accounting import rdp as google_rdp

from numpyro_vips import accounting
from numpyro_vips.accounting import moments
from numpyro_vips.accounting.events import groups_of
from numpyro_vips.accounting.renyi import renyi_epsilon


def integrated_divergence(ratio, order, lower=-30):
    with mpmath.workdps(30):
        moment = mpmath.quad(
            lambda x: mpmath.npdf(x) * ratio(x) ** order,
            [lower, -4, 0, 2, 4, 8, 16, 40],
        )
        return float(mpmath.log(moment) / (order - 1))


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_poisson_renyi_is_the_integral(order):
    noise, rate = 1.2, 0.03
    got = accounting.renyi_of_events([event(noise, rate, 3)], [order])[0]

    def ratio(x):
        return 1 - rate + rate * mpmath.exp(x / noise - 1 / (2 * noise**2))

    assert got == pytest.approx(3 * integrated_divergence(ratio, order), rel=1e-9)


@pytest.mark.parametrize("noise", [1e2, 1e3, 1e4])
def test_many_steps_that_each_say_next_to_nothing_are_not_free(noise):
    """Their log moments are below the rounding of numbers near 1."""
    rate, steps = 1e-4, 10**15
    with mpmath.workdps(60):
        q: Any = mpmath.mpf(rate)
        m: Any = mpmath.mpf(1 / noise)
        for order in (2, 3, 10, 40):
            moment = mpmath.fsum(
                mpmath.binomial(order, j)
                * (1 - q) ** (order - j)
                * q**j
                * mpmath.exp(j * (j - 1) * m**2 / 2)
                for j in range(order + 1)
            )
            truth = steps * float(mpmath.log(moment) / (order - 1))
            events = [event(noise, rate, steps)]
            (got,) = accounting.renyi_of_events(events, [float(order)])
            assert truth <= got <= truth + steps * 2e-14 / (order - 1)
            (group,) = groups_of(events)
            of_moments = steps * moments._moments(group._replace(num_steps=1))
            assert truth <= of_moments[order - 2] <= truth + steps * 1e-14


def test_poisson_renyi_agrees_with_dp_accounting():
    orders = [1.5, 2, 5.5, 16, 64]
    got = accounting.renyi_of_events([event(0.9, 0.02, 10)], orders)
    accountant = google_rdp.RdpAccountant(orders)
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(0.9)),
        10,
    )
    whole = np.array([float(order).is_integer() for order in orders])
    np.testing.assert_allclose(got[whole], accountant._rdp[whole], rtol=1e-6)
    # Between integers its series adds absolute values: a bound on the integral.
    assert np.all(got[~whole] <= accountant._rdp[~whole] * (1 + 1e-9))


@pytest.mark.parametrize("order", [2.0, 6.0, 20.0])
def test_without_replacement_renyi_lies_between_truth_and_theorem(order):
    noise, rate = 1.5, 0.1
    got = accounting.renyi_of_events(
        [event(noise, rate, sampling="without_replacement")], [order]
    )[0]
    accountant = google_rdp.RdpAccountant(
        [order], dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(
        dp_accounting.SampledWithoutReplacementDpEvent(
            1000, 100, dp_accounting.GaussianDpEvent(noise)
        )
    )

    def ratio(x):
        return 1 - rate + rate * mpmath.exp(x / noise - 1 / (2 * noise**2))

    truth = integrated_divergence(ratio, order)
    assert truth * (1 - 1e-9) <= got <= accountant._rdp[0]


@pytest.mark.parametrize("sampling", accounting.SAMPLINGS)
def test_renyi_prices_are_above_the_pld_ones(sampling):
    rate = 1.0 if sampling == "full" else 0.02
    events = [event(1.5, rate, 200, sampling)]
    groups = groups_of(events)
    pld = accounting.epsilon_of_events(events, delta=1e-6)
    renyi = renyi_epsilon(groups, 1e-6)
    assert pld <= renyi <= 1.25 * pld


def test_not_a_number_is_no_divergence_of_zero():
    assert accounting.renyi_to_epsilon(2.0, math.nan, 1e-5) == math.inf
    assert accounting.renyi_to_epsilon(2.0, 1.0, math.nan) == math.inf
