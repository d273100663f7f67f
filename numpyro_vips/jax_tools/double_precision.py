"""Evaluating a model in double precision while the program runs in single precision.

A function is traced with JAX's double precision switched on, and its program evaluated
in NumPy, every real number in double precision. That takes a fraction of the time that
compiling it would, and is not affected by the copies that JAX keeps of the NumPy arrays
which a model captures: a float64 array that has been traced in single precision before
turns up as float32 inside a double precision program (seen with jax 0.10).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

from numpyro_vips.jax_tools.numpy_primitives import NUMPY, NUMPY_SEVERAL

# Programs inside programs that run exactly once, with the same inputs.
_INNER_PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")
_CALLS = (
    *("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
    "custom_vmap_call",
)


def trace_in_double(function: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """Traces a function on arguments of these shapes, in double precision.

    Returns:
      The function for any arguments of the same shapes and types. It takes and returns
      NumPy arrays.
    """
    with jax.enable_x64(True):
        program, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    # What only a discarded random draw or an unused site needs is left out.
    jaxpr, used = partial_eval.dce_jaxpr(
        program.jaxpr, [True] * len(program.jaxpr.outvars)
    )
    constants = dict(
        zip(program.jaxpr.constvars, map(_in_double, program.consts), strict=True)
    )
    structure = jax.tree.structure(shape)

    def evaluate(*args: Any) -> Any:
        leaves = [_in_double(leaf) for leaf in jax.tree.leaves(args)]
        kept = [leaf for leaf, is_used in zip(leaves, used, strict=True) if is_used]
        needed = [constants[var] for var in jaxpr.constvars]
        with np.errstate(all="ignore"), jax.enable_x64(True):
            results = _evaluate(jaxpr, needed, kept)
        return jax.tree.unflatten(structure, results)

    return evaluate


def evaluate_in_double(function: Callable[..., Any], *args: Any) -> Any:
    """Evaluates a traceable function in double precision; returns NumPy arrays."""
    return trace_in_double(function, *args)(*args)


def _in_double(value: Any) -> Any:
    """A NumPy array, a real one of double precision; random keys stay as they are."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended):
        return value
    array = np.asarray(value)
    is_real = jnp.issubdtype(array.dtype, jnp.floating)
    return array.astype(np.float64) if is_real else array


def _evaluate(jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def read(var: Any) -> Any:
        return _in_double(var.val) if isinstance(var, jex_core.Literal) else values[var]

    for eqn in jaxpr.eqns:
        operands = [read(var) for var in eqn.invars]
        results = _apply(eqn, operands)
        for var, result in zip(eqn.outvars, results, strict=True):
            values[var] = result
    return [read(var) for var in jaxpr.outvars]


def _apply(eqn: jex_core.JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    name, params = eqn.primitive.name, eqn.params
    inner = next((params[k] for k in _INNER_PROGRAMS if k in params), None)
    if name in _CALLS and inner is not None:
        return _evaluate_inner(inner, operands)
    if name == "cond":
        branches = params["branches"]
        which = int(np.clip(int(operands[0]), 0, len(branches) - 1))
        return _evaluate_inner(branches[which], operands[1:])
    if name == "platform_index":
        return [_platform(params["platforms"])]
    if name in NUMPY:
        return [_as_traced(NUMPY[name](params, *operands), eqn.outvars[0])]
    if name in NUMPY_SEVERAL:
        results = NUMPY_SEVERAL[name](params, *operands)
        pairs = zip(results, eqn.outvars, strict=True)
        return [_as_traced(result, var) for result, var in pairs]
    return _apply_jax(eqn, operands)


def _platform(choices: Sequence[Sequence[str] | None]) -> np.ndarray:
    """The first choice for the platform that JAX runs on; None is any."""
    here = jax.default_backend()
    fits = [names is None or here in names for names in choices]
    return np.asarray(fits.index(True))


def _evaluate_inner(inner: Any, operands: Sequence[Any]) -> list[Any]:
    constants = [_in_double(constant) for constant in getattr(inner, "consts", ())]
    return _evaluate(getattr(inner, "jaxpr", inner), constants, operands)


def _as_traced(result: Any, var: Any) -> np.ndarray:
    """The type and shape that an operation has in the program, reals in double."""
    aval: Any = var.aval
    dtype = aval.dtype
    dtype = np.float64 if jnp.issubdtype(dtype, jnp.floating) else dtype
    result = np.asarray(result)
    if result.dtype != dtype:
        result = result.astype(dtype)
    shape = aval.shape
    return result if result.shape == shape else np.broadcast_to(result, shape)


def _apply_jax(eqn: jex_core.JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """What NumPy has no word for, such as a loop, is left to JAX."""
    avals: list[Any] = [var.aval for var in eqn.invars]
    typed = [
        operand
        if jnp.issubdtype(aval.dtype, jax.dtypes.extended)
        else jnp.asarray(operand, aval.dtype)
        for operand, aval in zip(operands, avals, strict=True)
    ]
    results = eqn.primitive.bind(*typed, **eqn.params)
    results = results if eqn.primitive.multiple_results else [results]
    return [_in_double(result) for result in results]
