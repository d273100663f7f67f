"""Evaluating a model in double precision while the program runs in single precision.

JAX keeps, for every NumPy array that a function captures, one converted copy, and does
not ask again when the precision changes (seen with jax 0.10): a float64 array captured
by a model that has been traced in single precision turns up as float32 inside a double
precision program, which then fails to compile. So the program is traced, and evaluated
operation by operation with such operands promoted.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp

# Programs inside programs that run exactly once, with the same inputs.
_INNER_PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CALLS = (
    *("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
)
# Parameters of loops and branches, whose operands may rightly differ in precision.
_CONTROL_FLOW = ("jaxpr", "branches", "body_jaxpr")


def evaluate_in_double(function: Callable[..., Any], *args: Any) -> Any:
    """Compiles and calls `function` with JAX's double precision switched on."""
    with jax.enable_x64(True):
        program, shape = jax.make_jaxpr(function, return_shape=True)(*args)

        def promoted(constants: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
            return _evaluate(program.jaxpr, constants, leaves)

        constants = [jnp.array(constant) for constant in program.consts]
        leaves = jax.jit(promoted)(constants, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), leaves)


def _evaluate(jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    for var, value in zip(jaxpr.invars, inputs, strict=True):
        values[var] = _as_type(value, var.aval)

    def read(var: Any) -> Any:
        return var.val if isinstance(var, jex_core.Literal) else values[var]

    for eqn in jaxpr.eqns:
        operands = [read(var) for var in eqn.invars]
        inner = next((eqn.params[k] for k in _INNER_PROGRAMS if k in eqn.params), None)
        if eqn.primitive.name in _CALLS and inner is not None:
            program = getattr(inner, "jaxpr", inner)
            results = _evaluate(program, getattr(inner, "consts", ()), operands)
        else:
            if not any(name in eqn.params for name in _CONTROL_FLOW):
                operands = _promoted(operands)
            results = eqn.primitive.bind(*operands, **eqn.params)
            results = results if eqn.primitive.multiple_results else [results]
        for var, result in zip(eqn.outvars, results, strict=True):
            values[var] = _as_type(result, var.aval)
    return [_as_type(read(var), var.aval) for var in jaxpr.outvars]


def _promoted(operands: Sequence[Any]) -> list[Any]:
    """Operands of an operation, the real ones among them of one precision."""
    dtypes = [getattr(operand, "dtype", None) for operand in operands]
    if jnp.float64 not in dtypes:
        return list(operands)
    return [
        operand.astype(jnp.float64) if dtype == jnp.float32 else operand
        for operand, dtype in zip(operands, dtypes, strict=True)
    ]


def _as_type(value: Any, aval: Any) -> Any:
    dtype = getattr(value, "dtype", None)
    if {dtype, getattr(aval, "dtype", None)} == {jnp.dtype("f4"), jnp.dtype("f8")}:
        return value.astype(aval.dtype)
    return value
