"""Posteriors of scales of effects, compared with quadrature over their exact margin."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats
from _fits import fit_to

import numpyro_vips as nv
from numpyro_vips.vips.m_step import marginal_scales

GROUPS, ROWS, STDDEV = 10, 80, 2.0
LOGS = np.linspace(-7.0, 4.0, 2_000)


def exact(y: np.ndarray, group: np.ndarray, prior: dist.Distribution) -> np.ndarray:
    """Probabilities on LOGS of the logarithm of a scale, with effects integrated out.

    Means of groups are Normal(mean, τ² + variance over their rows), and the mean is
    Normal(0, 5).
    """
    count = np.bincount(group, minlength=GROUPS)
    mean = np.bincount(group, y, minlength=GROUPS) / count
    logs = np.asarray(prior.log_prob(jnp.exp(jnp.asarray(LOGS)))) + LOGS
    for index, scale in enumerate(np.exp(LOGS)):
        covariance: Any = 25.0 + np.diag(scale**2 + STDDEV**2 / count)
        logs[index] += scipy.stats.multivariate_normal.logpdf(
            mean, np.zeros(GROUPS), covariance
        )
    weights = np.exp(logs - logs.max())
    return weights / weights.sum()


PRIORS: dict[str, Callable[[], dist.Distribution]] = {
    "a root of a generalised inverse Gaussian": lambda: dist.HalfNormal(1.0),
    "with an auxiliary variable": lambda: dist.Exponential(1.0),
    "with one, and no limit": lambda: dist.HalfCauchy(0.5),
}


@pytest.mark.quick_with("a root*")
@pytest.mark.parametrize("name", PRIORS)
def test_the_scale_of_effects_has_its_margin(name: str):
    """Next to no noise, and few rows in each group.

    Coordinate ascent takes effects for known, and has half this width for the scale.
    """
    prior = PRIORS[name]()

    @nv.private(unit="rows")
    def model(group, y=None):
        mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
        scale = numpyro.sample("scale", prior)
        with numpyro.plate("groups", GROUPS):
            effect = numpyro.sample("effect", dist.Normal(mean, scale))
        with numpyro.plate("rows", group.shape[0]):
            numpyro.sample("y", dist.Normal(effect[group], STDDEV), obs=y)

    rng = np.random.default_rng(2)
    group = np.arange(ROWS) % GROUPS
    effects = rng.normal(1.0, 0.8, GROUPS)
    y = np.float32(effects[group] + rng.normal(0.0, STDDEV, ROWS))
    result = fit_to(model, group, y, budget=1e6, engine="vips", clipping_norm=100.0)
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(20_000,))
    logs = np.log(np.asarray(draws["scale"], np.float64))
    weights = exact(np.asarray(y), group, prior)
    mean = weights @ LOGS
    stddev = np.sqrt(weights @ (LOGS - mean) ** 2)
    assert abs(logs.mean() - mean) < 0.25 * stddev
    assert 0.8 < logs.std() / stddev < 1.25


def test_where_noise_leaves_a_singular_precision_there_is_no_density():
    """A fit that is paid for ended in an error of NumPy."""
    priors: Any = {
        "w": {"x": np.zeros((2, 2)), "xx": np.array([-np.eye(2), -2 * np.eye(2)])}
    }
    share: Any = {"w": {"x": np.ones(2), "xx": np.diag([0.0, 1.0])}}
    with np.errstate(all="raise", divide="ignore"):
        logs, means = marginal_scales._integrated(priors, np.zeros(2), share)
    assert np.isnan(logs[0])
    np.testing.assert_allclose(means["w"][1], [1 / 4, 1 / 2])
    assert logs[1] == pytest.approx(0.5 * (1 / 4 + 1 / 2) - 0.5 * np.log(4 * 2))
