"""The Pólya-Gamma distribution against series, numerical integrals and draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions.kl import kl_divergence
from scipy import integrate

from numpyro_vips.polya_gamma import PolyaGamma

CASES = [(1.0, 0.0), (1.0, 0.005), (1.0, 0.05), (1.0, 1.3), (4.0, -2.5), (2.5, 12.0)]


def _cumulants(b: float, c: float) -> tuple[float, float]:
    """Mean and variance from the infinite sum of Gammas that defines PG(b, c)."""
    k = np.arange(1, 2_000_001) - 0.5
    scale = 1.0 / (2.0 * np.pi**2 * (k**2 + (c / (2.0 * np.pi)) ** 2))
    return b * scale.sum(), b * (scale**2).sum()


@pytest.mark.parametrize(("b", "c"), CASES)
def test_mean_and_variance_match_the_defining_series(b, c, x64):
    mean, variance = _cumulants(b, c)
    found = PolyaGamma(b, c)
    # The series' tail beyond two million terms is about 5e-8.
    assert float(found.mean) == pytest.approx(mean, rel=1e-6)
    assert float(found.variance) == pytest.approx(variance, rel=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(("b", "c"), [(1.0, 1.3), (4.0, -2.5)])
def test_divergence_matches_the_integral(b, c, x64):
    p, q = PolyaGamma(b, c), PolyaGamma(b, 0.0)

    grid = np.linspace(1e-4, 8.0, 40_001)
    log_p, log_q = np.asarray(p.log_prob(grid)), np.asarray(q.log_prob(grid))
    expected = integrate.simpson(np.exp(log_p) * (log_p - log_q), x=grid)
    assert float(kl_divergence(p, q)) == pytest.approx(expected, abs=1e-5)
    assert float(kl_divergence(p, p)) == pytest.approx(0.0, abs=1e-12)
    assert np.isnan(float(kl_divergence(p, PolyaGamma(b + 1.0, 0.0))))


@pytest.mark.parametrize(("b", "c"), CASES)
def test_draws_have_the_right_moments(b, c):
    found = PolyaGamma(b, c)
    draws = np.asarray(found.sample(jax.random.key(3), (20_000,)))
    assert draws.shape == (20_000,)
    error = np.sqrt(float(found.variance) / draws.size)
    assert abs(draws.mean() - float(found.mean)) < 5.0 * error
    assert draws.var() == pytest.approx(float(found.variance), rel=0.15)


def test_draws_of_large_tilts_have_the_right_moments():
    """At 10¹⁹ the library's were 10¹⁸ times too large where b is 1."""
    b, c = np.array([1.0, 8.0, 60.0, 3.0, 1.0]), np.array([101, 2e3, 800, -1e6, 1e19])
    draws = np.asarray(PolyaGamma(b, c).sample(jax.random.key(3), (20_000,)))
    mean, spread = b / np.abs(2 * c), np.sqrt(2 / np.abs(b * c))
    relative = draws / mean - 1
    np.testing.assert_allclose(relative.mean(0), 0, atol=5 * spread[0] / 20_000**0.5)
    np.testing.assert_allclose(relative.std(0)[:3], spread[:3], rtol=0.05)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("b", [0.3, 1.0, 2.5, 8.0, 40.0, np.inf, np.nan, 0.0, -1.0])
def test_draws_come_to_an_end_whatever_the_parameters_are(b, double):
    """The library's do not at b = 8 and a tilt from 10¹⁷ on."""
    with jax.enable_x64(double):
        large = 1e300 if double else 1e38
        c = jnp.array([1.0, np.inf, -np.inf, np.nan, -1e19, 1e17, large])
        found = PolyaGamma(jnp.asarray(b), c, validate_args=False)
        draws = np.asarray(found.sample(jax.random.key(0)))
    has_draws = np.isfinite(b) and b > 0
    possible = np.isfinite(c) & has_draws
    np.testing.assert_array_equal(np.isfinite(draws), possible)


def test_draws_depend_on_the_key_and_batch():
    found = PolyaGamma(jnp.ones(3), jnp.array([0.0, 1.0, 2.0]))
    first = found.sample(jax.random.key(0), (5,))
    assert first.shape == (5, 3)
    assert np.array_equal(first, found.sample(jax.random.key(0), (5,)))
    assert not np.array_equal(first, found.sample(jax.random.key(1), (5,)))


def test_log_prob_integrates_to_one(x64):
    found = PolyaGamma(2.0, 0.7)
    grid = np.linspace(1e-4, 8.0, 40_001)
    total = integrate.simpson(np.exp(np.asarray(found.log_prob(grid))), x=grid)
    assert total == pytest.approx(1.0, abs=1e-5)


def test_sample_needs_a_key():
    with pytest.raises(ValueError, match="key"):
        PolyaGamma(1.0, 0.0).sample(None)
