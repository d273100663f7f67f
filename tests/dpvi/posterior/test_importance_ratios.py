"""Shapes of importance ratios, against ArviZ's and against Pareto draws."""

import math

import arviz
import numpy as np
import pytest
from scipy import stats

from numpyro_vips.dpvi.posterior.importance_ratios import pareto_shape


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_the_shape_is_that_of_arviz(spread):
    log_ratios = spread * np.random.default_rng(0).normal(size=1000)
    psislw = getattr(arviz, "psislw", None)
    if psislw is None:
        pytest.skip("ArviZ 1 has moved it.")
    assert abs(pareto_shape(log_ratios) - psislw(log_ratios)[1]) < 1e-6


@pytest.mark.thorough
def test_the_shape_is_that_of_pareto_ratios():
    ratios = stats.genpareto.rvs(0.8, size=100_000, random_state=0)
    assert abs(pareto_shape(np.log(ratios)) - 0.8) < 0.1
    assert pareto_shape(np.zeros(100)) == 0.0
    assert pareto_shape(np.array([0.0, np.nan])) == math.inf
