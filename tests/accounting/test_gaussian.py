"""The Gaussian mechanism's curve, against 60 digits and integration."""

import math

import mpmath
import pytest
from _events import exact_gaussian_delta, hockey_stick
from scipy import integrate, stats

from numpyro_vips import accounting
from numpyro_vips.accounting.gaussian import gaussian_epsilon, largest_mu


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, 2.0])
def test_gaussian_delta_is_the_closed_form(mu, share):
    epsilon = share * (mu**2 / 2 + 6 * mu)
    assert accounting.gaussian_delta(mu, epsilon) == pytest.approx(
        float(exact_gaussian_delta(mu, epsilon)), rel=1e-9, abs=1e-300
    )


@pytest.mark.parametrize("mu", [1e-6, 1e-12, 3e-16, 1e-20, 1e-100])
@pytest.mark.parametrize("deviations", [-2.0, 0.0, 1.0, 6.0, 30.0])
def test_nothing_cancels_at_a_weak_signal(mu, deviations):
    # With 160 digits, of which nearly all cancel.
    with mpmath.workdps(160):
        exact = float(hockey_stick(mu, deviations * mu))
    assert accounting.gaussian_delta(mu, deviations * mu) == pytest.approx(
        exact, rel=1e-12, abs=1e-300
    )


@pytest.mark.parametrize("mu", [1e-9, 1e-12, 1e-15, 1e-20])
def test_a_weak_signal_is_not_priced_too_low(mu):
    delta = 1e-3 * mu
    epsilon = gaussian_epsilon(mu, delta)
    with mpmath.workdps(80):
        assert hockey_stick(mu, epsilon) <= delta * (1 + 1e-12)
    assert largest_mu(epsilon, delta) == pytest.approx(mu, rel=1e-9)


def test_no_epsilon_is_said_to_hold_with_delta_zero():
    assert 0 < accounting.gaussian_delta(1.0, 100.0) < 1e-300


def test_gaussian_delta_is_a_hockey_stick():
    mu, epsilon = 1.3, 0.7

    def excess(x):
        return max(0.0, stats.norm.pdf(x - mu) - math.exp(epsilon) * stats.norm.pdf(x))

    start = epsilon / mu + mu / 2
    area, _ = integrate.quad(excess, start, 12, epsabs=1e-13)
    assert accounting.gaussian_delta(mu, epsilon) == pytest.approx(area, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-3, 1e-9])
@pytest.mark.parametrize("mu", [0.05, 1.0, 8.0])
def test_epsilon_and_the_largest_mean_shift_invert_the_curve(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    if epsilon == 0.0:
        assert exact_gaussian_delta(mu, 0.0) <= delta
        return
    assert float(exact_gaussian_delta(mu, epsilon)) == pytest.approx(delta, rel=1e-6)
    assert largest_mu(epsilon, delta) == pytest.approx(mu, rel=1e-8)
