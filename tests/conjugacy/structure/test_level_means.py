"""Effects of rows about a mean that they share become levels of the rows."""

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

import numpyro_vips as nv

ROWS, VISITS = 1_500, 3
BETWEEN, WITHIN = 0.8, 0.6


def intercepts(X: Any, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", X.shape[0], dim=-2):
        effect = numpyro.sample("effect", dist.Normal(0.0, BETWEEN))
        with numpyro.plate("visits", VISITS, dim=-1):
            numpyro.sample("y", dist.Normal(mean + effect + slope * X, WITHIN), obs=y)


def levels(X: Any, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", X.shape[0], dim=-2):
        level = numpyro.sample("level", dist.Normal(mean, BETWEEN))
        with numpyro.plate("visits", VISITS, dim=-1):
            numpyro.sample("y", dist.Normal(level + slope * X, WITHIN), obs=y)


def vectors(X: Any, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    with numpyro.plate("people", X.shape[0]):
        effect = numpyro.sample(
            "effect", dist.MultivariateNormal(jnp.zeros(2), BETWEEN**2 * jnp.eye(2))
        )
        numpyro.sample("y", dist.Normal(mean + effect, WITHIN).to_event(1), obs=y)


def slopes(X: Any, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", X.shape[0], dim=-2):
        effect = numpyro.sample("effect", dist.Normal(0.0, BETWEEN))
        own = numpyro.sample("own", dist.Normal(0.0, 0.5))
        with numpyro.plate("visits", VISITS, dim=-1):
            about = mean + effect + X * (slope + own)
            numpyro.sample("y", dist.Normal(about, WITHIN), obs=y)


def loadings(X: Any, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    loading = numpyro.sample("loading", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", X.shape[0], dim=-2):
        score = numpyro.sample("score", dist.Normal(0.0, 1.0))
        with numpyro.plate("visits", VISITS, dim=-1):
            numpyro.sample("y", dist.Normal(mean + loading * score, WITHIN), obs=y)


def twice(X: Any, y: Any = None) -> None:
    """The mean of what an effect is not in is one of its own."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    with numpyro.plate("people", X.shape[0]):
        effect = numpyro.sample("effect", dist.Normal(0.0, BETWEEN))
        seen = [None] * VISITS if y is None else list(jnp.moveaxis(y, 1, 0))
        numpyro.sample("first", dist.Normal(mean + effect, WITHIN), obs=seen[0])
        numpyro.sample("second", dist.Normal(mean, WITHIN), obs=seen[1])


def binary(X: Any, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    with numpyro.plate("people", X.shape[0], dim=-2):
        effect = numpyro.sample("effect", dist.Normal(0.0, BETWEEN))
        with numpyro.plate("visits", VISITS, dim=-1):
            numpyro.sample("y", dist.Bernoulli(logits=mean + effect), obs=y)


def fit_of(model: Any, X: Any, y: Any, epsilon: float = 1.0, **options: Any) -> Any:
    return vi_of(
        nv.private(model, unit="people"),
        budget=epsilon,
        insecure_seed=None if math.isinf(epsilon) else 0,
        engine="vips",
        **options,
    )


def run(vi: nv.PrivateVI, *rows: Any) -> nv.PrivateVIResult:
    with warnings.catch_warnings(action="ignore"):
        return vi.run(jax.random.key(0), *rows)


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, VISITS))
    effect = rng.normal(0.0, BETWEEN, (ROWS, 1))
    y = 4.0 + effect + 0.7 * X + rng.normal(0.0, WITHIN, (ROWS, VISITS))
    return X.astype(np.float32), y.astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "found"),
    [
        (intercepts, {"effect": "mean"}),
        (vectors, {"effect": "mean"}),
        (slopes, {"effect": "mean", "own": "slope"}),
        (binary, {"effect": "mean"}),
        (levels, {}),
        (loadings, {}),
        (twice, {}),
    ],
)
def test_effects_are_told_from_other_latents(model: Any, found: Any) -> None:
    X, y = data()
    y = {binary: (y > 4).astype(np.int32), vectors: y[:, :2]}.get(model, y)
    engine = fit_of(model, X, y)._prepare_fit((X, y), {})[0].engine
    assert engine.program.level_means == found


def exact_posterior(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviations of mean and slope, effects integrated out."""
    covariance = BETWEEN**2 * np.ones((VISITS, VISITS)) + WITHIN**2 * np.eye(VISITS)
    weights = np.linalg.inv(covariance)
    design = np.stack([np.ones_like(X), X], -1).astype(float)
    information = np.einsum("ntj,ts,nsk->jk", design, weights, design)
    posterior = np.linalg.inv(information + np.diag([1 / 25.0, 1.0]))
    mean = posterior @ np.einsum("ntj,ts,ns->j", design, weights, y)
    return mean, np.sqrt(np.diagonal(posterior))


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [1e5, math.inf])
def test_a_mean_beside_effects_has_the_exact_posterior(epsilon: float) -> None:
    X, y = data()
    mean, stddev = exact_posterior(X, y)
    moments = run(fit_of(intercepts, X, y, epsilon), X, y).posterior.moments()
    for name, m, s in zip(("mean", "slope"), mean, stddev, strict=True):
        assert abs(moments[name].mean - m) < 0.2 * s
        assert moments[name].stddev == pytest.approx(s, rel=0.08)


@pytest.mark.thorough
def test_an_effect_costs_what_its_level_costs() -> None:
    """The two are the same model, so that all that is released is the same."""
    X, y = data()
    found = [
        run(fit_of(model, X, y), X, y).posterior.moments()
        for model in (intercepts, levels)
    ]
    for name in ("mean", "slope"):
        first, second = (moments[name] for moments in found)
        assert first.mean == pytest.approx(second.mean, abs=1e-4)
        assert first.stddev == pytest.approx(second.stddev, rel=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("model", [intercepts, vectors])
def test_effects_of_single_rows_are_effects_again(model: Any) -> None:
    X, y = data(1)
    if model is vectors:
        y = y[:, :2]
    result = run(fit_of(model, X, y, 1e5), X, y)
    found = result.local_posterior(X[:200], y[:200])["effect"]
    moments = result.posterior.moments()
    if model is vectors:
        share = BETWEEN**2 / (BETWEEN**2 + WITHIN**2)
        wanted = share * (y[:200] - moments["mean"].mean)
        spread = BETWEEN * WITHIN / math.sqrt(BETWEEN**2 + WITHIN**2)
    else:
        share = VISITS * BETWEEN**2 / (VISITS * BETWEEN**2 + WITHIN**2)
        rest = y[:200] - moments["mean"].mean - moments["slope"].mean * X[:200]
        wanted = share * rest.mean(1, keepdims=True)
        spread = BETWEEN * math.sqrt(1.0 - share)
    np.testing.assert_allclose(found.mean, wanted, atol=0.02)
    np.testing.assert_allclose(np.sqrt(found.variance), spread, rtol=0.05)
