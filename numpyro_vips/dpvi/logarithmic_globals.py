"""Globals that are logarithms, as coefficients of a rate exp(a + b x) are.

A wide prior of such a global, as Normal(0, 1000), says nothing of how far it may be
away: at a distance of a hundred rates are beyond any number. So its prior is cut short,
as that of a scale is whose logarithm is fitted.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex_core

from numpyro_vips.jax_tools.jaxprs import called_program, evaluate

# What grows as an exponential, or is an exponential divided by another one.
_EXPONENTIALS = {"exp", "exp2", "expm1", "logistic", "tanh", "erf", "erfc"}
# What moves numbers, or adds and compares them.
_LINEAR = {
    *("add", "add_any", "sub", "neg", "abs", "max", "min", "clamp", "select_n"),
    *("reduce_sum", "cumsum", "reduce_max", "reduce_min", "copy", "copy_p"),
    *("convert_element_type", "stop_gradient", "broadcast_in_dim", "reshape"),
    *("squeeze", "expand_dims", "transpose", "rev", "concatenate", "stack", "pad"),
    *(
        "split",
        "unstack",
        "tile",
        "slice",
        "dynamic_slice",
        "dynamic_update_slice",
        "gather",
        "scatter",
    ),
    *("scatter-add", "optimization_barrier"),
}
# What does so if all but one of its operands are free of globals.
_BILINEAR = {"mul", "div", "dot_general"}


class _Number(NamedTuple):
    """What is known of a number on the way to a log density.

    Attributes:
      linear_in: The globals that are added to it, times numbers of the row at most.
      depends: Whether it depends on globals in any way.
    """

    linear_in: frozenset[str]
    depends: bool


_OF_ROW = _Number(frozenset(), False)


def logarithmic_globals(
    program: jex_core.ClosedJaxpr, free: Mapping[str, Any]
) -> frozenset[str]:
    """Names of the globals that a row's log density takes an exponential of.

    That is of the global itself, or of a sum that it is added to, perhaps times a
    number of the row.

    Args:
      program: A row's log density, of inputs that begin with the leaves of `free`.
      free: The globals, by name: one array each.
    """
    found: set[str] = set()

    def following(
        equation: jex_core.JaxprEqn, operands: Sequence[_Number]
    ) -> list[_Number] | None:
        if called_program(equation) is not None:
            return None
        name = equation.primitive.name
        linear_in = frozenset().union(*(each.linear_in for each in operands))
        if name in _EXPONENTIALS:
            found.update(linear_in)
        num_dependent = sum(each.depends for each in operands)
        is_linear = name in _LINEAR or (name in _BILINEAR and num_dependent <= 1)
        # No divisor is linear.
        is_linear &= name != "div" or not operands[1].depends
        result = _Number(linear_in if is_linear else frozenset(), num_dependent > 0)
        return [result] * len(equation.outvars)

    names = jax.tree.leaves({name: name for name in free})
    num_others = len(program.in_avals) - len(names)
    inputs = [_Number(frozenset({name}), True) for name in names]
    evaluate(
        program, inputs + num_others * [_OF_ROW], following, constant=lambda _: _OF_ROW
    )
    return frozenset(found)
