"""What noisy sums say about sums that cannot be negative, rates and scales."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.conjugacy.families.gamma import Gamma, InverseGamma
from numpyro_vips.conjugacy.families.generalized_inverse_gaussian import (
    GeneralizedInverseGaussian,
)
from numpyro_vips.conjugacy.families.noisy_sums import (
    RateShape,
    nonnegative,
    rate_of_noisy_sums,
)
from numpyro_vips.conjugacy.families.standard_deviations import (
    RootGeneralizedInverseGaussian,
    RootInverseGamma,
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
        prior = RateShape(*map(jnp.asarray, (3.0, 2.0)))
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


# --- scales ---------------------------------------------------------------------------

# A prior of HalfNormal(300): what multiplies x².
HALF_NORMAL = {"x^2": -0.5 / 300.0**2, "x^-2": 0.0, "log": 0.0}


def scale_given(
    family: Family, prior: dict[str, float], total: Any, stddev: Any, count: float
) -> dict[str, jax.Array]:
    """Natural parameters of a standard deviation, from noisy sums of squares."""
    total, stddev = np.broadcast_arrays(total, stddev)
    zeros = np.zeros(total.shape)
    own = {s: value + zeros for s, value in prior.items()}
    data = {**dict.fromkeys(own, zeros), "x^-2": -total / 2.0, "log": zeros - count}
    of = {**dict.fromkeys(own, zeros), "x^-2": stddev / 2.0}
    own, data, of = jax.tree.map(jnp.asarray, (own, data, of))
    read = family.project_to_widen(data, of)
    share = family.share_under_noise(own, read, of)
    return {s: own[s] + share[s] for s in share}


@pytest.mark.parametrize(
    ("total", "stddev"),
    [(3e9, 2e10), (-1e10, 2e10), (9e7, 1e6), (9e7, 3e7), (2e6, 3e7), (2e10, 1e9)],
)
def test_a_scale_is_as_large_as_its_prior_and_a_noisy_sum_say(
    total: float, stddev: float
) -> None:
    """Sums far above the noise, near it and below it; against the density on a grid.

    The family has three parameters, and the density is cut off on one side: where the
    noise is about as large as the sum, quantiles differ by some tenths of a deviation.
    """
    count = 1_000.0
    x = np.exp(np.linspace(np.log(1e-2), np.log(1e5), 100_001))
    variance = 2.0 * count * x**4 + stddev**2
    log_density = HALF_NORMAL["x^2"] * x**2 - 0.5 * np.log(variance)
    log_density -= 0.5 * (total - count * x**2) ** 2 / variance
    weights = np.exp(log_density - log_density.max()) * x
    levels = [0.05, 0.5, 0.95]
    exact = np.interp(levels, np.cumsum(weights) / weights.sum(), x)
    family = RootGeneralizedInverseGaussian()
    with jax.enable_x64(True):
        natural = scale_given(family, HALF_NORMAL, total, stddev, count)
        posterior = family.distribution(family.parameters(natural))
        draws = np.asarray(posterior.sample(jax.random.key(0), (20_000,)))
    found = np.quantile(draws, levels)
    deviation = np.std(draws)
    assert np.all(np.abs(found - exact) < 0.5 * deviation), (found, exact)
    # Only a sum that noise hides leaves the prior alone.
    assert (exact[1] == pytest.approx(202.4, rel=0.01)) == (stddev > 1e10)


@pytest.mark.quick_with("0.1")
@pytest.mark.parametrize("noise", [0.01, 0.1, 1.0])
def test_scales_of_noisy_sums_lie_in_their_intervals(noise: float) -> None:
    """Scales from a HalfNormal(1), sums of 500 squares from these."""
    rng, repetitions, count = np.random.default_rng(0), 2000, 500.0
    scales = np.abs(rng.normal(size=repetitions))
    totals = scales**2 * rng.chisquare(count, repetitions)
    stddev = noise * count
    totals += stddev * rng.normal(size=repetitions)
    family = RootGeneralizedInverseGaussian()
    prior = {"x^2": -0.5, "x^-2": 0.0, "log": 0.0}
    with jax.enable_x64(True):
        natural = scale_given(family, prior, totals, stddev, count)
        posterior = family.distribution(family.parameters(natural))
        draws = np.asarray(posterior.sample(jax.random.key(1), (400,)))
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    assert 0.87 < np.mean((low <= scales) & (scales <= high)) < 0.94


@pytest.mark.parametrize("total", [5e2, 5e6])
def test_sums_of_squares_without_noise_are_read_as_they_are(total: float) -> None:
    family = RootGeneralizedInverseGaussian()
    with jax.enable_x64(True):
        found = scale_given(family, HALF_NORMAL, total, 0.0, 100.0)
    np.testing.assert_array_equal(found["x^2"], HALF_NORMAL["x^2"])
    np.testing.assert_allclose(found["x^-2"], -total / 2.0, rtol=1e-12)
    np.testing.assert_allclose(found["log"], -100.0)


def test_a_root_is_read_as_its_square() -> None:
    """A half-Cauchy scale has an inverse Gamma square, given what mixes it."""
    prior = {"x^-2": -2.0, "log": -2.0}
    total, stddev, count = 40.0, 50.0, 20.0
    with jax.enable_x64(True):
        found = scale_given(RootInverseGamma(), prior, total, stddev, count)
        # Powers of x are half those of x², and dx² = 2 x dx.
        own = {"1/x": jnp.array(-2.0), "log": jnp.array(0.5 * (-2.0 - 1.0))}
        data = {"1/x": jnp.array(-total / 2.0), "log": jnp.array(-count / 2.0)}
        noise = {"1/x": jnp.array(stddev / 2.0), "log": jnp.array(0.0)}
        share = InverseGamma().share_under_noise(own, data, noise)
        log = prior["log"] + 2.0 * share["log"]
    rate = np.asarray(share["1/x"])
    np.testing.assert_allclose(found["x^-2"], prior["x^-2"] + rate)
    np.testing.assert_allclose(found["log"], log)


def test_where_rows_add_to_a_scale_itself_the_share_is_scaled() -> None:
    """Only sums of squares are read by quadrature."""
    family = GeneralizedInverseGaussian()
    own = {s: jnp.array(-1.0) for s in family.statistics}
    data = {"x": jnp.array(-30.0), "1/x": jnp.array(-20.0), "log": jnp.array(-10.0)}
    noise = {"x": jnp.array(5.0), "1/x": jnp.array(4.0), "log": jnp.array(0.0)}
    read = family.project_to_widen(data, noise)
    found = family.share_under_noise(own, read, noise)
    expected = family.widened(read, noise)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("total", [51_561.0, 20_000.0])
@pytest.mark.parametrize("noise", [5_000.0, 13_906.0, 21_558.0])
@pytest.mark.parametrize("prior", [(-0.5, 0.0), (0.01, 0.01), (2.0, 100.0)])
def test_a_long_tail_leaves_what_is_likely_where_it_is(
    total: float, noise: float, prior: tuple[float, float]
) -> None:
    """Of a scale under a flat prior or a vague one, noise leaves a tail towards zero.

    It has a mean of τ that is thousands of times what is likely. The interval of the
    scale is by brute force here, on a grid of log τ.
    """
    count, (concentration, rate) = 217.0, prior
    logs = np.linspace(-20.0, 60.0, 400_000)
    with np.errstate(over="ignore", under="ignore"):
        tau = np.exp(logs)
        variance = count + (tau * noise) ** 2
        density = (concentration + 0.0) * logs - rate * tau - 0.5 * np.log(variance)
        density = density - 0.5 * (count - tau * total) ** 2 / variance
        weights = np.exp(density - density.max() + 0.0)
    with jax.enable_x64(True):
        found = rate_of_noisy_sums(
            RateShape(jnp.asarray(concentration - 1.0), jnp.asarray(rate)),
            *map(jnp.asarray, (count, 0.0, total, noise)),
        )
    below = np.cumsum(weights) / weights.sum()
    low, high = (np.exp(-0.5 * np.interp(p, below, logs)) for p in (0.95, 0.05))
    own = stats.gamma(float(found.concentration), scale=1.0 / float(found.rate))
    most = own.ppf(0.05) ** -0.5
    assert own.ppf(0.95) ** -0.5 < low * 2.5
    assert 0.9 * high < most < 4.0 * high
