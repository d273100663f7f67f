"""Named arrays as bytes, to the last bit."""

import io
from collections.abc import Mapping

import numpy as np


def packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The names of the arrays and then these, in NumPy's own format, without objects.

    Raises:
      ValueError: An array holds objects. (`np.savez` packs them before NumPy 2.1.)
    """
    buffer = io.BytesIO()
    for array in (np.array(list(arrays)), *arrays.values()):
        np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def unpacked(content: bytes) -> dict[str, np.ndarray]:
    """The named arrays in bytes that `packed` has made; executes nothing."""
    file = io.BytesIO(content)
    names = np.load(file, allow_pickle=False)
    return {name: np.load(file, allow_pickle=False) for name in names.tolist()}
