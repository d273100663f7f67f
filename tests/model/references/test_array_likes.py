"""Whatever may hold a number for each person is an array, and settings are none."""

import array
import base64
import collections
import datetime
import functools
import io
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from numpyro_vips.model.references.array_likes import (
    as_array,
    is_settings,
    num_entries_with_numbers,
    stand_in,
)

TABLE = "age,dose\n" + "".join(f"{30 + i},{0.5 * i}\n" for i in range(6))
RECORD = np.zeros(4, dtype=[("age", float), ("doses", float, (3,))])


def with_defaults(*values: float, **by_name: float) -> types.FunctionType:
    """A function whose parameters have these default values."""

    def function(*args: Any, **kwargs: Any) -> None: ...

    function.__defaults__, function.__kwdefaults__ = values, by_name
    return function


def with_attributes(number: int) -> types.FunctionType:
    """A function with so many numbers as attributes."""
    function = with_defaults()
    vars(function).update({f"p{i}": float(i) for i in range(number)})
    return function


class Person:
    def __init__(self, age: float) -> None:
        self.age = age


ARRAYS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "NumPy": (np.zeros((3, 2)), (3, 2)),
    "JAX": (jnp.zeros((3, 2)), (3, 2)),
    "sparse": (scipy.sparse.eye(4, 3), (4, 3)),
    "a table": (pd.DataFrame({"a": [1, 2], "b": [3, 4]}), (2, 2)),
    "a series": (pd.Series([1, 2, 3]), (3,)),
    "records": (RECORD, (4, 3)),
    "a list": ([1, 2.5, None], (3,)),
    "a list of lists": ([[1, 2], [3, 4], (5, 6)], (3, 2)),
    "a set": ({1.5, 2.5}, (2,)),
    "a queue": (collections.deque([1, 2, 3]), (3,)),
    "a dict": ({"a": 1.5, "b": 2}, (2,)),
    "dates": ([datetime.date(2020, 1, 1)] * 2, (2,)),
    "bytes": (bytes(9), (9,)),
    "an array of bytes": (array.array("d", [1, 2, 3]), (3,)),
    "a file in memory": (io.StringIO(TABLE), (6, 2)),
    "a text of lines": (TABLE, (6, 2)),
    "a text of one line": ("1 2.5 -3e4 4 5", (5,)),
    "bytes in text": (base64.b64encode(bytes(120)).decode(), (160,)),
    "numbers in text": (["1", "2.5", "2020-01-01"], (3,)),
}
NONE: dict[str, Any] = {
    "a number": 3.0,
    "a word": "a mean of 3 doses",
    "a date": "2020-01-01",
    "a few bytes": b"abc",
    "words": ["a", "b", "c"],
    "a mixed list": [1, "a", 2],
    "shapes that differ": [np.zeros(2), np.zeros(3)],
    "an empty list": [],
    "named arrays": {"X": np.zeros(3), "y": np.zeros(3)},
    "a function": as_array,
    "a class": Person,
    "an object": Person(3.0),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_has_its_shape(name: str) -> None:
    value, shape = ARRAYS[name]
    found = as_array(value)
    assert found is not None and found.shape == shape


@pytest.mark.parametrize("name", NONE)
def test_other_things_are_none(name: str) -> None:
    assert as_array(NONE[name]) is None


def test_values_of_arrays_are_kept_and_keys_and_tracers_have_only_a_shape() -> None:
    found = as_array(jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(np.asarray(found), [1.0, 2.0])
    keys = as_array(jax.random.split(jax.random.key(0), 3))
    assert keys is not None and keys.shape == (3,)
    seen = []
    jax.jit(lambda x: seen.append(as_array(x)) or x)(jnp.ones((2, 5)))
    assert seen[0].shape == (2, 5)


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ([np.zeros(2), np.zeros(3)], 2),
        ([np.zeros(n) for n in range(6)], 6),
        ([{"name": "a", "age": 3.0} for _ in range(7)], 7),
        ([Person(3.0) for _ in range(5)], 5),
        (["Ann, 34", "Bob, 51", "Cy, 29", "Di, 40", "Ed, 33"], 5),
        ({f"person_{i}": (i, "a") for i in range(8)}, 8),
        (types.SimpleNamespace(**{f"p{i}": float(i) for i in range(6)}), 6),
        (functools.partial(max, *range(4), default=4), 5),
        (with_defaults(*range(6)), 6),
        (with_defaults(**{f"p{i}": float(i) for i in range(7)}), 7),
        (with_attributes(5), 5),
        (functools.partial(max, 1, 2), 0),
        (with_defaults(1, 2, 3), 0),
        ([Person(3.0) for _ in range(4)], 0),
        (["Ann", "Bob", "Cy", "Di", "Ed"], 0),
        ({"lr": 0.1, "steps": 10}, 0),
    ],
)
def test_entries_with_numbers_are_counted_and_a_few_only_if_they_are_arrays(
    value: Any, count: int
) -> None:
    assert num_entries_with_numbers(value) == count


def test_a_vocabulary_is_an_index_and_no_data() -> None:
    words = {word: number for number, word in enumerate("abcdefgh")}
    assert as_array(words) is None
    assert num_entries_with_numbers(words) == 0
    shuffled = dict(zip("abcdefgh", [3, 1, 7, 0, 2, 5, 6, 4], strict=True))
    found = as_array(shuffled)
    assert found is not None and found.shape == (8,)


def test_settings_are_few_and_have_names() -> None:
    assert is_settings({"a": 1, "b": 2})
    assert not is_settings({f"p{i}": i for i in range(5)})
    assert not is_settings({1: 2.0})
    assert not is_settings([1, 2])


def test_a_stand_in_takes_no_memory() -> None:
    found = stand_in((10**6, 10**6))
    assert found.shape == (10**6, 10**6) and found.strides == (0, 0)
