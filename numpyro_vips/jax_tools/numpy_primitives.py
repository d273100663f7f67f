"""JAX's primitives on NumPy arrays, so that small programs run without compiling.

XLA takes tens of milliseconds for a program of any size, and JAX nearly as long to hand
it over; a model is analysed on a few synthetic numbers, which NumPy evaluates at once.
What is missing here is left to JAX by the callers.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode
from scipy import special

Params = Mapping[str, Any]


def _divide(_: Params, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if np.issubdtype(np.result_type(x), np.inexact):
        return x / y
    return np.trunc(x / y)


def _select(_: Params, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    if len(cases) == 2:
        return np.where(np.asarray(which, bool), cases[1], cases[0])
    which = np.broadcast_to(which, np.broadcast_shapes(which.shape, cases[0].shape))
    return np.take_along_axis(np.stack(cases), which[None].astype(int), 0)[0]


def _broadcast(params: Params, x: np.ndarray, *_: Any) -> np.ndarray:
    shape = [1] * len(params["shape"])
    for axis, position in enumerate(params["broadcast_dimensions"]):
        shape[position] = x.shape[axis]
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _iota(params: Params) -> np.ndarray:
    shape, axis = params["shape"], params["dimension"]
    return np.broadcast_to(_along(axis, shape[axis], len(shape)), shape)


def _slice(params: Params, x: np.ndarray) -> np.ndarray:
    strides = params["strides"] or [1] * x.ndim
    limits = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(start, stop, step) for start, stop, step in limits)]


def _pad(params: Params, x: np.ndarray, filling: np.ndarray) -> np.ndarray:
    config = params["padding_config"]
    lengths = [
        length + max(length - 1, 0) * between
        for length, (_, _, between) in zip(x.shape, config, strict=True)
    ]
    spread = np.full(lengths, filling, x.dtype)
    spread[tuple(slice(None, None, between + 1) for _, _, between in config)] = x
    # Where there is less than nothing to add, entries are taken away.
    kept = [
        slice(max(-low, 0), n - max(-high, 0))
        for n, (low, high, _) in zip(lengths, config, strict=True)
    ]
    added = [(max(low, 0), max(high, 0)) for low, high, _ in config]
    return np.pad(spread[tuple(kept)], added, constant_values=filling)


def _dynamic_slice(params: Params, x: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    index = []
    limits = zip(x.shape, starts, params["slice_sizes"], strict=True)
    for length, start, size in limits:
        first = int(np.clip(start, 0, length - size))
        index.append(slice(first, first + size))
    return x[tuple(index)]


def _dot_general(params: Params, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    (sum_x, sum_y), (batch_x, batch_y) = params["dimension_numbers"]
    free_x = [i for i in range(x.ndim) if i not in (*sum_x, *batch_x)]
    free_y = [i for i in range(y.ndim) if i not in (*sum_y, *batch_y)]
    batch = [x.shape[i] for i in batch_x]
    summed = math.prod(x.shape[i] for i in sum_x)
    left = x.transpose((*batch_x, *free_x, *sum_x)).reshape((*batch, -1, summed))
    right = y.transpose((*batch_y, *sum_y, *free_y)).reshape((*batch, summed, -1))
    shape = (*batch, *(x.shape[i] for i in free_x), *(y.shape[i] for i in free_y))
    return np.matmul(left, right).reshape(shape)


def _gather(params: Params, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Any gather, through one broadcast index array per axis."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    shape = indices.shape[:-1]
    inside = np.ones(shape, bool)
    starts: dict[int, np.ndarray] = {}
    for component, axis in enumerate(numbers.start_index_map):
        wanted, last = indices[..., component], x.shape[axis] - sizes[axis]
        starts[axis] = np.clip(wanted, 0, last)
        inside &= (wanted >= 0) & (wanted <= last)
    batching = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    for axis, position in zip(*batching, strict=True):
        starts[axis] = _along(position, x.shape[axis], len(shape))
    missing = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    window = [axis for axis in range(x.ndim) if axis not in missing]
    index = []
    for axis in range(x.ndim):
        start = starts.get(axis, np.zeros((1,) * len(shape), int))
        start = start.reshape((*start.shape, *(1,) * len(window)))
        if axis in window:
            start = start + _along(window.index(axis), sizes[axis], len(window))
        index.append(start)
    whole = (*shape, *(sizes[axis] for axis in window))
    result = np.broadcast_to(x[tuple(index)], whole)
    if params["mode"] is GatherScatterMode.FILL_OR_DROP and not inside.all():
        fill = params["fill_value"]
        if fill is None:
            fill = np.nan if np.issubdtype(result.dtype, np.inexact) else 0
        mask = inside.reshape((*shape, *(1,) * len(window)))
        result = np.where(mask, result, np.asarray(fill, result.dtype))
    # The window's axes go where they belong.
    return np.moveaxis(result, range(len(shape), len(whole)), numbers.offset_dims)


def _along(axis: int, length: int, rank: int) -> np.ndarray:
    """The numbers 0, 1, ... along one of some axes."""
    return np.arange(length).reshape([-1 if i == axis else 1 for i in range(rank)])


def _cholesky(_: Params, x: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        return np.full(x.shape, np.nan, x.dtype)


def _triangular_solve(params: Params, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a = np.tril(a) if params["lower"] else np.triu(a)
    eye = np.eye(a.shape[-1], dtype=a.dtype)
    if params["unit_diagonal"]:
        a = a * (1 - eye) + eye
    # NumPy raises an error for all systems if one has no solution.
    is_singular = np.any((eye == 1) & (a == 0), axis=(-2, -1), keepdims=True)
    a = np.where(is_singular, eye, a)
    if params["transpose_a"]:
        a = np.swapaxes(a, -1, -2)
    if params["left_side"]:
        solved = np.linalg.solve(a, b)
    else:
        solved = np.linalg.solve(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2))
        solved = np.swapaxes(solved, -1, -2)
    return np.where(is_singular, np.nan, solved)


def _shift_right(_: Params, x: np.ndarray, by: np.ndarray) -> np.ndarray:
    unsigned = x.view(f"u{x.dtype.itemsize}")
    return (unsigned >> by.astype(unsigned.dtype)).view(x.dtype)


def _reduce(
    function: Callable[..., Any],
) -> Callable[[Params, np.ndarray], np.ndarray]:
    return lambda params, x: function(x, axis=tuple(params["axes"]))


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, *operands: function(*operands)


# What NumPy has by the same name.
_SAME_NAMES = (
    *("abs", "ceil", "cos", "exp", "exp2", "expm1", "floor", "log", "log1p", "sign"),
    *("sin", "sqrt", "square", "tanh"),
)
# Each takes an operation's parameters and its operands. Results may still have to be
# cast to the operation's type, and broadcast to its shape.
NUMPY: dict[str, Callable[..., Any]] = {
    **{name: _plain(getattr(np, name)) for name in _SAME_NAMES},
    "add": lambda p, x, y: x + y,
    "add_any": lambda p, x, y: x + y,
    "and": lambda p, x, y: x & y,
    "argmax": lambda p, x: np.argmax(x, p["axes"][0]),
    "argmin": lambda p, x: np.argmin(x, p["axes"][0]),
    "broadcast_in_dim": _broadcast,
    "cholesky": _cholesky,
    "clamp": lambda p, low, x, high: np.minimum(np.maximum(x, low), high),
    "concatenate": lambda p, *xs: np.concatenate(xs, p["dimension"]),
    "convert_element_type": lambda p, x: x,
    "copy": lambda p, x: x,
    "copy_p": lambda p, x: x,
    "digamma": lambda p, x: special.digamma(x),
    "div": _divide,
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "eq": lambda p, x, y: x == y,
    "erf": lambda p, x: special.erf(x),
    "erf_inv": lambda p, x: special.erfinv(x),
    "erfc": lambda p, x: special.erfc(x),
    "expand_dims": lambda p, x: np.expand_dims(x, tuple(p["dimensions"])),
    "gather": _gather,
    "ge": lambda p, x, y: x >= y,
    "gt": lambda p, x, y: x > y,
    "igamma": lambda p, a, x: special.gammainc(a, x),
    "igammac": lambda p, a, x: special.gammaincc(a, x),
    "integer_pow": lambda p, x: x ** p["y"],
    "iota": _iota,
    "is_finite": lambda p, x: np.isfinite(x),
    "le": lambda p, x, y: x <= y,
    "lgamma": lambda p, x: special.gammaln(x),
    "logistic": lambda p, x: special.expit(x),
    "lt": lambda p, x, y: x < y,
    "max": lambda p, x, y: np.maximum(x, y),
    "min": lambda p, x, y: np.minimum(x, y),
    "mul": lambda p, x, y: x * y,
    "ne": lambda p, x, y: x != y,
    "neg": lambda p, x: -x,
    "not": lambda p, x: ~x,
    "or": lambda p, x, y: x | y,
    "pow": lambda p, x, y: x**y,
    "reduce_and": _reduce(np.all),
    "reduce_max": _reduce(np.max),
    "reduce_min": _reduce(np.min),
    "reduce_or": _reduce(np.any),
    "reduce_precision": lambda p, x: x,
    "reduce_prod": _reduce(np.prod),
    "reduce_sum": _reduce(np.sum),
    "regularized_incomplete_beta": lambda p, a, b, x: special.betainc(a, b, x),
    "rem": lambda p, x, y: np.fmod(x, y),
    "reshape": lambda p, x: x.reshape(p["new_sizes"]),
    "pad": _pad,
    "rev": lambda p, x: np.flip(x, p["dimensions"]),
    "rsqrt": lambda p, x: 1 / np.sqrt(x),
    "select_n": _select,
    "shift_right_logical": _shift_right,
    "slice": _slice,
    "squeeze": lambda p, x: np.squeeze(x, tuple(p["dimensions"])),
    "stack": lambda p, *xs: np.stack(xs, p["axis"]),
    "stop_gradient": lambda p, x: x,
    "sub": lambda p, x, y: x - y,
    "tile": lambda p, x: np.tile(x, p["reps"]),
    "transpose": lambda p, x: x.transpose(p["permutation"]),
    "triangular_solve": _triangular_solve,
    "xor": lambda p, x, y: x ^ y,
}


def _split(params: Params, x: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum(params["sizes"])[:-1]
    return np.split(x, ends, params["axis"])


def _unstack(params: Params, x: np.ndarray) -> list[np.ndarray]:
    return list(np.moveaxis(x, params["axis"], 0))


# Likewise, with several results.
NUMPY_SEVERAL: dict[str, Callable[..., list[np.ndarray]]] = {
    "split": _split,
    "unstack": _unstack,
}
