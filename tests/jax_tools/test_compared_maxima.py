"""Derivatives of maxima, which JAX takes by comparing them with what they are of."""

from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.compared_maxima import with_compared_maxima
from numpyro_vips.jax_tools.jaxprs import equations_of, without_dead_code


def compared(function: Any, *arguments: Any) -> Any:
    program = with_compared_maxima(jax.make_jaxpr(function)(*arguments))

    def run(*arguments: Any) -> Any:
        (found,) = jex_core.jaxpr_as_fun(program)(*arguments)
        return found

    return run


def names(function: Any, *arguments: Any) -> list[str]:
    program = with_compared_maxima(jax.make_jaxpr(function)(*arguments))
    return [equation.primitive.name for equation in program.jaxpr.eqns]


@pytest.mark.parametrize("function", [jnp.maximum, jnp.minimum])
@pytest.mark.parametrize("x", [-1.0, 0.0, 2.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("y", [-1.0, 0.0, 2.0, np.inf, -np.inf, np.nan])
def test_values_and_derivatives_are_those_of_jax(
    function: Any, x: float, y: float
) -> None:
    at = (np.float32(x), np.float32(y))
    found = compared(function, *at)
    np.testing.assert_array_equal(found(*at), function(*at))
    if np.isfinite(at).all():
        mine, theirs = (jax.grad(f, argnums=(0, 1))(*at) for f in (found, function))
        np.testing.assert_array_equal(mine, theirs)


def test_no_number_is_compared_with_the_maximum() -> None:
    def function(x: Any, y: Any) -> Any:
        return jax.jit(jnp.maximum)(x, y) + jnp.minimum(x, 2.0)

    assert not {"max", "min", "eq"} & set(names(function, 1.0, 2.0))


def rounded(w: Any, x: Any) -> Any:
    """Products and sums, which XLA may make one operation in one place."""
    return x[4] + w * x[:4]


def segments(w: Any, x: Any) -> Any:
    places = jnp.array([0, 0, 1, 1])
    return jax.ops.segment_max(rounded(w, x), places, 2) @ x[:2]


def in_loop(w: Any, x: Any) -> Any:
    def step(total: Any, factor: Any) -> Any:
        return total + jnp.max(x[4] + w * factor), None

    return jax.lax.scan(step, 0.0, x[:4])[0]


OF_MANY: dict[str, Any] = {
    "max": lambda w, x: jnp.max(rounded(w, x)),
    "range": lambda w, x: jnp.ptp(rounded(w, x)),
    "segments": segments,
    "loop": in_loop,
    "checkpoint": jax.checkpoint(lambda w, x: jnp.max(rounded(w, x))),
    "branch": lambda w, x: jax.lax.cond(
        x[0] > 0, lambda: jnp.max(rounded(w, x)), lambda: jnp.min(rounded(w, x))
    ),
    "running": lambda w, x: jax.lax.cummax(rounded(w, x)) @ x[:4],
}


@pytest.mark.parametrize("name", OF_MANY)
def test_maxima_of_many_keep_values_and_derivatives(name: str) -> None:
    """`test_clipped_gradients.py` has programs that XLA optimises.

    JAX's own derivatives are right where no program is compiled.
    """
    function, w = OF_MANY[name], np.array([-0.13, 0.77, 1.3, -2.1], np.float32)
    rows = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    mine = compared(function, w, rows[0])
    for row in rows:
        np.testing.assert_allclose(mine(w, row), function(w, row), rtol=1e-6)
        found = jax.grad(mine)(w, row)
        with jax.disable_jit():
            expected = jax.grad(function)(w, row)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.shape(jax.vmap(mine, (None, 0))(w, rows)) == (9,)


@pytest.mark.parametrize("name", [name for name in OF_MANY if name != "loop"])
def test_maxima_of_many_keep_second_derivatives(name: str) -> None:
    function, w = OF_MANY[name], np.array([-0.13, 0.77, 1.3, -2.1], np.float32)
    row = np.random.default_rng(0).normal(size=5).astype(np.float32)
    mine = compared(function, w, row)
    found = jax.hessian(lambda w: mine(w, row) ** 2)(w)
    with jax.disable_jit():
        expected = jax.hessian(lambda w: function(w, row) ** 2)(w)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_maxima_of_many_share_their_derivative_where_they_are_equal() -> None:
    x = np.array([2.0, 1.0, 2.0], np.float32)
    np.testing.assert_array_equal(
        jax.grad(compared(jnp.max, x))(x), np.array([0.5, 0.0, 0.5])
    )


def test_sums_of_exponentials_are_worked_out_as_before() -> None:
    """The maximum that is taken off has no derivative."""
    x = np.ones(5, np.float32)
    of_maxima = jax.make_jaxpr(jax.grad(compared(jax.nn.logsumexp, x)))(x)
    loops = [e for e in equations_of(without_dead_code(of_maxima)) if "while" in str(e)]
    assert not loops


def test_programs_without_maxima_of_floats_stay() -> None:
    program = jax.make_jaxpr(lambda x, n: x * jnp.maximum(n, 1))(1.0, 2)
    assert with_compared_maxima(program) is program


def test_a_derivative_of_the_author_s_own_stays() -> None:
    @jax.custom_jvp
    def mine(x: Any) -> Any:
        return jnp.maximum(x, 0.0)

    mine.defjvp(lambda at, tangents: (mine(*at), 7.0 * tangents[0]))

    def function(x: Any) -> Any:
        return jnp.maximum(x, 1.0) + mine(x)

    assert jax.grad(compared(function, 2.0))(2.0) == 8.0
