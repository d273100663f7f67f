"""Checks shared by public entry points: name, value, expectation."""

import math
import numbers
from collections.abc import Iterable
from typing import Any


def _number(name: str, value: Any) -> None:
    # An array of no dimension is as good as a number; a truth value or text is not.
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    is_number = isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0
    if not is_number or isinstance(value, bool) or kind in "bSUOMmc":
        raise TypeError(
            f"Expected {name}={value!r} to be a number, got {type(value).__name__}."
        )


# Every check is written so that NaN, with which no comparison holds, fails it.


def positive(**values: float) -> None:
    for name, value in values.items():
        _number(name, value)
        if not value > 0:
            raise ValueError(f"Expected {name}={value!r} to be positive.")


def nonnegative(**values: float) -> None:
    """Checks for a number that is zero or positive; infinity is one."""
    for name, value in values.items():
        _number(name, value)
        if not value >= 0:
            raise ValueError(f"Expected {name}={value!r} to be zero or positive.")


def moderate(**values: float) -> None:
    """Checks for a number whose square is neither too large nor too small."""
    positive(**values)
    for name, value in values.items():
        if not 1e-30 < value < 1e30:
            raise ValueError(
                f"Expected {name}={value!r} to lie between 1e-30 and 1e30. Scale the "
                "rows by public factors."
            )


def positive_integer(**values: int) -> None:
    for name, value in values.items():
        is_boolean = isinstance(value, bool)
        if not is_boolean:
            _number(name, value)
        if is_boolean or not 1 <= value < math.inf or int(value) != value:
            raise ValueError(f"Expected {name}={value!r} to be a positive integer.")


def boolean(**values: bool) -> None:
    for name, value in values.items():
        if not isinstance(value, bool):
            raise TypeError(f"Expected {name}={value!r} to be True or False.")


def probability(**values: float) -> None:
    """Checks for a number in (0, 1]."""
    for name, value in values.items():
        _number(name, value)
        if not 0 < value <= 1:
            raise ValueError(f"Expected {name}={value!r} in (0, 1].")


def delta(**values: float) -> None:
    """Checks for a number in [0, 1)."""
    for name, value in values.items():
        _number(name, value)
        if not 0 <= value < 1:
            raise ValueError(f"Expected {name}={value!r} in [0, 1).")


def text(**values: str) -> None:
    """Checks for a text that is not empty."""
    for name, value in values.items():
        if not isinstance(value, str):
            raise TypeError(
                f"Expected {name}={value!r} to be a text, got {type(value).__name__}."
            )
        if not value.strip():
            raise ValueError(f"Expected {name}={value!r} not to be empty.")


def names(option: str, given: Iterable[str], known: Iterable[str], of: str) -> None:
    """Checks that an option names only what the model has."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(
            f"Expected {option}= to name {of} of the model, got {unknown}; it has "
            f"{sorted(known)}."
        )


def one_of(allowed: tuple[str, ...], **values: str) -> None:
    for name, value in values.items():
        if value not in allowed:
            choices = ", ".join(repr(choice) for choice in allowed)
            raise ValueError(f"Expected {name}={value!r} to be one of {choices}.")
