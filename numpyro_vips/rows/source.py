"""What a source of rows is: anything that says what a row looks like and can be read.

    class Halves:                        # Ten rows; y of row n is n / 2.
        def __init__(self):
            self.row = {"y": np.empty((), np.float32)}

        def __len__(self):
            return 10

        def scan(self, start, stop):
            yield {"y": np.arange(start, stop, dtype=np.float32) / 2}

        def read(self, indices):         # Left out where rows come in order alone.
            return {"y": indices.astype(np.float32) / 2}

It takes the place of an array, or where its rows are mappings of a dict of arrays, in
the call of a model. Rows are private like those of arrays.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

# One array with a leading axis of rows, or several by name.
Rows = Any | Mapping[str, Any]


class RowType(Protocol):
    """What is public of a row: shape and dtype, as of any array of that shape."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...


@runtime_checkable
class RowSource(Protocol):
    """Rows that are read in their order.

        >>> class Numbers:
        ...     row = np.zeros((), np.float32)
        ...     def __len__(self):
        ...         return 1000
        ...     def scan(self, start, stop):
        ...         yield np.arange(start, stop, dtype=np.float32)
        >>> isinstance(Numbers(), RowSource), isinstance(Numbers(), RandomAccess)
        (True, False)

    They must not change while a fit runs, which reads them once per step. A source is
    read by one thread at a time, which need not be the one that made it. What it gives
    is copied before more is asked for, so it may fill one array again and again.

    Attributes:
      row: Shape and dtype of a row, or a mapping of them by name. Public.
    """

    @property
    def row(self) -> RowType | Mapping[str, RowType]: ...

    def __len__(self) -> int:
        """Number of rows."""
        ...

    def scan(self, start: int, stop: int) -> Iterator[Rows]:
        """Yields the rows from `start` up to `stop`, in parts of any lengths."""
        ...


@runtime_checkable
class RandomAccess(RowSource, Protocol):
    """A source that can be read anywhere, as minibatches need.

    >>> from numpyro_vips import ArrayRows
    >>> isinstance(ArrayRows(np.zeros((6, 2))), RandomAccess)
    True
    """

    def read(self, indices: np.ndarray) -> Rows:
        """The rows at some indices, which grow strictly; there may be none."""
        ...


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SourceColumn:
    """One array of a source's rows; it stands for the array.

    What is public of it is read once. A fit is planned and checked for such rows, and
    if the source were read later on, an exception of its own might quote a row.

    Attributes:
      source: The source.
      name: Which array of a row that is; None if a row is a single one.
      shape: Number of rows, and the shape of a row.
      dtype: Of its numbers.
    """

    source: RowSource
    name: str | None = None
    shape: tuple[int, ...] = dataclasses.field(init=False)
    dtype: np.dtype = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        row: Any = self.source.row
        if self.name is not None:
            row = row[self.name]
        shape = (len(self.source), *map(int, row.shape))
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", np.dtype(row.dtype))

    def reread(self) -> "SourceColumn":
        """The column as its source is now, such as after more rows were written."""
        return SourceColumn(self.source, self.name)

    def __repr__(self) -> str:
        # Shapes alone: messages must not quote private values.
        return f"SourceColumn({self.dtype}{list(self.shape)})"


def columns(source: RowSource) -> dict[str, SourceColumn]:
    """The arrays of a source by name, for models that take them one by one.

    Where a model takes `X` and `y`, and a source's rows are mappings of both, write
    `vi.run(key, **nv.columns(source))`. They are read together.

        >>> from numpyro_vips import RecordRows, columns
        >>> row = {"x": np.zeros(()), "y": np.zeros(2, int)}
        >>> columns(RecordRows([{"x": 1.0, "y": [0, 1]}], row))
        {'x': SourceColumn(float64[1]), 'y': SourceColumn(int64[1, 2])}

    Args:
      source: A source whose rows are mappings.

    Returns:
      By name, what stands for each array in the call of a model.

    Raises:
      TypeError: It is no source whose rows are mappings.
    """
    if not isinstance(source, RowSource) or not isinstance(source.row, Mapping):
        raise TypeError(
            "Expected a source whose rows are mappings of arrays by name, got "
            f"{type(source).__name__}."
        )
    return {name: SourceColumn(source, name) for name in source.row}
