"""The pieces that a clipped sum is made of: weights, and sums of scattered rows."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.row_sums import ROW_ALIGNMENT
from numpyro_vips.vips.row_sums.bounded_sum import (
    MAX_PIECE,
    add,
    clipping_weights,
    in_order,
    piece_size,
    weighted,
    where_rows,
    zero_sum,
)
from numpyro_vips.vips.row_sums.row_statistics import Scattered

RNG = np.random.default_rng(2)


def test_a_weighted_row_is_no_longer_than_the_bound() -> None:
    norms = np.array([0.0, 1e-300, 0.5, 2.0, 2.0001, 1e8, 1e300, np.inf, np.nan, 5.0])
    mask = np.arange(10) != 9
    with jax.enable_x64(True):
        weights, usable = clipping_weights(jnp.asarray(norms), jnp.asarray(mask), 2.0)
    weights = np.asarray(weights)
    counted = np.isfinite(norms) & mask
    np.testing.assert_array_equal(usable, counted)
    assert not weights[~counted].any()
    assert np.all(weights[counted] * norms[counted] <= 2.0)
    # None is shortened that need not be, and none by more than for rounding.
    np.testing.assert_array_equal(weights[:3], 1.0)
    np.testing.assert_allclose(weights[4:7] * norms[4:7], 2.0, rtol=1e-5)


def test_what_is_not_usable_is_zero_even_if_it_is_no_number() -> None:
    array = jnp.array([[1.0, np.nan], [np.inf, 2.0], [3.0, 4.0]])
    found = where_rows(jnp.array([False, False, True]), array)
    np.testing.assert_array_equal(found, [[0, 0], [0, 0], [3, 4]])
    flags = where_rows(jnp.array([True, False]), jnp.array([True, True]))
    np.testing.assert_array_equal(flags, [True, False])


ROWS, ENTRIES, SIZE, STATES = 6, 4, 5, 3


def scattered(axes: tuple[int, ...], number: int) -> tuple[Scattered, np.ndarray]:
    """Rows' contributions to a statistic, and their sum by brute force.

    Args:
      axes: For each axis of the statistic, which axis of the sum it is.
      number: How many axes of the sum are picked by an index; another one, of states,
        is not.
    """
    indices = [RNG.integers(0, SIZE, (ROWS, ENTRIES)) for _ in range(number)]
    values = RNG.normal(size=(ROWS, ENTRIES, STATES))
    made = np.zeros([SIZE] * number + [STATES])
    for row, entry in itertools.product(range(ROWS), range(ENTRIES)):
        place = tuple(index[row, entry] for index in indices)
        made[place] += values[row, entry]
    shape = [made.shape[axis] for axis in axes]
    dense = np.zeros(shape)
    for place in itertools.product(*map(range, shape)):
        of_sum: dict[int, int] = {}
        if all(of_sum.setdefault(a, i) == i for a, i in zip(axes, place, strict=True)):
            dense[place] = made[tuple(of_sum[a] for a in range(made.ndim))]
    contributions = Scattered(
        tuple(map(jnp.asarray, indices)), jnp.asarray(values), axes
    )
    return contributions, dense


@pytest.mark.parametrize(
    ("axes", "number"),
    [((0, 1), 1), ((1, 0), 1), ((0, 1, 2), 2), ((2, 0, 1), 2), ((0, 0, 1), 1)],
)
def test_scattered_rows_add_up_to_the_dense_statistic(axes, number: int) -> None:
    first, of_first = scattered(axes, number)
    second, of_second = scattered(axes, number)
    total = zero_sum(first, of_first.shape)
    for one in (first, second):
        total = add(total, one)
    found = in_order(total, first, of_first.shape)
    np.testing.assert_allclose(found, of_first + of_second, rtol=1e-5, atol=1e-6)


def test_rows_are_weighted_one_by_one() -> None:
    contributions, _ = scattered((0, 1), 1)
    weights = jnp.arange(float(ROWS))
    found = weighted(contributions, weights)
    for row in range(ROWS):
        np.testing.assert_allclose(
            found.values[row], row * contributions.values[row], rtol=1e-6
        )


def test_a_dense_partial_sum_is_added_as_it_is() -> None:
    array = jnp.asarray(RNG.normal(size=(2, 3)))
    total = add(zero_sum(array, array.shape), array)
    np.testing.assert_array_equal(in_order(total, array, array.shape), array)


@pytest.mark.parametrize("bytes_per_row", [1, 2**16, 2**20, 2**26, 2**40])
def test_pieces_leave_no_row_over(bytes_per_row: int) -> None:
    """A row that is worked on beside fewer others is rounded otherwise."""
    size = piece_size(bytes_per_row)
    assert size == 1 or size % ROW_ALIGNMENT == 0
    assert 1 <= size <= MAX_PIECE
    assert size == 1 or size * bytes_per_row <= 2**30
