"""The grid of norms, and the counts of rows in it."""

import numpy as np
import pytest

from numpyro_vips.fitting.bounds.norm_histogram import (
    GRID_FACTOR,
    LARGEST_NORM,
    SMALLEST_NORM,
    histogram_block,
    norm_grid,
)


@pytest.mark.parametrize("reference", [1e-6, 0.5, 1.0, 3e7])
def test_the_grid_spans_all_norms_and_has_the_reference_as_an_edge(reference):
    edges = norm_grid(reference)
    assert SMALLEST_NORM <= edges[0] <= 2 * SMALLEST_NORM
    assert LARGEST_NORM / 2 <= edges[-1] <= 2 * LARGEST_NORM
    np.testing.assert_allclose(edges[1:] / edges[:-1], GRID_FACTOR)
    above = edges[edges >= reference][0]
    assert above == pytest.approx(reference, rel=1e-4)
    assert above > reference  # Also for a norm that was rounded up.


def test_a_row_counts_once_in_a_block():
    edges = norm_grid(1.0)
    block = histogram_block("norms", edges)
    assert block.shape == (len(edges) + 2,)  # And rows that count as zero.
    assert (block.norm_bound, block.geometry) == (1.0, "nonnegative")
