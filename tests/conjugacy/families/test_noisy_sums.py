"""What a noisy sum says about a sum that cannot be negative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from numpyro_vips.conjugacy.families.noisy_sums import nonnegative


@pytest.mark.parametrize("noisy", [-11.0, -3.0, -0.5, 0.0, 0.7, 4.0, 19.0])
def test_it_is_the_posterior_mean(noisy: float) -> None:
    stddev = 3.0

    def moment(power: int) -> float:
        def integrand(x: float) -> float:
            return x**power * np.exp(-0.5 * ((noisy - x) / stddev) ** 2)

        end = max(noisy, 0.0) + 12 * stddev
        return integrate.quad(integrand, 0.0, end, epsabs=0.0, epsrel=1e-10)[0]

    found = nonnegative(jnp.asarray(noisy), jnp.asarray(stddev))
    np.testing.assert_allclose(found, moment(1) / moment(0), rtol=1e-4)


def test_without_noise_or_far_above_it_nothing_changes() -> None:
    noisy = jnp.array([0.0, 1e-8, 3.0, 1e12, 1e12])
    stddev = jnp.array([0.0, 0.0, 0.0, 0.0, 1e3])
    np.testing.assert_array_equal(nonnegative(noisy, stddev), noisy)
    assert nonnegative(jnp.asarray(-1.0), jnp.asarray(0.0)) == 0.0


def test_it_is_never_below_a_share_of_the_noise_at_any_scale() -> None:
    noise = 10.0 ** jnp.arange(-20, 21, 5.0)[:, None]
    noisy = noise * jnp.array([-1e10, -1e3, -5.0, -1.0, 0.0, 1.0])
    found = jax.jit(nonnegative)(noisy, jnp.broadcast_to(noise, noisy.shape))
    assert (found > 0.2 * noise).all()
    assert (jnp.diff(found, axis=-1) >= 0).all()
