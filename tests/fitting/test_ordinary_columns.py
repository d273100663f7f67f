"""Columns as users have them: any type, large numbers, constants, one wild value."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

NUM_ROWS = 4000
SIGNED = ("int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32")
WIDE_FLOATS = ("float32", "float64")


def fitted(model: Any, *rows: np.ndarray, engine: str = "auto") -> dict[str, Any]:
    """Posterior means of a private fit with no setting."""
    vi = vi_of(model, engine=engine, insecure_seed=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "insecure_seed", UserWarning)
        result = vi.run(jax.random.key(0), *rows)
    return {site: found.mean for site, found in result.posterior.moments().items()}


def slow(*values: Any) -> list[Any]:
    """Parameters that say little beyond those beside them."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def counts(prior_mean: float) -> Any:
    def model(y: Any) -> None:
        rate = numpyro.sample("rate", dist.Gamma(2.0, 2.0 / prior_mean))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    return model


def answers(y: Any) -> None:
    chance = numpyro.sample("chance", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(chance), obs=y)


def regression(X: Any, y: Any) -> None:
    with numpyro.plate("features", X.shape[1]):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)


def incomes(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(1e7, 5e6))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 2.0 * 2e6**2))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1 / jnp.sqrt(precision)), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "dtype",
    ["int8", "uint64", "float16", *slow(*SIGNED, *UNSIGNED, *WIDE_FLOATS)],
)
def test_counts_of_any_type(dtype):
    y = np.random.default_rng(0).poisson(10.0, NUM_ROWS)
    found = fitted(counts(10.0), y.astype(dtype))
    assert abs(found["rate"] - 10.0) < 0.5


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["bool", "uint8", *slow("int8", "int64", "float16")])
def test_answers_of_any_type(dtype):
    y = np.random.default_rng(0).random(NUM_ROWS) < 0.3
    found = fitted(answers, y.astype(dtype))
    assert abs(found["chance"] - 0.3) < 0.05


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", *slow("int8", "int64")])
def test_features_of_any_type(dtype):
    rng = np.random.default_rng(0)
    X = rng.random((NUM_ROWS, 2)) < 0.5
    y = X @ np.array([1.0, -0.5]) + rng.normal(size=NUM_ROWS)
    found = fitted(regression, X.astype(dtype), y)
    np.testing.assert_allclose(found["w"], [1.0, -0.5], atol=0.15)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
@pytest.mark.parametrize("dtype", ["int64", *slow("int32", "float32")])
def test_counts_of_a_million(dtype, engine):
    y = np.random.default_rng(0).poisson(1e6, NUM_ROWS)
    found = fitted(counts(1e6), y.astype(dtype), engine=engine)
    assert abs(found["rate"] / 1e6 - 1.0) < 0.02


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["int64", *slow("float32", "float64")])
def test_incomes_of_ten_millions(dtype):
    """Their squares are beyond 1e14."""
    y = np.random.default_rng(0).normal(1e7, 2e6, NUM_ROWS)
    found = fitted(incomes, y.astype(dtype))
    assert abs(found["mean"] / 1e7 - 1.0) < 0.02
    assert 0.5 < found["precision"] * 2e6**2 < 2.0


@pytest.mark.parametrize("wild", [1e30, -1e300, np.inf, np.nan])
def test_one_wild_value_is_one_row(wild):
    y = np.random.default_rng(0).normal(1e7, 2e6, NUM_ROWS)
    y[3] = wild
    assert abs(fitted(incomes, y)["mean"] / 1e7 - 1.0) < 0.02


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_a_constant_column_takes_nothing_from_the_others(constant, engine):
    rng = np.random.default_rng(0)
    X = np.stack([rng.normal(size=NUM_ROWS), np.full(NUM_ROWS, constant)], axis=1)
    y = X[:, 0] + rng.normal(size=NUM_ROWS)
    found = fitted(regression, X, y, engine=engine)
    assert np.isfinite(found["w"]).all()
    assert abs(found["w"][0] - 1.0) < 0.1
