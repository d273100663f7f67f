"""Linear predictors: what a row's log density makes of sums of globals.

In a + b x the globals a and b are added, each times numbers of the row at most. A
number of that kind is a predictor where something else is made of it, such as an
exponential. What the row multiplies a global with there is its feature.

In a x / (x + c) a row divides by a number of its own, which depends on another global.
The feature of a is x / (x + c) then, where c is at the time, and not x. What divides
all rows alike, such as the scale of their residuals, is no part of a feature.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex_core

from numpyro_vips.jax_tools.jaxprs import inlined, with_results

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
    """

    linear_in: frozenset[str]
    operation: str


class LinearPredictors(NamedTuple):
    """The linear predictors on the way to a row's log density.

    Attributes:
      found: The predictors, in an order that depends on the program alone.
      program: Returns their numbers, of whatever shapes, in this order. It takes what
        the log density takes.
    """

    found: tuple[LinearPredictor, ...]
    program: jex_core.ClosedJaxpr


def linear_predictors(
    program: jex_core.ClosedJaxpr, free: Mapping[str, Any]
) -> LinearPredictors:
    """The linear predictors on the way to a row's log density.

    Args:
      program: A row's log density, of inputs that begin with the leaves of `free`.
      free: The globals, by name: one array each.
    """
    flat = inlined(program)
    names = jax.tree.leaves({name: name for name in free})
    inputs = flat.jaxpr.invars
    # Of each number that depends on globals all of these, and those that are added.
    made_of = {v: frozenset({n}) for v, n in zip(inputs, names, strict=False)}
    linear_in = dict(made_of)
    of_rows = set(inputs[len(names) :])
    found, places = [], []
    for equation in flat.jaxpr.eqns:
        operands = [None if _is_literal(v) else v for v in equation.invars]
        if not of_rows.isdisjoint(operands):
            of_rows.update(equation.outvars)
        dependent = [v for v in operands if v in made_of]
        if not dependent:
            continue
        name = equation.primitive.name
        # No divisor is linear.
        factors = operands[:1] if name == "div" else operands
        linear = [v for v in dependent if v in factors and linear_in[v]]
        others = [v for v in dependent if v not in linear]
        added = frozenset[str]().union(*(linear_in[v] for v in linear))
        if name in _BILINEAR and len(linear) == 1 and of_rows.issuperset(others):
            added = added.difference(*(made_of[v] for v in others))
            linear = []
        elif name in _LINEAR:
            linear = []
        else:
            added = frozenset[str]()
        used = [v for v in dependent if linear_in[v] and (linear or v in others)]
        found += [LinearPredictor(linear_in[v], name) for v in used]
        places += used
        made_of.update(
            dict.fromkeys(
                equation.outvars, frozenset().union(*(made_of[v] for v in dependent))
            )
        )
        linear_in.update(dict.fromkeys(equation.outvars, added))
    return LinearPredictors(tuple(found), with_results(flat, places))


def _is_literal(variable: Any) -> bool:
    return isinstance(variable, jex_core.Literal)
