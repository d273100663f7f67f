"""Rows of Arrow tables and of Parquet files; `pyarrow` is needed to use them.

| column of Arrow     | array                                                  |
|---------------------|--------------------------------------------------------|
| floating point      | the same dtype; NaN where a cell is missing            |
| integers            | the same dtype; where a cell is missing, the smallest  |
|                     | number there is of it, or of unsigned ones the         |
|                     | largest, both within 32 bits                           |
| booleans            | `uint8`, 0 and 1; 255 where a cell is missing          |
| lists of fixed size | the same of their numbers, with an axis more           |

So a missing cell is never a number like another: in a likelihood it is outside of the
support, and the row counts as zero, unless the model masks it.
"""

import importlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

# Rows that are made arrays of at once.
_PART = 65_536
# Which columns each array is made of: one, or several side by side.
Arrays = Mapping[str, str | Sequence[str]]


class _Selected:
    """Arrays that are made of columns of a schema."""

    def __init__(self, schema: Any, arrays: Arrays | None) -> None:
        if arrays is None:
            arrays = {name: name for name in schema.names}
        self._arrays = {
            name: names if isinstance(names, str) else tuple(names)
            for name, names in arrays.items()
        }
        self.row = {
            name: _row_type(schema, names) for name, names in self._arrays.items()
        }

    @property
    def _columns(self) -> list[str]:
        """The columns that are read, each once."""
        named = ([n] if isinstance(n, str) else n for n in self._arrays.values())
        return list(dict.fromkeys(itertools.chain.from_iterable(named)))

    def _rows(self, table: Any) -> dict[str, np.ndarray]:
        """The arrays of a table's or a batch's rows."""
        found = {name: _numbers(table.column(name)) for name in self._columns}
        return {
            name: found[names]
            if isinstance(names, str)
            else np.stack([found[n] for n in names], axis=1, dtype=self.row[name].dtype)
            for name, names in self._arrays.items()
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._arrays)})"


class ArrowRows(_Selected):
    """The rows of a `pyarrow.Table`, as of an Arrow file that is mapped into memory.

    >>> import pyarrow as pa
    >>> table = pa.table({"a": [0.5, None], "b": [1.5, 2.5], "y": [True, False]})
    >>> rows = ArrowRows(table, {"X": ["a", "b"], "y": "y"})
    >>> rows.read(np.array([1]))
    {'X': array([[nan, 2.5]]), 'y': array([0], dtype=uint8)}
    """

    def __init__(self, table: Any, arrays: Arrays | None = None) -> None:
        """Reads the schema alone.

        Args:
          table: The table.
          arrays: Which column each array of a row is, or which several of one dtype
            side by side; by default all, each by its own name.

        Raises:
          KeyError, TypeError: There is no such column, or it has no numbers.
        """
        super().__init__(table.schema, arrays)
        self._table = table

    def __len__(self) -> int:
        return self._table.num_rows

    def scan(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields the rows from `start` up to `stop`."""
        for begin in range(start, stop, _PART):
            length = min(stop - begin, _PART)
            yield self._rows(self._table.slice(begin, length))

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """The rows at these indices."""
        return self._rows(self._table.take(indices))


class ParquetRows(_Selected):
    """The rows of Parquet files, one file after the other, for full batches.

    A row group is the least that Parquet reads. Rows that a minibatch draws are in all
    of them, so each step would read everything: there is no reading at random.

        >>> import pathlib, tempfile
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "people.parquet")
        ...     pq.write_table(pa.table({"a": [0.5, 1.5], "y": [1, 0]}), path)
        ...     rows = ParquetRows(path, {"x": "a", "y": "y"})
        ...     len(rows), next(rows.scan(0, 2))["x"]
        (2, array([0.5, 1.5]))
    """

    def __init__(
        self,
        paths: Any,
        arrays: Arrays | None = None,
    ) -> None:
        """Reads schemas and numbers of rows from the files' ends.

        Args:
          paths: The path of a file, or of several in order, with the same columns.
          arrays: As in `ArrowRows`.

        Raises:
          KeyError, TypeError: There is no such column, or it has no numbers.
          ValueError: Columns of the files differ.
        """
        pq = _module("pyarrow.parquet")

        single = isinstance(paths, str) or hasattr(paths, "__fspath__")
        self._paths = [paths] if single else list(paths)
        metadata = [pq.read_metadata(path) for path in self._paths]
        schemas = [one.schema.to_arrow_schema() for one in metadata]
        super().__init__(schemas[0], arrays)
        for schema in schemas:
            if any(schema.field(n) != schemas[0].field(n) for n in self._columns):
                raise ValueError(
                    f"Expected columns {self._columns} to have one type in all files."
                )
        # Of each file, how many rows each of its groups has.
        self._groups = [
            [one.row_group(n).num_rows for n in range(one.num_row_groups)]
            for one in metadata
        ]

    def __len__(self) -> int:
        return sum(map(sum, self._groups))

    def scan(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        """Yields the rows from `start` up to `stop`; other row groups are not read."""
        pq = _module("pyarrow.parquet")

        first = 0  # The number of a group's first row.
        for path, lengths in zip(self._paths, self._groups, strict=True):
            ends = first + np.cumsum([0, *lengths])
            wanted = [
                n for n in range(len(lengths)) if ends[n] < stop and ends[n + 1] > start
            ]
            first = int(ends[-1])
            if not wanted:
                continue
            begin = int(ends[wanted[0]])
            # Neither the file's bytes nor columns that wait for threads in memory.
            with pq.ParquetFile(path, memory_map=True) as file:
                for batch in file.iter_batches(
                    _PART, wanted, self._columns, use_threads=False
                ):
                    end = begin + batch.num_rows
                    low, high = max(start, begin), min(stop, end)
                    if low < high:
                        yield self._rows(batch.slice(low - begin, high - low))
                    begin = end


def _row_type(schema: Any, names: str | Sequence[str]) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a row's array that is made of these columns."""
    listed = [names] if isinstance(names, str) else list(names)
    missing = [name for name in listed if name not in schema.names]
    if missing:
        raise KeyError(f"There is no column {missing[0]!r}.")
    found = [_numeric_type(name, schema.field(name).type) for name in listed]
    if isinstance(names, str):
        shape, dtype = found[0]
        return jax.ShapeDtypeStruct(shape, dtype)
    shapes, dtypes = {shape for shape, _ in found}, {dtype for _, dtype in found}
    if shapes != {()} or len(dtypes) != 1:
        raise TypeError(
            f"Expected columns {listed} to have numbers of one dtype, to stand side by "
            "side in one array."
        )
    return jax.ShapeDtypeStruct((len(listed),), dtypes.pop())


