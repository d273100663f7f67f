"""Fits without noise end where the posterior is, or say that they do not."""

import itertools
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of
from scipy import optimize, stats

import numpyro_vips as nv
from numpyro_vips.dpvi.posterior.full_batch import FullBatchDensity
from numpyro_vips.dpvi.posterior.variational_newton import (
    Draws,
    Iterate,
    VectorNormal,
    ascend,
)
from numpyro_vips.dpvi.posterior.without_noise import _best, with_warnings
from numpyro_vips.jax_tools.row_sums import DIAGNOSTICS, ZERO_ROWS

KEY = jax.random.key(0)


def fit(model: Any, *args: Any, unit: str = "rows", **options: Any) -> Any:
    engine, rng_key = options.pop("engine", nv.DPVI()), options.pop("rng_key", KEY)
    vi = vi_of(nv.private(model, unit=unit), budget=math.inf, engine=engine, **options)
    with warnings.catch_warnings(action="ignore"):
        return vi.run(rng_key, *args)


def moments(result: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    draws = np.asarray(
        result.sample_posterior(jax.random.key(1), (4000,))[name], np.float64
    )
    return draws.mean(0), draws.std(0)


def raw_columns() -> tuple[np.ndarray, np.ndarray]:
    """A year and an income, as they stand in a table."""
    rng = np.random.default_rng(0)
    X = np.column_stack(
        [np.ones(200), rng.uniform(1950, 2020, 200), rng.lognormal(11, 0.5, 200)]
    )
    return X, X @ [-300.0, 0.2, 4e-5] + 2.0 * rng.normal(size=200)


def regression(X: Any, y: Any = None):
    w: Any = numpyro.sample("w", dist.Normal(0, 1e4).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, 2.0), obs=y)


@pytest.mark.thorough
def test_a_regression_on_raw_columns_has_its_closed_form():
    X, y = raw_columns()
    result = fit(regression, X, y)
    covariance = np.linalg.inv(X.T @ X / 4.0 + np.eye(3) / 1e8)
    mean, sd = covariance @ X.T @ y / 4.0, np.sqrt(np.diag(covariance))
    found, spread = moments(result, "w")
    assert np.max(abs(found - mean) / sd) < 0.2
    np.testing.assert_allclose(spread, sd, rtol=0.1)
    assert result.diagnostics["converged"]
    assert result.diagnostics["warnings"] == []
    # The evidence p(y, w) / p(w | y), at the mean: the posterior is a Normal.
    evidence = np.sum(stats.norm.logpdf(y, X @ mean, 2.0))
    evidence += np.sum(stats.norm.logpdf(mean, 0.0, 1e4))
    evidence += 0.5 * (np.linalg.slogdet(covariance)[1] + 3 * math.log(2 * math.pi))
    assert abs(result.diagnostics["elbo"] - evidence) < 0.05


def poisson(x: Any, count: Any = None):
    a: Any = numpyro.sample("a", dist.Uniform(-20, 20))
    b: Any = numpyro.sample("b", dist.Uniform(-10, 10))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("count", dist.Poisson(jnp.exp(a + b * x)), obs=count)


@pytest.mark.thorough
def test_a_poisson_regression_with_large_counts_agrees_with_laplace():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 40)
    count = rng.poisson(np.exp(6.0 + 0.7 * x))
    result = fit(poisson, x, count)

    def loss(w: np.ndarray) -> float:
        return float(np.sum(np.exp(w[0] + w[1] * x) - count * (w[0] + w[1] * x)))

    mode = optimize.minimize(loss, [np.log(count.mean()), 0.0], tol=1e-10).x
    design = np.column_stack([np.ones(40), x])
    rates = np.exp(design @ mode)
    sd = np.sqrt(np.diag(np.linalg.inv(design.T * rates @ design)))
    for name, m, s in zip("ab", mode, sd, strict=True):
        found, spread = moments(result, name)
        assert abs(found - m) < 0.2 * s
        np.testing.assert_allclose(spread, s, rtol=0.1)


def wide_poisson(x: Any, count: Any = None):
    a: Any = numpyro.sample("a", dist.Normal(0, 1000))
    b: Any = numpyro.sample("b", dist.Normal(0, 1000))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("count", dist.Poisson(jnp.exp(a + b * x)), obs=count)


