"""Loops end after a public number of turns, and are the same until then."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.bounded_loops import is_bounded, with_bounded_loops
from numpyro_vips.jax_tools.jaxprs import equations_of


def turns(limit: Any) -> Any:
    return jax.lax.while_loop(
        lambda c: c < limit, lambda c: c + 1.0, jnp.zeros_like(limit)
    )


def in_a_loop(limits: Any) -> Any:
    return jax.lax.scan(lambda c, x: (c + turns(x), turns(x)), 0.0, limits)[1]


def in_reverse(limits: Any) -> Any:
    total, each = jax.lax.scan(
        lambda c, x: (c + turns(x), c), 0.0, limits, reverse=True
    )
    return total + each


def in_a_branch(limits: Any) -> Any:
    def of_one(limit: Any) -> Any:
        return jax.lax.cond(limit > 2.0, turns, lambda x: -x, limit)

    return jax.lax.map(of_one, limits)


def in_itself(limits: Any) -> Any:
    start = jnp.zeros(()), jnp.zeros(())
    limit = limits[0]
    return jax.lax.while_loop(
        lambda c: c[0] < limit, lambda c: (c[0] + 1.0, c[1] + turns(limit)), start
    )[1]


LOOPS: list[Callable[..., Any]] = [
    jax.vmap(turns),
    jax.jit(jax.vmap(turns)),
    in_a_loop,
    in_reverse,
    in_a_branch,
    in_itself,
]
FEW = np.array([3.0, 0.0, 5.0], np.float32)


@pytest.mark.parametrize("loop", LOOPS)
def test_loops_that_end_in_time_are_as_they_were(loop: Callable[..., Any]):
    found = with_bounded_loops(loop, 50)(FEW)
    np.testing.assert_array_equal(found, loop(FEW))


@pytest.mark.parametrize("loop", LOOPS)
def test_every_loop_is_bounded(loop: Callable[..., Any]):
    program = jax.make_jaxpr(with_bounded_loops(loop, 50))(FEW)
    loops = [e for e in equations_of(program) if e.primitive.name == "while"]
    assert loops and all(map(is_bounded, loops))
    plain = equations_of(jax.make_jaxpr(loop)(FEW))
    assert not any(is_bounded(e) for e in plain if e.primitive.name == "while")


@pytest.mark.parametrize("loop", LOOPS[:2])
def test_a_loop_that_would_go_on_ends_with_what_it_has(loop: Callable[..., Any]):
    endless = np.array([3.0, np.inf, 5.0], np.float32)
    found = jax.jit(with_bounded_loops(loop, 50))(endless)
    # Those that had ended wait for the others, and stay as they are.
    np.testing.assert_array_equal(found, [3.0, 50.0, 5.0])


def test_one_entry_does_not_act_on_another_that_is_mapped_beside_it():
    endless = np.array([3.0, np.inf, 5.0], np.float32)
    found = jax.vmap(with_bounded_loops(turns, 50))(endless)
    np.testing.assert_array_equal(found, [3.0, 50.0, 5.0])


@pytest.mark.parametrize("mapped", [False, True])
def test_draws_of_samplers_are_the_same(mapped: bool):
    rates = np.array([0.3, 4.0, 50.0], np.float32)

    def draw(key: Any, rate: Any) -> Any:
        return {"counts": jax.random.poisson(key, rate), "times": rate * turns(rate)}

    keys = jax.random.split(jax.random.key(0), 3)
    bounded = with_bounded_loops(draw, 1000)
    if mapped:
        draw, bounded = jax.vmap(draw), jax.vmap(bounded)
        own, found = draw(keys, rates), bounded(keys, rates)
    else:
        own, found = draw(keys[0], rates[1]), bounded(keys[0], rates[1])
    jax.tree.map(np.testing.assert_array_equal, found, own)


def test_it_may_refer_to_what_is_traced():
    @jax.jit
    def of(limit: Any) -> Any:
        return with_bounded_loops(lambda start: start + turns(limit), 50)(1.0)

    assert of(np.inf) == 51.0
