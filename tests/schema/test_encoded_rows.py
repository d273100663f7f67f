"""Encoded rows know their columns as long as they are what was encoded."""

import jax
import jax.numpy as jnp
import numpy as np
from _people import COLUMNS, SCHEMA, people


def test_rows_and_precisions_keep_the_encoding_and_nothing_else_does():
    X = SCHEMA.encode(people(4))
    assert SCHEMA.design_columns == COLUMNS
    is_first = np.arange(4) == 0
    for kept in (X, X[...], X[1:], X[[0, 2]], X[is_first], X.astype("f4")):
        assert getattr(kept, "encoding", None) == SCHEMA
    changed = X[:, ::-1], X[1], X[0, 0], X / 2, -X, X.T, X.sum(0), np.sort(X)
    for array in (*changed, X[:, None], X[None], np.vstack([X, X])):
        assert getattr(array, "encoding", None) is None
    X *= 2.0
    assert type(X) is np.ndarray


def test_encoded_rows_compute_and_print_as_any_array():
    X = SCHEMA.encode(people(3))
    plain = np.array(X)
    assert type(plain) is np.ndarray
    assert repr(X) == repr(plain)
    w = jnp.ones(5)
    for found in (X @ w, w @ X.T, jnp.asarray(X) @ w, jax.jit(jnp.matmul)(X, w)):
        assert isinstance(found, jax.Array)
        np.testing.assert_allclose(found, plain @ np.ones(5), rtol=1e-5)


def test_rows_that_were_written_into_no_longer_say_what_they_are():
    X = SCHEMA.encode(people(3))
    X[:, 0] = X[:, 2]
    assert getattr(X, "encoding", None) is None
