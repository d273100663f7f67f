"""Models whose loops a row may keep going are told of, and no others."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.model.loops_of_rows import loops_until_rows_stop, warning_of_loops

Y = np.linspace(-1.0, 1.0, 6).astype(np.float32)


def turns(limit: Any) -> Any:
    return jax.lax.while_loop(lambda c: c < limit, lambda c: c + 1.0, 0.0 * limit)


def until_row(w: Any, y: Any) -> Any:
    return w + jax.vmap(turns)(jnp.abs(y))


def in_a_branch(w: Any, y: Any) -> Any:
    def of_row(row: Any) -> Any:
        return jax.lax.cond(row > 0, jnp.abs, lambda r: turns(jnp.abs(r)), row)

    return w + jax.vmap(of_row)(y)


def compiled(w: Any, y: Any) -> Any:
    return w + jax.jit(jax.vmap(turns))(jnp.abs(y))


def until_global(w: Any, y: Any) -> Any:
    return turns(jnp.abs(w)) + y


def counted(w: Any, y: Any) -> Any:
    return w * jax.lax.fori_loop(0, 3, lambda _, total: total + y, jnp.zeros_like(y))


CASES = {
    until_row: True,
    in_a_branch: True,
    compiled: True,
    until_global: False,
    counted: False,
}


@pytest.mark.parametrize("mean", CASES, ids=lambda mean: mean.__name__)
def test_loops_that_rows_keep_going_are_told_of(mean: Callable[..., Any]):
    def model(y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Laplace(mean(w, y), 1.0), obs=y)

    marked = nv.private(model, unit="rows")
    graph = build_graph(marked, bind_arguments(marked, (Y,), {}))
    found = loops_until_rows_stop(graph)
    assert found == CASES[mean]
    text = warning_of_loops(found)
    assert (text is not None) == CASES[mean]
    if text is not None:
        assert "while_loop" in text
        assert "without any noise" in text
