"""Fits of a standard deviation under some prior, compared with a grid."""

import math
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from scipy import stats

import numpyro_vips as nv

KEY = jax.random.key(0)


def noise_about_zero(prior: dist.Distribution) -> Any:
    """A model of Normal numbers about zero, with this prior of their deviation."""

    @nv.private(unit="people")
    def model(y: Any) -> None:
        sd: Any = numpyro.sample("sd", prior)
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(0.0, sd), obs=y)

    return model


def assert_posterior_is_that_of_a_grid(prior: dist.Distribution, reference: Any):
    """The posterior without noise has the grid's mean and standard deviation.

    Args:
      prior: NumPyro's.
      reference: SciPy's distribution that is the same.
    """
    y = (0.8 * np.random.default_rng(0).normal(size=60)).astype(np.float32)
    grid = np.linspace(0.3, 2.0, 4001)
    log = reference.logpdf(grid) + stats.norm.logpdf(y[:, None], 0.0, grid).sum(0)
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    mean = weights @ grid
    stddev = math.sqrt(weights @ (grid - mean) ** 2)
    result = vi_of(noise_about_zero(prior), budget=math.inf).run(KEY, y)
    assert result.engine == "vips"
    draws = np.asarray(result.sample_posterior(KEY, (4000,))["sd"])
    assert abs(draws.mean() - mean) < 0.1 * stddev
    assert draws.std() == pytest.approx(stddev, rel=0.08)
