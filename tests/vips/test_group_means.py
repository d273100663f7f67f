"""Hyperparameters that rows know through group effects alone, under noise."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to

import numpyro_vips as nv


@nv.private(unit="rows")
def groups(group, x, y=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    with numpyro.plate("groups", 12):
        effect = numpyro.sample("effect", dist.Normal(mean, scale))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)):
        y_mean = effect[group] + slope[group] * x
        numpyro.sample("y", dist.Normal(y_mean, noise), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2))
def test_the_mean_of_effects_is_where_the_effects_are(seed):
    """Nothing of the noise in the rows' information is information on their mean."""
    rng = np.random.default_rng(seed)
    group, x = rng.integers(0, 12, 5000), rng.normal(size=5000).astype(np.float32)
    effect, slope = -10.0 + 2.0 * rng.normal(size=12), rng.normal(size=12)
    y = effect[group] + slope[group] * x + 2.0 * rng.normal(size=5000)
    with pytest.warns(UserWarning, match="insecure_seed"):
        result = fit_to(groups, group, x, y.astype(np.float32), insecure_seed=seed)
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(1000,))
    effects = np.asarray(draws["effect"]).mean(0)
    away = np.asarray(draws["mean"]) - effects.mean()
    assert abs(away.mean()) < 1.0
    # Twelve effects tell their mean to their standard deviation over √12.
    assert away.std() < 1.5


@nv.private(unit="rows")
def crossed(group, other, y=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    scales = [numpyro.sample(name, dist.HalfCauchy(1.0)) for name in ("s1", "s2")]
    noise = numpyro.sample("noise", dist.HalfCauchy(1.0))
    with numpyro.plate("groups", 8):
        first = numpyro.sample("first", dist.Normal(0.0, scales[0]))
    with numpyro.plate("others", 5):
        second = numpyro.sample("second", dist.Normal(0.0, scales[1]))
    with numpyro.plate("rows", len(group)):
        y_mean = mean + first[group] + second[other]
        numpyro.sample("y", dist.Normal(y_mean, noise), obs=y)


@pytest.mark.slow
def test_crossed_effects_beside_a_mean_have_a_posterior():
    """Of the mean there is a public count and noisy products."""
    rng = np.random.default_rng(0)
    group, other = rng.integers(0, 8, 3000), rng.integers(0, 5, 3000)
    first, second = 2.0 * rng.normal(size=8), rng.normal(size=5)
    y = 1.0 + first[group] + second[other] + 3.0 * rng.normal(size=3000)
    with pytest.warns(UserWarning, match="insecure_seed"):
        result = fit_to(crossed, group, other, y.astype(np.float32), insecure_seed=0)
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(500,))
    total = np.asarray(draws["mean"])[:, None] + np.asarray(draws["first"])
    away = total.mean(0) - (1.0 + first + second.mean())
    assert (abs(away) < 4.0 * total.std(0)).all()
