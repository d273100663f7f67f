"""Double precision within a program that runs in single precision."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from numpyro_vips.jax_tools.double_precision import evaluate_in_double

pytestmark = pytest.mark.optimized

CAPTURED = np.array([0.5, 1.0, 2.0])


def log_density(x):
    return dist.Normal(CAPTURED, CAPTURED).to_event(1).log_prob(x)


def with_loop(x):
    def body(carry, value):
        return carry + value * CAPTURED.sum(), carry

    total, seen = jax.lax.scan(body, jnp.zeros(()), x * CAPTURED)
    return jnp.where(total > 0, total, 0.0) + seen[0]


def with_gradient(x):
    return jax.grad(lambda z: jnp.sum(jnp.log1p(jnp.exp(z - CAPTURED))))(x)


@pytest.mark.parametrize("function", [log_density, with_loop, with_gradient])
def test_captured_arrays_that_were_used_in_single_precision(function):
    # Kept alive: JAX then remembers its single precision copy of the array.
    before = jax.jit(function).lower(np.ones(3, np.float32))
    with jax.enable_x64(True):
        x = jnp.asarray([0.1, 0.2, 1 / 3])
    found = evaluate_in_double(function, x)
    assert found.dtype == np.float64
    assert before is not None

    def fresh():
        # The same with an array that JAX has not met.
        return type(function)(
            function.__code__, {**globals(), "CAPTURED": CAPTURED.copy()}
        )

    with jax.enable_x64(True):
        expected = jax.jit(fresh())(x)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_results_keep_their_structure():
    found = evaluate_in_double(lambda x: {"a": (x, x + 1)}, 1.0)
    assert float(found["a"][1]) == 2.0
    assert jnp.zeros(()).dtype == np.float32


@pytest.mark.parametrize("length", [0, 7, 100_000])
@pytest.mark.parametrize("reverse", [False, True])
def test_loops_of_any_length(length, reverse):
    def function(x):
        def body(carry, value):
            count, total = carry
            return (count + 1, 0.5 * total + value), total

        start = jnp.zeros((), jnp.int32), jnp.zeros(())
        return jax.lax.scan(body, start, x, reverse=reverse)

    x = np.random.default_rng(0).normal(size=length)
    (count, total), seen = evaluate_in_double(function, x)
    with jax.enable_x64(True):
        (_, expected), expected_seen = jax.jit(function)(x)
    assert count == length
    np.testing.assert_allclose(total, expected, rtol=1e-12)
    np.testing.assert_allclose(seen, expected_seen, rtol=1e-12)


def test_draws_are_those_of_jax():
    def function(key):
        first, second = jax.random.split(key)
        steps = jax.vmap(lambda step: jax.random.fold_in(second, step))(jnp.arange(3))
        drawn = jax.vmap(jax.random.normal)(steps)
        return jax.random.uniform(first, (4, 2)), drawn, jax.random.bits(first)

    key = jax.random.key(3)
    found = evaluate_in_double(function, key)
    with jax.enable_x64(True):
        expected = function(key)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
