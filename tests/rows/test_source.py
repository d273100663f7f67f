"""What counts as a source, and what its columns say of themselves."""

from typing import Any

import numpy as np
import pytest

from numpyro_vips.rows.array_rows import ArrayRows
from numpyro_vips.rows.record_rows import RecordRows
from numpyro_vips.rows.source import RandomAccess, RowSource, SourceColumn, columns

RECORDS = [{"x": np.ones((2, 3), np.float32) * n, "y": n} for n in range(4)]


def test_the_example_of_the_module_is_a_source():
    class Halves:
        def __init__(self):
            self.row = {"y": np.empty((), np.float32)}

        def __len__(self):
            return 10

        def scan(self, start, stop):
            yield {"y": np.arange(start, stop, dtype=np.float32) / 2}

    assert isinstance(Halves(), RowSource)
    assert not isinstance(Halves(), RandomAccess)


@pytest.mark.parametrize("value", [np.ones((3, 2)), [1.0], {"x": 1.0}, "rows", None])
def test_arrays_and_containers_are_none(value):
    assert not isinstance(value, RowSource)


def test_columns_look_like_the_arrays_they_stand_for():
    found = columns(RecordRows(RECORDS, {"x": RECORDS[0]["x"], "y": np.zeros((), int)}))
    assert list(found) == ["x", "y"]
    assert (found["x"].shape, found["x"].dtype) == ((4, 2, 3), np.float32)
    assert found["y"].shape == (4,)
    assert repr(found["x"]) == "SourceColumn(float32[4, 2, 3])"
    assert SourceColumn(ArrayRows(np.ones((5, 2)))).shape == (5, 2)


@pytest.mark.parametrize("value", [np.ones(3), ArrayRows(np.ones(3)), {"x": 1}])
def test_columns_are_of_rows_that_are_mappings(value: Any):
    with pytest.raises(TypeError, match="rows are mappings"):
        columns(value)
