"""Moments by Bessel functions, by sums and by draws."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from numpyro_vips.conjugacy.families.generalized_inverse_gaussian import (
    GeneralizedInverseGaussian,
)
from numpyro_vips.conjugacy.families.gig_draws import gig_draws

# Large and small orders, narrow and wide densities, and both limiting Gammas.
GIG_CASES = [
    (0.5, 1.0), (-0.5, 2.0), (0.0, 0.01), (-3.0, 0.3), (5.0, 10.0), (50.0, 0.1),
    (-20.0, 30.0), (-0.5, 300.0), (0.0, 1e-6), (1000.0, 5.0), (0.3, 1e-15),
]  # fmt: skip


@jax.jit
def _gig_moments(parameters: dict[str, jax.Array]) -> dict[str, Any]:
    natural = GeneralizedInverseGaussian().from_parameters(parameters)
    found = GeneralizedInverseGaussian().moments(natural)
    normalizer = GeneralizedInverseGaussian().log_normalizer(natural)
    return {**found, "log_normalizer": normalizer}


def gig_moments(p: Any, a: Any, b: Any, dtype: Any = np.float64) -> dict[str, Any]:
    given = {"p": p, "a": a, "b": b}
    return _gig_moments({name: jnp.asarray(x, dtype) for name, x in given.items()})


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("omega", [1e-6, 0.01, 0.3, 1.0, 5.0, 30.0, 400.0])
def test_gig_moments_agree_with_bessel_functions_of_scipy(omega: float) -> None:
    """E[x^r] = (b/a)^(r/2) K_{p+r}(ω) / K_p(ω), the normaliser 2 (b/a)^(p/2) K_p(ω)."""
    p = np.array([0.0, 1e-3, 0.5, 0.9, 1.0, 1.3, 2.0, 5.0, 20.0])
    p = np.concatenate([p, -p])
    a, b = 3.0 * omega, omega / 3.0
    found = gig_moments(p, np.full_like(p, a), np.full_like(p, b))

    def log_k(order: Any) -> Any:
        return np.log(special.kve(order, omega)) - omega

    expected = {
        "x": np.exp(log_k(p + 1) - log_k(p)) / 3,
        "1/x": np.exp(log_k(p - 1) - log_k(p)) * 3,
        "log_normalizer": np.log(2) - p * np.log(3) + log_k(p),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-11, atol=1e-11)
    slope = (log_k(p + 1e-4) - log_k(p - 1e-4)) / 2e-4
    np.testing.assert_allclose(found["log"], slope - np.log(3), rtol=1e-6, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("p", "omega"), GIG_CASES)
def test_gig_moments_agree_with_sums(p: float, omega: float, dtype: Any) -> None:
    """Where Bessel functions overflow, by a sum over the density of log x."""
    centre = np.arcsinh(p / omega)
    width = 60 / (1 + np.hypot(p, omega) ** 0.5) + 80 * (np.hypot(p, omega) < 20)
    u = centre + np.linspace(-width, width, 2_000_001)
    with np.errstate(over="ignore"):
        log_density = p * u - omega * np.cosh(u)
    highest = log_density.max()
    total = np.exp(log_density - highest).sum()
    expected = {
        "x": np.exp(log_density + u - highest - np.log(total)).sum(),
        "1/x": np.exp(log_density - u - highest - np.log(total)).sum(),
        "log": (np.exp(log_density - highest) * u).sum() / total,
        "log_normalizer": highest + np.log(total * (u[1] - u[0])),
    }
    found = gig_moments(p, omega, omega, dtype)
    # Single precision knows log x, and so x itself, to as much.
    single = max(2e-6, 2 * np.finfo(np.float32).eps * abs(np.log(omega)))
    tolerance = 1e-9 if dtype == np.float64 else single
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance)


def test_gig_moments_of_rows_take_the_same_time_for_all_rows() -> None:
    """Only what is public may choose the number of points."""
    p, a, b = jnp.array([0.3, -2.0]), jnp.array([1.0, 3.0]), jnp.array([2.0, 1e-8])
    found = jax.vmap(gig_single)(p, a, b)
    for name, value in gig_single(p, a, b).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6)
    # A loop of a fixed length is a scan.
    of_rows = str(jax.make_jaxpr(jax.vmap(gig_single))(p, a, b))
    assert "while[" not in of_rows and "length=128" in of_rows
    assert "while[" in str(jax.make_jaxpr(gig_single)(p, a, b))


@jax.jit
def gig_single(p: Any, a: Any, b: Any) -> dict[str, Any]:
    parameters = {"p": p, "a": a, "b": b}
    natural = GeneralizedInverseGaussian().from_parameters(parameters)
    return GeneralizedInverseGaussian().moments(natural)


@pytest.mark.parametrize(("p", "omega"), GIG_CASES)
def test_gig_draws_have_their_density(p: float, omega: float) -> None:
    draws = np.log(
        gig_draws(np.random.default_rng(1), np.full(20_000, p), np.full(20_000, omega))
    )
    # The density of log x, ∝ exp(p·u - omega·cosh u), summed up on a fine grid.
    centre, width = draws.mean(), draws.std()
    grid = np.linspace(centre - 40 * width, centre + 40 * width, 800_001)
    with np.errstate(over="ignore"):
        log_density = p * grid - omega * np.cosh(grid)
    cumulative = np.cumsum(np.exp(log_density - log_density.max()))
    cumulative /= cumulative[-1]
    result = stats.kstest(draws, lambda u: np.interp(u, grid, cumulative))
    assert result.pvalue > 1e-3
