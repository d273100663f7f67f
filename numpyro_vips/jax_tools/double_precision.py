"""Evaluating a model in double precision while the program runs in single precision.

A function is traced with JAX's double precision switched on, and its program evaluated
in NumPy, every real number in double precision. That takes a fraction of the time that
compiling it would, and is not affected by the copies that JAX keeps of the NumPy arrays
which a model captures: a float64 array that has been traced in single precision before
turns up as float32 inside a double precision program (seen with jax 0.10).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np

from numpyro_vips.jax_tools.jaxprs import (
    apply_equation,
    aval_of,
    called_program,
    chosen_branch,
    equations_of,
    evaluate,
    unrolled_scan,
    without_dead_code,
)
from numpyro_vips.jax_tools.numpy_primitives import NUMPY, NUMPY_SEVERAL
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized
from numpyro_vips.jax_tools.random_keys import is_key

# Equations of all steps of a loop that is run step by step.
_MOST_EQUATIONS = 256


def trace_in_double(function: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """Traces a function on arguments of these shapes, in double precision.

    Returns:
      The function for any arguments of the same shapes and types. It takes and returns
      NumPy arrays.
    """
    with double_precision():
        program, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    # What only a discarded random draw or an unused site needs is left out.
    program = without_dead_code(program)
    structure = jax.tree.structure(shape)

    def run(*args: Any) -> Any:
        return jax.tree.unflatten(
            structure, evaluate_in_numpy(program, *jax.tree.leaves(args))
        )

    return run


def evaluate_in_numpy(program: jex_core.ClosedJaxpr, *leaves: Any) -> list[Any]:
    """Evaluates a program, every real number in double precision.

    Args:
      program: Traced in any precision.
      *leaves: What it takes.

    Returns:
      NumPy arrays.
    """
    with np.errstate(all="ignore"), double_precision():
        return evaluate(program, map(_in_double, leaves), _apply, constant=_in_double)


def evaluate_in_double(function: Callable[..., Any], *args: Any) -> Any:
    """Evaluates a traceable function in double precision; returns NumPy arrays."""
    return trace_in_double(function, *args)(*args)


def _in_double(value: Any) -> Any:
    """A NumPy array, a real one of double precision; random keys stay as they are."""
    if is_key(value):
        return value
    array = np.asarray(value)
    return array.astype(np.float64) if _is_real(array) else array


def _is_real(array: Any) -> bool:
    return _is_real_type(array.dtype)


@functools.cache
def _is_real_type(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


def _apply(eqn: jex_core.JaxprEqn, operands: Sequence[Any]) -> list[Any] | None:
    if called_program(eqn) is not None:
        return None
    name, params = eqn.primitive.name, eqn.params
    if any(is_key(var.aval) for var in (*eqn.invars, *eqn.outvars)):
        is_random = name.startswith("random_")
        return (_apply_random if is_random else _apply_jax)(eqn, operands)
    if name == "cond":
        branch = chosen_branch(eqn, int(operands[0]))
        return evaluate(branch, operands[1:], _apply, constant=_in_double)
    if name == "scan" and _is_short(eqn):
        return _apply_scan(eqn, operands)
    if name == "bitcast_convert_type" and _is_of_equal_width(eqn):
        return [_as_traced(operands[0].view(params["new_dtype"]), eqn.outvars[0])]
    if name == "platform_index":
        return [_platform(params["platforms"])]
    if name in NUMPY:
        return [_as_traced(NUMPY[name](params, *operands), eqn.outvars[0])]
    if name in NUMPY_SEVERAL:
        results = NUMPY_SEVERAL[name](params, *operands)
        pairs = zip(results, eqn.outvars, strict=True)
        return [_as_traced(result, var) for result, var in pairs]
    return _apply_jax(eqn, operands)


def _is_short(scan: jex_core.JaxprEqn) -> bool:
    """Whether a loop is run sooner than compiled, as over coefficients."""
    of_a_step = sum(1 for _ in equations_of(scan.params["jaxpr"]))
    return 0 < scan.params["length"] * of_a_step <= _MOST_EQUATIONS


def _apply_scan(scan: jex_core.JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    def step(program: jex_core.ClosedJaxpr, given: list[Any]) -> tuple[list[Any], list]:
        return evaluate(program, given, _apply, constant=_in_double), []

    carried, entries, _ = unrolled_scan(
        scan, operands, step, lambda array, number: array[number]
    )
    return [*carried, *map(np.stack, entries)]


def _is_of_equal_width(bitcast: jex_core.JaxprEqn) -> bool:
    """Whether the bits of integers, as of random draws, are those of the results."""
    before, after = aval_of(bitcast.invars[0]), aval_of(bitcast.outvars[0])
    return not _is_real(before) and before.dtype.itemsize == after.dtype.itemsize


def _platform(choices: Sequence[Sequence[str] | None]) -> np.ndarray:
    """The first choice for the platform that JAX runs on; None is any."""
    here = jax.default_backend()
    fits = [names is None or here in names for names in choices]
    return np.asarray(fits.index(True))


def _as_traced(result: Any, var: Any) -> np.ndarray:
    """The type and shape that an operation has in the program, reals in double."""
    aval: Any = var.aval
    dtype = np.float64 if _is_real(aval) else aval.dtype
    result = np.asarray(result)
    if result.dtype != dtype:
        result = result.astype(dtype)
    shape = aval.shape
    return result if result.shape == shape else np.broadcast_to(result, shape)


def _apply_random(eqn: jex_core.JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Random keys and bits: JAX's own, by one program for each kind of operation."""
    program = _random_program(eqn.primitive, tuple(sorted(eqn.params.items())))
    return [_in_double(program(*operands))]


@functools.cache
def _random_program(primitive: Any, params: tuple[tuple[str, Any], ...]) -> Any:
    return jit_unoptimized(functools.partial(primitive.bind, **dict(params)))


def _apply_jax(eqn: jex_core.JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """What NumPy has no word for, such as a loop, is left to JAX."""
    avals: list[Any] = [var.aval for var in eqn.invars]
    typed = [
        operand
        if is_key(aval)
        else jax.device_put(np.asarray(operand, aval.dtype))  # It compiles nothing.
        for operand, aval in zip(operands, avals, strict=True)
    ]
    return [_in_double(result) for result in apply_equation(eqn, typed)]
