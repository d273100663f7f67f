"""Shapes of what is released, and diagonals that are found elsewhere."""

import dataclasses

import numpy as np

from numpyro_vips.conjugacy.structure.statistic import Diagonal, Statistic

PAIRS = Statistic(
    name="s",
    atoms=(("w", "x", 1.0, (0, 1)), ("w", "x", 1.0, (0, 2))),
    shape=(4, 2, 3, 2, 3),
    release="once",
    matrix=((0,), (1, 2), (3, 4)),
)


def test_rows_and_columns_of_a_symmetric_statistic_are_one_square() -> None:
    assert PAIRS.block_shape == (4, 6, 6)
    plain = dataclasses.replace(PAIRS, matrix=None)
    assert plain.block_shape == plain.shape
    # Which labels are the batch does not depend on where they stand.
    turned = dataclasses.replace(PAIRS, shape=(2, 4, 2), matrix=((1,), (0,), (2,)))
    assert turned.block_shape == (4, 2, 2)


def test_a_diagonal_is_another_statistic_with_its_axes_in_order() -> None:
    other = np.arange(6.0).reshape(2, 3)
    found = Diagonal(statistic="t", factor=0.5, axes=(1, 0)).of(other)
    np.testing.assert_array_equal(found, 0.5 * other.T)
