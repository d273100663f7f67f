"""Calls NumPy and SciPy functions from traced code."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class _OnHost:
    """A function of this package that traced code may call with private rows."""

    function: Callable[..., np.ndarray]

    def __call__(self, *arrays: Any) -> np.ndarray:
        return self.function(*arrays)


def is_own_callback(equation: jex_core.JaxprEqn) -> bool:
    """Whether an equation of a program is a call that `call_on_host` made."""
    callback = equation.params.get("callback")
    return isinstance(getattr(callback, "callback_func", None), _OnHost)


def call_on_host(
    function: Callable[..., Any], shape: tuple[int, ...], *arguments: Any
) -> jax.Array:
    """`jax.pure_callback` for floats that is exact in double precision too.

    JAX runs callbacks in a thread of its own, where `with jax.enable_x64(True)` does
    not hold, and would round doubles to singles on their way. So they travel as bits.
    Outside of traced code the function is simply called. Within it the numbers may be
    those of a private row, and an exception would show that it is such a row: where the
    function raises, all of its result is NaN.

    Args:
      function: Gets NumPy arrays of the default float type; returns one of `shape`.
      shape: Shape of the result.
      *arguments: Arrays of floats.
        Under `jax.vmap` the function is called for one row after the other.
    """
    dtype = np.dtype(jnp.result_type(float))
    is_double = dtype.itemsize == 8
    if not any(isinstance(argument, jax.core.Tracer) for argument in arguments):
        result = function(*(np.asarray(argument, dtype) for argument in arguments))
        return jnp.asarray(result, dtype)

    def on_host(*packed: Any) -> np.ndarray:
        arrays = [np.asarray(bits, order="C").view(dtype) for bits in packed]
        if is_double:
            arrays = [array[..., 0] for array in arrays]
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                result = np.asarray(function(*arrays), dtype)
        except Exception:
            result = np.full(shape, np.nan, dtype)
        result = np.asarray(result[..., None] if is_double else result, order="C")
        return result.view(np.uint32)

    packed = [
        jax.lax.bitcast_convert_type(jnp.asarray(argument, dtype), np.uint32)
        for argument in arguments
    ]
    bits_shape = (*shape, 2) if is_double else shape
    bits = jax.pure_callback(
        _OnHost(on_host),
        jax.ShapeDtypeStruct(bits_shape, np.uint32),
        *packed,
        vmap_method="sequential",
    )
    return jax.lax.bitcast_convert_type(bits, dtype)
