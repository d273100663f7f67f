"""Arrow tables and Parquet files: columns as arrays, missing cells as no numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numpyro_vips.rows.arrow_rows import ArrowRows, ParquetRows

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")


def table(missing: bool = False) -> Any:
    gap = None if missing else 5
    pairs = [[1.0, 2.0], None if missing else [9.0, 9.0], [5.0, None]]
    return pa.table(
        {
            "a": pa.array([1.0, gap, 3.0], pa.float32()),
            "b": pa.array([4.0, 5.0, 6.0], pa.float32()),
            "i8": pa.array([1, gap, 3], pa.int8()),
            "i64": pa.array([1, gap, 3], pa.int64()),
            "u16": pa.array([1, gap, 3], pa.uint16()),
            "u64": pa.array([1, gap, 3], pa.uint64()),
            "flag": pa.array([True, None if missing else True, False]),
            "pair": pa.array(pairs, pa.list_(pa.float64(), 2)),
            "text": pa.array(["a", "b", "c"]),
        }
    )


NUMERIC = ["a", "b", "i8", "i64", "u16", "u64", "flag", "pair"]


@pytest.mark.parametrize("missing", [False, True])
def test_rows_are_as_declared(missing):
    rows = ArrowRows(table(missing), {name: name for name in NUMERIC})
    found = rows.read(np.arange(3))
    for name, row in rows.row.items():
        assert (found[name].shape, found[name].dtype) == ((3, *row.shape), row.dtype)
        np.testing.assert_array_equal(
            found[name][0], [1.0, 2.0] if row.shape else 1 if name != "b" else 4
        )


def test_missing_cells_are_no_number_like_others():
    rows = ArrowRows(table(missing=True), {name: name for name in NUMERIC})
    (found,) = rows.scan(1, 3)
    assert np.isnan(found["a"][0]) and found["a"][1] == 3.0
    assert np.all(np.isnan(found["pair"][0]))
    np.testing.assert_array_equal(found["pair"][1], [5.0, np.nan])
    expected = {"i8": -128, "i64": -(2**31), "u16": 2**16 - 1, "u64": 2**32 - 1}
    for name, value in {**expected, "flag": 255}.items():
        assert found[name][0] == value
        # Nor after JAX has made 32 bits of 64.
        narrow = np.uint32 if name.startswith("u") else np.int32
        assert found[name].astype(narrow)[0] == value


def test_columns_stand_side_by_side():
    rows = ArrowRows(table(), {"X": ["b", "a"], "y": "i8", "z": ["i8"]})
    assert rows.row["X"].shape == (2,)
    found = rows.read(np.array([0, 2]))
    np.testing.assert_array_equal(found["X"], [[4.0, 1.0], [6.0, 3.0]])
    np.testing.assert_array_equal(found["z"], [[1], [3]])


@pytest.mark.parametrize(
    ("arrays", "error", "match"),
    [
        ({"X": "text"}, TypeError, "'text' is of type string.*public list"),
        (None, TypeError, "'text'"),
        ({"X": ["a", "i8"]}, TypeError, "one dtype"),
        ({"X": ["pair"]}, TypeError, "one dtype"),
        ({"X": "c"}, KeyError, "no column 'c'"),
    ],
)
def test_columns_that_are_no_numbers_are_refused(arrays, error, match):
    with pytest.raises(error, match=match):
        ArrowRows(table(), arrays)


def files(folder: Path, lengths: list[int]) -> list[Path]:
    paths, first = [], 0
    for number, length in enumerate(lengths):
        path = folder / f"{number}.parquet"
        x = pa.array(np.arange(first, first + length, dtype=np.float32))
        pq.write_table(pa.table({"x": x}), path, row_group_size=10)
        paths.append(path)
        first += length
    return paths


@pytest.mark.parametrize(("start", "stop"), [(0, 75), (12, 14), (25, 61), (40, 40)])
def test_files_are_read_one_after_the_other(start, stop, tmp_path):
    rows = ParquetRows(files(tmp_path, [35, 0, 40]))
    assert len(rows) == 75 and not hasattr(rows, "read")
    parts = [part["x"] for part in rows.scan(start, stop)]
    found = np.concatenate([np.empty(0, np.float32), *parts])
    np.testing.assert_array_equal(found, np.arange(start, stop))


def test_only_the_row_groups_of_a_range_are_read(tmp_path, monkeypatch):
    rows = ParquetRows(files(tmp_path, [35])[0])
    read, iter_batches = [], pq.ParquetFile.iter_batches

    def watched(self: Any, size: int, groups: list[int], *rest: Any, **more: Any):
        read.extend(groups)
        return iter_batches(self, size, groups, *rest, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    list(rows.scan(12, 29))
    assert read == [1, 2]


def test_files_of_other_types_are_refused(tmp_path):
    (path,) = files(tmp_path, [3])
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"x": pa.array([1, 2])}), other)
    with pytest.raises(ValueError, match="one type in all files"):
        ParquetRows([path, other])
