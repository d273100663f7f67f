"""Arrays between processes keep their names, types and bits."""

import numpy as np
import pytest

from numpyro_vips.fitting.reducers.packed_arrays import packed, unpacked


def test_named_arrays_come_back_to_the_last_bit():
    arrays = {"a b": np.array([np.nan, -0.0, 1e-310]), "": np.zeros((2, 0), np.int32)}
    found = unpacked(packed(arrays))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].tobytes() == array.tobytes()


def test_nothing_that_would_run_code_is_packed() -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        packed({"a": np.array([object()])})
