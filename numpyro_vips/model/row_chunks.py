"""The one place where private rows are read: chunks of them, from arrays and sources.

Every chunk has the same public number of places, of which the first few hold rows and
the others zeros. What lies in memory is gathered when a chunk is worked on, and sources
are read before, one chunk after the other.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse

from numpyro_vips.model.sparse_rows import (
    SparseRows,
    keep_largest,
    keep_largest_entries,
)
from numpyro_vips.privacy.batch_selection import split_batch
from numpyro_vips.rows.reading import Selection, read_ahead, read_columns
from numpyro_vips.rows.source import SourceColumn

Csr = scipy.sparse.csr_matrix | scipy.sparse.csr_array
# What holds the rows of one private argument.
PrivateLeaf = np.ndarray | jax.Array | Csr | SourceColumn

# Rows of a source that are looked at together where none are worked on.
_PART = 65_536
# How many chunks are read ahead together, and how many bytes, unless one takes more.
_AT_ONCE = 32
_BYTES_AT_ONCE = 2**22


class Chunk(NamedTuple):
    """Some rows of every private argument.

    Attributes:
      rows: Makes the arrays, with `mask`'s places along the leading axis.
      mask: True where a place holds a row.
    """

    rows: Callable[[], dict[str, np.ndarray | SparseRows]]
    mask: np.ndarray


@contextlib.contextmanager
def row_chunks(
    leaves: Mapping[str, PrivateLeaf],
    widths: Mapping[str, int],
    pieces: Sequence[Selection],
    length: int,
) -> Iterator[Iterator[Chunk]]:
    """The chunks that hold the pieces of a selection of rows, in order.

    Values are cast to the dtypes that JAX would give them, see `_cast`, and a sparse
    matrix is made dense, but for an argument with a width.

    Args:
      leaves: What holds the rows, by the name of the argument.
      widths: How many entries of a row are used, of sparse arguments.
      pieces: Which rows each chunk holds, see `split_batch`. All are ranges, each of
        which begins where the one before ended, or all are indices, which grow where
        there is a source.
      length: Public number of places of a chunk, in which each piece fits.

    Returns:
      A context, in which sources are read a few chunks ahead.
    """
    columns = {k: leaf for k, leaf in leaves.items() if isinstance(leaf, SourceColumn)}
    dtypes = {
        name: jax.dtypes.canonicalize_dtype(leaf.dtype) for name, leaf in leaves.items()
    }

    def chunk(piece: Selection, read: Mapping[str, np.ndarray]) -> Chunk:
        """The chunk of a piece, given what was read of it from sources."""

        def of_leaf(name: str) -> np.ndarray | SparseRows:
            width, dtype = widths.get(name), dtypes[name]
            leaf, places = leaves[name], piece
            if name in read:
                leaf, places = read[name], range(len(piece))
            if width is None:
                return _filled_up(_cast(_rows(leaf, places), dtype), length)
            kept = _largest_entries(leaf, places, width)
            values = _cast(kept.values, dtype)
            # Those of one row must differ.
            first = np.arange(width, dtype=kept.indices.dtype)
            return dataclasses.replace(
                kept,
                indices=_filled_up(kept.indices, length, first),
                values=_filled_up(values, length),
            )

        def rows() -> dict[str, np.ndarray | SparseRows]:
            # A number too large for its new dtype must not warn, nor raise where the
            # caller has asked NumPy to: a warning would depend on the row.
            with np.errstate(all="ignore"):
                return {name: of_leaf(name) for name in leaves}

        return Chunk(rows, np.arange(length) < len(piece))

    if not columns:
        yield (chunk(piece, {}) for piece in pieces)
        return
    bytes_per_row = sum(
        c.dtype.itemsize * math.prod(c.shape[1:]) for c in columns.values()
    )
    at_once = max(1, min(_AT_ONCE, _BYTES_AT_ONCE // max(1, length * bytes_per_row)))
    with read_ahead(read_columns(columns, pieces), at_once) as parts:
        yield (chunk(piece, part) for piece, part in zip(pieces, parts, strict=True))


def most_entries(leaf: PrivateLeaf) -> int:
    """The largest number of entries of a row that may differ from zero."""
    if isinstance(leaf, SourceColumn):
        pieces = split_batch(range(shape_of(leaf)[0]), _PART)
        read = read_columns({"": leaf}, pieces)
        return max((most_entries(part[""]) for part in read), default=0)
    if isinstance(leaf, Csr):
        row, _, _ = _entries_of(leaf, np.arange(shape_of(leaf)[0]))
        return int(np.bincount(row, minlength=1).max())
    return int(np.max(np.count_nonzero(np.asarray(leaf), axis=-1), initial=0))


def shape_of(leaf: PrivateLeaf) -> tuple[int, ...]:
    """Number of rows, and the shape of a row."""
    # SciPy's type stubs allow that a sparse matrix has no shape.
    shape = leaf.shape
    assert shape is not None
    return tuple(int(size) for size in shape)


def _cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array with a dtype, and truth values with bytes that are 0 or 1.

    NumPy takes any byte for a truth value, such as those of a file, and any but 0 for
    true. XLA may take 2 for true in one place and for false in another: what a row's
    norm is made of would differ from what is added.
    """
    found = array.astype(dtype, copy=False)
    return found.view(np.uint8) != 0 if dtype == np.bool_ else found


