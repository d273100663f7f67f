"""Whether a program's array indices lie in range, where JAX itself does not check.

JAX clamps an index that is out of range: `beta[8]` of a vector of length 8 is its last
entry. A row with such an id would be counted as if it had another one. The engines
let it count as zero instead.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
from jax.lax import GatherScatterMode

# Programs inside programs that run exactly once, so that their checks always hold.
_INNER_PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2")
_CUSTOM_CALLS = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


def indices_in_range(
    program: jex_core.ClosedJaxpr, arguments: Sequence[Any]
) -> jax.Array:
    """Evaluates `program` and returns whether it indexes within its arrays.

    Seen are `x[i]`, slices that start at `i` and whatever clamps its index. Not judged
    are the spellings that fill in a value instead, such as `jnp.take`, whose NaN is
    found by other means, nor indexing inside loops and branches. A negative index
    counts from the end, as in Python, and is in range down to minus the length.

    Args:
      program: A traced program.
      arguments: Its inputs, flat; they may be tracers.

    Returns:
      A boolean. Compiled, it costs no more than the computation of the indices.
    """
    checks: list[jax.Array] = []
    _evaluate(program.jaxpr, program.consts, arguments, checks)
    in_range = jnp.ones((), bool)
    for check in checks:
        in_range &= jnp.all(check)
    return in_range


def _evaluate(
    jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any], checks: list
) -> list[Any]:
    values: dict[Any, Any] = {}
    values.update(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))

    def read(var: Any) -> Any:
        return var.val if isinstance(var, jex_core.Literal) else values[var]

    for eqn in jaxpr.eqns:
        operands = [read(var) for var in eqn.invars]
        name = eqn.primitive.name
        inner = next((eqn.params[k] for k in _INNER_PROGRAMS if k in eqn.params), None)
        if name in _CALLS + _CUSTOM_CALLS and inner is not None:
            if isinstance(inner, jex_core.ClosedJaxpr):
                results = _evaluate(inner.jaxpr, inner.consts, operands, checks)
            else:
                results = _evaluate(inner, (), operands, checks)
        else:
            checks += _checks(eqn, operands)
            results = eqn.primitive.bind(*operands, **eqn.params)
            results = results if eqn.primitive.multiple_results else [results]
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _checks(eqn: jex_core.JaxprEqn, operands: Sequence[Any]) -> list[jax.Array]:
    if eqn.primitive.name == "gather":
        if eqn.params["mode"] is GatherScatterMode.FILL_OR_DROP:
            return []
        operand, indices = operands
        axes = eqn.params["dimension_numbers"].start_index_map
        sizes = eqn.params["slice_sizes"]
        limits = [jnp.shape(operand)[axis] - sizes[axis] for axis in axes]
        return [(indices >= 0) & (indices <= jnp.asarray(limits, indices.dtype))]
    if eqn.primitive.name == "dynamic_slice":
        operand, *starts = operands
        limits = zip(jnp.shape(operand), eqn.params["slice_sizes"], strict=True)
        return [
            (jnp.asarray(start) >= 0) & (jnp.asarray(start) <= length - size)
            for start, (length, size) in zip(starts, limits, strict=True)
        ]
    return []
