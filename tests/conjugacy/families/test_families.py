"""Exponential families: one contract for all of them, against scipy and sampling."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints
from scipy import special, stats

from numpyro_vips.conjugacy import families
from numpyro_vips.conjugacy.families import FAMILIES, find_family
from numpyro_vips.conjugacy.families.digamma import digamma
from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.conjugacy.families.generalized_inverse_gaussian import (
    GeneralizedInverseGaussian,
    _gig_draws,
)

RNG = np.random.default_rng(0)


def _precision(size: int) -> np.ndarray:
    root = RNG.normal(size=(size, size))
    return root @ root.T + np.eye(size)


# A batch of two members of each family, by natural parameters.
NATURAL: dict[str, dict[str, np.ndarray]] = {
    "Gamma": {"x": [-0.5, -3.0], "log": [0.7, 4.0]},
    "InverseGamma": {"1/x": [-0.5, -3.0], "log": [-4.5, -7.0]},
    "Beta": {"log": [-0.2, 3.0], "log1m": [1.5, 0.3]},
    "Dirichlet": {"log": [[-0.3, 2.0, 0.5], [4.0, 0.1, 1.0]]},
    "Categorical": {"is": [[0.3, -1.0, 2.0], [0.0, 0.0, 1.0]]},
    "Normal": {
        "x": RNG.normal(size=(2, 3)),
        "xx": np.stack([-0.5 * _precision(3), -0.5 * _precision(3)]),
    },
    "Wishart": {
        "x": np.stack([-0.5 * _precision(2), -0.5 * _precision(2)]),
        "logdet": [1.5, 3.0],
    },
    "InverseWishart": {
        "inv": np.stack([-0.5 * _precision(2), -0.5 * _precision(2)]),
        "logdet": [-4.5, -6.0],
    },
    "PolyaGamma": {"x": [-0.5, -8.0]},
    "Tangent": {"x": [-0.7, 3.0]},
    "GeneralizedInverseGaussian": {
        "x": [-0.5, -2.0],
        "1/x": [-1.0, -0.3],
        "log": [0.4, -2.0],
    },
    "RootInverseGamma": {"x^-2": [-0.5, -3.0], "log": [-5.0, -8.0]},
    "RootGeneralizedInverseGaussian": {
        "x^2": [-0.5, -2.0],
        "x^-2": [-1.0, -0.3],
        "log": [-0.4, -2.0],
    },
}  # type: ignore[assignment]

# What the names of statistics mean, for values with a batch axis in front.
STATISTICS: dict[str, Any] = {
    "x": lambda x: x,
    "1/x": lambda x: 1 / x,
    "x^2": lambda x: x**2,
    "x^-2": lambda x: x**-2.0,
    "log": np.log,
    "log1m": lambda x: np.log1p(-x),
    "xx": lambda x: x[..., :, None] * x[..., None, :],
    "is": lambda x: (x[..., None] == np.arange(3)).astype(float),
    "inv": np.linalg.inv,
    "logdet": lambda x: np.linalg.slogdet(x)[1],
}

ALL = [match.family for match in FAMILIES]
# The auxiliary variable of an observation is never released, so it is never drawn.
SAMPLED = [f for f in ALL if f.name not in ("PolyaGamma", "Tangent")]
by_name = functools.partial(pytest.mark.parametrize, ids=lambda f: f.name)


def natural_of(family: type[Family]) -> dict[str, jax.Array]:
    assert family.name in NATURAL, "give every registered family an example here"
    return {k: jnp.asarray(v, float) for k, v in NATURAL[family.name].items()}


@pytest.mark.usefixtures("x64")
@by_name("family", ALL)
def test_moments_are_the_slope_of_the_log_normaliser(family: type[Family]) -> None:
    natural = natural_of(family)
    assert set(natural) == set(family.statistics)

    @jax.jit
    def both(natural: dict[str, jax.Array]) -> Any:
        slope = jax.grad(lambda n: family.log_normalizer(n).sum())(natural)
        return family.moments(natural), slope

    moments, slope = both(natural)
    for statistic in family.statistics:
        np.testing.assert_allclose(
            moments[statistic], slope[statistic], rtol=1e-7, atol=1e-9
        )
    # Two independent members: a batch is no more than that.
    alone, _ = both({k: v[1:] for k, v in natural.items()})
    for statistic in family.statistics:
        np.testing.assert_allclose(moments[statistic][1:], alone[statistic])


@pytest.mark.usefixtures("x64")
@by_name("family", [f for f in ALL if "Generalized" in f.name])
def test_a_derivative_rule_of_our_own_is_right(family: type[Family]) -> None:
    """By differences, in which a hand-written derivative cannot hide."""
    natural = natural_of(family)
    moments = jax.jit(family.moments)(natural)
    normalizer = jax.jit(lambda n: family.log_normalizer(n).sum())
    for statistic in family.statistics:
        up, down = dict(natural), dict(natural)
        up[statistic] = natural[statistic] + np.array([1e-5, 0.0])
        down[statistic] = natural[statistic] - np.array([1e-5, 0.0])
        slope = float(normalizer(up) - normalizer(down)) / 2e-5
        assert slope == pytest.approx(float(moments[statistic][0]), rel=1e-5)


@pytest.mark.usefixtures("x64")
@by_name("family", SAMPLED)
def test_moments_and_natural_parameters_match_the_distribution(
    family: type[Family],
) -> None:
    natural = natural_of(family)
    # Draws of the generalised inverse Gaussian are slow.
    count = 2_000 if "Generalized" in family.name else 20_000

    @jax.jit
    def everything(natural: dict[str, jax.Array]) -> Any:
        distribution = family.distribution(family.parameters(natural))
        draws = jnp.asarray(distribution.sample(jax.random.key(2), (count,)))
        densities = distribution.log_prob(draws[:6])
        return draws, family.moments(natural), densities

    draws, moments, rest = jax.tree.map(np.asarray, everything(natural))
    for statistic in family.statistics:
        values = STATISTICS[statistic](draws)
        error = values.std(0) / np.sqrt(len(values)) + 1e-12
        assert np.abs((values.mean(0) - moments[statistic]) / error).max() < 4.5
        # log q(x) - ⟨natural, s(x)⟩ is the same at all x.
        product = STATISTICS[statistic](draws[:6]) * np.asarray(natural[statistic])
        rest = rest - product.reshape((6, 2, -1)).sum(-1)
    np.testing.assert_allclose(rest, np.broadcast_to(rest[:1], rest.shape), atol=1e-6)


@pytest.mark.usefixtures("x64")
def test_scipy_agrees_on_standard_parameters() -> None:
    cases = [
        (families.Gamma, stats.gamma(5.0, scale=1 / 3.0), "x"),
        (families.InverseGamma, stats.invgamma(6.0, scale=3.0), "1/x"),
        (families.Beta, stats.beta(4.0, 1.3), "log"),
    ]
    for family, reference, statistic in cases:
        natural = {k: v[1] for k, v in natural_of(family).items()}
        expected = reference.expect(STATISTICS[statistic])
        found = float(family.moments(natural)[statistic])
        assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("c", [0.0, 1e-8, 1e-4, 1e-2, 1.0, 30.0, 1e4])
def test_polya_gamma_mean(c: float) -> None:
    """E[PG(1, c)] = tanh(c/2) / (2c), from 1/4 at 0 to 0; Polson et al. (2013)."""
    found = float(families.PolyaGamma.moments({"x": jnp.asarray(-0.5 * c**2)})["x"])
    expected = 0.25 if c == 0 else np.tanh(c / 2) / (2 * c)
    assert found == pytest.approx(expected, rel=1e-6)


# --- projection -------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@by_name("family", SAMPLED)
def test_projection_leaves_noise_free_data_alone(family: type[Family]) -> None:
    """Data are sums of row statistics: here the share that makes the example."""
    natural = natural_of(family)
    # Half prior, half data; both lie in the family's cone up to the base measure.
    data = {k: 0.5 * v for k, v in natural.items()}
    for statistic in ("log", "log1m", "logdet"):
        if statistic in data and family.name in ("Beta", "Dirichlet", "Gamma"):
            data[statistic] = jnp.abs(data[statistic])
    prior = {k: natural[k] - data[k] for k in natural}
    noise = {k: jnp.zeros_like(v) for k, v in natural.items()}
    projected = jax.jit(family.project)(prior, data, noise)
    for statistic in family.statistics:
        np.testing.assert_array_equal(
            projected[statistic], prior[statistic] + data[statistic]
        )


def test_projection_of_noise_alone_is_a_proper_posterior() -> None:
    """Whatever noise does, reading the accumulator gives finite, valid parameters."""
    rng = np.random.default_rng(4)
    priors = {
        "Gamma": {"x": -1.0, "log": 0.5},
        "InverseGamma": {"1/x": -1.0, "log": -3.0},
        "Beta": {"log": 0.5, "log1m": 0.2},
        "Dirichlet": {"log": np.zeros(4)},
        "Normal": {"x": np.zeros(5), "xx": -0.5 * np.eye(5)},
        "Wishart": {"x": -0.5 * np.eye(3), "logdet": 1.0},
        "InverseWishart": {"inv": -0.5 * np.eye(3), "logdet": -5.0},
    }
    for family in SAMPLED:
        if family.name not in priors:
            continue
        prior = {k: jnp.asarray(v, float) for k, v in priors[family.name].items()}

        @jax.jit
        def read(data: Any, noise: Any) -> Any:
            natural = family.project(prior, data, noise)  # noqa: B023
            return family.parameters(natural), family.moments(natural)  # noqa: B023

        for scale in (1e-2, 1.0, 1e3):
            data = {k: scale * rng.normal(size=v.shape) for k, v in prior.items()}
            data = {k: v + v.T if v.ndim == 2 else v for k, v in data.items()}
            noise = {k: jnp.full(v.shape, scale) for k, v in prior.items()}
            arrays = {k: jnp.asarray(v) for k, v in data.items()}
            parameters, moments = read(arrays, noise)
            for value in (*parameters.values(), *moments.values()):
                assert np.all(np.isfinite(value))
            for name in ("concentration", "concentration0", "concentration1", "rate"):
                assert np.all(parameters.get(name, jnp.ones(1)) > 0)
            for name in ("covariance_matrix", "rate_matrix"):
                matrix = parameters.get(name, jnp.eye(2))
                assert np.linalg.eigvalsh(matrix).min() > 0


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


def test_every_family_has_a_name_of_its_own() -> None:
    assert len({family.name for family in ALL}) == len(ALL)


@pytest.mark.usefixtures("x64")
def test_categorical_normaliser_is_a_log_sum() -> None:
    natural = natural_of(families.Categorical)
    expected = logsumexp(natural["is"], axis=-1)
    np.testing.assert_allclose(families.Categorical.log_normalizer(natural), expected)


# Large and small orders, narrow and wide densities, and both limiting Gammas.
GIG_CASES = [
    (0.5, 1.0), (-0.5, 2.0), (0.0, 0.01), (-3.0, 0.3), (5.0, 10.0), (50.0, 0.1),
    (-20.0, 30.0), (-0.5, 300.0), (0.0, 1e-6), (1000.0, 5.0), (0.3, 1e-15),
]  # fmt: skip


@jax.jit
def _gig_moments(parameters: dict[str, jax.Array]) -> dict[str, Any]:
    natural = GeneralizedInverseGaussian.from_parameters(parameters)
    found = GeneralizedInverseGaussian.moments(natural)
    normalizer = GeneralizedInverseGaussian.log_normalizer(natural)
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
    natural = GeneralizedInverseGaussian.from_parameters(parameters)
    return GeneralizedInverseGaussian.moments(natural)


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
