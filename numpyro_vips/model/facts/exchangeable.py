"""Globals whose entries may change places without a row noticing.

The components of a mixture and the hidden units of a network are such: a row's density
is the same for any order of them. They are found by trying, on a synthetic row and
with random numbers for the globals, so that it does not matter how a model is written.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

# Axes of a global, which are permuted together.
Axes = tuple[int, ...]

# Sets of axes that are tried; what is left untried counts as not exchangeable.
_MOST_TRIED = 64
# Longer axes are of data, not of components.
_MOST_ENTRIES = 1_000
# Rounding of a density in double precision; what is different differs by far more.
_RELATIVE_ROUNDING = 1e-9


def exchangeable_axes(
    row_density: Callable[[Mapping[str, Any]], Any],
    values: Mapping[str, Float64[np.ndarray, "..."]],
) -> dict[str, Axes]:
    """The axes of globals along which entries may be permuted, all in the same way.

    Args:
      row_density: Log density of a synthetic row, by values of the globals; without a
        private value. It is evaluated at permuted values.
      values: Globals in their supports, with no two entries alike.

    Returns:
      For each global that takes part, its axes: one, or several of the same length that
      are permuted together, as of a matrix of transitions between states. Of several
      sets of axes, the first that is found with the most globals. Empty if there is
      none, or if the density is not finite.
    """
    lengths = sorted({n for v in values.values() for n in v.shape if n > 1})
    tried = 0
    before = None
    for length in lengths:
        if length > _MOST_ENTRIES:
            continue
        for chosen in _choices(values, length):
            if tried == _MOST_TRIED:
                return {}
            tried += 1
            before = float(row_density(values)) if before is None else before
            if math.isfinite(before) and all(
                _is_same(float(row_density(_permuted(values, chosen, order))), before)
                for order in _orders(length)
            ):
                return chosen
    return {}


def _choices(
    values: Mapping[str, Float64[np.ndarray, "..."]], length: int
) -> Iterator[dict[str, Axes]]:
    """Sets of axes of this length, those of many globals first."""
    options: list[list[tuple[str, Axes]]] = []
    for name, value in values.items():
        axes = [axis for axis, n in enumerate(value.shape) if n == length]
        alone: list[Axes] = [(axis,) for axis in axes]
        if len(axes) > 1:
            alone.append(tuple(axes))
        if alone:
            options.append([(name, several) for several in alone])
    for number in range(len(options), 0, -1):
        for some in itertools.combinations(options, number):
            for chosen in itertools.product(*some):
                yield dict(chosen)


def _orders(length: int) -> Iterator[Sequence[int]]:
    """A cycle and an exchange, of which all permutations are made."""
    yield [*range(1, length), 0]
    if length > 2:
        yield [1, 0, *range(2, length)]


def _permuted(
    values: Mapping[str, Float64[np.ndarray, "..."]],
    chosen: Mapping[str, Axes],
    order: Sequence[int],
) -> dict[str, Float64[np.ndarray, "..."]]:
    permuted = dict(values)
    for name, axes in chosen.items():
        for axis in axes:
            permuted[name] = np.take(permuted[name], order, axis)
    return permuted


def _is_same(density: float, before: float) -> bool:
    return abs(density - before) <= _RELATIVE_ROUNDING * max(1.0, abs(before))
