"""Settings can be compared, hashed and written down, and never show data."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from numpyro_vips._settings import FrozenMapping, code_of, frozen, keep_integer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    steps: int | None = None
    name: str = "a"
    scale: Callable[[float], float] | None = None
    other: Any = None

    def __post_init__(self) -> None:
        keep_integer(self, "steps")


def test_a_frozen_mapping_is_one_whatever_the_order_and_cannot_change() -> None:
    first, second = FrozenMapping({"b": 1, "a": 2}), FrozenMapping({"a": 2, "b": 1})
    assert first == second == {"a": 2, "b": 1}
    assert hash(first) == hash(second) and list(first) == ["a", "b"]
    assert first != FrozenMapping({"a": 2, "b": 3}) and len(FrozenMapping()) == 0
    with pytest.raises(TypeError):
        first["a"] = 3  # type: ignore[index]


def test_a_frozen_mapping_does_not_follow_the_one_it_was_made_of() -> None:
    given = {"a": 1}
    found = frozen(given)
    given["a"] = 2
    assert found == {"a": 1} and isinstance(found, FrozenMapping)
    assert frozen(3) == 3


def test_integers_are_kept_as_pythons_own() -> None:
    kept = Example(steps=np.int16(3)).steps  # type: ignore[arg-type]
    assert kept == 3 and type(kept) is int
    assert Example().steps is None
    with pytest.raises(ValueError, match="steps=0"):
        Example(steps=0)


def test_code_says_what_was_given_and_hides_what_code_cannot_make() -> None:
    assert code_of(Example()) == "Example()"
    assert code_of(Example(steps=2, name="b")) == "Example(steps=2, name='b')"
    assert code_of(Example(scale=np.sqrt)) == "Example(scale=sqrt)"
    private = np.array([12345.0])
    found = code_of(Example(other=private))
    assert found == "Example(other=<ndarray>)"
    assert code_of(Example(other=private), other="X") == "Example(other=X)"
    assert code_of(Example(other=FrozenMapping({"w": 1}))) == "Example(other={'w': 1})"
