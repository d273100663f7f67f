"""Columns of DataFrames, Arrow tables and mappings, as numbers or as texts.

Whether a column is read or is an error follows from its name and its dtype. No value is
an error: what cannot be read is missing, or a text that no category is. A list has no
dtype, and NumPy would make one of all its cells: one row would decide what the others
become. So a list is read cell by cell.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from numpyro_vips.errors import did_you_mean

# Stands for a cell that is neither a text nor missing. No category is empty.
NO_TEXT = ""


def numbers(frame: Any, name: str) -> Float[np.ndarray, " rows"]:
    """A column of numbers or truth values in double precision; NaN where missing.

    Raises:
      ImportError: The frame is no mapping, and narwhals is not installed.
      TypeError: The column is of another dtype, or the frame is no table.
      ValueError: There is no such column.
    """
    column = _column(frame, name)
    if isinstance(column, list):
        return np.array([_number(cell) for cell in column], np.float64)
    if isinstance(column, np.ndarray):
        if column.dtype.kind not in "biuf":
            raise _wrong_dtype(name, column.dtype.type, _NUMBERS)
        # A number that is too large for a double must not warn: that depends on it.
        with np.errstate(all="ignore"):
            return column.astype(np.float64)
    import narwhals as nw

    if not (column.dtype.is_numeric() or column.dtype == nw.Boolean):
        raise _wrong_dtype(name, type(column.dtype), _NUMBERS)
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
      ValueError: There is no such column.
    """
    column = _column(frame, name)
    if isinstance(column, list | np.ndarray):
        if isinstance(column, np.ndarray) and column.dtype.kind not in "UTO":
            raise _wrong_dtype(name, column.dtype.type, _TEXTS)
        cells = list(column)
        missing = [cell is None or _is_nan(cell) for cell in cells]
    else:
        import narwhals as nw

        if column.dtype not in (nw.String, nw.Categorical, nw.Enum, nw.Object):
            raise _wrong_dtype(name, type(column.dtype), _TEXTS)
        cells, missing = column.to_list(), column.is_null().to_list()
    return [
        None if is_missing else cell if isinstance(cell, str) else NO_TEXT
        for cell, is_missing in zip(cells, missing, strict=True)
    ]


def _is_nan(cell: Any) -> bool:
    return isinstance(cell, float | np.floating) and bool(np.isnan(cell))


def _number(cell: Any) -> float:
    """A cell's number or truth value in double precision; NaN if it is neither."""
    if not isinstance(cell, bool | int | float | np.bool | np.integer | np.floating):
        return math.nan
    try:
        return float(cell)
    except OverflowError:  # As of 10**400, which an array of floats cannot have.
        return math.inf if cell > 0 else -math.inf


def _column(frame: Any, name: str) -> Any:
    """A column: of a mapping as an array, or as a list if it is one or a tuple; of any
    other table as narwhals' series."""
    is_mapping = isinstance(frame, Mapping)
    table: Any = frame if is_mapping else _table(frame)
    names = [str(known) for known in (table if is_mapping else table.columns)]
    if name not in names:
        raise ValueError(
            f"Expected the table to have a column {name!r}. {did_you_mean(name, names)}"
        )
    if not is_mapping:
        return table[name]
    if isinstance(table[name], Sequence) and not isinstance(table[name], str | bytes):
        return list(table[name])
    column = np.asarray(table[name])
    if column.ndim != 1:
        raise ValueError(f"Expected column {name!r} to be an array with one axis.")
    return column


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
        raise TypeError(
            "Expected a DataFrame of pandas or polars, a table of pyarrow or a mapping "
            f"from names of columns to arrays, got {type(frame).__name__}."
        ) from None


_NUMBERS = (
    "numbers",
    "Write NaN where one is missing, and convert texts row by row, as "
    "pandas.to_numeric(column, errors='coerce') does",
)
_TEXTS = ("texts", "If it holds numbers, list the categories as integers")


def _wrong_dtype(name: str, dtype: type, expected: tuple[str, str]) -> TypeError:
    # The class alone: a dtype may have categories, or the length of the longest text.
    what, remedy = expected
    return TypeError(
        f"Expected column {name!r} to hold {what}, got the dtype {dtype.__name__}. "
        f"{remedy}."
    )
