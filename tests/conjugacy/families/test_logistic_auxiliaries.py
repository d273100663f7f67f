"""Moments of Pólya-Gamma variables, and what stands for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.conjugacy import families
from numpyro_vips.conjugacy.families.logistic_auxiliaries import PolyaGamma


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("c", [0.0, 1e-8, 1e-4, 1e-2, 1.0, 30.0, 1e4])
def test_polya_gamma_mean(c: float) -> None:
    """E[PG(1, c)] = tanh(c/2) / (2c), from 1/4 at 0 to 0; Polson et al. (2013)."""
    found = float(families.PolyaGamma().moments({"x": jnp.asarray(-0.5 * c**2)})["x"])
    expected = 0.25 if c == 0 else np.tanh(c / 2) / (2 * c)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("logit", [0.0, 0.7, 4.0])
def test_the_observed_moment_of_a_polya_gamma_variable_is_the_curvature(
    logit: float,
) -> None:
    with jax.enable_x64(True):
        natural = {"x": jnp.asarray(-0.5 * logit**2)}
        moments = PolyaGamma().moments(natural)
        found = PolyaGamma().observed_moments(moments, natural)
        curvature = -jax.grad(jax.grad(jax.nn.log_sigmoid))(logit)
    np.testing.assert_allclose(found["x"], curvature, rtol=1e-10)
