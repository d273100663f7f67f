"""Rows of sequences of records, such as mappings or the records of `array_record`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from numpyro_vips.rows.arrow_rows import missing_number
from numpyro_vips.rows.source import RowType

# Records that are read at once.
_PART = 4096


class RecordRows:
    """Rows that are read one by one, each a mapping of arrays or an array.

        >>> row = {"x": np.zeros(()), "y": np.zeros(2, int)}
        >>> rows = RecordRows([{"x": 1.0, "y": [0, 1]}, {"x": 2, "y": [1, 1]}], row)
        >>> rows.read(np.array([1]))
        {'x': array([2.]), 'y': array([[1, 1]])}

    Whatever has a length and gives a record for `records[n]`: a list of dicts, a data
    set of PyTorch, a random-access source of Grain, such as an `ArrayRecordDataSource`.
    Where there is `records.__getitems__(indices)`, several are read at once.

    No record is an error: whether a fit ends would depend on it. What a record does not
    have, what has another shape and what is no number is missing, as a cell of
    `ArrowRows` may be, so that the row counts as zero. If that is so of all records,
    `row` is not what they are: look at a few, `rows.read(np.arange(3))`, where they may
    be seen.
    """

    def __init__(
        self,
        records: Any,
        row: RowType | Mapping[str, RowType],
        decode: Callable[[Any], Any] | None = None,
    ) -> None:
        """Reads no record yet.

        Args:
          records: The records.
          row: Shape and dtype of a row's array, or of its arrays by name: any arrays
            that look alike. They are public, and every record is cast to them. (If they
            were read off a record, that record would decide how all others are read.)
            A record's other entries are left out.
          decode: Makes a record's arrays of what is stored, such as bytes. It must look
            at that record alone: what it adds up over records has no noise. Where it
            raises, the fit ends.

        Raises:
          TypeError: Records have no length, or cannot be read by their number.
        """
        if not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
            raise TypeError(
                "Expected records with a length that are read by their number, got "
                f"{type(records).__name__}."
            )
        self._records = records
        self._decode = decode
        self.row = row

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
            name: _stacked([_of_record(record, name) for record in decoded], row)
            for name, row in self.row.items()
        }

    def _decoded(self, record: Any) -> Any:
        return record if self._decode is None else self._decode(record)


def _of_record(record: Any, name: str) -> Any:
    """An array of a record; None if it has no such array."""
    try:
        return record[name]
    except Exception:
        return None


def _stacked(values: list[Any], row: RowType) -> np.ndarray:
    """The arrays of some rows, of the shape and dtype that were declared.

    Those of another shape, which must not be broadcast, and what cannot be cast is
    missing.
    """
    dtype = np.dtype(row.dtype)
    stacked = np.full((len(values), *row.shape), missing_number(dtype), dtype)
    for number, value in enumerate(values):
        array = _cast(value, dtype)
        if array is not None and array.shape == stacked.shape[1:]:
            stacked[number] = array
    return stacked


def _cast(value: Any, dtype: np.dtype) -> np.ndarray | None:
    """An array of a dtype; None if there is none, or it would have to warn.

    What is masked in an array is missing, and so is a list with something masked.
    """
    try:
        if _has_masked(value):
            return None  # NumPy warns where it makes an array of it.
        is_masked = isinstance(value, np.ma.MaskedArray)
        array: Any = value if is_masked else np.asarray(value)
        # A number that the dtype cannot hold must not warn: that depends on it.
        with np.errstate(all="ignore"):
            if array.dtype.kind == "c":
                return None
            return np.ma.filled(array.astype(dtype), missing_number(dtype))
    except Exception:  # Such as of texts, or of integers of any size.
        return None


def _has_masked(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_masked, value))
    return value is np.ma.masked
