"""Checks shared by public entry points: name, value, expectation."""

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def _number(name: str, value: Any) -> float:
    """The value as a number of Python's own, which has all the digits of narrower ones.

    Compared as it came, 1.0004 would be no larger than NumPy's float16 of 1.
    """
    # An array of no dimension is as good as a number; a truth value or text is not.
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    is_number = isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0
    if not is_number or isinstance(value, bool) or kind in "bSUOMmc":
        raise TypeError(
            f"Expected {name}={value!r} to be a number, got {type(value).__name__}."
        )
    return value if isinstance(value, int) else float(value)


def _check(
    values: Mapping[str, Any], holds: Callable[[Any], bool], expectation: str
) -> None:
    for name, value in values.items():
        if not holds(_number(name, value)):
            raise ValueError(f"Expected {name}={value!r} {expectation}.")


# Every check is written so that NaN, with which no comparison holds, fails it.


def finite(**values: float) -> None:
    _check(values, lambda x: abs(x) < math.inf, "to be a finite number")


def positive(**values: float) -> None:
    _check(values, lambda x: x > 0, "to be positive")


def nonnegative(**values: float) -> None:
    """Checks for a number that is zero or positive; infinity is one."""
    _check(values, lambda x: x >= 0, "to be zero or positive")


def probability(**values: float) -> None:
    """Checks for a number in (0, 1]."""
    _check(values, lambda x: 0 < x <= 1, "in (0, 1]")


def delta(**values: float) -> None:
    """Checks for a number in [0, 1)."""
    _check(values, lambda x: 0 <= x < 1, "in [0, 1)")


def share_of_delta(**values: float) -> None:
    """Checks for a number in (0, 1)."""
    _check(values, lambda x: 0 < x < 1, "in (0, 1)")


def moderate(**values: float) -> None:
    """Checks for a number whose square is neither too large nor too small."""
    positive(**values)
    remedy = "Scale the rows by public factors"
    _check(
        values, lambda x: 1e-30 < x < 1e30, f"to lie between 1e-30 and 1e30. {remedy}"
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


def one_of(allowed: Sequence[str | int], **values: str | int) -> None:
    for name, value in values.items():
        if value not in allowed:
            choices = ", ".join(repr(choice) for choice in allowed)
            raise ValueError(f"Expected {name}={value!r} to be one of {choices}.")
