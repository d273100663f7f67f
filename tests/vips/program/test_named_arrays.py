"""Points are rounded as programs of rows see them."""

import jax
import numpy as np

from numpyro_vips.vips.program.named_arrays import as_rows_know


def test_points_are_rounded_to_the_precision_of_rows_and_stay_in_double() -> None:
    points = np.array([0.1, 1.0 + 1e-12, 3.0])
    found = as_rows_know(points)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, points.astype(np.float32))
    assert found[1] == 1.0
    with jax.enable_x64(True):
        np.testing.assert_array_equal(as_rows_know(points), points)
