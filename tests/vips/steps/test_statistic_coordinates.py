"""Free numbers of statistics as a vector: there and back, and isometric."""

import types
from typing import Any

import numpy as np
import pytest

from numpyro_vips.vips.steps.statistic_coordinates import StatisticCoordinates

STATISTICS: Any = (
    types.SimpleNamespace(name="vector", block_shape=(2, 3), matrix=None),
    types.SimpleNamespace(name="matrix", block_shape=(2, 4, 4), matrix="w"),
)


@pytest.fixture
def blocks() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    half = random.normal(size=(2, 4, 4))
    vector = random.normal(size=(2, 3))
    return {"vector": vector, "matrix": half + np.swapaxes(half, -1, -2)}


def test_equal_entries_of_a_symmetric_matrix_are_one_number(blocks):
    coordinates = StatisticCoordinates(STATISTICS)
    assert len(coordinates) == 2 * 3 + 2 * 10
    assert coordinates.vector(blocks).shape == (len(coordinates),)


def test_blocks_come_back(blocks):
    coordinates = StatisticCoordinates(STATISTICS)
    back = coordinates.blocks(coordinates.vector(blocks))
    for name, block in blocks.items():
        np.testing.assert_allclose(back[name], block, rtol=1e-15)


def test_the_norm_of_the_vector_is_that_of_the_blocks(blocks):
    norm = np.linalg.norm(StatisticCoordinates(STATISTICS).vector(blocks))
    expected = np.sqrt(sum(np.sum(block**2) for block in blocks.values()))
    np.testing.assert_allclose(norm, expected, rtol=1e-14)


def test_standard_deviations_of_equal_entries_are_one_number():
    noise = {"vector": 2.0, "matrix": np.full((4, 4), 3.0)}
    found = StatisticCoordinates(STATISTICS).by_coordinate(noise)
    np.testing.assert_array_equal(found, [2.0] * 6 + [3.0] * 20)
