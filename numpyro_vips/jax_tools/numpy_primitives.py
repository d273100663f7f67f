"""JAX's primitives on NumPy arrays, so that small programs run without compiling.

XLA takes tens of milliseconds for a program of any size, and JAX nearly as long to hand
it over; a model is analysed on a few synthetic numbers, which NumPy evaluates at once.
What is missing here is left to JAX by the callers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
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
    index, inside = _windows(
        x.shape,
        indices,
        index_map=numbers.start_index_map,
        batching=(numbers.operand_batching_dims, numbers.start_indices_batching_dims),
        collapsed=numbers.collapsed_slice_dims,
        sizes=sizes,
    )
    result = x[index]
    if params["mode"] is GatherScatterMode.FILL_OR_DROP and not inside.all():
        fill = params["fill_value"]
        if fill is None:
            fill = np.nan if np.issubdtype(result.dtype, np.inexact) else 0
        mask = inside.reshape((*inside.shape, *(1,) * (result.ndim - inside.ndim)))
        result = np.where(mask, result, np.asarray(fill, result.dtype))
    # The window's axes go where they belong.
    return np.moveaxis(result, range(inside.ndim, result.ndim), numbers.offset_dims)


def _scatter(write: Callable[..., None]) -> Callable[..., np.ndarray]:
    """Any scatter; `write` puts updates at an index into an array."""

    def scatter(
        params: Params, x: np.ndarray, indices: np.ndarray, updates: np.ndarray
    ) -> np.ndarray:
        numbers = params["dimension_numbers"]
        missing = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        window = [axis for axis in range(x.ndim) if axis not in missing]
        sizes = [1] * x.ndim
        for axis, of_updates in zip(window, numbers.update_window_dims, strict=True):
            sizes[axis] = updates.shape[of_updates]
        index, inside = _windows(
            x.shape,
            indices,
            index_map=numbers.scatter_dims_to_operand_dims,
            batching=(
                numbers.operand_batching_dims,
                numbers.scatter_indices_batching_dims,
            ),
            collapsed=numbers.inserted_window_dims,
            sizes=sizes,
        )
        updates = np.moveaxis(
            updates, numbers.update_window_dims, range(inside.ndim, updates.ndim)
        )
        if params["mode"] is GatherScatterMode.CLIP:
            inside = np.ones_like(inside)
        result = x.copy()
        write(result, tuple(places[inside] for places in index), updates[inside])
        return result

    return scatter


def _set(x: np.ndarray, index: tuple[np.ndarray, ...], updates: np.ndarray) -> None:
    x[index] = updates


def _windows(
    shape: tuple[int, ...],
    indices: np.ndarray,
    *,
    index_map: Sequence[int],
    batching: tuple[Sequence[int], Sequence[int]],
    collapsed: Sequence[int],
    sizes: Sequence[int],
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Where the windows of a gather or scatter lie in its operand.

    Args:
      shape: The operand's.
      indices: Where windows start: the last axis has the components of a start.
      index_map: The operand's axis of each component.
      batching: Axes of the operand that go along with axes of the indices, and these.
      collapsed: Axes of the operand that a window does not have.
      sizes: A window's length along each axis of the operand.

    Returns:
      An index array for each axis of the operand, of the shape of the starts followed
      by a window's, and which starts lie in the operand. Others are moved into it.
    """
    leading = indices.shape[:-1]
    inside = np.ones(leading, bool)
    starts: dict[int, np.ndarray] = {}
    for component, axis in enumerate(index_map):
        wanted, last = indices[..., component], shape[axis] - sizes[axis]
        starts[axis] = np.clip(wanted, 0, last)
        inside &= (wanted >= 0) & (wanted <= last)
    for axis, position in zip(*batching, strict=True):
        starts[axis] = _along(position, shape[axis], len(leading))
    window = [a for a in range(len(shape)) if a not in (*collapsed, *batching[0])]
    whole = (*leading, *(sizes[axis] for axis in window))
    index = []
    for axis in range(len(shape)):
        start = starts.get(axis, np.zeros((1,) * len(leading), int))
        start = start.reshape((*start.shape, *(1,) * len(window)))
        if axis in window:
            start = start + _along(window.index(axis), sizes[axis], len(window))
        index.append(np.broadcast_to(start, whole))
    return tuple(index), inside


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


def _cumulative(
    function: Callable[..., Any],
) -> Callable[[Params, np.ndarray], np.ndarray]:
    def along(params: Params, x: np.ndarray) -> np.ndarray:
        axis = params["axis"]
        if not params["reverse"]:
            return function(x, axis)
        return np.flip(function(np.flip(x, axis), axis), axis)

    return along


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, *operands: function(*operands)


# What NumPy has by the same name.
_SAME_NAMES = (
    *("abs", "ceil", "cos", "exp", "exp2", "expm1", "floor", "log", "log1p", "sign"),
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "sinh"),
    *("sin", "sqrt", "square", "tan", "tanh"),
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
    "cumlogsumexp": _cumulative(np.logaddexp.accumulate),
    "cummax": _cumulative(np.maximum.accumulate),
    "cummin": _cumulative(np.minimum.accumulate),
    "cumprod": _cumulative(np.cumprod),
    "cumsum": _cumulative(np.cumsum),
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
    "scatter": _scatter(_set),
    "scatter-add": _scatter(np.add.at),
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
