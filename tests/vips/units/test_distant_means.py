"""More than one pilot where the priors say that means may be far from zero."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to
from _models import compiled
from numpyro.distributions import constraints

from numpyro_vips.vips.units.distant_means import need_several_pilots

NUM_GROUPS = 8
GROUP = np.arange(24) % NUM_GROUPS
Y = np.linspace(10.0, 30.0, 24)


def means_of(prior: dist.Distribution, scale: dist.Distribution) -> Callable[..., None]:
    """Means of groups with this prior, and rows about them with a scale of that."""

    def model(group: Any, y: Any) -> None:
        sigma = numpyro.sample("sigma", scale)
        with numpyro.plate("groups", NUM_GROUPS):
            mean = numpyro.sample("mean", prior)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mean[group], sigma), obs=y)

    return model


def hierarchical(group: Any, y: Any) -> None:
    """The mean of the groups' means may be anywhere, they themselves are about it."""
    level = numpyro.sample("level", dist.Normal(0.0, 50.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(5.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(5.0))
    with numpyro.plate("groups", NUM_GROUPS):
        mean = numpyro.sample("mean", dist.Normal(level, spread))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean[group], sigma), obs=y)


@pytest.mark.parametrize(
    ("model", "several"),
    [
        (means_of(dist.Normal(0.0, 50.0), dist.HalfNormal(5.0)), True),
        (means_of(dist.Normal(170.0, 1.0), dist.HalfNormal(20.0)), True),
        (means_of(dist.ImproperUniform(constraints.real, (), ()), dist.Gamma(2)), True),
        (hierarchical, True),
        (means_of(dist.Normal(0.0, 1.0), dist.HalfNormal(2.0)), False),
        (means_of(dist.Normal(0.0, 5.0), dist.HalfNormal(5.0)), False),
    ],
    ids=["wide", "away", "flat", "hierarchical", "unit", "alike"],
)
def test_priors_say_whether_means_may_be_far_from_zero(
    model: Callable[..., None], several: bool
) -> None:
    program = compiled(model, (GROUP, Y))
    names = program.structure.recentred
    assert need_several_pilots(program, names, 1000) is several
    # Noise hides the means from all pilots, or none of it is left in the first.
    assert not need_several_pilots(program, names, 500)
    assert not need_several_pilots(program, names, 10**7)


@pytest.mark.thorough
def test_scales_about_distant_means_of_groups_are_known() -> None:
    """Rows leave them open to 2 %; with a single pilot intervals had 20 to 30 %."""
    rng = np.random.default_rng(0)
    centres, widths = 20.0 + 1.2 * rng.normal(size=NUM_GROUPS), []
    for seed in range(5):
        group = rng.integers(0, NUM_GROUPS, 1000)
        y = (centres[group] + 2.0 * rng.normal(size=1000)).astype(np.float32)
        with warnings.catch_warnings(action="ignore"):
            result = fit_to(hierarchical, group, y, insecure_seed=seed)
        draws = result.sample_posterior(jax.random.key(1), sample_shape=(1000,))
        widths.append(float(np.std(np.log(draws["sigma"]))))
    assert np.median(widths) < 4 / math.sqrt(2 * 1000)