def vague_weibull(y: Any):
    """The shape's prior has its centre at 693, where numbers of rows overflow."""
    shape: Any = numpyro.sample("shape", dist.Exponential(0.001))
    a: Any = numpyro.sample("a", dist.Normal(0, 100))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Weibull(jnp.exp(a), shape), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_priors_far_wider_than_what_is_possible_are_no_obstacle(seed: int):
    rng = np.random.default_rng(seed)
    x = rng.uniform(2, 7, 300)
    count = rng.poisson(np.exp(2.0 + 0.3 * x))
    result = fit(wide_poisson, x, count, rng_key=jax.random.key(seed))
    design = np.column_stack([np.ones(300), x])
    mode = optimize.minimize(
        lambda w: float(np.sum(np.exp(design @ w) - count * (design @ w))),
        [np.log(count.mean()), 0.0],
        tol=1e-10,
    ).x
    information = design.T * np.exp(design @ mode) @ design
    for name, m, s in zip(
        "ab", mode, np.sqrt(np.diag(np.linalg.inv(information))), strict=True
    ):
        found, spread = moments(result, name)
        assert abs(found - m) < 0.2 * s
        np.testing.assert_allclose(spread, s, rtol=0.1)
    y = 0.5 * rng.weibull(2.5, 300)
    result = fit(vague_weibull, y, rng_key=jax.random.key(seed))
    fitted: Any = stats.weibull_min.fit(y, floc=0)
    shape, _, scale = fitted
    # Asymptotic standard deviations of maximum likelihood, 0.78 and 1.05 / shape.
    found, _ = moments(result, "shape")
    assert abs(found - shape) < 0.3 * 0.78 * shape / math.sqrt(300)
    found, _ = moments(result, "a")
    assert abs(found - math.log(scale)) < 0.3 * 1.05 / shape / math.sqrt(300)
    assert result.diagnostics["converged"]


def visits(x: Any, count: Any) -> None:
    a: Any = numpyro.sample("a", dist.Normal(0, 5))
    b: Any = numpyro.sample("b", dist.Normal(0, 2))
    phi: Any = numpyro.sample("phi", dist.HalfCauchy(5))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample(
            "count", dist.NegativeBinomial2(jnp.exp(a + b * x), phi), obs=count
        )


@pytest.mark.thorough
def test_no_step_stays_where_a_density_has_lost_its_digits() -> None:
    """Beyond e^37 NumPyro's has no mean any more, and is larger than at the truth."""
    rng = np.random.default_rng(0)
    x = rng.binomial(1, 0.5, 2000)
    mean = np.exp(2.0 + 0.5 * x)
    result = fit(visits, x, rng.negative_binomial(1.2, 1.2 / (1.2 + mean)))
    assert result.diagnostics["converged"]
    for name, truth in {"a": 2.0, "b": 0.5, "phi": 1.2}.items():
        found, spread = moments(result, name)
        assert abs(found - truth) < 3.5 * spread < 0.3


def grouped(group: Any, y: Any):
    mu: Any = numpyro.sample("mu", dist.Normal(0, 1000))
    tau: Any = numpyro.sample("tau", dist.HalfNormal(1000))
    with numpyro.plate("groups", 8):
        effect: Any = numpyro.sample("effect", dist.Normal(mu, tau))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group], 5.0), obs=y)


@pytest.mark.slow
def test_a_hierarchical_model_agrees_with_quadrature():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(8), 5)
    effect = 250 + 30 * rng.normal(size=8)
    y = effect[group] + 5 * rng.normal(size=40)
    result = fit(grouped, group, y)
    # Given tau everything is Normal; tau is on a grid.
    means = y.reshape(8, 5).mean(1)
    taus = np.exp(np.linspace(math.log(5), math.log(300), 400))
    variance = np.repeat(taus[:, None] ** 2 + 5.0, 8, axis=1)
    total = np.sum(1 / variance, 1) + 1e-6
    mu = np.sum(means / variance, 1) / total
    log = -0.5 * (taus / 1000) ** 2 - 0.5 * np.sum(np.log(variance), 1)
    log += np.log(taus) - 0.5 * np.log(total)
    log += -0.5 * (np.sum(means**2 / variance, 1) - total * mu**2)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    found, _ = moments(result, "mu")
    mean = weight @ mu
    assert abs(found - mean) < 0.2 * math.sqrt(weight @ (1 / total + (mu - mean) ** 2))
    found, _ = moments(result, "tau")
    mean = weight @ taus
    assert abs(found - mean) < 0.3 * math.sqrt(weight @ (taus - mean) ** 2)


