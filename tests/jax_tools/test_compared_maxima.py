"""Derivatives of maxima, which JAX takes by comparing them with what they are of."""

from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.compared_maxima import with_compared_maxima


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
