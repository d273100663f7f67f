"""Columns of DataFrames, Arrow tables and mappings, as numbers or as texts.

Whether a column is read or is an error follows from its name and its dtype. No value is
an error: what cannot be read is missing, or a text that no category is. A list has no
dtype, and NumPy would make one of all its cells: one row would decide what the others
become. So a list is read cell by cell, and so are the texts of a column of objects,
whose dtype says nothing of them, and those of Arrow, which need not be UTF-8. A cell is
judged by its type, and none of its own code runs, such as a comparison that raises.
"""

import decimal
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
from jaxtyping import Float

from numpyro_vips.errors import did_you_mean

# Stands for a cell that is neither a text nor missing. No category is empty.
NO_TEXT = ""
# Other than arrays with no axis or several.
_NO_COLUMNS = str, bytes, bytearray, Mapping, Set, Iterator


def numbers(
    frame: Any, name: str, *, if_texts: str | None = None
) -> Float[np.ndarray, " rows"]:
    """A column of numbers or truth values in double precision; NaN where missing.

    Args:
      frame, name: The table and the column.
      if_texts: What helps if it has none; by default to convert it.

    Raises:
      ImportError: The frame is no mapping, and narwhals is not installed.
      TypeError: The column is of another dtype, or the frame is no table.
      ValueError: There is no such column, or several of the name.
    """
    column = _column(frame, name)
    if isinstance(column, list):
        return np.array([_number(cell) for cell in column], np.float64)
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "biuf":
            raise _wrong_dtype(name, column.dtype.type, "numbers", if_texts)
        # A number that is too large for a double must not warn: that depends on it.
        with np.errstate(all="ignore"):
            return np.ma.filled(column.astype(np.float64), np.nan)
    import narwhals as nw

    if not (column.dtype.is_numeric() or column.dtype == nw.Boolean):
        raise _wrong_dtype(name, type(column.dtype), "numbers", if_texts)
    # A cast by Arrow would raise, and quote, integers that a double rounds.
    present = ~np.asarray(column.is_null().to_numpy(), bool)
    found = np.full(len(present), np.nan)
    found[present] = column.drop_nulls().to_numpy()
    return found


def texts(frame: Any, name: str) -> list[str | None]:
    """A column of texts; None where missing, `NO_TEXT` where there is something else.

    Raises:
      ImportError: The frame is no mapping, and narwhals is not installed.
      TypeError: The column is of another dtype, or the frame is no table.
      ValueError: There is no such column, or several of the name.
    """
    column = _column(frame, name)
    if isinstance(column, list):
        return [_text(cell) for cell in column]
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "UTO":
            raise _wrong_dtype(name, column.dtype.type, "texts")
        cells, missing = list(column), np.ma.getmaskarray(column)
    else:
        import narwhals as nw

        if column.dtype not in (nw.String, nw.Categorical, nw.Enum, nw.Object):
            raise _wrong_dtype(name, type(column.dtype), "texts")
        in_arrow = _in_arrow(column.to_native())
        if in_arrow is not None:
            return _texts_in_arrow(in_arrow)
        cells, missing = column.to_list(), column.is_null().to_list()
    return [
        None if is_missing else _text(cell)
        for cell, is_missing in zip(cells, missing, strict=True)
    ]


def check_name(name: str, known: Sequence[str], what: str) -> None:
    """Checks that one column has a name.

    Args:
      name: The name.
      known: The names of all columns.
      what: What has the columns.

    Raises:
      ValueError: No column has it, or several have.
    """
    if name not in known:
        raise ValueError(
            f"Expected the {what} to have a column {name!r}. "
            f"{did_you_mean(name, known)}".rstrip()
        )
    check_is_no_two(name, known, what)


def check_is_no_two(name: str, known: Sequence[str], what: str) -> None:
    """Checks that not several columns have a name; for arguments see `check_name`."""
    if (count := known.count(name)) > 1:
        raise ValueError(
            f"Expected the {what} to have one column {name!r}, got {count}. Give each "
            "a name of its own, or leave the others out."
        )


