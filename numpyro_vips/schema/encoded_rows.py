"""Encoded rows that know the names of their columns, and nothing else of the table."""

from typing import Any

import numpy as np


class EncodedRows(np.ndarray):
    """An array of encoded rows that carries its encoding, which is public.

    Some of its rows, as of a training set, and the same numbers in another precision
    carry it too. What is computed from it is an ordinary array: its columns may mean
    something else.

    Attributes:
      encoding: What made the rows, a `Schema` or a `Design`; None if they may have been
        changed.
    """

    encoding: Any

    def __array_finalize__(self, obj: Any) -> None:
        self.encoding = None

    def __array_wrap__(
        self, array: Any, context: Any = None, return_scalar: bool = False
    ) -> Any:
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if not isinstance(found, EncodedRows):
            return found
        selects_rows = not isinstance(key, tuple) and found.ndim == self.ndim == 2
        if not selects_rows or self.encoding is None:
            return found.view(np.ndarray)
        return encoded_rows(found, self.encoding)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.encoding = None

    def astype(self, *args: Any, **kwargs: Any) -> Any:
        found = super().astype(*args, **kwargs)
        return found if self.encoding is None else encoded_rows(found, self.encoding)

    def __repr__(self) -> str:
        return repr(self.view(np.ndarray))


def encoded_rows(rows: np.ndarray, encoding: Any) -> EncodedRows:
    """Rows, not copied, that carry what has encoded them."""
    found = rows.view(EncodedRows)
    found.encoding = encoding
    return found
