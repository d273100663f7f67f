"""What a row keeps of its entries, against a plain loop over rows."""

import jax
import numpy as np
import pytest
import scipy.sparse as sp

from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import ModelArguments, bind_arguments
from numpyro_vips.model.sparse_rows import SparseRows, dense_rows, keep_largest


def plain(array: np.ndarray, width: int) -> np.ndarray:
    """Rows with all but their largest entries set to zero, one after the other."""
    kept = np.zeros_like(array)
    for row, out in zip(
        array.reshape(-1, array.shape[-1]),
        kept.reshape(-1, array.shape[-1]),
        strict=True,
    ):
        size = np.abs(row.astype(float))
        size = np.where(np.isnan(size), np.inf, size)
        order = sorted(range(len(row)), key=lambda v: (-size[v], v))[:width]
        out[order] = row[order]
    return kept


def whole(rows: SparseRows) -> np.ndarray:
    array = np.zeros(rows.shape, rows.values.dtype)
    np.put_along_axis(array, np.asarray(rows.indices), np.asarray(rows.values), -1)
    return array


def some_rows(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Rows with none, some and more than enough entries, and with ties."""
    rng = np.random.default_rng(3)
    shares = rng.choice([0.0, 0.2, 0.9, 1.0], shape[:-1])[..., None]
    drawn = rng.integers(-3, 4, shape) * (rng.random(shape) < shares)
    return drawn.astype(dtype)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(40, 9), (7, 5, 9), (0, 9)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1", "?"])
@pytest.mark.parametrize("width", [1, 4, 8])
def test_the_largest_entries_are_kept(dtype, shape, width):
    array = some_rows(dtype, shape)
    found = keep_largest(array, width)
    assert found.shape == shape
    assert found.indices.shape == found.values.shape == (*shape[:-1], width)
    np.testing.assert_array_equal(whole(found), plain(array, width))
    # What fills a row up are zeros of its own, so that no index comes twice.
    for indices in found.indices.reshape(-1, width):
        assert len(set(indices)) == width
    np.testing.assert_array_equal(np.asarray(found.dense()), whole(found))


def test_a_row_that_is_not_finite_is_still_seen_not_to_be():
    array = np.array([[9.0, 8.0, np.nan, 7.0], [1.0, -np.inf, 3.0, 4.0]])
    found = keep_largest(array, 1)
    assert np.isnan(found.values[0, 0])
    assert found.values[1, 0] == -np.inf


def arguments(array: object, width: int) -> ModelArguments:
    def model(X):
        del X

    return bind_arguments(private(model, unit="N"), (array,), {}, max_nonzeros=width)


@pytest.mark.parametrize("width", [2, 5])
def test_a_sparse_matrix_keeps_what_its_dense_rows_would(width):
    dense = some_rows("f8", (30, 12))
    indices = np.array([3, 3, 0, 29, 11])
    taken = arguments(dense, width).take(indices)["X"]
    from_csr = arguments(sp.csr_matrix(dense), width).take(indices)["X"]
    assert isinstance(taken, SparseRows) and isinstance(from_csr, SparseRows)
    for found in (taken, from_csr):
        assert found.values.dtype == np.float32
        np.testing.assert_array_equal(whole(found), plain(dense[indices], width))


def test_a_damaged_sparse_row_has_every_index_once():
    """Columns twice, in any order, out of range, or stored though they are zero."""
    data = np.array([1.0, 2.0, 4.0, -4.0, 0.0, 5.0, 7.0, 3.0])
    columns = np.array([4, 1, 4, 0, 2, 99, -3, 1])
    matrix = sp.csr_matrix((3, 6))
    matrix.data, matrix.indices = data, columns.astype(np.int32)
    matrix.indptr = np.array([0, 7, 8, 500], np.int32)
    found = arguments(matrix, 2).take(np.arange(3))["X"]
    assert isinstance(found, SparseRows)
    expected = np.array(
        [[-4.0, 0, 0, 0, 5.0, 0], [0, 3.0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(whole(found), expected)
    assert all(len(set(indices)) == 2 for indices in found.indices)


def test_the_representation_tells_shapes_and_not_values():
    assert repr(keep_largest(np.full((2, 9), 7.5), 3)) == "SparseRows(float64[2, 9])"


def test_rows_are_a_tree_of_arrays():
    rows = {"X": keep_largest(some_rows("f4", (6, 9)), 3), "y": np.arange(6)}
    found = jax.jit(jax.vmap(lambda row: dense_rows(row)["X"].sum() + row["y"]))(rows)
    expected = whole(rows["X"]).sum(1) + np.arange(6)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert isinstance(dense_rows(rows, ["y"])["X"], SparseRows)


MODEL_ARGUMENTS = (np.zeros((4, 9)), np.zeros((4, 3, 5)), np.zeros(4), np.zeros(9))


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (3, "there are 2: 'counts', 'images'.*max_nonzeros=.'name': 3"),
        ({"count": 3}, "max_nonzeros names 'count'.*Did you mean 'counts'"),
        ({"labels": 3}, "'labels', of which a row is a single number"),
        ({"public": 3}, "'public', which is no private argument"),
    ],
)
def test_a_width_that_fits_no_argument_is_refused(declared, message):
    def model(counts, images, labels, public):
        del counts, images, labels, public

    marked = private(model, unit="N", public=("public",))
    with pytest.raises(ValueError, match=message):
        bind_arguments(marked, MODEL_ARGUMENTS, {}, max_nonzeros=declared)


def test_a_width_that_leaves_nothing_out_is_none():
    def model(counts, images, labels):
        del counts, images, labels

    marked = private(model, unit="N")
    declared = {"counts": 9, "images": 4}
    found = bind_arguments(marked, MODEL_ARGUMENTS[:3], {}, max_nonzeros=declared)
    assert found.widths == {"images": 4}
    taken = found.take(np.array([1, 2]))
    assert isinstance(taken["counts"], np.ndarray)
    assert isinstance(taken["images"], SparseRows)
    assert taken["images"].shape == (2, 3, 5)
