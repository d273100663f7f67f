"""NumPy functions called from compiled code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.host_calls import call_on_host

pytestmark = pytest.mark.optimized


def _sum_and_product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.stack([x + y, x * y])


@pytest.mark.parametrize("compiled", [False, True], ids=["called", "compiled"])
@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
def test_shapes_and_values_arrive_exactly(shape, double, compiled):
    with jax.enable_x64(double):
        x = jnp.asarray(np.random.default_rng(0).normal(size=shape), float)
        y = x / 3

        def function(x, y):
            return call_on_host(_sum_and_product, (2, *shape), x, y)

        found = jax.jit(function)(x, y) if compiled else function(x, y)
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found, np.stack([x + y, x * y]))


def test_an_exception_cannot_tell_what_a_row_holds():
    def picky(x: np.ndarray) -> np.ndarray:
        if x < 0:
            raise ValueError(f"Expected a positive number, got {x}.")
        return np.log(x - 1.0)

    rows = jnp.array([2.0, -1.0, 1.0])
    with np.errstate(all="raise"):
        found = jax.jit(jax.vmap(lambda x: call_on_host(picky, (), x)))(rows)
    np.testing.assert_array_equal(found, [0.0, np.nan, -np.inf])
    with pytest.raises(ValueError, match="positive"):
        call_on_host(picky, (), -1.0)
