"""One process adds noise to the sum of the pieces of a batch, and to nothing else."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from _plain_engine import step_of

import numpyro_vips as nv
from numpyro_vips.fitting.reducers.reducer import Batch, Reducer
from numpyro_vips.fitting.reducers.tree_sum import TreeSum
from numpyro_vips.privacy.secure_random import SecureRandom

pytestmark = pytest.mark.filterwarnings("ignore:insecure_seed")


class Numbers:
    """Sums the numbers of rows; notes the pieces."""

    def __init__(self) -> None:
        self.pieces: list[list[int]] = []

    def __call__(self, pieces: Sequence[Any], first: int = 0) -> TreeSum:
        total = TreeSum()
        for number, piece in enumerate(pieces):
            self.pieces.append([int(row) for row in piece])
            total.add(first + number, {"sum": np.full(2, float(np.sum(piece)))})
        return total


@pytest.mark.parametrize(
    ("selection", "pieces"),
    [
        (range(5), [[0, 1], [2, 3], [4]]),
        (np.array([3, 8]), [[3, 8], [], []]),
        (np.array([], int), [[], [], []]),
        (range(8), [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ],
    ids=["three", "fewer", "none", "more"],
)
def test_a_batch_has_its_public_number_of_pieces_or_more(
    selection: Any, pieces: list[list[int]]
) -> None:
    sum_of, mechanism = Numbers(), step_of(nv.FullBatch()).mechanism
    batch = Batch(selection, num_rows=10, number=3, length=2)
    found = Reducer().release(mechanism, batch, sum_of, SecureRandom(insecure_seed=0))
    assert sum_of.pieces == pieces
    np.testing.assert_array_equal(found["sum"], np.full(2, sum(selection)))


def test_noise_is_the_mechanisms_and_is_added_once() -> None:
    mechanism = step_of(nv.FullBatch(), noise=5.0).mechanism
    batch = Batch(range(10), num_rows=10, number=5, length=2)
    found = Reducer().release(
        mechanism, batch, Numbers(), SecureRandom(insecure_seed=3)
    )
    alone = mechanism.add_noise(
        {"sum": np.full(2, 45.0)}, SecureRandom(insecure_seed=3).noise
    )
    np.testing.assert_array_equal(found["sum"], alone["sum"])
    assert np.all(found["sum"] != 45.0)


def test_one_process_is_the_first_and_agrees_with_itself() -> None:
    reducer = Reducer()
    assert reducer.is_first and reducer.noise_excess == 1.0
    assert reducer.together(lambda: 3) == reducer.on_first(lambda: 3) == 3
    with pytest.raises(KeyError):
        reducer.together(lambda: {}["missing"])
    assert reducer.sampling_key() is None


def test_what_one_process_tells_itself_is_what_others_would_be_told() -> None:
    """Or a fit that runs in one process would fail in several."""
    reducer = Reducer()
    assert reducer.from_first(lambda: {"a": (1, 2.5), "b": None}) == {
        "a": [1, 2.5],
        "b": None,
    }
    with pytest.raises(TypeError):
        reducer.from_first(lambda: np.zeros(3))