def _in_arrow(native: Any) -> Any:
    """A column as pyarrow's chunks, if that is how it is stored; None otherwise."""
    pandas, arrow = sys.modules.get("pandas"), sys.modules.get("pyarrow")
    array: Any = getattr(native, "array", None)
    if pandas and isinstance(array, pandas.arrays.ArrowExtensionArray):
        return array.__arrow_array__()
    return native if arrow and isinstance(native, arrow.ChunkedArray) else None


def _texts_in_arrow(column: Any) -> list[str | None]:
    """Arrow does not see to it that texts are UTF-8, nor do those who write Parquet."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        # Each text once: a long one for many rows may be more than Arrow has room for.
        return [
            None if place is None else known[place]
            for chunk in column.chunks
            for known in (_texts_in_arrow(pa.chunked_array([chunk.dictionary])),)
            for place in chunk.indices.to_pylist()
        ]
    is_text = any(
        is_kind(column.type)
        for is_kind in (
            *(pa.types.is_string, pa.types.is_large_string),
            # Not in all versions.
            getattr(pa.types, "is_string_view", pa.types.is_string),
        )
    )
    if not is_text:
        return [None if null else NO_TEXT for null in column.is_null().to_pylist()]
    cells = column.cast(pa.large_binary()).to_pylist()
    return [None if cell is None else cell.decode("utf-8", "replace") for cell in cells]


def _text(cell: Any) -> str | None:
    """A cell's text; None if it is missing, `NO_TEXT` if it is something else."""
    if issubclass(type(cell), str):
        return str.__str__(cell)
    return None if _is_missing(cell) else NO_TEXT


def _is_missing(cell: Any) -> bool:
    """Whether a cell that is no text stands for none."""
    kind = type(cell)
    if issubclass(kind, float | np.floating):
        return math.isnan(_number(cell))
    if issubclass(kind, decimal.Decimal):
        return decimal.Decimal.is_nan(cell)
    if kind in (np.datetime64, np.timedelta64):
        return bool(np.isnat(cell))
    pandas = sys.modules.get("pandas")
    of_pandas = () if pandas is None else (pandas.NA, pandas.NaT)
    return any(cell is one for one in (None, np.ma.masked, *of_pandas))


def _number(cell: Any) -> float:
    """A cell's number or truth value in double precision; NaN if it is neither."""
    kind = type(cell)
    if issubclass(kind, float):
        return float.__float__(cell)
    if issubclass(kind, int):
        try:
            return int.__float__(cell)
        except OverflowError:  # As of 10**400, which an array of floats cannot have.
            return math.inf if int.__gt__(cell, 0) else -math.inf
    if not issubclass(kind, np.bool | np.integer | np.floating):
        return math.nan
    try:
        return float(cell)
    except Exception:  # Of a class that somebody derived.
        return math.nan


def _column(frame: Any, name: str) -> Any:
    """A column: narwhals' series if it is of pandas, polars or pyarrow and no array of
    objects; of a mapping also an array, or a list of cells of whatever is none."""
    is_mapping = isinstance(frame, Mapping)
    table: Any = frame if is_mapping else _table(frame)
    keys = list(table if is_mapping else table.columns)
    # pandas numbers columns that have no names.
    names = list(map(str, keys))
    check_name(name, names, "table")
    key = keys[names.index(name)]
    if is_mapping:
        return _of_mapping(table[key], name)
    return _of_library(table.get_column(key))


