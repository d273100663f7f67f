"""Captured arrays of 64-bit numbers, which JAX mistakes in double precision.

JAX keeps one copy of a NumPy array for all programs that it is a constant of. If the
first of them is traced in single precision, that copy has 32 bits, also in a program
traced in double precision later, where JAX then says that `int32` and `int64`, or
`float32` and `float64`, do not match (seen with jax 0.10, `theta[positions]`, and
`slope * uranium` for the prior mean of groups). An array that JAX has not met has no
such copy. So in double precision a model gets arrays that it has never had before.
"""

import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np


def with_fresh_arrays(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with copies of the arrays of 64-bit numbers that it captures.

    Copied are arrays in closures and global variables of a Python function; the
    function itself, and what it refers to, stays as it is. In single precision, and
    where there is nothing to copy, this is `fn`.
    """
    is_double = jax.dtypes.canonicalize_dtype(np.int64) == np.int64
    if not (is_double and isinstance(fn, types.FunctionType)):
        return fn
    names = set(_names(fn.__code__))
    scope = {
        name: value.copy()
        for name, value in fn.__globals__.items()
        if name in names and _is_wide(value)
    }
    cells = tuple(map(_fresh_cell, fn.__closure__ or ()))
    if not scope and all(
        one is other for one, other in zip(cells, fn.__closure__ or (), strict=True)
    ):
        return fn
    fresh = types.FunctionType(
        fn.__code__,
        {**fn.__globals__, **scope} if scope else fn.__globals__,
        fn.__name__,
        fn.__defaults__,
        cells,
    )
    fresh.__kwdefaults__ = fn.__kwdefaults__
    return fresh


def _is_wide(value: Any) -> bool:
    wide = np.int64, np.uint64, np.float64, np.complex128
    return type(value) is np.ndarray and value.dtype in wide


def _fresh_cell(cell: types.CellType) -> types.CellType:
    try:
        value = cell.cell_contents
    except ValueError:  # A variable that has no value yet.
        return cell
    return types.CellType(value.copy()) if _is_wide(value) else cell


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that a function, and functions defined in it, may look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
