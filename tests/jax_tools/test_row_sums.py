"""What is counted beside a sum of clipped rows."""

import jax.numpy as jnp
import numpy as np

from numpyro_vips.jax_tools.row_sums import (
    CLIPPED_ROWS,
    ZERO_ROWS,
    clipping_factor,
    diagnostic_counts,
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
