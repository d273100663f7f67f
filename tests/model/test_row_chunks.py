"""What comes out of the one place where private rows are read."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from numpyro_vips.model.row_chunks import most_entries, row_chunks, shape_of
from numpyro_vips.model.sparse_rows import SparseRows
from numpyro_vips.privacy.batch_selection import split_batch

RNG = np.random.default_rng(3)
X = RNG.poisson(0.7, size=(23, 6)).astype(np.float32)
Y = RNG.normal(size=23)

LEAVES = {
    "numpy": X,
    "jax": jnp.asarray(X),
    "csr": scipy.sparse.csr_matrix(X),
    "csr_array": scipy.sparse.csr_array(X),
}


def read(leaves, selection, length=5, widths=None) -> list[tuple[Any, np.ndarray]]:
    """All chunks, one after the other: rows and masks."""
    pieces = split_batch(selection, length)
    with row_chunks(leaves, widths or {}, pieces, length) as chunks:
        return [(chunk.rows(), chunk.mask) for chunk in chunks]


@pytest.mark.parametrize("kind", LEAVES)
@pytest.mark.parametrize(
    "selection", [range(0, 23), range(4, 9), np.array([1, 2, 7, 8, 19, 22])]
)
def test_chunks_are_the_selected_rows_in_order(kind: str, selection) -> None:
    chunks = read({"x": LEAVES[kind], "y": Y}, selection)
    assert all(len(mask) == 5 and rows["x"].shape == (5, 6) for rows, mask in chunks)
    for name, all_rows in (("x", X), ("y", Y.astype(np.float32))):
        found = np.concatenate([rows[name][mask] for rows, mask in chunks])
        np.testing.assert_array_equal(found, all_rows[np.asarray(selection)])
        filling = np.concatenate([rows[name][~mask] for rows, mask in chunks])
        assert not np.any(filling)


def test_a_batch_of_no_rows_is_one_chunk_that_holds_none() -> None:
    """How many chunks there are must not tell that nobody was drawn."""
    ((rows, mask),) = read({"x": X}, np.array([], int))
    assert not mask.any() and not rows["x"].any()


@pytest.mark.parametrize("kind", ["numpy", "csr"])
def test_with_a_width_rows_are_their_largest_entries(kind: str) -> None:
    chunks = read({"x": LEAVES[kind]}, range(23), widths={"x": 3})
    for start, (rows, mask) in zip(range(0, 23, 5), chunks, strict=True):
        sparse = rows["x"]
        assert isinstance(sparse, SparseRows)
        for place in range(5):
            indices, values = sparse.indices[place], sparse.values[place]
            assert len(set(indices)) == 3 and (indices >= 0).all()
            row = X[start + place] if mask[place] else np.zeros(6)
            np.testing.assert_array_equal(
                np.sort(values), np.sort(np.sort(np.abs(row))[-3:])
            )
            at_zero = values == 0
            np.testing.assert_array_equal(row[indices[~at_zero]], values[~at_zero])


def test_values_have_the_types_that_jax_gives_them() -> None:
    leaves = {"wide": Y, "count": np.arange(23, dtype=np.int64), "on": Y > 0}
    ((rows, _), *_) = read(leaves, range(23))
    for name, array in rows.items():
        assert array.dtype == jnp.asarray(leaves[name]).dtype
    with jax.enable_x64(True):
        ((rows, _), *_) = read(leaves, range(23))
    np.testing.assert_array_equal(rows["wide"], Y[:5])


def test_a_number_beyond_its_new_type_says_nothing() -> None:
    """A warning, or an error under the caller's own settings, would be about a row."""
    large = np.full(23, 1e300)
    with np.errstate(all="raise"):
        ((rows, _), *_) = read({"x": large}, range(23))
    assert np.isinf(rows["x"]).all()


BYTES = np.arange(23 * 6, dtype=np.uint8).reshape(23, 6) % 5


@pytest.mark.parametrize("widths", [{}, {"x": 3}])
@pytest.mark.parametrize("kind", ["numpy", "csr"])
def test_a_truth_value_is_one_byte_or_the_other(kind: str, widths: Any) -> None:
    """XLA takes a 2 for true in one place and for false in another."""
    wild = BYTES.view(bool)
    matrix = scipy.sparse.csr_matrix(BYTES)
    matrix.data = matrix.data.view(bool)
    leaf = wild if kind == "numpy" else matrix
    for rows, mask in read({"x": leaf}, np.arange(0, 23, 2), widths=widths):
        found = rows["x"].values if widths else rows["x"]
        assert found.dtype == bool and set(np.unique(found.view(np.uint8))) <= {0, 1}
        assert mask.any()
    if not widths:
        ((rows, _), *_) = read({"x": leaf}, range(23))
        np.testing.assert_array_equal(rows["x"], BYTES[:5] != 0)


def test_indices_that_a_matrix_does_not_have_are_left_out() -> None:
    """SciPy checks none of them, and would write beyond the array."""
    matrix = scipy.sparse.csr_matrix(X)
    wrong = matrix.copy()
    wrong.indices = matrix.indices.copy()
    first = slice(matrix.indptr[2], matrix.indptr[3])
    wrong.indices[first] = 1_000_000
    wrong.indptr = matrix.indptr.copy()
    wrong.indptr[-1] = 10**9
    chunks = read({"x": wrong}, range(23))
    found = np.concatenate([rows["x"][mask] for rows, mask in chunks])
    expected = X.copy()
    expected[2] = 0
    np.testing.assert_array_equal(found, expected)


def test_repeated_entries_add_up() -> None:
    data, columns = np.array([1.0, 2.0, 4.0], np.float32), np.array([1, 1, 0])
    matrix = scipy.sparse.csr_matrix((data, columns, [0, 3]), shape=(1, 3))
    ((rows, _),) = read({"x": matrix}, range(1), length=1)
    np.testing.assert_array_equal(rows["x"], [[4.0, 3.0, 0.0]])
    ((rows, _),) = read({"x": matrix}, range(1), length=1, widths={"x": 2})
    assert dict(
        zip(*map(np.ravel, (rows["x"].indices, rows["x"].values)), strict=True)
    ) == {
        0: 4.0,
        1: 3.0,
    }


@pytest.mark.parametrize("kind", LEAVES)
def test_the_largest_number_of_entries_is_that_of_the_fullest_row(kind: str) -> None:
    assert most_entries(LEAVES[kind]) == np.count_nonzero(X, axis=1).max()
    assert shape_of(LEAVES[kind]) == (23, 6)
    assert most_entries(LEAVES[kind][:0]) == 0
