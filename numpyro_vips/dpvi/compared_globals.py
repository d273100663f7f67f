"""Globals that a log density compares with something, and does nothing else with.

A row after a change point, `t > switch`, has another rate than one before it, and its
log density depends on the change point. The derivative is zero wherever there is one.
So no gradient moves such a global, and the others are fitted as if it were where it
started.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp

from numpyro_vips.jax_tools.jaxprs import aval_of, called_program, evaluate

# Of real numbers. Comparisons, indices and the like give no real numbers.
_WITHOUT_DERIVATIVE = {"floor", "ceil", "round", "sign", "stop_gradient"}

# The globals that a number has a derivative in.
_Names = frozenset[str]


def compared_globals(
    program: jex_core.ClosedJaxpr, free: Mapping[str, Any], read: Sequence[str]
) -> tuple[str, ...]:
    """Names of the globals in which a row's log density has no derivative anywhere.

    Args:
      program: A row's log density, its first output, of inputs that begin with the
        leaves of `free`.
      free: The globals, by name: one array each.
      read: Names of those that the log density depends on.
    """
    names = jax.tree.leaves({name: name for name in free})
    others = len(program.in_avals) - len(names)
    inputs = [*(frozenset({name}) for name in names), *([frozenset()] * others)]
    outputs = evaluate(
        program, inputs, _smooth_in, constant=lambda _: frozenset(), keep_rules=True
    )
    return tuple(name for name in read if name not in outputs[0])


def _smooth_in(
    equation: jex_core.JaxprEqn, operands: Sequence[_Names]
) -> list[_Names] | None:
    """What the results of an equation have a derivative in; None of a call.

    Of loops and branches everything counts that goes into them, and of calls with a
    derivative of their own.
    """
    if called_program(equation, keep_rules=True) is not None:
        return None
    made_of: _Names = frozenset().union(*operands)
    if equation.primitive.name in _WITHOUT_DERIVATIVE:
        made_of = frozenset()
    return [
        made_of if jnp.issubdtype(aval_of(out).dtype, jnp.inexact) else frozenset()
        for out in equation.outvars
    ]
