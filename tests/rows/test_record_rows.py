"""Records that are read by their number."""

from typing import Any

import numpy as np
import pytest

from numpyro_vips.rows import record_rows
from numpyro_vips.rows.record_rows import RecordRows

RECORDS: list[dict[str, Any]] = [
    {"x": np.full(3, n, np.float32), "y": n, "name": "a"} for n in range(10)
]
ROW = {"x": RECORDS[0]["x"], "y": np.empty((), np.int64)}


class Several:
    """As of Grain: several at once, and encoded."""

    def __init__(self) -> None:
        self.read: list[list[int]] = []

    def __len__(self) -> int:
        return len(RECORDS)

    def __getitem__(self, number: int) -> bytes:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: list[int]) -> list[bytes]:
        self.read.append(numbers)
        return [bytes([number]) for number in numbers]


def test_arrays_are_stacked_by_name():
    rows = RecordRows(RECORDS, ROW)
    found = rows.read(np.array([2, 7]))
    np.testing.assert_array_equal(found["x"], [[2.0] * 3, [7.0] * 3])
    assert found["x"].dtype == np.float32
    np.testing.assert_array_equal(found["y"], [2, 7])
    assert set(found) == {"x", "y"}
    assert rows.read(np.array([], int))["x"].shape == (0, 3)


def test_scanning_gives_every_row_once(monkeypatch):
    monkeypatch.setattr(record_rows, "_PART", 4)
    parts = list(RecordRows(RECORDS, ROW).scan(1, 10))
    assert [len(part["y"]) for part in parts] == [4, 4, 1]
    np.testing.assert_array_equal(np.concatenate([p["y"] for p in parts]), range(1, 10))


def test_records_are_decoded_and_read_together():
    records = Several()
    rows: Any = RecordRows(
        records, np.zeros((), np.float32), decode=lambda data: data[0]
    )
    assert records.read == []
    np.testing.assert_array_equal(rows.read(np.array([1, 4])), [1.0, 4.0])
    assert records.read == [[1, 4]]


def test_one_record_of_another_shape_is_never_broadcast():
    records = [{"x": np.zeros(3)}, {"x": np.zeros(1)}]
    found = RecordRows(records, {"x": np.zeros(3)}).read(np.array([0, 1]))
    np.testing.assert_array_equal(found["x"], [[0.0] * 3, [np.nan] * 3])


MISSING = {
    np.float32: np.nan,
    np.int64: -(2**31),
    np.int8: -128,
    np.uint8: 255,
    np.bool_: False,
}


@pytest.mark.parametrize("dtype", MISSING)
@pytest.mark.parametrize(
    "record",
    [
        {},
        None,
        {"x": "secret"},
        {"x": b"\xff"},
        {"x": [[0], [1, 2]]},
        {"x": [1, 1, 1]},
        {"x": [1j, 1]},
        {"x": [10**400, 1]},
        {"x": {}},
        {"x": [np.ma.masked, 1]},
        {"x": ([np.ma.masked], [1])},
    ],
)
def test_no_record_is_an_error_nor_a_warning(record, dtype, recwarn):
    records: list[Any] = [{"x": [0, 1]}, record, {"x": [1, 1]}]
    rows = RecordRows(records, {"x": np.zeros(2, dtype)})
    found = rows.read(np.arange(3))["x"]
    if not (dtype is np.bool_ and record == {"x": [10**400, 1]}):
        np.testing.assert_array_equal(found, [[0, 1], [MISSING[dtype]] * 2, [1, 1]])
    assert found.dtype == dtype
    assert not recwarn.list


@pytest.mark.parametrize("dtype", MISSING)
def test_what_is_masked_in_an_array_is_missing(dtype):
    records = [{"x": np.ma.masked_array([5, 1], [True, False])}]
    found = RecordRows(records, {"x": np.zeros(2, dtype)}).read(np.array([0]))["x"]
    np.testing.assert_array_equal(found, [[MISSING[dtype], 1]])


def test_the_first_record_does_not_decide_how_others_are_read():
    for first in (1, 1.0):
        rows = RecordRows([{"x": first}, {"x": 2.5}], {"x": np.zeros(())})
        np.testing.assert_array_equal(rows.read(np.array([1]))["x"], [2.5])


@pytest.mark.parametrize("records", [iter(RECORDS), 3])
def test_what_cannot_be_read_by_number_is_refused(records):
    with pytest.raises(TypeError, match="records with a length"):
        RecordRows(records, ROW)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("value", [1e300, np.nan, -np.inf])
def test_a_number_that_the_dtype_cannot_hold_does_not_warn(dtype, value):
    rows = RecordRows([{"x": value}], {"x": np.zeros((), dtype)})
    with np.errstate(all="raise"):
        assert rows.read(np.array([0]))["x"].dtype == dtype