def test_rows_that_cannot_be_count_as_zero():
    X, y = raw_columns()
    X, y = np.vstack([X, X[:2]]), np.append(y, [np.nan, np.inf])
    found, spread = moments(fit(regression, X, y), "w")
    mean, _ = moments(fit(regression, X[:-2], y[:-2]), "w")
    assert np.max(abs(found - mean) / spread) < 0.1


@pytest.mark.thorough
def test_independent_coordinates_are_kept_where_they_are_asked_for():
    X, y = raw_columns()
    result = fit(regression, X, y, engine=nv.DPVI(guide="mean_field"))
    precision = X.T @ X / 4.0 + np.eye(3) / 1e8
    _, spread = moments(result, "w")
    np.testing.assert_allclose(spread, 1 / np.sqrt(np.diag(precision)), rtol=0.1)
    assert result.diagnostics["pareto_k"] > 0.5


def flat(x: Any, y: Any):
    real: Any = dist.constraints.real
    a: Any = numpyro.sample("a", dist.ImproperUniform(real, (), ()))
    b: Any = numpyro.sample("b", dist.ImproperUniform(real, (), ()))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal((a + b) * x, 1.0), obs=y)


@pytest.mark.thorough
def test_a_posterior_without_an_end_is_reported():
    rng = np.random.default_rng(0)
    x = rng.normal(size=50)
    model = nv.private(flat, unit="rows")
    vi = vi_of(model, budget=math.inf, engine="dpvi")
    with pytest.warns(UserWarning, match="not converged"):
        result = vi.run(KEY, x, x + rng.normal(size=50))
    assert not result.diagnostics["converged"]


def test_the_callback_sees_the_way_there():
    X, y = raw_columns()
    seen = []
    result = fit(regression, X, y, callback=lambda t, at: seen.append((t, at)))
    assert [t for t, _ in seen] == list(range(len(seen)))
    last = seen[-1][1]
    assert last.diagnostics == result.diagnostics
    np.testing.assert_array_equal(last.params["joint.loc"], result.params["joint.loc"])


def test_a_fit_that_was_stopped_early_says_so():
    X, y = raw_columns()
    result = fit(regression, X, y, num_steps=40)
    assert result.diagnostics["num_steps"] == 40
    assert not result.diagnostics["converged"]
    assert "'w'" in result.diagnostics["warnings"][0]


@pytest.mark.thorough
@pytest.mark.parametrize("budget", [nv.PrivacyBudget(1.0, 1e-5), None])
def test_a_private_fit_takes_none_of_it(monkeypatch, budget):
    """Also where only `epsilon=` asks for noise, of a ledger without a limit."""

    def with_rows(*_: Any) -> Any:
        raise AssertionError("All rows were looked at.")

    monkeypatch.setattr(FullBatchDensity, "with_rows", with_rows)
    X, y = raw_columns()
    share: Any = {} if budget else {"epsilon": 1.0, "delta": 1e-5}
    vi = vi_of(
        regression, budget=budget or math.inf, engine="dpvi", clipping_norm=1.0, **share
    )
    with warnings.catch_warnings(action="ignore"):
        result = vi.run(KEY, X.astype(np.float32), y.astype(np.float32))
    assert result.settings["num_steps"] == 200
    # Of released numbers there are these.
    released = {
        "num_steps",
        "r_hat",
        "fluctuation",
        "distance",
        "width_ratio",
        "clarity",
        "excess",
    }
    released |= {"converged", "warnings", "clipping_norms", *DIAGNOSTICS}
    assert set(result.diagnostics) == released


@pytest.mark.parametrize(
    ("stddev", "warns"), [(0.005, False), (0.09, False), (0.2, True)]
)
def test_a_heavy_tail_of_nearly_equal_densities_is_no_warning(stddev, warns):
    found = {"converged": True, "pareto_k": 0.8, "log_ratio_stddev": stddev}
    assert bool(with_warnings(found)["warnings"]) == warns


