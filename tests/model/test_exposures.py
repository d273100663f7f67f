"""Which numbers of a row a Poisson rate is proportional to."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.exposures import exposures
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


@pytest.mark.parametrize("model", [product, durations])
def test_explain_says_what_redrawn_rows_keep(model: Callable[..., None]) -> None:
    vi = nv.PrivateVI(
        nv.private(model, unit="rows"),
        budget=nv.PrivacyBudget(1.0, 1e-6),
        progress_bar=False,
    )
    rows = (np.tile(T, 1000), np.tile(X, 1000), np.tile(D, 1000))
    notes = [note for note in vi.explain(*rows).notes if "proportional to" in note]
    assert len(notes) == (model is product)
    assert all("'d'" in note and "'t'" in note for note in notes)
