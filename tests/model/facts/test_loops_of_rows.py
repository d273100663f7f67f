"""Models whose loops a row may keep going are told of, and no others."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_of_graph
from numpyro.distributions import constraints

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.facts.loops_of_rows import (
    loops_until_rows_stop,
    program_of_model,
    warning_of_loops,
)
from numpyro_vips.model.graph import ModelGraph, build_graph

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


def graph_of(model: Callable[..., Any], *rows: Any) -> ModelGraph:
    marked = nv.private(model, unit="rows")
    return build_graph(marked, bind_arguments(marked, rows, {}))


@pytest.mark.parametrize("mean", CASES, ids=lambda mean: mean.__name__)
def test_loops_that_rows_keep_going_are_told_of(mean: Callable[..., Any]):
    def model(y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Laplace(mean(w, y), 1.0), obs=y)

    found = loops_until_rows_stop(program_of_model(graph_of(model, Y)))
    assert found == CASES[mean]
    text = warning_of_loops(found)
    assert (text is not None) == CASES[mean]
    if text is not None:
        assert "while_loop" in text
        assert "without any noise" in text


# NumPyro's types do not allow a support that is a plain attribute.
Distribution: Any = dist.Distribution


class Ordinary(Distribution):
    """Laplace, as the caller might write it."""

    support = constraints.real
    pytree_data_fields = ("loc",)

    def __init__(self, loc: Any, *, validate_args: Any = None) -> None:
        self.loc = loc
        super().__init__(batch_shape=jnp.shape(loc), validate_args=validate_args)

    def log_prob(self, value: Any) -> Any:
        return dist.Laplace(self.loc, 1.0).log_prob(value)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        noise = jax.random.laplace(key, sample_shape + self.batch_shape)
        return self.loc + noise


class LoopsInDensity(Ordinary):
    def log_prob(self, value: Any) -> Any:
        length = jax.vmap(turns)(jax.lax.stop_gradient(jnp.abs(value)))
        return super().log_prob(value) - length


class LoopsInSampler(Ordinary):
    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        return super().sample(key, sample_shape) + jax.vmap(turns)(jnp.abs(self.loc))


def programs_of(kind: Any) -> Any:
    """What gradients come from, the second time with a redrawn row."""

    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", kind(w * x), obs=y)

    graph = graph_of(model, Y, Y)
    assert not loops_until_rows_stop(program_of_model(graph))
    return engine_of_graph(graph).programs_of_rows


def test_loops_in_densities_are_told_of():
    """They are no part of the model's own program, and run on rows all the same."""
    assert all(map(loops_until_rows_stop, programs_of(LoopsInDensity)))


class LoopsThatComputeInSampler(Ordinary):
    """Its loop computes to know its end, as a Poisson's does."""

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        limit = jnp.abs(self.loc)
        drawn = jax.vmap(
            lambda x: jax.lax.while_loop(lambda c: 2 * c < x, lambda c: c + 1.0, 0 * x)
        )(limit)
        return super().sample(key, sample_shape) + drawn


@pytest.mark.parametrize("kind", [LoopsInSampler, LoopsThatComputeInSampler])
def test_loops_in_samplers_are_not_told_of(kind: Any):
    """They end after a public number of turns."""
    own, pair = programs_of(kind)
    assert "while[" in str(pair.program) and "while[" not in str(own.program)
    assert not loops_until_rows_stop(pair)


class MaximaInDensity(Ordinary):
    def log_prob(self, value: Any) -> Any:
        both = jnp.stack([self.loc - value, value - self.loc])
        return super().log_prob(value) - jnp.max(both, axis=0)


def test_loops_that_keep_numbers_in_memory_are_not_told_of():
    """They make no turn; see `compared_maxima`."""
    own, pair = programs_of(MaximaInDensity)
    assert "while[" in str(own.program) and "while[" in str(pair.program)
    assert not loops_until_rows_stop(own) and not loops_until_rows_stop(pair)


def test_loops_in_a_guide_are_told_of():
    def model(y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            z = numpyro.sample("z", dist.Normal(w, 1.0))
            numpyro.sample("y", dist.Laplace(jnp.tanh(z), 1.0), obs=y)

    def guide(y: Any) -> None:
        loc = numpyro.param("loc", 0.0)
        slope = numpyro.param("slope", 0.1)
        numpyro.sample("w", dist.Normal(loc, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            seen = jax.vmap(turns)(jnp.abs(y))
            numpyro.sample("z", dist.Normal(slope * seen, 1.0))

    (program,) = engine_of_graph(graph_of(model, Y), guide=guide).programs_of_rows
    assert loops_until_rows_stop(program)
