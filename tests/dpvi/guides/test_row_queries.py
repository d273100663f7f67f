"""The latents of rows under posteriors that DPVI has made."""

import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

import numpyro_vips as nv


def two_kinds(y: Any) -> None:
    share = numpyro.sample("share", dist.Beta(5.0, 5.0))
    with numpyro.plate("kinds", 2):
        p: Any = numpyro.sample(
            "p", dist.Beta(jnp.array([2.0, 8.0]), jnp.array([8.0, 2.0]))
        )
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Binomial(8, p[z]), obs=y)


def own_rates(y: Any) -> None:
    """With a real latent of each row, which VIPS has a closed form for."""
    scale = numpyro.sample("scale", dist.Gamma(3.0, 1.0))
    with numpyro.plate("rows", len(y)):
        rate = numpyro.sample("rate", dist.Gamma(2.0, scale))
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def own_levels(y: Any) -> None:
    """With a prior that is conjugate by an auxiliary variable, which has no draws."""
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    with numpyro.plate("rows", len(y)):
        level = numpyro.sample("level", dist.Normal(0.0, scale))
        numpyro.sample("y", dist.Normal(level, 0.5), obs=y)


def curved(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(jnp.tanh(mean * z), 1.0), obs=y)


CASES = np.arange(9, dtype=np.int32)


def fitted(model: Any, y: np.ndarray, num_steps: int) -> nv.PrivateVIResult:
    vi = vi_of(model, budget=50.0, engine="dpvi", num_steps=num_steps, insecure_seed=0)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return vi.run(jax.random.key(0), y)


@pytest.fixture(scope="module")
def result() -> nv.PrivateVIResult:
    rng = np.random.default_rng(0)
    p = np.where(rng.random(2000) < 0.5, 0.8, 0.25)
    return fitted(two_kinds, rng.binomial(8, p).astype(np.int32), 50)


def test_kinds_of_rows_follow_from_the_means_of_globals(
    result: nv.PrivateVIResult,
) -> None:
    """With so many rows the posterior of the globals is about a point."""
    means = {k: np.asarray(m.mean) for k, m in result.posterior.moments().items()}
    low, high = (np.exp(dist.Binomial(8, p).log_prob(CASES)) for p in means["p"])
    share = means["share"]
    expected = share * high / (share * high + (1 - share) * low)
    local: Any = result.local_posterior(CASES)["z"]
    np.testing.assert_allclose(np.asarray(local.probs), expected, atol=0.02)


def test_programs_of_the_bound_are_others(result: nv.PrivateVIResult) -> None:
    before: Any = result.local_posterior(CASES)["z"]
    assert result.elbo(CASES).shape == (9,)
    after: Any = result.local_posterior(CASES)["z"]
    assert np.array_equal(np.asarray(before.probs), np.asarray(after.probs))


def test_a_loaded_result_knows_them_too(
    result: nv.PrivateVIResult, tmp_path: Path
) -> None:
    result.save(tmp_path / "fit.nc")
    loaded = nv.load(tmp_path / "fit.nc", model=nv.private(two_kinds, unit="rows"))
    one, other = (r.local_posterior(CASES)["z"] for r in (result, loaded))
    np.testing.assert_allclose(np.asarray(one.probs), np.asarray(other.probs))


@pytest.mark.thorough
def test_real_latents_have_theirs() -> None:
    y = np.random.default_rng(0).poisson(1.0, 500).astype(np.int32)
    result = fitted(own_rates, y, 20)
    scale = result.sample_posterior(jax.random.key(0), sample_shape=(2000,))["scale"]
    local: Any = result.local_posterior(CASES)["rate"]
    np.testing.assert_allclose(local.concentration, 2.0 + CASES)
    expected = 1.0 + float(np.mean(scale))
    np.testing.assert_allclose(local.rate, np.full(9, expected), rtol=0.02)


@pytest.mark.thorough
def test_auxiliary_variables_of_priors_need_no_draws() -> None:
    y = np.random.default_rng(0).normal(size=500).astype(np.float32)
    result = fitted(own_levels, y, 20)
    scale = result.sample_posterior(jax.random.key(0), sample_shape=(2000,))["scale"]
    share = 1.0 / (1.0 + 0.25 * float(np.mean(1.0 / np.asarray(scale) ** 2)))
    local: Any = result.local_posterior(y[:5])["level"]
    np.testing.assert_allclose(np.ravel(local.mean), share * y[:5], rtol=0.02)


@pytest.mark.thorough
def test_of_other_models_vips_has_none_either() -> None:
    result = fitted(curved, np.linspace(-1.0, 1.0, 50, dtype=np.float32), 2)
    with pytest.raises(ValueError, match="infer_discrete at draws"):
        result.local_posterior(np.zeros(3, np.float32))
