"""Indices out of range are seen where JAX would clamp them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.index_ranges import indices_in_range, is_in_range

INDEXED = {
    "gather": (lambda x, i: x[jnp.stack([i, i])].sum(), False),
    "slice": (lambda x, i: x[i], False),
    "inside jit": (lambda x, i: jax.jit(lambda x: x[i])(x), False),
    "inside custom_jvp": (lambda x, i: jax.nn.relu(x[i]), False),
    "inside vmap": (
        lambda x, i: jax.vmap(lambda j: x[j])(jnp.stack([i, i])).sum(),
        False,
    ),
    "explicit filling": (
        lambda x, i: x.at[i[None]].get(mode="fill", fill_value=0.0).sum(),
        True,
    ),
}


@pytest.mark.parametrize("case", INDEXED)
def test_indices_are_checked(case):
    function, outside_is_fine = INDEXED[case]
    x = jnp.arange(1.0, 4.0)
    program = jax.make_jaxpr(function)(x, jnp.asarray(0))
    check = jax.jit(lambda i: indices_in_range(program, (x, i)))
    assert [bool(check(jnp.asarray(i))) for i in (0, 2, -1, -3)] == [True] * 4
    assert bool(check(jnp.asarray(3))) is outside_is_fine
    assert bool(check(jnp.asarray(-4))) is outside_is_fine


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_indices_of_small_types_are_compared_as_numbers(dtype: type) -> None:
    """300 is no number of these types, and must not wrap round to one that is."""
    found = is_in_range(jnp.asarray([0, 100, 127], dtype), np.asarray(300))
    assert bool(jnp.all(found))
    found = is_in_range(jnp.asarray([0, 5, 127], dtype), np.asarray(5))
    np.testing.assert_array_equal(found, [True, True, False])


def test_every_index_of_a_row_counts() -> None:
    """Of several axes, and of slices that start at two of them."""
    table = jnp.zeros((3, 4))

    def function(i: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(table, (i[0], i[1]), (2, 1)).sum() + table[i[2], 0]

    program = jax.make_jaxpr(function)(jnp.zeros(3, int))
    check = jax.jit(lambda i: indices_in_range(program, (i,)))
    for index, expected in (
        ([1, 3, 2], True),
        ([2, 0, 0], False),
        ([0, 4, 0], False),
        ([0, 0, 3], False),
    ):
        assert bool(check(jnp.asarray(index))) is expected
