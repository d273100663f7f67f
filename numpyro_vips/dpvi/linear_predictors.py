"""Linear predictors: what a row's log density makes of sums of globals.

In a + b x the globals a and b are added, each times numbers of the row at most. A
number of that kind is a predictor where something else is made of it, such as an
exponential. What the row multiplies a global with there is its feature.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex_core

from numpyro_vips.jax_tools.jaxprs import (
    apply_equation,
    called_program,
    evaluate_and_note,
)

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


class LinearPredictor(NamedTuple):
    """A number that globals are added to, at the place where it is made use of.

    Attributes:
      linear_in: These globals.
      operation: What is made of it.
      value: The number, of whatever shape; None where no numbers are given.
    """

    linear_in: frozenset[str]
    operation: str
    value: Any


class _Number(NamedTuple):
    """What is known of a number on the way to a log density.

    Attributes:
      value: See `LinearPredictor`.
      linear_in: The globals that are added to it, times numbers of the row at most.
      depends: Whether it depends on globals in any way.
    """

    value: Any
    linear_in: frozenset[str] = frozenset()
    depends: bool = False


def linear_predictors(
    program: jex_core.ClosedJaxpr,
    free: Mapping[str, Any],
    others: Sequence[Any] | None = None,
) -> list[LinearPredictor]:
    """The linear predictors on the way to a row's log density.

    Their order depends on the program alone.

    Args:
      program: A row's log density, of inputs that begin with the leaves of `free`.
      free: The globals, by name: one array each.
      others: The other inputs. Without them predictors have no values.
    """

    def following(
        equation: jex_core.JaxprEqn, operands: Sequence[_Number]
    ) -> tuple[list[_Number] | None, list[LinearPredictor]]:
        if called_program(equation) is not None:
            return None, []
        name = equation.primitive.name
        num_dependent = sum(each.depends for each in operands)
        is_linear = name in _LINEAR or (name in _BILINEAR and num_dependent <= 1)
        # No divisor is linear.
        is_linear &= name != "div" or not operands[1].depends
        linear_in = frozenset[str]().union(*(each.linear_in for each in operands))
        used = [each for each in operands if each.linear_in and not is_linear]
        values = len(equation.outvars) * [None]
        if others is not None:
            values = apply_equation(equation, [each.value for each in operands])
        return [
            _Number(value, linear_in if is_linear else frozenset(), num_dependent > 0)
            for value in values
        ], [LinearPredictor(each.linear_in, name, each.value) for each in used]

    names = jax.tree.leaves({name: name for name in free})
    values = [*jax.tree.leaves(dict(free)), *(others or [])]
    if others is None:
        values = len(program.in_avals) * [None]
    inputs = [_Number(value) for value in values]
    for place, name in enumerate(names):
        inputs[place] = _Number(values[place], frozenset({name}), True)
    _, found = evaluate_and_note(program, inputs, following, constant=_Number)
    return found
