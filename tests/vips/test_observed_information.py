"""Without noise, logistic likelihoods have the width of their observed information."""

import math
import warnings
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of

from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.vips.engine import VipsEngine
from numpyro_vips.vips.row_sums.row_programs import RowPrograms

ROWS = 400


def plain(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def successes(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Binomial(5, logits=X @ w), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "trials"), [(plain, 1), (successes, 5)])
def test_the_width_is_that_of_the_likelihood(model, trials) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 3)).astype(np.float32)
    truth = np.array([1.5, -1.0, 0.3])
    shares = 1.0 / (1.0 + np.exp(-X @ truth))
    y = rng.binomial(trials, shares).astype(np.int32)
    result = fit_to(model, X, y, budget=math.inf, engine="vips")
    found = result.posterior.moments()["w"]
    shares = 1.0 / (1.0 + np.exp(-X @ found.mean))
    weights = trials * shares * (1.0 - shares)
    information = (X * weights[:, None]).T @ X + np.eye(3) / 4.0
    wanted = np.sqrt(np.diagonal(np.linalg.inv(information)))
    np.testing.assert_allclose(found.stddev, wanted, rtol=0.03)
    # The mean is where it was: the gradient of the log posterior is about zero there.
    gradient = X.T @ (y - trials * shares) - found.mean / 4.0
    assert np.abs(gradient / np.sqrt(np.diagonal(information))).max() < 0.2
    draws = np.asarray(result.sample_posterior(jax.random.key(1), (4000,))["w"])
    np.testing.assert_allclose(draws.std(0), wanted, rtol=0.08)


def wide(X: Any, y: Any) -> None:
    """Its curvature is released in units of the prior, which is far wider than rows."""
    w: Any = numpyro.sample("w", dist.Normal(0.0, 100.0).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y)):
        logits = w[0] + w[1] * X[:, 1] + w[2] * X[:, 2]
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


@pytest.mark.thorough
def test_the_width_does_not_depend_on_the_units_of_the_prior() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 3)).astype(np.float32)
    X[:, 0] = 1.0
    y = rng.binomial(1, 1.0 / (1.0 + np.exp(-X @ np.array([1.5, -1.0, 0.3]))))
    vi = vi_of(wide, budget=math.inf, engine="vips")
    found = vi.run(jax.random.key(0), X, y.astype(np.int32)).posterior.moments()["w"]
    shares = 1.0 / (1.0 + np.exp(-X @ found.mean))
    information = (X * (shares * (1.0 - shares))[:, None]).T @ X + np.eye(3) / 1e4
    wanted = np.sqrt(np.diagonal(np.linalg.inv(information)))
    np.testing.assert_allclose(found.stddev, wanted, rtol=0.03)


def test_no_private_fit_asks_rows_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any) -> None:
        raise AssertionError("rows were asked without noise")

    monkeypatch.setattr(VipsEngine, "informed", asked)
    monkeypatch.setattr(DpviEngine, "informed", asked)
    monkeypatch.setattr(RowPrograms, "information", asked)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)).astype(np.float32)
    y = rng.integers(0, 2, 60)
    for engine in ("vips", "dpvi"):
        vi = vi_of(
            plain, engine=engine, clipping_norm=1.0, num_steps=2, insecure_seed=0
        )
        with warnings.catch_warnings(action="ignore"):
            assert vi.run(jax.random.key(0), X, y).engine == engine