def _numeric_type(name: str, kind: Any) -> tuple[tuple[int, ...], np.dtype]:
    pa = _module("pyarrow")

    if pa.types.is_fixed_size_list(kind):
        shape, dtype = _numeric_type(name, kind.value_type)
        return (kind.list_size, *shape), dtype
    if pa.types.is_boolean(kind):
        return (), np.dtype(np.uint8)
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise TypeError(
            f"The column {name!r} is of type {kind}. A model computes with numbers: "
            "code text by its position in a public list of categories, and dates as "
            "days since a public date, when the file is written."
        )
    return (), np.dtype(kind.to_pandas_dtype())


def _numbers(column: Any) -> np.ndarray:
    """A column's numbers, with those of the table above where a cell is missing."""
    pa, pc = _module("pyarrow"), _module("pyarrow.compute")

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        # A missing list has places for its numbers, which hold anything.
        inner = column.values.slice(column.offset * kind.list_size)
        flat = _numbers(inner.slice(0, len(column) * kind.list_size))
        rows = flat.reshape(len(column), kind.list_size, *flat.shape[1:]).copy()
        rows[column.is_null().to_numpy(zero_copy_only=False)] = missing_number(
            rows.dtype
        )
        return rows
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    if column.null_count:
        dtype = np.dtype(column.type.to_pandas_dtype())
        column = pc.fill_null(column, pa.scalar(missing_number(dtype), column.type))
    return column.to_numpy(zero_copy_only=False)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        error.add_note(
            "Arrow and Parquet are read by pyarrow: pip install 'numpyro-vips[tables]'."
        )
        raise


def missing_number(dtype: np.dtype) -> Any:
    """What stands for a missing number; of a narrow float, a NaN of that type.

    Truth values have none that is no other: it is false.
    """
    if dtype.kind not in "biu":
        return np.array(np.nan, dtype)[()]
    if dtype.kind == "b":
        return False
    # JAX makes 32 bits of 64, which leaves a zero of the smallest number.
    if dtype.kind == "u":
        return min(np.iinfo(dtype).max, np.iinfo(np.uint32).max)
    return max(np.iinfo(dtype).min, np.iinfo(np.int32).min)
