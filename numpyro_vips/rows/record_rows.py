"""Rows of sequences of records, such as mappings or the records of `array_record`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from numpyro_vips.rows.source import RowType

# Records that are read at once.
_PART = 4096


class RecordRows:
    """Rows that are read one by one, each a mapping of arrays or an array.

        >>> rows = RecordRows([{"x": 1.0, "y": [0, 1]}, {"x": 2.0, "y": [1, 1]}])
        >>> rows.read(np.array([1]))
        {'x': array([2.]), 'y': array([[1, 1]])}

    Whatever has a length and gives a record for `records[n]`: a list of dicts, a data
    set of PyTorch, a random-access source of Grain, such as an `ArrayRecordDataSource`.
    Where there is `records.__getitems__(indices)`, several are read at once.
    """

    def __init__(
        self,
        records: Any,
        decode: Callable[[Any], Any] | None = None,
        *,
        row: RowType | Mapping[str, RowType] | None = None,
    ) -> None:
        """Reads the first record for the shapes and dtypes of its arrays, if not given.

        Args:
          records: The records, at least one.
          decode: Makes a record's arrays of what is stored, such as bytes. It must look
            at that record alone: what it adds up over records has no noise.
          row: Shape and dtype of a row's array, or of its arrays by name. A record's
            other entries are left out.

        Raises:
          TypeError: Records have no length, or none is at `records[0]`.
        """
        if not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
            raise TypeError(
                "Expected records with a length that are read by their number, got "
                f"{type(records).__name__}."
            )
        if row is None and not len(records):
            raise TypeError("Expected at least one record, or row=, its arrays.")
        self._records = records
        self._decode = decode
        self.row = _row_of(self._decoded(records[0])) if row is None else row

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"RecordRows({len(self)} records)"

    def scan(self, start: int, stop: int) -> Iterator[Any]:
        """Yields the rows from `start` up to `stop`, some thousands at a time."""
        for begin in range(start, stop, _PART):
            yield self.read(np.arange(begin, min(stop, begin + _PART)))

    def read(self, indices: np.ndarray) -> Any:
        """The rows at these indices."""
        numbers = [int(index) for index in indices]
        several = getattr(self._records, "__getitems__", None)
        if several is None:
            found: Sequence[Any] = [self._records[number] for number in numbers]
        else:
            found = several(numbers) if numbers else []
        decoded = [self._decoded(record) for record in found]
        if not isinstance(self.row, Mapping):
            return _stacked(decoded, self.row)
        return {
            name: _stacked([record[name] for record in decoded], row)
            for name, row in self.row.items()
        }

    def _decoded(self, record: Any) -> Any:
        return record if self._decode is None else self._decode(record)


def _row_of(record: Any) -> jax.ShapeDtypeStruct | dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of a record's arrays."""

    def of_array(value: Any) -> jax.ShapeDtypeStruct:
        array = np.asarray(value)
        return jax.ShapeDtypeStruct(array.shape, array.dtype)

    if isinstance(record, Mapping):
        return {name: of_array(value) for name, value in record.items()}
    return of_array(record)


def _stacked(values: list[Any], row: RowType) -> np.ndarray:
    """The arrays of some rows, of the dtype that was declared.

    Raises:
      ValueError: One has another shape, which it must not be broadcast to.
    """
    stacked = np.zeros((len(values), *row.shape), row.dtype)
    for number, value in enumerate(values):
        array = np.asarray(value)
        if array.shape != stacked.shape[1:]:
            raise ValueError("A record's array is not of the shape of the others.")
        stacked[number] = array
    return stacked
