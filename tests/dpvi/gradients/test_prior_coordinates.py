"""Coordinates in which globals that share a mean move together."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to

from numpyro_vips.dpvi.gradients.prior_coordinates import prior_coordinates

GROUPS = 20


def with_shared_mean(z: Any) -> Any:
    """Effects a[:-1], and their mean, which no row depends on."""
    a, mean = z[:-1], z[-1]
    return -0.5 * jnp.sum((a - mean) ** 2) - 0.5 * (mean / 9.0) ** 2


def alone(z: Any) -> Any:
    return -0.5 * jnp.sum(z**2 * jnp.arange(1.0, len(z) + 1.0))


def test_effects_get_a_coordinate_for_all_of_them() -> None:
    units = prior_coordinates(
        with_shared_mean, jnp.zeros(GROUPS + 1), np.ones(GROUPS + 1, bool), GROUPS
    )
    values, axes = np.linalg.eigh(units)
    np.testing.assert_allclose(values[:-1], 1.0, atol=1e-4)
    assert values[-1] == pytest.approx(np.sqrt(GROUPS + 1.0), rel=1e-4)
    np.testing.assert_allclose(abs(axes[:, -1]), GROUPS**-0.5, atol=1e-4)
    # A row of one group has a gradient that is longer by the root of two.
    assert np.linalg.norm(units[0]) == pytest.approx(np.sqrt(2.0), rel=1e-4)


def test_a_wide_mean_makes_the_coordinate_as_long_as_its_own_steps() -> None:
    def wide(z: Any) -> Any:
        a, mean = z[:-1], z[-1]
        return -0.5 * jnp.sum((a - mean) ** 2) - 0.5 * (mean / 50.0) ** 2

    units = prior_coordinates(wide, jnp.zeros(11), np.ones(11, bool), 10)
    # A tenth of the prior's standard deviation for each of the effects.
    assert np.linalg.eigvalsh(units)[-1] == pytest.approx(5.0 * 10**0.5, rel=0.03)


@pytest.mark.parametrize(
    ("log_prior", "is_real", "num_read"),
    [
        (alone, np.ones(4, bool), 4),
        (alone, np.ones(4, bool), 2),
        # Logarithms and the like.
        (with_shared_mean, np.zeros(4, bool), 3),
        # The mean is among what rows depend on: a coordinate as any other.
        (with_shared_mean, np.array([True, False, False, False]), 3),
        # No Normal: a flat prior, and one that is no peak.
        (lambda z: 0.0 * jnp.sum(z), np.ones(4, bool), 3),
        (lambda z: jnp.sum(z**2), np.ones(4, bool), 3),
        (lambda z: jnp.sum(jnp.log(z)), np.ones(4, bool), 3),
    ],
)
def test_others_stay_as_they_are(log_prior: Any, is_real: Any, num_read: int) -> None:
    found = prior_coordinates(log_prior, jnp.zeros(4), is_real, num_read)
    np.testing.assert_allclose(found, np.eye(num_read), atol=1e-9)


@pytest.mark.thorough
def test_priors_may_have_numpy_arrays_in_them() -> None:
    """A predictor of groups, which a model holds in double precision."""
    known = np.linspace(-1.0, 1.0, 4)

    def model(g: Any, y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
        with numpyro.plate("groups", 4):
            a = numpyro.sample("a", dist.Normal(mean + slope * known, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Poisson(jnp.exp(a[g])), obs=y)

    rows = np.zeros(300, np.int32), np.zeros(300, np.int32)
    assert fit_to(model, *rows, engine="dpvi", num_steps=10).engine == "dpvi"


@pytest.mark.thorough
def test_many_groups_that_are_all_far_away_are_found() -> None:
    """None of a hundred effects would have got there by itself."""

    def model(g: Any, x: Any, y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
        scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(3.0))
        with numpyro.plate("groups", 100):
            a = numpyro.sample("a", dist.Normal(mean, scale))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(a[g] + slope * x, sigma), obs=y)

    rng = np.random.default_rng(3)
    g = rng.integers(0, 100, 5_000)
    x = rng.normal(size=5_000)
    y = 5.0 + rng.normal(size=100)[g] + x + 1.5 * rng.normal(size=5_000)
    result = fit_to(model, g, x, y)
    assert result.engine == "dpvi"
    moments = result.posterior.moments()
    # By VIPS, whose noise hides the groups, sigma is near 4.
    assert abs(float(moments["sigma"].mean) - 1.5) < 0.4
    assert abs(float(moments["mean"].mean) - 5.0) < 0.8
    assert abs(float(moments["slope"].mean) - 1.0) < 0.8
