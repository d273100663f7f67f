"""Which engine runs models whose sums VIPS would release about zero."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of

import numpyro_vips as nv

NUM_ROWS = 2000
RNG = np.random.default_rng(0)
X = RNG.normal(size=NUM_ROWS).astype(np.float32)
LABELS = (RNG.random(NUM_ROWS) < 0.6).astype(np.int32)
AMOUNTS = RNG.normal(50.0, 10.0, NUM_ROWS).astype(np.float32)
SERIES = RNG.normal(5.0, 1.0, (NUM_ROWS, 8)).astype(np.float32)


def beside_labels(x: Any, label: Any, amount: Any) -> None:
    """A mean with a scale, and a logistic regression that has nothing to do with it."""
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 100.0))
    scale = numpyro.sample("scale", dist.HalfNormal(20.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("label", dist.Bernoulli(logits=a + b * x), obs=label)
        numpyro.sample("amount", dist.Normal(mean, scale), obs=amount)


def autoregression(y: Any) -> None:
    c = numpyro.sample("c", dist.Normal(0.0, 10.0))
    phi = numpyro.sample("phi", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(5.0))
    with numpyro.plate("rows", len(y)):
        centre = c + phi * y[:, :-1]
        numpyro.sample("y", dist.Normal(centre, scale).to_event(1), obs=y[:, 1:])


def one_coefficient(y: Any) -> None:
    """Without an intercept nothing is collinear."""
    phi = numpyro.sample("phi", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(5.0))
    with numpyro.plate("rows", len(y)):
        centre = phi * y[:, :-1]
        numpyro.sample("y", dist.Normal(centre, scale).to_event(1), obs=y[:, 1:])


def regression(x: Any, y: Any) -> None:
    """Features are standardised."""
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    b = numpyro.sample("b", dist.Normal(0.0, 100.0))
    scale = numpyro.sample("scale", dist.HalfNormal(20.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(a + b * x, scale), obs=y)


def counts_beside_labels(x: Any, label: Any, count: Any) -> None:
    """A rate has no points."""
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("label", dist.Bernoulli(logits=a + b * x), obs=label)
        numpyro.sample("count", dist.Poisson(rate), obs=count)


def many_means(x: Any, label: Any, amounts: Any) -> None:
    """More globals than a posterior of DPVI can have that knows of the noise."""
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    mean = numpyro.sample("mean", dist.Normal(jnp.zeros(130), 9.0).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("label", dist.Bernoulli(logits=a + b * x), obs=label)
        numpyro.sample("amount", dist.Normal(mean, 1.0).to_event(1), obs=amounts)


BESIDE = (X, LABELS, AMOUNTS)
WIDE = np.ones((NUM_ROWS, 130), np.float32)


@pytest.mark.parametrize(
    ("model", "rows"), [(beside_labels, BESIDE), (autoregression, (SERIES,))]
)
def test_dpvi_runs_means_that_vips_would_release_about_zero(
    model: Callable[..., None], rows: tuple[np.ndarray, ...]
) -> None:
    plan = vi_of(model).explain(*rows)
    assert plan.engine == "dpvi"
    (note,) = [note for note in plan.notes if "VIPS can run this model" in note]
    assert "gradients about where the globals are" in note


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (regression, (X, AMOUNTS)),
        (one_coefficient, (SERIES,)),
        (counts_beside_labels, (X, LABELS, LABELS)),
        (many_means, (X, LABELS, WIDE)),
    ],
)
def test_vips_runs_other_models(
    model: Callable[..., None], rows: tuple[np.ndarray, ...]
) -> None:
    assert vi_of(model).explain(*rows).engine == "vips"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"budget": math.inf},
        {"num_steps": 30},
        {"clipping_norm": 10.0},
        {"sampling": nv.Poisson(0.1)},
        {"engine": nv.VIPS()},
    ],
)
def test_vips_stays_without_noise_and_where_the_caller_has_chosen(
    options: dict[str, Any],
) -> None:
    assert vi_of(beside_labels, **options).explain(*BESIDE).engine == "vips"


def test_vips_stays_where_rows_are_few_for_the_noise() -> None:
    few = tuple(array[:200] for array in BESIDE)
    assert vi_of(beside_labels).explain(*few).engine == "vips"


@pytest.mark.thorough
def test_intervals_are_about_as_wide_as_without_privacy_and_hold() -> None:
    """By VIPS that of the scale was 26 times as wide."""
    errors = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        amounts = rng.normal(50.0, 10.0, NUM_ROWS).astype(np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = fit_to(beside_labels, X, LABELS, amounts)
        draws = result.sample_posterior(jax.random.key(1), sample_shape=(1000,))
        for name, truth, size in (("mean", 50.0, 1.0), ("scale", 10.0, 2.0)):
            drawn = np.asarray(draws[name], float)
            assert drawn.std() < 3.0 * 10.0 / math.sqrt(size * NUM_ROWS)
            errors.append((drawn.mean() - truth) / drawn.std())
    assert np.sqrt(np.mean(np.square(errors))) < 2.0
