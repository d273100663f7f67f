"""Maxima and minima whose derivatives do not ask whether two numbers are equal.

JAX's derivative of max(x, y) compares the maximum with x and with y, and gives each its
part where they are equal. XLA may work out x a second time for that, next to other
operations, and round it in another way, as where a product and a sum become one
operation. Then the maximum is equal to neither, and the derivative is zero. That befell
beta-binomial likelihoods: in `betaln` is a minimum and a maximum of y + m k and
n − y + (1 − m) k.

The maxima here ask which of x and y is larger. Where both are equal each has half of
the derivative, as in JAX.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from numpyro_vips.jax_tools.jaxprs import aval_of, equations_of, evaluate


def with_compared_maxima(program: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """The program with such maxima and minima of two floating-point numbers.

    Its values are the same, but for subnormal ones. Maxima inside of loops and
    branches, and those of more than two numbers, stay as they are.

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
    if equation.primitive.name not in ("max", "min"):
        return False
    return jnp.issubdtype(aval_of(equation.outvars[0]).dtype, jnp.floating)


def _rule(equation: jex_core.JaxprEqn, operands: list[Any]) -> Sequence[Any] | None:
    if not _is_of_floats(equation):
        return None
    x, y = operands
    larger, smaller = x > y, x < y
    if equation.primitive.name == "min":
        larger, smaller = smaller, larger
    return [_chosen(larger, smaller, x, y)]


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
