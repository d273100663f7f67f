"""Rows of whatever slices like an array: memory maps, HDF5, Zarr, TensorStore."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

# A part that is read at once has about so many bytes, or the rows of a stored chunk.
_PART_BYTES = 2**22


class ArrayRows:
    """An array that lies elsewhere, and is read a part at a time.

        >>> ArrayRows(np.zeros((6, 2)))
        ArrayRows(float64[6, 2])

    Whatever has `shape` and `dtype`, and gives something that NumPy can read for
    `array[start:stop]`: an `h5py.Dataset`, a `zarr.Array`, a `tensorstore.TensorStore`.
    A `numpy.memmap` need not be wrapped.

    Rows are read at random by `array.oindex[indices]` where there is one, else by
    `array[indices]` with indices that grow. How quick that is depends on how the array
    is stored: of an array in compressed chunks, each chunk that a row is in is read.
    """

    def __init__(self, array: Any) -> None:
        """Reads the shape and the dtype of an array, and no value.

        Args:
          array: The array; its first axis is that of the rows.

        Raises:
          TypeError: It has no shape of at least one axis, or no dtype of NumPy.
        """
        shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
        # TensorStore has dtypes of its own.
        dtype = getattr(dtype, "numpy_dtype", dtype)
        if not isinstance(shape, tuple) or not shape or dtype is None:
            raise TypeError(
                "Expected an array with at least one axis and a dtype, such as a "
                f"dataset of h5py or Zarr, got {type(array).__name__}."
            )
        self._array: Any = array
        self._length = int(shape[0])
        self.row = jax.ShapeDtypeStruct(tuple(map(int, shape[1:])), np.dtype(dtype))
        row_bytes = math.prod(self.row.shape) * self.row.dtype.itemsize
        stored = _stored_rows(array)
        # Whole chunks: each is decompressed once.
        self._part = stored * max(1, _PART_BYTES // max(1, row_bytes * stored))

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"ArrayRows({self.row.dtype}{[self._length, *self.row.shape]})"

    def scan(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Yields the rows from `start` up to `stop`."""
        while start < stop:
            end = min(stop, (start // self._part + 1) * self._part)
            _check_is_there(self._array)
            yield np.asarray(self._array[start:end])
            start = end

    def read(self, indices: np.ndarray) -> np.ndarray:
        """The rows at these indices."""
        if not len(indices):
            return np.zeros((0, *self.row.shape), self.row.dtype)
        _check_is_there(self._array)
        return np.asarray(getattr(self._array, "oindex", self._array)[indices])


def _check_is_there(array: Any) -> None:
    """Looks whether the file of a memory map still has all of it.

    If not, the operating system would end the process at the first byte that is read.

    Raises:
      EOFError: It has become shorter.
    """
    mapped = getattr(array, "_mmap", None) if isinstance(array, np.memmap) else None
    if mapped is not None and mapped.size() < len(mapped):
        raise EOFError("The file of a memory map has become shorter.")


def _stored_rows(array: Any) -> int:
    """How many rows a stored chunk has, where the array is stored in chunks."""
    match getattr(array, "chunks", None):
        case (int(rows), *_):
            return max(1, rows)
    return 1
