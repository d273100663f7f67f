"""Draws weighed by the model's density: what they find out, and for whom."""

import functools
import math
import warnings
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to

import numpyro_vips as nv
from numpyro_vips.fitting import results
from numpyro_vips.fitting.weighed_draws import _found


def _fitted(fn: Any, *arguments: Any, epsilon: float = math.inf) -> nv.PrivateVIResult:
    with warnings.catch_warnings(action="ignore"):
        return fit_to(fn, *arguments, budget=epsilon, engine="vips")


def effects(n: Any, r: Any) -> None:
    """Shares of rows, with a logistic bound on each row's own logit.

    The row's group acts on it, so that it is not integrated out.
    """
    tau = numpyro.sample("tau", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", r.shape[0]):
        group = numpyro.sample("group", dist.Categorical(jnp.array([0.5, 0.5])))
        mean = jnp.array([-2.6, -2.4])[group]
        b = numpyro.sample("b", dist.Normal(mean, 1.0 / jnp.sqrt(tau)))
        numpyro.sample("r", dist.Binomial(n, logits=b), obs=r)


def measured(y: Any) -> None:
    """Means of rows, each measured well."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0 / jnp.sqrt(tau)))
        numpyro.sample("y", dist.Normal(theta, 0.3), obs=y)


def schools(sigma: Any, y: Any) -> None:
    """Effects that are measured badly: mu and tau depend on each other through them."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("rows", y.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def _shares(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    n = rng.integers(20, 60, count)
    b = rng.normal(-2.5, 0.4, count)
    return n, rng.binomial(n, 1.0 / (1.0 + np.exp(-b))).astype(np.float32)


@functools.cache
def _fitted_effects(epsilon: float) -> nv.PrivateVIResult:
    return _fitted(effects, *_shares(60), epsilon=epsilon)


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [math.inf, 1.0])
def test_a_bound_on_latents_of_rows_is_a_warning_of_every_fit(epsilon: float) -> None:
    found = _fitted_effects(epsilon).diagnostics["warnings"]
    (text,) = [text for text in found if "replaced by a bound" in text]
    assert "'b'" in text and "engine='dpvi'" in text


@pytest.mark.thorough
def test_a_posterior_that_a_bound_has_moved_is_said() -> None:
    result = _fitted_effects(math.inf)
    assert any("weighed by the model's density" in x for x in _warnings(result))


@pytest.mark.thorough
@pytest.mark.usefixtures("coordinate_ascent")
def test_independent_factors_that_are_too_narrow_are_said() -> None:
    sigma = np.array([15, 10, 16, 11, 9, 11, 10, 18], np.float32)
    y = np.array([28, 8, -3, 7, -1, 1, 18, 12], np.float32)
    result = _fitted(schools, sigma, y)
    (text,) = _warnings(result)
    assert "'tau'" in text and "engine='dpvi'" in text
    assert result.diagnostics["widened"]["tau"] > 1.5


@pytest.mark.thorough
def test_a_posterior_that_stands_for_the_models_own_has_no_warning() -> None:
    rng = np.random.default_rng(0)
    y = (1.0 + rng.normal(size=80) + 0.3 * rng.normal(size=80)).astype(np.float32)
    result = _fitted(measured, y)
    assert _warnings(result) == []
    assert result.diagnostics["pareto_k"] < 0.7
    assert max(result.diagnostics["moved"].values()) < 0.2


def test_rows_are_not_looked_at_under_privacy() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(size=80).astype(np.float32)  # As many as above: compiled once.
    with mock.patch.object(results, "weighed_draws", side_effect=AssertionError):
        with pytest.raises(AssertionError):
            _fitted(measured, y)
        assert "pareto_k" not in _fitted(measured, y, epsilon=1.0).diagnostics


def test_weights_find_the_mean_and_the_width() -> None:
    z = np.random.default_rng(0).normal(size=2000)
    mean, stddev = 0.4, 0.8
    log_ratios = -0.5 * ((z - mean) / stddev) ** 2 + 0.5 * z**2
    found = _found(log_ratios, {"z": z})
    np.testing.assert_allclose(found["moved"]["z"], mean / stddev, atol=0.1)
    np.testing.assert_allclose(found["widened"]["z"], stddev, atol=0.05)
    assert len(found["warnings"]) == 1
    far = _found(-0.5 * (z - 6.0) ** 2 + 0.5 * z**2, {"z": z})
    assert far["moved"] == {} and "Pareto k" in far["warnings"][0]


def _warnings(result: nv.PrivateVIResult) -> list[str]:
    return list(result.diagnostics["warnings"])
