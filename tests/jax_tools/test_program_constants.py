"""Arrays inside programs are found, and told from those that say nothing."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.jax_tools.program_constants import (
    constants_of,
    has_length,
    is_plain,
    listed,
    refuse_program_constants,
    unnamed,
)

ROWS = 7
SECRET = np.random.default_rng(0).normal(size=ROWS).astype(np.float32)


@dataclasses.dataclass
class Arguments:
    num_rows: int = ROWS
    public: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def program(function: Any) -> Any:
    return jax.make_jaxpr(function)(1.0)


def custom(x: jax.Array) -> jax.Array:
    @jax.custom_jvp
    def inner(x: jax.Array) -> jax.Array:
        return x * jnp.asarray(SECRET).sum()

    inner.defjvp(lambda primals, tangents: (inner(*primals), tangents[0]))
    return inner(x)


HIDDEN: dict[str, Any] = {
    "plain": lambda x: x + jnp.asarray(SECRET).sum(),
    "jit": lambda x: jax.jit(lambda x: x + jnp.asarray(SECRET))(x),
    "scan": lambda x: jax.lax.scan(
        lambda c, s: (c + s * jnp.asarray(SECRET).sum(), s), x, jnp.arange(3.0)
    ),
    "cond": lambda x: jax.lax.cond(
        x > 0, lambda x: x + jnp.asarray(SECRET).sum(), lambda x: x, x
    ),
    "while": lambda x: jax.lax.while_loop(
        lambda x: x < jnp.asarray(SECRET).sum(), lambda x: x + 1.0, x
    ),
    "checkpoint": jax.checkpoint(lambda x: x * jnp.asarray(SECRET).sum()),
    "a custom derivative": custom,
}


@pytest.mark.parametrize("place", HIDDEN)
def test_an_array_is_found_wherever_it_is(place: str) -> None:
    closed = program(HIDDEN[place])
    assert any(np.array_equal(np.asarray(a), SECRET) for a in constants_of(closed))
    with pytest.raises(UnsafeModelError, match=r"array inside it of shape \(7,\)"):
        refuse_program_constants(closed, Arguments())


def test_what_is_declared_or_looked_at_may_be_as_long_as_the_data() -> None:
    closed = program(HIDDEN["plain"])
    refuse_program_constants(closed, Arguments(public={"offset": SECRET}))
    # In another precision it is the same array.
    wide = SECRET.astype(np.float64)
    refuse_program_constants(closed, Arguments(public={"offset": wide}))
    refuse_program_constants(closed, Arguments(), looked_at=[SECRET])
    with pytest.raises(UnsafeModelError, match="The guide captures"):
        refuse_program_constants(
            closed, Arguments(public={"offset": SECRET + 1}), "guide"
        )


def test_arrays_of_another_length_are_no_rows() -> None:
    refuse_program_constants(program(HIDDEN["plain"]), Arguments(num_rows=8))
    assert has_length((3, 7), 7) and not has_length((3, 7), 2)
    # Of a single row every axis of length 1 would be one.
    assert not has_length((1, 3), 1)


@pytest.mark.parametrize(
    ("array", "plain", "in_units"),
    [
        (np.zeros(7), True, True),
        (np.ones((7, 2)), True, True),
        (np.full(7, 2.5), True, False),
        (np.arange(7), True, True),
        (np.eye(7), True, True),
        (np.zeros((0, 7)), True, True),
        (np.arange(1, 8), False, False),
        (np.eye(7)[::-1], False, False),
        (np.eye(7)[:, :5], False, False),
        (SECRET, False, False),
        (np.full(7, np.nan), False, False),
        (np.array(["a", "b"]), False, False),
        (np.array([0.0, 1.0, 1.0, 0.0]), False, False),
    ],
)
def test_what_says_nothing_of_data_is_plain(
    array: np.ndarray, plain: bool, in_units: bool
) -> None:
    assert is_plain(array) is plain
    assert is_plain(array, units_only=True) is in_units


def test_tables_of_jaxs_own_functions_are_plain() -> None:
    closed = program(jax.scipy.special.expi)
    tables = constants_of(closed)
    assert tables and all(map(is_plain, tables))
    changed = [np.asarray(table) + 1e-3 for table in tables]
    assert not any(map(is_plain, changed))


def test_constants_without_a_name_get_one_each() -> None:
    named = {"weights": SECRET}
    constants: list[Any] = [
        *(SECRET, np.zeros(7), SECRET + 1, SECRET + 1, SECRET + 2, np.full(7, 3.0))
    ]
    found = unnamed(constants, named, Arguments(public={"x": np.full(7, 3.0)}))
    assert list(found) == ["an array of shape (7,)", "an array of shape (7,) (2)"]
    np.testing.assert_array_equal(found["an array of shape (7,)"], SECRET + 1)
    assert listed(["weights", *found])[0] == "the array 'weights'"
    assert listed(found) == list(found)


def test_bytes_among_the_parameters_of_an_operation_are_an_array() -> None:
    """No engine runs a foreign call; what it holds is found all the same."""
    call = jax.ffi.ffi_call("never called", jax.ShapeDtypeStruct((), np.float32))
    (found,) = constants_of(program(lambda x: call(x, secret=SECRET.tobytes())))
    np.testing.assert_array_equal(found, np.frombuffer(SECRET.tobytes(), np.uint8))


def test_several_keys_are_an_array_and_a_single_one_is_none() -> None:
    assert constants_of(program(lambda x: jax.random.normal(jax.random.key(0)))) == []
    keys = jax.random.split(jax.random.key(0), 3)
    found = constants_of(program(lambda x: jax.vmap(jax.random.normal)(keys)))
    assert [np.shape(a) for a in found] == [(3,)]