def _of_mapping(column: Any, name: str) -> Any:
    """The same of what a mapping has, by the kind of object that it is.

    NumPy would make an array of anything, and choose its dtype by looking at all cells.
    """
    series = _series(column)
    if series is not None:
        return _of_library(series)
    dtype = getattr(column, "dtype", None)
    if isinstance(column, np.ma.MaskedArray):
        found: Any = column
    elif isinstance(dtype, np.dtype) or (dtype and hasattr(column, "__dlpack__")):
        found = np.asarray(column)  # Of JAX, xarray and others, with that dtype.
    elif isinstance(column, _NO_COLUMNS) or not isinstance(column, Iterable):
        found = np.zeros(())
    else:
        found = column
    if len(getattr(found, "shape", (0,))) != 1:
        raise ValueError(
            f"Expected column {name!r} to be an array with one axis. A single cell is "
            "a list of one."
        )
    return found if isinstance(found, np.ndarray) else [_python(cell) for cell in found]


def _series(column: Any) -> Any:
    """A column of pandas, polars or pyarrow as narwhals' series; None if it is none."""
    if isinstance(column, np.ndarray | list | tuple):
        return None
    try:
        import narwhals as nw
    except ModuleNotFoundError:
        return None
    pandas, arrow = sys.modules.get("pandas"), sys.modules.get("pyarrow")
    if pandas and isinstance(
        column, pandas.Index | pandas.api.extensions.ExtensionArray
    ):
        column = pandas.Series(column)
    if arrow and isinstance(column, arrow.Array):
        column = arrow.chunked_array([column])
    found = nw.from_native(column, series_only=True, pass_through=True)
    return found if isinstance(found, nw.Series) else None


def _python(cell: Any) -> Any:
    """A cell as Python's own, if it is one of pyarrow's."""
    if not hasattr(type(cell), "as_py"):
        return cell
    try:
        return cell.as_py()
    except Exception:  # No UTF-8, or a date that Python does not have.
        return b""


def _of_library(column: Any) -> Any:
    """A series of narwhals, or the array of objects that it is."""
    native = column.to_native()
    dtype = getattr(native, "dtype", None)
    # Of pandas, where narwhals would infer a dtype from the cells.
    is_objects = isinstance(dtype, np.dtype) and dtype.hasobject
    return native.to_numpy() if is_objects else column


def _table(frame: Any) -> Any:
    try:
        import narwhals as nw
    except ModuleNotFoundError:
        raise ImportError(
            "Tables other than mappings are read through narwhals: "
            "pip install 'numpyro-vips[tables]'. Or pass a mapping from names of "
            "columns to arrays."
        ) from None
    try:
        return nw.from_native(frame, eager_only=True)
    except TypeError:
        remedy = "Name the columns of an array, as in {'age': array[:, 0]}"
        if hasattr(frame, "collect"):
            remedy = "Read it, with .collect()"
        elif hasattr(frame, "to_frame"):
            remedy = "A single column becomes a table with .to_frame()"
        raise TypeError(
            "Expected a DataFrame of pandas or polars, a table of pyarrow or a mapping "
            f"from names of columns to arrays, got {type(frame).__name__}. {remedy}."
        ) from None


_REMEDIES = {
    "numbers": "Write NaN where one is missing, and convert texts row by row, as "
    "pandas.to_numeric(column, errors='coerce') does",
    "texts": "If it holds numbers, list the categories as integers",
}
# `to_numeric` makes them nanoseconds or the like, and of a missing one a huge number.
_DATES = (
    "Count from a date that is public, in pandas as "
    "(column - pandas.Timestamp('2020-01-01')).dt.days, where a missing one is NaN"
)
_DURATIONS = "Count in a unit, in pandas as column.dt.days, where a missing one is NaN"
_TIMES = {"datetime64": _DATES, "Datetime": _DATES, "Date": _DATES} | {
    "timedelta64": _DURATIONS,
    "Duration": _DURATIONS,
}


def _wrong_dtype(
    name: str, dtype: type, expected: str, remedy: str | None = None
) -> TypeError:
    # The class alone: a dtype may have categories, or the length of the longest text.
    remedy = remedy or _REMEDIES[expected]
    if expected == "numbers":
        remedy = _TIMES.get(dtype.__name__, remedy)
    return TypeError(
        f"Expected column {name!r} to hold {expected}, got the dtype {dtype.__name__}. "
        f"{remedy}."
    )
