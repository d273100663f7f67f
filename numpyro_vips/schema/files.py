"""Tables in CSV, Parquet and Arrow files; `pyarrow` is needed to read them.

A cell of a CSV file is read by itself: libraries that guess dtypes look at all rows,
and a single word among the ages would make them texts. Here a cell that is no number is
missing where a number is expected. So is an empty cell; `NA` among texts is a text. A
line with too few or too many cells is left out. Quotes have to be closed, as programs
that write such files see to: an open one takes the lines after it along.
"""

import csv
import io
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from numpyro_vips.errors import quoted
from numpyro_vips.schema.columns import Column, Intercept
from numpyro_vips.schema.frames import check_is_no_two, check_name

# Bytes of a CSV file that Arrow may look at together.
_LARGEST_BLOCK = 2**31 - 1
_TRUTH_VALUES = {"true": 1.0, "false": 0.0}


def opened_table(frame: Any, columns: Mapping[str, Column]) -> Any:
    """The table itself, or the columns of the file that `frame` is the path of.

    Raises:
      FileNotFoundError: There is no such file.
      ImportError: pyarrow is not installed.
      ValueError: A column is absent or there twice, or the name of the file ends
        otherwise.
    """
    if not isinstance(frame, str | os.PathLike):
        return frame
    path = Path(frame)
    if not path.exists():
        raise FileNotFoundError(f"There is no file {str(path)!r}.")
    names = [n for n, c in columns.items() if not isinstance(c, Intercept)]
    kind = next((s for s in reversed(path.suffixes) if s in _READERS), None)
    if kind is None:
        raise ValueError(
            f"Expected the name of a file that ends in one of {quoted(_READERS)}, got "
            f"{path.name!r}."
        )
    try:
        return _READERS[kind](path, names, columns)
    except ModuleNotFoundError:
        raise ImportError(
            "Files are read through pyarrow: pip install 'numpyro-vips[tables]'. Or "
            "read the table yourself and pass it."
        ) from None


def _csv(
    path: Path, names: list[str], columns: Mapping[str, Column]
) -> dict[str, np.ndarray]:
    """The cells of columns of a CSV file: texts, or numbers that are NaN if missing.

    Args:
      path: The file.
      names: The columns.
      columns: What is known of them, by name.

    Raises:
      ValueError: The file's first line does not name a column, or names it twice.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    options = arrow_csv.ParseOptions(
        newlines_in_values=True, invalid_row_handler=lambda _: "skip"
    )
    # Arrow decompresses a file whose name says so, `people.csv.gz`.
    with pa.input_stream(str(path)) as stream:
        content = pa.py_buffer(stream.read())
    header = _header(pa.BufferReader(content))
    for name in names:
        check_is_no_two(name, header, "file")
    # One block, also for the names: a cell that is longer than a block is an error, and
    # so is one with line breaks that ends in another. Bytes, since whether they are
    # texts is for each cell.
    size = min(content.size + 1, _LARGEST_BLOCK)
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(content),
            read_options=arrow_csv.ReadOptions(block_size=size),
            parse_options=options,
            convert_options=arrow_csv.ConvertOptions(
                include_columns=names,
                include_missing_columns=False,
                column_types=dict.fromkeys(names, pa.binary()),
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
    except KeyError as error:
        # No hint: in a file without a header the first line is somebody's.
        missing = [name for name in names if f"'{name}'" in str(error)] or names
        raise ValueError(
            f"Expected the first line of the file to name a column {quoted(missing)}. "
            "Commas separate names and cells, without blanks."
        ) from None
    found = {}
    for name in names:
        cells = table.column(name).to_pylist()
        if columns[name].is_text:
            texts = [None if c is None else c.decode("utf-8", "replace") for c in cells]
            found[name] = np.array([*texts, None], object)[:-1]
        else:
            found[name] = np.array([_number(cell) for cell in cells], np.float64)
    return found


def _header(content: Any) -> list[str]:
    """The cells of the first line that is not empty; none if Python cannot read it.

    Of a name that is there twice Arrow takes the first column without a word.

    Args:
      content: The file, opened for reading bytes.
    """
    text = io.TextIOWrapper(content, "utf-8-sig", "replace", newline="")
    try:
        return next(filter(None, csv.reader(text)), [])
    except csv.Error:  # A cell is too long for it, and no name is.
        return []


def _number(cell: bytes | None) -> float:
    """A cell's number; NaN if it is none."""
    if cell is None:
        return math.nan
    text = cell.decode("utf-8", "replace").strip().lower()
    try:
        return _TRUTH_VALUES[text] if text in _TRUTH_VALUES else float(text)
    except ValueError:
        return math.nan


def _parquet(path: Path, names: list[str], columns: Any) -> Any:
    from pyarrow import parquet

    known = parquet.read_schema(path).names
    for name in names:
        check_name(name, known, "file")
    return parquet.read_table(path, columns=names)


def _arrow(path: Path, names: list[str], columns: Any) -> Any:
    from pyarrow import feather

    table = feather.read_table(path, memory_map=True)
    for name in names:
        check_name(name, table.column_names, "file")
    return table.select(names)


_READERS = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
}
