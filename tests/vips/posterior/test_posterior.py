"""The posterior of a fit by VIPS, and the parts of its variance."""

import math

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to

import numpyro_vips as nv
from numpyro_vips.vips.posterior.posterior import ConjugatePosterior


@nv.private(unit="rows")
def gaussian(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 2.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1 / jnp.sqrt(precision)), obs=y)


@pytest.fixture(scope="module")
def posterior() -> ConjugatePosterior:
    y = np.random.default_rng(0).normal(size=200).astype(np.float32)
    found = fit_to(gaussian, y, budget=math.inf).posterior
    assert isinstance(found, ConjugatePosterior)
    return found


def without_rate(posterior: ConjugatePosterior) -> ConjugatePosterior:
    params = {**posterior.params, "precision/rate": jnp.asarray(math.nan)}
    return ConjugatePosterior(posterior.specification, params)


@pytest.mark.thorough
def test_where_sums_as_they_are_make_no_posterior_all_of_the_width_is_noise(posterior):
    parts = posterior.beside(without_rate(posterior)).variance_parts()
    assert parts["precision"].data == 0.0
    assert parts["precision"].privacy > 0.0
    assert parts["mean"].privacy == 0.0


@pytest.mark.thorough
def test_what_is_no_posterior_is_left_for_the_check_of_the_result(posterior):
    found = without_rate(posterior).beside(posterior)
    assert found.problems() == {"precision": "rate is not finite"}
