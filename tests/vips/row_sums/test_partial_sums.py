"""Sums over some rows, dense and scattered."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.conjugacy.algebra.contractions import padded
from numpyro_vips.vips.row_sums.partial_sums import add, in_order, weighted, zero_sum
from numpyro_vips.vips.row_sums.scattered import Scattered

RNG = np.random.default_rng(2)
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


def test_scattered_parts_add_up() -> None:
    """Also along an axis that the statistic has twice, and with padding behind."""
    rng = np.random.default_rng(4)
    indices = rng.integers(0, 5, (3, 4))
    blocks = rng.normal(size=(3, 4, 6)).astype(np.float32)
    part = Scattered((jnp.asarray(indices),), padded(jnp.asarray(blocks)), (1, 0, 0))
    weights = np.array([1.0, 0.0, 0.5], np.float32)
    shape = (6, 5, 5)
    total = zero_sum(part, shape)
    for _ in range(2):
        shrunk = weighted(part, jnp.asarray(weights))
        total = add(total, shrunk)
    expected = np.zeros(shape, np.float32)
    for row, entry in np.ndindex(3, 4):
        v = indices[row, entry]
        expected[:, v, v] += 2 * weights[row] * blocks[row, entry]
    found = in_order(total, part, shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
