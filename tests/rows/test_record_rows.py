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
    rows = RecordRows(RECORDS, row=ROW)
    found = rows.read(np.array([2, 7]))
    np.testing.assert_array_equal(found["x"], [[2.0] * 3, [7.0] * 3])
    assert found["x"].dtype == np.float32
    np.testing.assert_array_equal(found["y"], [2, 7])
    assert set(found) == {"x", "y"}
    assert rows.read(np.array([], int))["x"].shape == (0, 3)


def test_scanning_gives_every_row_once(monkeypatch):
    monkeypatch.setattr(record_rows, "_PART", 4)
    parts = list(RecordRows(RECORDS, row=ROW).scan(1, 10))
    assert [len(part["y"]) for part in parts] == [4, 4, 1]
    np.testing.assert_array_equal(np.concatenate([p["y"] for p in parts]), range(1, 10))


def test_records_are_decoded_and_read_together():
    records = Several()
    rows: Any = RecordRows(records, decode=lambda data: np.float32(data[0]))
    assert rows.row.shape == () and rows.row.dtype == np.float32
    np.testing.assert_array_equal(rows.read(np.array([1, 4])), [1.0, 4.0])
    assert records.read == [[0], [1, 4]]


def test_one_record_of_another_shape_is_never_broadcast():
    records = [{"x": np.zeros(3)}, {"x": np.zeros(1)}]
    with pytest.raises(ValueError, match="shape of the others"):
        RecordRows(records).read(np.array([0, 1]))


@pytest.mark.parametrize("records", [iter(RECORDS), 3, []])
def test_what_cannot_be_read_by_number_is_refused(records):
    with pytest.raises(TypeError, match=r"records with a length|at least one record"):
        RecordRows(records)
