"""Sums over pieces of rows, and what is counted beside a sum of clipped rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.row_sums import (
    CLIPPED_ROWS,
    ZERO_ROWS,
    clipping_factor,
    counts_in_bins,
    diagnostic_counts,
    increasing_edges,
    map_over_rows,
    piece_length,
    sum_over_rows,
)


def test_rows_count_as_clipped_where_it_takes_a_hundredth_of_them():
    # The last is not part of the batch.
    norms = jnp.array([0.5, 2.0, 2.01, 2.03, 40.0, np.inf, np.nan, 40.0])
    mask = jnp.arange(len(norms)) < 7
    counts = diagnostic_counts(norms, mask, 2.0)
    assert {name: float(count) for name, count in counts.items()} == {
        CLIPPED_ROWS: 2.0,
        ZERO_ROWS: 2.0,
    }
    # They are clipped all the same.
    assert np.all(np.asarray(norms * clipping_factor(norms, 2.0))[:5] <= 2.0)


def test_a_row_is_counted_in_the_bin_that_ends_at_its_norm_or_above():
    ends = np.array([0.0, 0.1, 1.0, 7.5])
    rng = np.random.default_rng(0)
    norms = np.concatenate([ends, rng.uniform(0.0, 20.0, 200), [np.nan, np.inf, -0.0]])
    mask = rng.random(len(norms)) < 0.8
    mask[-3:] = mask[: len(ends)] = True
    counts = jax.jit(counts_in_bins)(norms, mask, ends)
    counted = norms[mask & np.isfinite(norms)]
    expected = np.bincount(np.searchsorted(ends, counted), minlength=len(ends) + 1)
    np.testing.assert_array_equal(counts, expected)
    assert expected.all()


@pytest.mark.parametrize("ends", [[1.0, 0.5], [1.0, 1.0], [1.0, np.nan]])
def test_bins_in_which_a_row_could_be_twice_are_refused(ends):
    with pytest.raises(AssertionError):
        increasing_edges(np.array(ends))


@pytest.mark.thorough
@pytest.mark.parametrize("size", [None, 1, 64, 128])
@pytest.mark.parametrize("count", [1, 63, 64, 200])
def test_pieces_of_rows_are_all_rows_once(count: int, size: int | None) -> None:
    rng = np.random.default_rng(count)
    rows = {"x": rng.normal(size=(count, 3)), "group": rng.integers(0, 5, size=count)}
    mask = rng.random(count) < 0.7
    with jax.enable_x64(True):

        def piece_sum(rows: Any, mask: Any) -> Any:
            each = jnp.where(mask[:, None], rows["x"], 0.0)
            return {"sum": jnp.sum(each, 0), "count": jnp.sum(mask, dtype=np.int32)}

        total, like = sum_over_rows(piece_sum, rows, mask, size)
        each = map_over_rows(lambda rows: rows["x"] @ jnp.arange(3.0), rows, size)
    np.testing.assert_allclose(total["sum"], rows["x"][mask].sum(0), rtol=1e-12)
    assert total["count"] == mask.sum()
    assert jax.tree.map(jnp.shape, like) == {"sum": (3,), "count": ()}
    np.testing.assert_allclose(each, rows["x"] @ np.arange(3.0), rtol=1e-12)


@pytest.mark.thorough
def test_a_total_may_be_laid_out_otherwise_than_what_a_piece_adds() -> None:
    group = np.arange(150) % 4

    def piece_sum(rows: Any, mask: Any) -> Any:
        # Rows that are filled in lie outside the total.
        return jnp.where(mask, rows["group"], 4)

    total, _ = sum_over_rows(
        piece_sum,
        {"group": group},
        np.ones(150, bool),
        64,
        zeros=lambda partial: jnp.zeros(4, partial.dtype),
        add=lambda total, group: total.at[group].add(1, mode="drop"),
    )
    np.testing.assert_array_equal(total, np.bincount(group))


@pytest.mark.parametrize(
    "size_of_row, length",
    [(1, 960), (5, 192), (8, 128), (60, 128), (70, 64), (125, 64), (126, 1)],
)
def test_short_pieces_may_take_more_than_others(size_of_row: int, length: int) -> None:
    assert piece_length(size_of_row, 1000) == length
