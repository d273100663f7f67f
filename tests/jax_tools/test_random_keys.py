"""Any key of a caller's becomes a threefry key, always the same one."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.random_keys import (
    FAITHFUL,
    as_threefry,
    is_key,
    is_threefry,
    numbers_of,
    platforms,
    single_key,
    threefry_key,
)


def data(key: jax.Array) -> list[int]:
    return np.asarray(jax.random.key_data(key)).tolist()


def test_a_threefry_key_keeps_its_value() -> None:
    key = threefry_key(7)
    assert data(as_threefry(key)) == data(key)
    words = jax.random.key_data(key)
    assert data(as_threefry(words)) == data(key)


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_the_key_of_a_seed_is_jaxs_own(seed: int) -> None:
    assert data(threefry_key(seed)) == data(jax.random.key(seed, impl=FAITHFUL))


def test_seeds_of_more_than_a_word_have_keys_of_their_own() -> None:
    with jax.enable_x64(True):
        assert data(threefry_key(2**40 + 3)) == data(
            jax.random.key(2**40 + 3, impl=FAITHFUL)
        )


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_a_key_of_another_kind_becomes_one_that_depends_on_all_of_it(kind: str) -> None:
    words: Any = np.arange(1, 5, dtype=np.uint32)
    found = as_threefry(jax.random.wrap_key_data(words, impl=kind))
    assert is_threefry(found.dtype)
    others = []
    for place in range(4):
        changed = words.copy()
        changed[place] += 1
        others.append(data(as_threefry(jax.random.wrap_key_data(changed, impl=kind))))
    assert data(found) not in others
    assert len({tuple(other) for other in others}) == 4


def test_the_seed_decides_whatever_kind_is_jaxs_default() -> None:
    before = data(threefry_key(3))
    with jax.default_prng_impl("rbg"):
        assert data(threefry_key(3)) == before
        assert is_threefry(as_threefry(jax.random.key(3)).dtype)
        assert is_threefry(as_threefry(jax.random.PRNGKey(3)).dtype)


def test_under_vmap_a_row_draws_what_it_would_draw_alone() -> None:
    keys = jax.random.split(as_threefry(jax.random.key(0, impl="rbg")), 5)
    together = jax.vmap(jax.random.normal)(keys)
    alone = [float(jax.random.normal(key)) for key in keys]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize(
    "key", [jax.random.key(0), jax.random.PRNGKey(0), np.zeros(2, np.uint32)]
)
def test_a_key_of_any_form_becomes_a_typed_one_of_the_same_words(key: Any) -> None:
    found = single_key(key, "run(rng_key, X)")
    assert is_key(found) and found.shape == ()
    np.testing.assert_array_equal(jax.random.key_data(found), numbers_of(key))


@pytest.mark.parametrize("kind", ["rbg", "unsafe_rbg"])
def test_a_key_of_four_words_draws_as_before_once_it_is_typed(kind: str) -> None:
    with jax.default_prng_impl(kind):
        words = jax.random.PRNGKey(3)
        assert words.shape == (4,)
        for key in (words, np.asarray(words), jax.random.key(3)):
            found = single_key(key, "run(rng_key, X)")
            assert is_key(found)
            np.testing.assert_array_equal(
                jax.random.normal(found, (5,)), jax.random.normal(words, (5,))
            )


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (0, r"first argument of run to be a key .* got int.*: run\(rng_key, X\)"),
        (np.zeros(3, np.uint32), "such as jax.random.key"),
        (np.zeros(2, np.int32), "such as jax.random.key"),
        (jax.random.split(jax.random.key(0), 2), r"array of keys of shape \(2,\)"),
    ],
)
def test_what_is_no_single_key_is_refused(key: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        single_key(key, "run(rng_key, X)")


def test_only_typed_keys_are_keys() -> None:
    assert is_key(jax.random.key(0)) and not is_key(jax.random.PRNGKey(0))
    assert not is_key(jnp.zeros(2)) and not is_key("key")


def test_rows_are_worked_on_where_the_key_lies() -> None:
    assert platforms(jax.random.key(0)) == jax.devices()[0].platform


def test_keys_are_made_of_numbers_and_arrays_are_numbers() -> None:
    numbers = np.arange(4, dtype=np.uint32).reshape(2, 2)
    keys = jax.random.wrap_key_data(jnp.asarray(numbers), impl=FAITHFUL)
    for array in (numbers, jnp.asarray(numbers), keys):
        np.testing.assert_array_equal(numbers_of(array), numbers)
