"""Calls NumPy and SciPy functions from traced code."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np

from numpyro_vips.jax_tools.own_functions import OwnFunctions

# Those that traced code may call with private rows.
_OF_THIS_PACKAGE = OwnFunctions()
runs_on_host = _OF_THIS_PACKAGE.note


@dataclasses.dataclass(frozen=True, eq=False)
class _OnHost:
    """What JAX calls: a function for arrays of bits.

    Attributes:
      function: See `call_on_host`.
      shape: Shape of its result.
      dtype: The default float type when it was traced.
    """

    function: Callable[..., np.ndarray]
    shape: tuple[int, ...]
    dtype: np.dtype

    def __call__(self, *packed: Any) -> np.ndarray:
        is_double = self.dtype.itemsize == 8
        arrays = [np.asarray(bits, order="C").view(self.dtype) for bits in packed]
        if is_double:
            arrays = [array[..., 0] for array in arrays]
        try:
            # Python's filters of warnings are those of all threads: set aside in two at
            # a time, they may never come back. The functions do not warn otherwise.
            with np.errstate(all="ignore"):
                found = self.function(*arrays, shape=self.shape)
                result = np.asarray(found, self.dtype)
        except Exception:
            result = np.full(self.shape, np.nan, self.dtype)
        result = np.asarray(result[..., None] if is_double else result, order="C")
        return result.view(np.uint32)


@functools.cache
def _kind_of_callbacks() -> type:
    """The class in which JAX keeps what it calls."""
    like = jax.ShapeDtypeStruct((), np.float32)
    program = jax.make_jaxpr(lambda x: jax.pure_callback(np.sin, like, x))(0.0)
    return type(program.jaxpr.eqns[0].params["callback"])


def is_own_callback(equation: jex_core.JaxprEqn) -> bool:
    """Whether an equation calls, by `call_on_host`, a function of this package.

    A model may call it too, but only functions that `runs_on_host` marks are known to
    show nobody what they are given.
    """
    callback = equation.params.get("callback")
    is_row_by_row = equation.params.get("vmap_method") == "sequential"
    if not is_row_by_row or type(callback) is not _kind_of_callbacks():
        return False
    called = getattr(callback, "callback_func", None)
    return type(called) is _OnHost and called.function in _OF_THIS_PACKAGE


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
      function: Gets NumPy arrays of the default float type, and `shape`; returns an
        array of that shape. With private rows only one that `runs_on_host` marks.
      shape: Shape of the result.
      *arguments: Arrays of floats.
        Under `jax.vmap` the function is called for one row after the other.
    """
    dtype = np.dtype(jnp.result_type(float))
    is_double = dtype.itemsize == 8
    if not any(isinstance(argument, jax.core.Tracer) for argument in arguments):
        arrays = (np.asarray(argument, dtype) for argument in arguments)
        result = function(*arrays, shape=shape)
        return jnp.asarray(result, dtype)

    packed = [
        jax.lax.bitcast_convert_type(jnp.asarray(argument, dtype), np.uint32)
        for argument in arguments
    ]
    bits_shape = (*shape, 2) if is_double else shape
    bits = jax.pure_callback(
        _OnHost(function, shape, dtype),
        jax.ShapeDtypeStruct(bits_shape, np.uint32),
        *packed,
        vmap_method="sequential",
    )
    return jax.lax.bitcast_convert_type(bits, dtype)
