"""What a noisy sum says about a sum that cannot be negative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from numpyro_vips.conjugacy.families.gamma import Gamma, InverseGamma
from numpyro_vips.conjugacy.families.noisy_sums import (
    GammaShape,
    nonnegative,
    rate_of_noisy_sums,
)


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


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0])
def test_rates_of_noisy_sums_lie_in_their_intervals(noise: float) -> None:
    """Rates from the prior, sums from the rates, noise in parts of the mean total."""
    rng, repetitions, count = np.random.default_rng(0), 4000, 500.0
    rates = rng.gamma(3.0, 1.0 / 3.0, repetitions)
    totals = rng.gamma(count, 1.0 / rates)
    stddev = noise * count
    totals += stddev * rng.normal(size=repetitions)
    own = {"x": -3.0 * np.ones(repetitions), "log": 2.0 * np.ones(repetitions)}
    data = {"x": -totals, "log": np.full(repetitions, count)}
    of = {"x": np.full(repetitions, stddev), "log": np.zeros(repetitions)}
    with jax.enable_x64(True):
        prior, sums, deviations = jax.tree.map(jnp.asarray, (own, data, of))
        read = Gamma().project_to_widen(sums, deviations)
        share = Gamma().share_under_noise(prior, read, deviations)
        natural = {s: prior[s] + share[s] for s in share}
        found = Gamma().parameters(natural)
        parameters = {name: np.asarray(value) for name, value in found.items()}
    posterior = stats.gamma(parameters["concentration"], scale=1.0 / parameters["rate"])
    inside = (posterior.ppf(0.05) <= rates) & (rates <= posterior.ppf(0.95))
    assert 0.87 < inside.mean() < 0.935
    # A total below zero says no more than that the rate is large.
    assert np.isfinite(parameters["rate"]).all()


@pytest.mark.parametrize("size", [5e4, 5e6, 5e8, 5e11])
def test_sums_far_above_their_noise_are_read_as_they_are(size: float) -> None:
    with jax.enable_x64(True):
        prior = GammaShape(*map(jnp.asarray, (3.0, 2.0)))
        sums = map(jnp.asarray, (size, 0.0, 0.8 * size, 1.0))
        found = rate_of_noisy_sums(prior, *sums)
    np.testing.assert_allclose(found.concentration, size, rtol=1e-2)
    mean = (size + 3.0) / (0.8 * size + 2.0)
    np.testing.assert_allclose(
        found.concentration / found.rate, mean, rtol=0.1 / np.sqrt(size)
    )


@pytest.mark.thorough
def test_an_inverse_gamma_is_read_as_the_gamma_of_its_inverse() -> None:
    with jax.enable_x64(True):
        prior = {"x": jnp.array([-3.0]), "log": jnp.array([2.0])}
        data = {"x": jnp.array([20.0]), "log": jnp.array([500.0])}
        noise = {"x": jnp.array([50.0]), "log": jnp.array([0.0])}
        share = Gamma().share_under_noise(prior, data, noise)
        # Of x the density has |x|⁻² for the Jacobian.
        mirrored = {"1/x": prior["x"], "log": -prior["log"] - 2.0}
        found = InverseGamma().share_under_noise(
            mirrored,
            {"1/x": data["x"], "log": -data["log"]},
            {"1/x": noise["x"], "log": noise["log"]},
        )
    np.testing.assert_allclose(found["1/x"], share["x"])
    np.testing.assert_allclose(found["log"], -share["log"])
