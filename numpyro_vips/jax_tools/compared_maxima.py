"""Maxima and minima whose derivatives do not compare a number with another rounding.

JAX's derivative of max(x, y) compares the maximum with x and with y, and gives each its
part where they are equal. XLA may work out x a second time for that, next to other
operations, and round it in another way, as where a product and a sum become one
operation. Then the maximum is equal to neither, and the derivative is zero. That befell
beta-binomial likelihoods: in `betaln` is a minimum and a maximum of y + m k and
n − y + (1 − m) k.

The maxima of two numbers here ask which of x and y is larger. Where both are equal each
has half of the derivative, as in JAX. Those of many numbers, as of an array, are JAX's,
of numbers that XLA works out once.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from numpyro_vips.jax_tools.jaxprs import (
    apply_equation,
    aval_of,
    equations_of,
    evaluate,
)
from numpyro_vips.jax_tools.materialized import materialized

_OF_TWO = ("max", "min")
_OF_MANY = (
    *("reduce_max", "reduce_min", "cummax", "cummin"),
    *("scatter-max", "scatter-min", "scatter_max", "scatter_min"),
)
# Loops, branches and `jax.checkpoint`, and where their programs are.
_INSIDE = {
    "scan": "jaxpr",
    "cond": "branches",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}


def with_compared_maxima(program: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """The program with such maxima and minima of floating-point numbers.

    Its values are the same, but for subnormal ones. Maxima inside of `while_loop`, of
    which no derivatives in reverse are taken, stay as they are. Second derivatives of
    those of many numbers inside of `scan` are what JAX makes of them, and may be NaN.

    Args:
      program: Whose derivatives are to be taken.
    """
    if not any(map(_is_of_floats, equations_of(program))):
        return program
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.in_avals]
    return jax.make_jaxpr(
        lambda *inputs: evaluate(program, inputs, _rule, keep_rules=True)
    )(*shapes)


def _is_of_floats(equation: jex_core.JaxprEqn) -> bool:
    if equation.primitive.name not in (*_OF_TWO, *_OF_MANY):
        return False
    return jnp.issubdtype(aval_of(equation.outvars[0]).dtype, jnp.floating)


def _rule(equation: jex_core.JaxprEqn, operands: list[Any]) -> Sequence[Any] | None:
    name = equation.primitive.name
    if name in _INSIDE:
        inside = _within(equation.params[_INSIDE[name]])
        params = {**equation.params, _INSIDE[name]: inside}
        return apply_equation(equation.replace(params=params), operands)
    if not _is_of_floats(equation):
        return None
    if name in _OF_MANY:
        return _of_many(equation, operands)
    x, y = operands
    larger, smaller = x > y, x < y
    if name == "min":
        larger, smaller = smaller, larger
    return [_chosen(larger, smaller, x, y)]


def _within(value: Any) -> Any:
    """The programs in a parameter of an equation, each with such maxima."""
    if isinstance(value, tuple | list):
        return type(value)(map(_within, value))
    if isinstance(value, jex_core.Jaxpr):
        found = with_compared_maxima(jex_core.ClosedJaxpr(value, ()))
        # It has no place for arrays, and nothing here makes one.
        return value if found.consts else found.jaxpr
    return with_compared_maxima(value)


def _chosen(
    first: Shaped[Array, "*shape"],
    second: Shaped[Array, "*shape"],
    x: Shaped[Array, "*shape"],
    y: Shaped[Array, "*shape"],
) -> Shaped[Array, "*shape"]:
    """x or y, and what is halfway between them where neither is to be chosen.

    That is so where they are equal, or one is not a number, and neither is their sum.
    """
    return jnp.where(first, x, jnp.where(second, y, 0.5 * x + 0.5 * y))


def _of_many(
    equation: jex_core.JaxprEqn, operands: list[Any]
) -> list[Shaped[Array, "..."]]:
    """The equation applied to the operands, with its derivative at fixed ones."""
    plain = functools.partial(apply_equation, equation)
    applied = jax.custom_jvp(lambda *given: plain(given))

    def derivative(given: Any, tangents: Any) -> tuple[list[Array], list[Array]]:
        # Where the derivative is not asked for, as of the maximum that a sum of
        # exponentials is taken about, nothing but the maximum is left.
        fixed = materialized(given)
        _, moved = jax.jvp(lambda *given: plain(given), fixed, tangents)
        return plain(given), moved

    applied.defjvp(derivative)
    return applied(*operands)
