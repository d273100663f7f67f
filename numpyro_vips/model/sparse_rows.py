"""Rows of which a public number of entries may differ from zero.

A document uses few words of a vocabulary. Its counts, one for each word there is, are
then stored sparsely: the words that it uses, and how often. How many entries a row may
store, its *width*, is public: a row with more keeps the largest, and a row with fewer
stores some of its zeros too. So all rows have one shape, and what a row loses depends
on no other.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SparseRows:
    """Arrays that are zero but for some entries along their last axis.

    Attributes:
      indices: Positions along the last axis, integers (..., width). Those of one row
        all differ.
      values: What stands there, (..., width); it may be zero.
      length: Length of the last axis.
    """

    indices: Any
    values: Any
    length: int = dataclasses.field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        return (*np.shape(self.values)[:-1], self.length)

    def __repr__(self) -> str:
        # Shapes alone: messages must not quote private values.
        return f"SparseRows({self.dtype}{list(self.shape)})"

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def dense(self) -> jax.Array:
        """The whole arrays, (..., length)."""
        return scattered(self.indices, self.values, self.length, 0)


def scattered(indices: Any, values: Any, length: int, elsewhere: Any) -> jax.Array:
    """Arrays with `values` at `indices` of the last axis, and one number elsewhere."""
    values = jnp.asarray(values)
    grid = np.ix_(*(np.arange(size) for size in values.shape[:-1]))
    where = (*(index[..., None] for index in grid), indices)
    dense = jnp.full((*values.shape[:-1], length), elsewhere, values.dtype)
    return dense.at[where].set(values)


def dense_rows(
    rows: Mapping[str, Any], names: Iterable[str] | None = None
) -> dict[str, Any]:
    """Rows with sparse arrays replaced by dense ones.

    Args:
      rows: Rows by argument.
      names: Which arguments; all by default. Others stay as they are.
    """
    names = set(rows if names is None else names)
    return {
        name: value.dense()
        if isinstance(value, SparseRows) and name in names
        else value
        for name, value in rows.items()
    }


def keep_largest(array: np.ndarray, width: int) -> SparseRows:
    """The `width` entries of largest magnitude along the last axis of an array.

    Of equal ones the first is kept. An entry that is not a number is as large as any,
    so that a row which has one is still seen not to be finite.
    """
    *leading, length = array.shape
    flat = np.reshape(array, -1)
    place = np.flatnonzero(flat != 0)  # Of truth values, as that is much quicker.
    row, column = np.divmod(place, length)
    shape = (math.prod(leading), length)
    found = keep_largest_entries(row, column, flat[place], shape, width)
    shape = (*leading, width)
    return SparseRows(
        indices=found.indices.reshape(shape),
        values=found.values.reshape(shape),
        length=length,
    )


def keep_largest_entries(
    row: np.ndarray,
    column: np.ndarray,
    value: np.ndarray,
    shape: tuple[int, int],
    width: int,
) -> SparseRows:
    """`keep_largest` for a matrix that is given by a list of its nonzero entries.

    Args:
      row, column: Where each entry stands, in the order of rows and within a row of
        columns, none twice.
      value: The entries; some may be zero.
      shape: Shape of the matrix, (rows, columns).
      width: How many are kept of each row, fewer than there are columns.
    """
    listed = value != 0
    row, column, value = row[listed], column[listed], value[listed]
    with np.errstate(all="ignore"):
        magnitude = np.abs(value.astype(np.float64))
    magnitude[np.isnan(magnitude)] = np.inf
    # Stable, so of equal entries the first one comes first.
    order = np.lexsort((-magnitude, row))
    row, column, value = row[order], column[order], value[order]
    count = np.bincount(row, minlength=shape[0])
    rank = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    kept = rank < width
    where = row[kept], rank[kept]
    indices = np.zeros((shape[0], width), np.int32)
    values = np.zeros((shape[0], width), value.dtype)
    indices[where], values[where] = column[kept], value[kept]
    return SparseRows(
        indices=_filled_up(indices, np.minimum(count, width)),
        values=values,
        length=shape[1],
    )


def _filled_up(indices: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Gives the places that a row does not use the first columns that it does not use.

    Args:
      indices: Columns, (rows, width).
      used: How many of its places each row uses, (rows,).
    """
    count, width = indices.shape
    places = np.arange(width)
    is_used = places < used[:, None]
    taken = np.zeros((count, width), bool)
    row, place = np.nonzero(is_used & (indices < width))
    taken[row, indices[row, place]] = True
    free = np.argsort(taken, axis=1, kind="stable")
    number = np.maximum(places - used[:, None], 0)
    filling = np.take_along_axis(free, number, 1)
    return np.where(is_used, indices, filling).astype(np.int32)
