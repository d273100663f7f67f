"""Double precision and the caller's, whichever settings the caller has."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.precision import Precision, double_precision


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(jnp.dot)(a, b))


@pytest.mark.parametrize("setting", [None, "F32_F32_F32", "BF16_BF16_F32", "default"])
def test_products_have_all_digits_of_double_precision(setting):
    a, b = np.random.default_rng(0).normal(size=(2, 1000))
    with jax.default_matmul_precision(setting):
        with double_precision():
            np.testing.assert_allclose(product(a, b), a @ b, rtol=1e-12)
        callers = Precision.of_caller()
        before = product(a, b)
        with double_precision(), callers.restored():
            np.testing.assert_array_equal(product(a, b), before)
            assert Precision.of_caller() == callers
        assert Precision.of_caller() == callers
    assert callers == (False, setting)


@pytest.mark.parametrize("is_double", [False, True])
def test_double_precision_of_the_caller_is_restored(is_double):
    with jax.enable_x64(is_double):
        callers = Precision.of_caller()
    with double_precision():
        assert jnp.zeros(()).dtype == jnp.float64
        with callers.restored():
            assert (jnp.zeros(()).dtype == jnp.float64) == is_double
