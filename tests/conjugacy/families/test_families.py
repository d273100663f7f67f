"""Which family a latent gets, and the numerics of single families."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy import special, stats

from numpyro_vips.conjugacy import families
from numpyro_vips.conjugacy.families import find_family, supports
from numpyro_vips.conjugacy.families.digamma import digamma
from numpyro_vips.conjugacy.families.generalized_inverse_gaussian import (
    GeneralizedInverseGaussian,
    _gig_draws,
)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("c", [0.0, 1e-8, 1e-4, 1e-2, 1.0, 30.0, 1e4])
def test_polya_gamma_mean(c: float) -> None:
    """E[PG(1, c)] = tanh(c/2) / (2c), from 1/4 at 0 to 0; Polson et al. (2013)."""
    found = float(families.PolyaGamma().moments({"x": jnp.asarray(-0.5 * c**2)})["x"])
    expected = 0.25 if c == 0 else np.tanh(c / 2) / (2 * c)
    assert found == pytest.approx(expected, rel=1e-6)


# --- which family -----------------------------------------------------------------

POSITIVE = constraints.positive
FOUND = [
    (constraints.real, {"x"}, "Normal"),
    (constraints.real, {"x", "xx"}, "Normal"),
    (constraints.real_vector, {"x", "xx"}, "Normal"),
    (constraints.real, {"x", "xx", "xxx"}, None),
    (constraints.real, {"log"}, None),
    (POSITIVE, {"x", "log"}, "Gamma"),
    (POSITIVE, {"log"}, "Gamma"),
    (POSITIVE, {"1/x", "log"}, "InverseGamma"),
    (POSITIVE, {"x", "1/x", "log"}, "GeneralizedInverseGaussian"),
    (POSITIVE, {"x^-2", "log"}, "RootInverseGamma"),
    (POSITIVE, {"x^2", "x", "log"}, None),
    (POSITIVE, {"x^0.5"}, None),
    (constraints.nonnegative, {"x", "log"}, "Gamma"),
    (constraints.unit_interval, {"log", "log1m"}, "Beta"),
    (constraints.interval(0.0, 1.0), {"log1m"}, "Beta"),
    (constraints.interval(0.0, 2.0), {"log"}, None),
    (constraints.unit_interval, {"x"}, None),
    (constraints.simplex, {"log"}, "Dirichlet"),
    (constraints.simplex, {"x"}, None),
    (constraints.positive_definite, {"x", "logdet"}, "Wishart"),
    (constraints.positive_definite, {"inv", "logdet"}, "InverseWishart"),
    (constraints.positive_definite, {"inv", "x"}, None),
    (constraints.independent(POSITIVE, 1), {"x", "log"}, "Gamma"),
    (constraints.greater_than(3.0), {"x", "log"}, None),
    (constraints.less_than(0.0), {"x"}, None),
    (constraints.ordered_vector, {"x", "xx"}, None),
    (constraints.circular, {"x", "xx"}, None),
]


@pytest.mark.parametrize(("support", "statistics", "name"), FOUND)
def test_find_family(support: Any, statistics: set[str], name: str | None) -> None:
    family = find_family(support, statistics)
    assert (family and family.name) == name


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
        _gig_draws(np.random.default_rng(1), np.full(20_000, p), np.full(20_000, omega))
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


def test_digamma_in_single_precision() -> None:
    """Within a few units in the last place of SciPy's, in absolute terms near 0."""
    x = np.concatenate([np.geomspace(1e-30, 3e38, 4001), np.linspace(1e-3, 12, 4001)])
    x = x.astype(np.float32)
    found = np.asarray(jax.jit(digamma)(x), np.float64)
    expected = special.digamma(x.astype(np.float64))
    error = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    assert error.max() < 8 * np.finfo(np.float32).eps
    outside = np.asarray(digamma(jnp.array([0.0, -0.5, -2.0, np.nan], np.float32)))
    assert np.isnan(outside).all()
    assert digamma(jnp.float32(np.inf)) == np.inf


@pytest.mark.parametrize(
    ("support", "text"),
    [
        (constraints.real_vector, "Real"),
        (constraints.positive, "Positive"),
        (constraints.interval(0, 100), "Interval(0, 100)"),
        (constraints.greater_than(2.5), "GreaterThan(2.5)"),
        (constraints.interval(np.zeros(3), 1.0), "Interval"),
        (constraints.unit_interval, "UnitInterval"),
    ],
)
def test_supports_are_described_with_their_bounds(support: Any, text: str) -> None:
    assert supports.described(support) == text


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "matrix"),
    [(families.Wishart(), "rate_matrix"), (families.InverseWishart(), "scale_matrix")],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize(("degrees", "is_one"), [(2.5, True), (1.5, False)])
def test_wishart_needs_more_degrees_than_its_size_less_one(
    family: Any, matrix: str, degrees: float, is_one: bool
) -> None:
    parameters = {"concentration": jnp.asarray(degrees), matrix: jnp.eye(3)}
    found = family.requirements(parameters)
    assert all(bool(holds) for holds in found.values()) is is_one
