"""Scales whose priors are linear in them have a family, and the right posterior."""

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _scales import assert_posterior_is_that_of_a_grid, noise_about_zero
from scipy import stats

import numpyro_vips as nv

KEY = jax.random.key(0)
GROUPS = 3


@nv.private(unit="people")
def groups(group: Any, y: Any) -> None:
    """A standard deviation for each group, with a rate of its own, and one of means."""
    spread: Any = numpyro.sample("spread", dist.Exponential(0.5))
    rates = jnp.array([0.5, 1.0, 2.0])
    with numpyro.plate("groups", GROUPS):
        mean: Any = numpyro.sample("mean", dist.Normal(0.0, spread))
        sd: Any = numpyro.sample("sd", dist.Exponential(rates))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean[group], sd[group]), obs=y)


@nv.private(unit="people")
def durations(y: Any) -> None:
    scale: Any = numpyro.sample("scale", dist.Gamma(2.0, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Weibull(scale, 2.0), obs=y)


@nv.private(unit="people")
def unknown_rate(y: Any) -> None:
    rate: Any = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    sd: Any = numpyro.sample("sd", dist.Exponential(rate))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, sd), obs=y)


@nv.private(unit="people")
def masked_prior(y: Any) -> None:
    sd: Any = numpyro.sample("sd", dist.Exponential(1.0).mask(False))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, sd), obs=y)


@nv.private(unit="people")
def linear_in_rows(y: Any) -> None:
    sd: Any = numpyro.sample("sd", dist.Gamma(2.0, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, sd), obs=y)
        numpyro.sample("wait", dist.Exponential(sd), obs=y)


@nv.private(unit="people")
def prior_without_density(y: Any) -> None:
    sd: Any = numpyro.sample("sd", dist.Gompertz(1.0, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, sd), obs=y)
        numpyro.sample("wait", dist.Exponential(sd), obs=y)


@nv.private(unit="people")
def counts(y: Any) -> None:
    rate: Any = numpyro.sample("rate", dist.Exponential(1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def plan(model: Any, *rows: Any) -> Any:
    budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-5)
    return vi_of(model, budget=budget).explain(*rows)


def fitted(model: Any, *rows: Any) -> Any:
    return vi_of(model, budget=math.inf).run(KEY, *rows)


# NumPyro's priors, and SciPy's.
PRIORS: dict[str, tuple[dist.Distribution, Any]] = {
    "Exponential": (dist.Exponential(0.5), stats.expon(scale=2.0)),
    "Gamma": (dist.Gamma(3.0, 2.0), stats.gamma(3.0, scale=0.5)),
    "InverseGamma": (dist.InverseGamma(3.0, 2.0), stats.invgamma(3.0, scale=2.0)),
    "Chi2": (dist.Chi2(3.0), stats.chi2(3.0)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PRIORS)
def test_the_posterior_is_that_of_a_grid(name: str):
    assert_posterior_is_that_of_a_grid(*PRIORS[name])


@pytest.mark.thorough
def test_each_element_has_a_rate_of_its_own():
    rng = np.random.default_rng(1)
    group = rng.integers(0, GROUPS, 2_000)
    y = np.array([0.5, 1.0, 3.0])[group] * rng.normal(size=2_000)
    found = plan(groups, group, y.astype(np.float32))
    assert found.engine == "vips"
    augmented = {site["site"]: site["augmentation"] for site in found.sites}
    assert augmented["sd"] == augmented["spread"] == "GeneralizedInverseGaussian"
    result = fitted(groups, group, y.astype(np.float32))
    sd = np.asarray(result.sample_posterior(KEY, (1000,))["sd"]).mean(0)
    each = [math.sqrt(np.mean(y[group == g] ** 2)) for g in range(GROUPS)]
    np.testing.assert_allclose(sd, each, rtol=0.03)


@pytest.mark.thorough
def test_a_private_fit_finds_the_scale():
    y = (0.8 * np.random.default_rng(0).normal(size=5_000)).astype(np.float32)
    budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-5)
    vi = vi_of(noise_about_zero(dist.Exponential(1.0)), budget=budget)
    with warnings.catch_warnings(action="error", category=UserWarning):
        draws = np.asarray(vi.run(KEY, y).sample_posterior(KEY, (1000,))["sd"])
    assert abs(draws.mean() - 0.8) < 4.0 * draws.std() < 0.2


@pytest.mark.thorough
def test_a_scale_of_durations_has_a_family_too():
    rng = np.random.default_rng(0)
    y = stats.weibull_min(2.0, scale=3.0).rvs(4_000, random_state=rng)
    result = fitted(durations, y.astype(np.float32))
    assert result.engine == "vips"
    draws = np.asarray(result.sample_posterior(KEY, (1000,))["scale"])
    assert abs(draws.mean() - 3.0) < 3.0 * draws.std() < 0.2


@pytest.mark.parametrize(
    "model", [unknown_rate, masked_prior, linear_in_rows, prior_without_density]
)
def test_what_is_no_mixture_stays_as_it_is(model: Any):
    y = np.ones(50, np.float32)
    found = plan(model, y)
    assert {site["augmentation"] for site in found.sites} == {None}


def test_a_latent_with_a_family_gets_no_auxiliary_variable():
    found = plan(counts, np.ones(50, int))
    assert found.engine == "vips"
    assert {site["augmentation"] for site in found.sites} == {None}
