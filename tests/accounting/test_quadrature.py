"""Integrals against the normal density, against their closed forms."""

import math

import mpmath
import numpy as np
import pytest
from scipy import special

from numpyro_vips.accounting.quadrature import log_gaussian_integral


@pytest.mark.parametrize("t", [0.0, 0.3, 5.0, 60.0])
def test_an_exponential_has_its_moment_generating_function(t):
    """At 60 the integral is exp(1800), which no floating-point number holds."""
    found = log_gaussian_integral(lambda x: t * x, -14.0, t + 14.0, max(t, 1.0))
    assert found == pytest.approx(t**2 / 2, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("power", [2, 4, 10])
def test_even_powers_have_double_factorials(power):
    def log_factor(x):
        return power * np.log(np.abs(x))

    found = log_gaussian_integral(log_factor, -14.0, 14.0, 1.0)
    wanted = special.factorial2(power - 1)
    assert found == pytest.approx(math.log(wanted), rel=1e-9)


def test_a_part_of_the_line_has_its_mass():
    found = log_gaussian_integral(np.zeros_like, 5.0, 9.0, 1.0)
    wanted = special.ndtr(-5.0) - special.ndtr(-9.0)
    assert found == pytest.approx(math.log(wanted), rel=1e-12)


@pytest.mark.parametrize("mu", [0.01, 1.0, 15.0])
def test_a_fractional_power_of_a_mixture_is_the_one_of_mpmath(mu):
    rate, power = 0.02, 2.7

    def log_factor(x):
        loss = mu * x - mu**2 / 2
        return power * np.logaddexp(math.log1p(-rate), math.log(rate) + loss)

    def integrand(x):
        ratio = 1 - rate + rate * mpmath.exp(mu * x - mu**2 / 2)
        return mpmath.npdf(x) * ratio**power

    with mpmath.workdps(30):
        pieces = mpmath.linspace(-14, power * mu + 14, 12)
        wanted = float(mpmath.log(mpmath.quad(integrand, pieces)))
    found = log_gaussian_integral(log_factor, -14.0, power * mu + 14.0, mu)
    assert found == pytest.approx(wanted, rel=1e-9, abs=1e-13)