@pytest.mark.parametrize("count", [98, 103])
def test_rows_that_all_count_are_not_missed_by_rounding(count: int) -> None:
    """A mean of so many ones is not one."""

    def model(y: Any) -> None:
        place = numpyro.sample("place", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Laplace(place, 1.0), obs=y)

    result = fit(model, np.linspace(-1.0, 1.0, count), engine=nv.DPVI())
    assert ZERO_ROWS not in result.diagnostics


def test_the_best_start_is_not_the_one_that_fits_its_own_draws_best() -> None:
    rng = np.random.default_rng(0)
    size = 30
    X = rng.normal(size=(40, size)) / math.sqrt(size)
    y = rng.normal(size=40)

    def target(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        angles = 2.0 * z @ X.T
        residuals = np.sin(angles) - y
        values = -0.5 * np.sum(z**2, axis=1) - 4.0 * np.sum(residuals**2, axis=1)
        return values, -z - 16.0 * (residuals * np.cos(angles)) @ X

    def fitted(points: int) -> Iterate:
        start = VectorNormal(np.zeros(size), 0.1 * np.eye(size))
        draws = np.random.default_rng(1)
        few = Draws.of(draws, size, points=points, bases=min(16, points))
        *_, last = itertools.islice(ascend(target, start, few, diagonal=False), 30)
        return last

    few, many = fitted(8), fitted(256)
    assert few.elbo > many.elbo
    assert _best(target, [few.normal, many.normal], rng, 4096) is many.normal


def grouped_shares(group: Any, total: Any, y: Any) -> None:
    a: Any = numpyro.sample("a", dist.Normal(0.0, 1.5).expand([2]))
    phi: Any = numpyro.sample("phi", dist.Exponential(1.0))
    with numpyro.plate("rows", y.shape[0]):
        share: Any = jax.nn.sigmoid(a[group])
        size = phi + 2.0
        shares = dist.BetaBinomial(share * size, (1.0 - share) * size, total)
        numpyro.sample("y", shares, obs=y)


@pytest.mark.thorough
@pytest.mark.optimized
def test_a_gradient_that_xla_makes_wrong_is_not_gone_by() -> None:
    rng = np.random.default_rng(0)
    group, total = rng.integers(0, 2, 500), rng.integers(50, 900, 500)
    y = rng.binomial(total, rng.beta(1.2, 2.0, 500))
    result = fit(grouped_shares, group, total, y)

    def loss(z: np.ndarray) -> float:
        share, size = 1.0 / (1.0 + np.exp(-z[group])), np.exp(z[2]) + 2.0
        found = stats.betabinom.logpmf(y, total, share * size, (1.0 - share) * size)
        prior = -0.5 * np.sum((z[:2] / 1.5) ** 2) - np.exp(z[2]) + z[2]
        return -float(np.sum(found) + prior)

    mode: Any = optimize.minimize(loss, np.array([-0.5, -0.5, 0.0]), tol=1e-8)
    found, _ = moments(result, "a")
    # Standard deviations are about 0.06.
    assert np.max(np.abs(found - mode.x[:2])) < 0.02
    assert result.diagnostics["converged"]


@pytest.mark.thorough
def test_covariates_of_any_size_have_the_same_fit():
    """About a centre with one width for all coefficients no row would be possible."""
    rng = np.random.default_rng(3)
    age, income = rng.uniform(18.0, 80.0, 500), np.exp(rng.normal(10.0, 0.5, 500))
    hazard = np.exp(-3.0 + 0.03 * age + 2e-5 * income)
    y = (rng.random(500) < 1.0 - np.exp(-hazard)).astype(np.int32)

    def events(age, income, y):
        a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
        c = numpyro.sample("c", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            chance = 1.0 - jnp.exp(-jnp.exp(a + b * age + c * income))
            numpyro.sample("y", dist.Bernoulli(chance), obs=y)

    found = []
    for unit in (1.0, 1e4):
        result = fit_to(events, age, income / unit, y, budget=math.inf, engine="dpvi")
        assert result.diagnostics["converged"]
        draws = result.sample_posterior(jax.random.key(1), sample_shape=(1000,))
        found.append([np.mean(draws["b"]), np.std(draws["b"])])
        found[-1] += [np.mean(draws["c"]) / unit, np.std(draws["c"]) / unit]
    np.testing.assert_allclose(*found, rtol=0.01)
