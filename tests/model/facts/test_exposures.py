"""Which numbers of a row a Poisson rate is proportional to."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_of_graph
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.fitting.bounds.norm_parts import norm_parts
from numpyro_vips.fitting.bounds.seen_norms import UNBALANCED, UNBALANCED_EXPOSED
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.facts.exposures import exposures
from numpyro_vips.model.graph import build_graph

T = np.ones(6, np.float32)
X = np.zeros(6, np.float32)
D = np.array([1, 0, 1, 1, 0, 1], np.int32)


def line(x: Any) -> Any:
    a: Any = numpyro.sample("a", dist.Normal(0.0, 1.0))
    return a + x * numpyro.sample("b", dist.Normal(0.0, 1.0))


def product(t: Any, x: Any, d: Any) -> None:
    rate = jnp.exp(line(x))
    with numpyro.plate("rows", d.shape[0]):
        numpyro.sample("d", dist.Poisson(t * rate), obs=d)


def offset(t: Any, x: Any, d: Any) -> None:
    log_rate = line(x) + jnp.log(t)
    with numpyro.plate("rows", d.shape[0]):
        numpyro.sample("d", dist.Poisson(jnp.exp(log_rate)), obs=d)


def covariate(t: Any, x: Any, d: Any) -> None:
    rate = jnp.exp(line(x) + t)
    with numpyro.plate("rows", d.shape[0]):
        numpyro.sample("d", dist.Poisson(rate), obs=d)


def durations(t: Any, x: Any, d: Any) -> None:
    rate = jnp.exp(line(x + d))
    with numpyro.plate("rows", d.shape[0]):
        numpyro.sample("t", dist.Exponential(rate), obs=t)


@pytest.mark.quick_with("product*", "covariate*")
@pytest.mark.parametrize(
    ("model", "found"),
    [
        (product, {"d": ("t",)}),
        (offset, {"d": ("t",)}),
        (covariate, {}),
        (durations, {}),
    ],
)
def test_a_rate_doubles_with_its_exposure(
    model: Callable[..., None], found: dict[str, tuple[str, ...]]
) -> None:
    private = nv.private(model, unit="rows")
    graph = build_graph(private, bind_arguments(private, (T, X, D), {}))
    assert exposures(graph) == found
    (part, *_) = norm_parts(engine_of_graph(graph), graph)
    assert part.unbalanced == (UNBALANCED_EXPOSED if found else UNBALANCED)


@pytest.mark.parametrize("model", [product, durations])
def test_explain_says_what_redrawn_rows_keep(model: Callable[..., None]) -> None:
    vi = vi_of(model, budget=nv.PrivacyBudget(1.0, 1e-6))
    rows = (np.tile(T, 1000), np.tile(X, 1000), np.tile(D, 1000))
    notes = [note for note in vi.explain(*rows).notes if "proportional to" in note]
    assert len(notes) == (model is product)
    assert all("'d'" in note and "'t'" in note for note in notes)


@pytest.mark.thorough
def test_a_time_that_ends_with_the_event_biases_little() -> None:
    """Redrawn rows keep it, and are unlike the data; so few are clipped."""
    errors = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=1000)
        time = rng.exponential(np.exp(1.0 - 0.5 * x))
        end = rng.uniform(0.0, 3.0, 1000)
        rows = (np.minimum(time, end), x, time < end)
        vi = vi_of(product)
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            result = vi.run(jax.random.key(seed), *(r.astype(np.float32) for r in rows))
        draws = result.sample_posterior(jax.random.key(seed), sample_shape=(1000,))
        level = np.asarray(draws["a"], np.float64)
        errors.append((level.mean() + 1.0) / level.std())
    assert abs(np.mean(errors)) < 2.0, errors
