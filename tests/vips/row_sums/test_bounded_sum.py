"""What a row of a clipped sum is multiplied by, and which rows are looked at at all."""

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.vips.row_sums.bounded_sum import clipping_weights, where_rows


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
