"""The bound of a row is its evidence where the posterior of its latents is exact."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import uncertified
from scipy import special, stats

from numpyro_vips.vips.e_step.e_step import local_factors
from numpyro_vips.vips.e_step.evidence_bound import (
    bound_of_globals,
    row_bound,
    row_bound_at,
)
from numpyro_vips.vips.program.expectations import expected_natural_of

pytestmark = pytest.mark.usefixtures("x64")


def mixture_of_levels(y: Any) -> None:
    """A class of each row, and a level about the mean of its class."""
    with numpyro.plate("components", 2):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.3, 0.7])))
        numpyro.sample("y", dist.Normal(mu[z], 0.8), obs=y)


def level(y: Any) -> None:
    m = numpyro.sample("m", dist.Normal(1.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        u = numpyro.sample("u", dist.Normal(m, 0.5))
        numpyro.sample("y", dist.Normal(u, 1.5), obs=y)


def moments_of(mean: Any, variance: Any) -> dict[str, Any]:
    mean = jnp.asarray(mean)[..., None]
    square = mean[..., None] ** 2 + jnp.asarray(variance)[..., None, None]
    return {"x": mean, "xx": square}


@pytest.mark.parametrize("y", [-2.0, 0.4])
def test_at_known_globals_it_is_the_log_density_of_the_row(y: float) -> None:
    program = uncertified(mixture_of_levels, (np.array([y]),))
    means = np.array([-1.0, 1.5])
    natural = expected_natural_of(
        program.structure, {"mu": moments_of(means, np.zeros(2))}
    )
    found = row_bound(program, natural, {"y": jnp.asarray(y)}, 5)
    each = np.log([0.3, 0.7]) + stats.norm.logpdf(y, means, 0.8)
    assert float(found) == pytest.approx(float(special.logsumexp(each)), rel=1e-6)
    # Any other factor of the latent gives less.
    factors = local_factors(program, natural, {"y": jnp.asarray(y)}, 5)
    moments, _ = factors["z"]
    half = jnp.full_like(moments["is"], 0.5)
    even = {"is": half}, {"is": jnp.zeros_like(half)}
    row = {"y": jnp.asarray(y)}
    less, valid = row_bound_at(program, natural, row, {"z": even})
    assert bool(valid)
    expected = 0.5 * each.sum() + math.log(2)
    assert float(less) == pytest.approx(expected, rel=1e-6) and less < found


def test_unknown_globals_take_off_what_they_make_uncertain() -> None:
    """E log N(u | m, 0.5) is less by Var(m) / (2·0.5²)."""
    program = uncertified(level, (np.array([2.0]),))

    def bound(variance: float) -> float:
        natural = expected_natural_of(
            program.structure, {"m": moments_of(0.7, variance)}
        )
        return float(row_bound(program, natural, {"y": jnp.asarray(2.0)}, 5))

    evidence = stats.norm.logpdf(2.0, 0.7, math.hypot(0.5, 1.5))
    assert bound(0.0) == pytest.approx(evidence, rel=1e-6)
    assert bound(0.3) == pytest.approx(evidence - 0.3 / (2 * 0.25), rel=1e-6)


def test_a_row_that_is_none_has_no_bound() -> None:
    program = uncertified(level, (np.array([2.0]),))
    natural = expected_natural_of(program.structure, {"m": moments_of(0.7, 0.1)})
    found = row_bound(program, natural, {"y": jnp.asarray(np.inf)}, 5)
    assert math.isnan(float(found))


def test_the_globals_part_is_minus_their_divergence_from_the_prior() -> None:
    program = uncertified(level, (np.array([2.0]),))
    mean, variance = 0.3, 0.25
    natural = {
        "x": jnp.asarray([mean / variance]),
        "xx": jnp.asarray([[-0.5 / variance]]),
    }
    found = bound_of_globals(program, {"m": moments_of(mean, variance)}, {"m": natural})
    divergence = math.log(2.0 / math.sqrt(variance)) - 0.5
    divergence += (variance + (mean - 1.0) ** 2) / (2 * 4.0)
    assert float(found) == pytest.approx(-divergence, rel=1e-6)
