"""Checks take what they say and name the value that they do not take."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from numpyro_vips import _validate

GOOD: dict[Callable[..., None], list[Any]] = {
    _validate.finite: [0, -1e300, np.float32(2.0), np.array(1.5)],
    _validate.positive: [1e-300, math.inf, np.int8(3)],
    _validate.nonnegative: [0, 0.0, math.inf],
    _validate.probability: [1e-12, 1, 1.0],
    _validate.delta: [0, 0.5, np.nextafter(1.0, 0.0)],
    _validate.share_of_delta: [1e-300, 0.5],
    _validate.moderate: [1e-29, 1.0, 1e29, np.float16(3.0)],
    _validate.positive_integer: [1, 3.0, np.int64(7), 10**30],
    _validate.boolean: [True, False],
    _validate.text: ["a"],
}
BAD: dict[Callable[..., None], list[Any]] = {
    _validate.finite: [math.inf, -math.inf, math.nan],
    _validate.positive: [0, -1, math.nan, np.float32("nan")],
    _validate.nonnegative: [-1e-300, math.nan],
    _validate.probability: [0, 1.0000001, math.nan],
    _validate.delta: [1, -1e-300, math.nan],
    _validate.share_of_delta: [0, 1, math.nan],
    _validate.moderate: [1e-30, 1e30, math.inf, 0, math.nan, np.float16(0)],
    _validate.positive_integer: [0, 2.5, math.inf, math.nan, True],
    _validate.text: ["", "  "],
}
NO_NUMBERS = [True, np.True_, "1", 1j, None, np.zeros(2), np.array("1")]


def pairs(table: dict[Callable[..., None], list[Any]]) -> list[Any]:
    return [
        pytest.param(check, value, id=f"{check.__name__}-{value!r}")
        for check, values in table.items()
        for value in values
    ]


@pytest.mark.parametrize(("check", "value"), pairs(GOOD))
def test_what_is_in_range_passes(check: Callable[..., None], value: Any) -> None:
    check(number=value)


@pytest.mark.parametrize(("check", "value"), pairs(BAD))
def test_what_is_not_is_named_with_its_value(
    check: Callable[..., None], value: Any
) -> None:
    with pytest.raises(ValueError, match="Expected number=") as found:
        check(number=value)
    assert repr(value) in str(found.value)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize("check", [_validate.positive, _validate.finite])
def test_only_numbers_are_numbers(check: Callable[..., None], value: Any) -> None:
    with pytest.raises(TypeError, match="to be a number"):
        check(number=value)


def test_all_values_are_checked_and_not_the_first_alone() -> None:
    with pytest.raises(ValueError, match="second=0"):
        _validate.positive(first=1, second=0)


def test_choices_and_names_are_listed() -> None:
    _validate.one_of(("a", "b"), kind="a")
    with pytest.raises(ValueError, match="kind='c' to be one of 'a', 'b'"):
        _validate.one_of(("a", "b"), kind="c")
    _validate.names("structure", ["w"], ["w", "b"], of="latents")
    with pytest.raises(ValueError, match=r"got \['z'\]; it has \['b', 'w'\]"):
        _validate.names("structure", ["z", "w"], ["w", "b"], of="latents")


@pytest.mark.parametrize("value", [1, 0, None, np.True_, "True"])
def test_only_true_and_false_are_booleans(value: Any) -> None:
    with pytest.raises(TypeError, match="to be True or False"):
        _validate.boolean(flag=value)
