"""Arrays that lie elsewhere: every row once, in parts, read as late as possible."""

import os
from typing import Any

import h5py
import numpy as np
import pytest

from numpyro_vips.rows import array_rows
from numpyro_vips.rows.array_rows import ArrayRows

ARRAY = np.arange(700.0).reshape(100, 7)


class Sliced:
    """The least that is asked for, which says what was read of it."""

    def __init__(self, array: np.ndarray, chunks: Any = None) -> None:
        self.array, self.chunks = array, chunks
        self.shape, self.dtype = array.shape, array.dtype
        self.read: list[Any] = []

    def __getitem__(self, key: Any) -> np.ndarray:
        self.read.append(key)
        return self.array[key]


class Orthogonal(Sliced):
    @property
    def oindex(self) -> Any:
        return Sliced(self.array + 1000.0)


@pytest.mark.parametrize(("start", "stop"), [(0, 100), (13, 58), (5, 5), (99, 100)])
@pytest.mark.parametrize("stored", [None, (8, 7), (200, 7)])
def test_parts_are_the_rows_in_order(start, stop, stored, monkeypatch):
    monkeypatch.setattr(array_rows, "_PART_BYTES", 10 * 7 * 8)
    array = Sliced(ARRAY, stored)
    parts = list(ArrayRows(array).scan(start, stop))
    found = np.concatenate([ARRAY[:0], *parts])
    np.testing.assert_array_equal(found, ARRAY[start:stop])
    # A stored chunk is read once, and parts are short otherwise.
    if stored is not None and stored[0] == 8:
        assert all(key.start % 8 == 0 for key in array.read[1:])
    if stored is None:
        assert all(len(part) <= 10 for part in parts)


def test_only_what_is_asked_for_is_read():
    array = Sliced(ARRAY)
    rows = ArrayRows(array)
    assert (len(rows), rows.row.shape, rows.row.dtype) == (100, (7,), np.float64)
    assert array.read == []
    next(rows.scan(20, 30))
    assert array.read == [slice(20, 30)]


@pytest.mark.skipif(os.name == "nt", reason="Windows lets nobody shorten such a file")
def test_a_memory_map_whose_file_has_become_shorter_is_an_error(tmp_path):
    """Reading it would end the process."""
    np.save(tmp_path / "rows.npy", ARRAY)
    rows = ArrayRows(np.load(tmp_path / "rows.npy", mmap_mode="r")[3:])
    assert len(rows.read(np.array([0, 90]))) == 2
    os.truncate(tmp_path / "rows.npy", 2000)
    with pytest.raises(EOFError, match="shorter"):
        next(rows.scan(0, 90))
    with pytest.raises(EOFError, match="shorter"):
        rows.read(np.array([0]))


@pytest.mark.parametrize("indices", [[], [0, 3, 99]])
def test_rows_are_read_at_random(indices, tmp_path):
    indices = np.array(indices, int)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        stored = file.create_dataset("x", data=ARRAY, chunks=(16, 7), compression=1)
        for array in (stored, ARRAY, Sliced(ARRAY)):
            found = ArrayRows(array).read(indices)
            np.testing.assert_array_equal(found, ARRAY[indices])
    # As of Zarr, where plain indexing means something else.
    found = ArrayRows(Orthogonal(ARRAY)).read(indices)
    np.testing.assert_array_equal(found, ARRAY[indices] + 1000.0)


@pytest.mark.parametrize("value", [3.0, np.float32(1.0), "text", [1.0], object()])
def test_what_has_no_rows_is_refused(value):
    with pytest.raises(TypeError, match="at least one axis"):
        ArrayRows(value)


def test_its_name_holds_no_value():
    assert repr(ArrayRows(ARRAY)) == "ArrayRows(float64[100, 7])"