def _filled_up(array: np.ndarray, length: int, filling: Any = 0) -> np.ndarray:
    """The array with further entries along its leading axis."""
    if len(array) == length:
        return array
    full = np.empty((length, *array.shape[1:]), array.dtype)
    full[: len(array)] = array
    full[len(array) :] = filling
    return full


def _rows(leaf: PrivateLeaf, selection: Selection) -> np.ndarray:
    if isinstance(leaf, Csr):
        row, column, value = _entries_of(leaf, selection)
        dense = np.zeros((len(selection), shape_of(leaf)[1]), leaf.dtype)
        np.add.at(dense, (row, column), value)
        return dense
    # A JAX array keeps its NumPy copy, so this does not move it again and again.
    array = np.asarray(leaf)
    if isinstance(selection, range):
        return array[selection.start : selection.stop]
    return array[selection]


def _largest_entries(leaf: PrivateLeaf, selection: Selection, width: int) -> SparseRows:
    """Rows with their `width` largest entries each; see `keep_largest`."""
    if not isinstance(leaf, Csr):
        return keep_largest(_rows(leaf, selection), width)
    row, column, value = _entries_of(leaf, selection)
    length = shape_of(leaf)[1]
    place = row * length + column
    order = np.argsort(place, kind="stable")
    place, value = place[order], value[order]
    is_first = np.ones(len(place), bool)
    is_first[1:] = place[1:] != place[:-1]
    first = np.flatnonzero(is_first)
    if len(first):
        place, value = place[first], np.add.reduceat(value, first, dtype=value.dtype)
    row, column = np.divmod(place, length)
    shape = (len(selection), length)
    return keep_largest_entries(row, column, value, shape, width)


def _entries_of(
    matrix: Csr, rows: Selection
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entries of some rows of a CSR matrix, whatever its index arrays hold.

    SciPy checks neither columns nor row pointers, and writes beyond the array where
    they are wrong: the process would crash, or not, depending on what a row holds.
    Entries in columns that do not exist are left out here. Repeated ones add up.

    Returns:
      Of each entry, the number among `rows`, the column, and the value.
    """
    rows = np.asarray(rows, np.int64)  # A range without any has no dtype.
    stored = min(len(matrix.indices), len(matrix.data))
    # Of the pointers only these, since they may lie in a file, too.
    starts, ends = (
        np.clip(np.asarray(matrix.indptr[places], np.int64), 0, stored)
        for places in (rows, rows + 1)
    )
    lengths = np.maximum(0, ends - starts)
    row = np.repeat(np.arange(len(rows)), lengths)
    first = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    entries = first + np.arange(len(row))
    columns = matrix.indices[entries]
    exists = (columns >= 0) & (columns < shape_of(matrix)[1])
    return row[exists], columns[exists], matrix.data[entries][exists]
