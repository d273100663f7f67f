"""The incomplete Beta function agrees with SciPy's, and no number waits for another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from numpyro_vips.jax_tools.operations.incomplete_beta import incomplete_beta

# Arguments at the ends of their ranges, and beyond.
ENDS = np.array(
    [
        *((0, 0, 0.5), (0, 1, 0), (0, 1, 0.5), (1, 0, 0.5), (1, 0, 1), (1, 1, 0)),
        *((1, 1, 1), (np.inf, 1, 0.5), (1, np.inf, 0.5), (np.inf, np.inf, 0.5)),
        *((-1, 1, 0.5), (1, 1, -0.1), (1, 1, 1.1), (np.nan, 1, 0.5), (1, 1, np.nan)),
        *((0, np.inf, 0.5), (np.inf, 0, 0.5), (1e-30, 1, 0.5), (2, 3, 0.4)),
    ]
)


@pytest.mark.parametrize(("is_double", "tolerance"), [(False, 2e-3), (True, 1e-12)])
def test_it_is_that_of_scipy(is_double: bool, tolerance: float) -> None:
    rng = np.random.default_rng(0)
    a, b = 10.0 ** rng.uniform(-1, 3, (2, 1000))
    x = rng.beta(a, b).clip(1e-3, 1 - 1e-3)
    with jax.enable_x64(is_double):
        given = [jnp.asarray(each, float) for each in (a, b, x)]
        found = incomplete_beta(*given)
    exact = special.betainc(*(np.asarray(each, np.float64) for each in given))
    np.testing.assert_allclose(found, exact, atol=tolerance)


def test_it_is_that_of_jax_at_the_ends() -> None:
    ends = jnp.asarray(ENDS, jnp.float32).T
    expected = jax.scipy.special.betainc(*ends)
    np.testing.assert_allclose(incomplete_beta(*ends), expected, rtol=1e-5)
    narrow = incomplete_beta(*ends.astype(jnp.float16))
    assert narrow.dtype == jnp.float16


def test_a_number_is_the_same_beside_any_other() -> None:
    row = jnp.array([0.3, 2.0, 0.4])
    alone = jax.jit(incomplete_beta)(*row[:, None])[0]
    for slow in ((1e5, 1e5, 0.5), (300.0, 200.0, 0.6)):
        both = jnp.stack([row, jnp.array(slow)], 1)
        assert jax.jit(incomplete_beta)(*both)[0] == alone
        assert jax.jit(jax.vmap(incomplete_beta))(*both)[0] == alone
