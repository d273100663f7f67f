"""Parameters of which some run in the fast tests and all of them in the slow ones."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def some_fast(names: Iterable[str], fast: Container[str]) -> list[Any]:
    """The names as parameters; those that are not in `fast` are slow."""
    return [
        name if name in fast else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]
