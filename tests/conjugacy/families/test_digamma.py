"""In the precision of rows, against SciPy's."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from numpyro_vips.conjugacy.families.digamma import digamma


def test_digamma_in_single_precision() -> None:
    """Within a few units in the last place of SciPy's, in absolute terms near 0."""
    x = np.concatenate([np.geomspace(1e-30, 3e38, 4001), np.linspace(1e-3, 12, 4001)])
    x = x.astype(np.float32)
    found = np.asarray(jax.jit(digamma)(x), np.float64)
    expected = special.digamma(x.astype(np.float64))
    error = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    assert error.max() < 8 * np.finfo(np.float32).eps
    outside = np.asarray(digamma(jnp.array([0.0, -0.5, -2.0, np.nan], np.float32)))
    assert np.isnan(outside).all()
    assert digamma(jnp.float32(np.inf)) == np.inf
