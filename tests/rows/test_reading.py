"""Pieces of rows out of parts of any lengths, ahead of who takes them."""

import itertools
import threading
import time
from typing import Any

import numpy as np
import pytest

from numpyro_vips.rows.array_rows import ArrayRows
from numpyro_vips.rows.reading import read_ahead, read_columns
from numpyro_vips.rows.source import SourceColumn


class Parts:
    """Rows 0, 1, 2, ... in parts of given lengths."""

    row = np.empty((), np.float64)

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths
        self.scans = 0

    def __len__(self) -> int:
        return sum(self.lengths)

    def scan(self, start: int, stop: int) -> Any:
        self.scans += 1
        for first, length in zip(
            itertools.accumulate((0, *self.lengths)), self.lengths, strict=False
        ):
            yield np.arange(first, first + length, dtype=float)


@pytest.mark.parametrize("lengths", [(10,), (3, 7), (1,) * 10, (0, 4, 0, 6), (2, 5, 3)])
@pytest.mark.parametrize("length", [1, 3, 4, 10, 64])
def test_pieces_are_the_rows_in_order(lengths, length):
    pieces = [range(10)[first : first + length] for first in range(0, 10, length)]
    pieces.append(range(10, 10))
    source = Parts(*lengths)
    found = [part["x"] for part in read_columns({"x": SourceColumn(source)}, pieces)]
    assert [len(part) for part in found] == [len(piece) for piece in pieces]
    np.testing.assert_array_equal(np.concatenate(found), np.arange(10))
    assert source.scans == 1


@pytest.mark.parametrize("pieces", ["ranges", "indices"])
def test_a_source_may_fill_one_array_again_and_again(pieces):
    """Its last rows counted several times, while all of them waited to be summed."""

    class Reused(Parts):
        array = np.empty(2)

        def scan(self, start: int, stop: int) -> Any:
            for part in super().scan(start, stop):
                self.array[:] = part
                yield self.array

        def read(self, indices: np.ndarray) -> Any:
            self.array[:] = indices
            return self.array

    made: list[Any] = [range(first, first + 2) for first in range(0, 8, 2)]
    if pieces == "indices":
        made = [np.array(piece) for piece in made]
    columns = {"x": SourceColumn(Reused(2, 2, 2, 2))}
    found = [part["x"] for part in list(read_columns(columns, made))]
    np.testing.assert_array_equal(np.concatenate(found), np.arange(8))


def test_a_source_that_changes_its_indices_moves_no_other_source():
    """Or one person's numbers would stand in the rows of two."""

    class Moved(Parts):
        def read(self, indices: np.ndarray) -> Any:
            indices += 1
            return indices - 1.0

    columns = {name: SourceColumn(Moved(8)) for name in ("x", "y")}
    (part,) = read_columns(columns, [np.array([1, 4, 5])])
    np.testing.assert_array_equal(part["x"], [1, 4, 5])
    np.testing.assert_array_equal(part["y"], [1, 4, 5])


def test_a_memory_map_is_copied_when_it_is_read(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((100, 7)))
    mapped = np.load(path, mmap_mode="r")
    columns = {"x": SourceColumn(ArrayRows(mapped))}
    (part,) = read_columns(columns, [range(100)])
    assert not np.shares_memory(part["x"], mapped)
    assert type(part["x"]) is np.ndarray


def test_no_rows_at_all_are_pieces_without_any():
    (part,) = read_columns({"x": SourceColumn(ArrayRows(np.ones((0, 3))))}, [range(0)])
    assert part["x"].shape == (0, 3)


def test_columns_of_one_source_are_read_together():
    class Both:
        def __init__(self) -> None:
            self.row = {"x": np.empty(()), "y": np.empty(2)}
            self.scans = 0

        def __len__(self) -> int:
            return 4

        def scan(self, start: int, stop: int) -> Any:
            self.scans += 1
            yield {"x": np.arange(4.0), "y": np.ones((4, 2)), "other": 0}

    source = Both()
    columns = {name: SourceColumn(source, name) for name in ("x", "y")}
    columns["z"] = SourceColumn(ArrayRows(-np.arange(4.0)))
    for part, expected in zip(
        read_columns(columns, [range(3), range(3, 4)]), ([0, 1, 2], [3]), strict=True
    ):
        np.testing.assert_array_equal(part["x"], expected)
        np.testing.assert_array_equal(-part["z"], expected)
        assert part["y"].shape == (len(expected), 2)
    assert source.scans == 1


# --- ahead ----------------------------------------------------------------------------


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_values_come_in_order_and_some_ahead(at_once):
    read = []

    def values() -> Any:
        for number in range(50):
            read.append(number)
            yield number

    with read_ahead(values(), at_once) as taken:
        assert next(taken) == 0
        time.sleep(0.2)
        # Some wait, one lot is on its way, and no more.
        assert min(50, 2 * at_once) <= len(read) <= min(50, 5 * at_once)
        assert list(taken) == list(range(1, 50))


class Panic(BaseException):
    """What a library in Rust raises where it should not have come."""


@pytest.mark.parametrize("error", [ValueError, Panic])
def test_what_a_source_raises_is_not_passed_on(error):
    class Broken(Parts):
        def scan(self, start: int, stop: int) -> Any:
            yield np.arange(1.0)
            raise error("row 2 is joe,50")

    with pytest.raises(
        RuntimeError, match=rf"'x' failed with {error.__name__}\."
    ) as told:
        list(read_columns({"x": SourceColumn(Broken(3))}, [range(3)]))
    assert "joe" not in str(told.value)
    assert told.value.__context__ is None and told.value.__cause__ is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_ends_the_reading(error):
    class Interrupted(Parts):
        def scan(self, start: int, stop: int) -> Any:
            yield np.arange(1.0)
            raise error

    with pytest.raises(error):
        list(read_columns({"x": SourceColumn(Interrupted(3))}, [range(3)]))


def test_an_error_is_raised_where_the_value_would_be():
    def values() -> Any:
        yield 1
        raise OSError("broken")

    taken = []
    with pytest.raises(OSError, match="broken"), read_ahead(values()) as ahead:
        taken.extend(ahead)
    assert taken in ([], [1])


def test_the_thread_ends_with_the_context():
    before = threading.active_count()
    with read_ahead(itertools.count()) as taken:
        next(taken)
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
