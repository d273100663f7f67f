"""When sweeps over the globals come to rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.vips.m_step.sweeps import largest_change


def test_the_largest_change_is_relative_to_the_array() -> None:
    before = {"a": {"x": np.array([1.0, 100.0])}, "b": {"x": np.array([0.5])}}
    after = {"a": {"x": np.array([3.0, 100.0])}, "b": {"x": np.array([0.505])}}
    assert largest_change(before, after) == pytest.approx(0.02)
    in_jax = jax.tree.map(jnp.asarray, (before, after))
    assert float(largest_change(*in_jax)) == pytest.approx(0.02)
    assert largest_change({}, {}) == 0.0
