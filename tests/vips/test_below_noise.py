"""Sums below their noise: squares of numbers and matrices, and states."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.conjugacy.families import family_named
from numpyro_vips.conjugacy.families.family import Moments

# Minus half the matrix, or minus the number, multiplies the statistic.
KINDS = {"Wishart": ("x", -0.5), "InverseWishart": ("inv", -0.5)}
NUMBERS = {"Gamma": ("x", -1.0), "InverseGamma": ("1/x", -1.0)}


def _count(name: str, value: Any, stddev: Any) -> int:
    statistic, factor = (KINDS | NUMBERS)[name]
    log = next(s for s in family_named(name, None).statistics if s != statistic)

    def share(array: Any) -> Moments:
        zero = jnp.zeros(jnp.shape(array)[:-2] if name in KINDS else jnp.shape(array))
        return {statistic: jnp.asarray(array, float), log: zero}

    value, stddev = np.asarray(value, float), np.asarray(stddev, float)
    found = family_named(name, None).num_below_noise(
        share(factor * value), share(abs(factor) * stddev)
    )
    return int(found)


@pytest.mark.parametrize("name", KINDS)
def test_directions_of_a_matrix_that_the_noise_has_made_are_counted(name: str) -> None:
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    ones = np.ones((3, 3))
    assert _count(name, turned @ np.diag([90.0, 0.3, -2.0]) @ turned.T, ones) == 2
    assert _count(name, turned @ np.diag([90.0, 80.0, 70.0]) @ turned.T, ones) == 0
    assert _count(name, np.diag([90.0, 0.3, 1e-9]), 0.0 * ones) == 0
    # Of several matrices all directions count.
    several = np.stack([np.eye(2), 50.0 * np.eye(2)])
    assert _count(name, several, np.ones((2, 2, 2))) == 2


@pytest.mark.parametrize("value", [-3.0, 0.9, 1.1, 40.0])
def test_a_matrix_of_one_number_is_as_far_below_as_the_number(value: float) -> None:
    for matrix, number in zip(KINDS, NUMBERS, strict=True):
        assert _count(matrix, [[value]], [[1.0]]) == _count(number, value, 1.0)


@pytest.mark.thorough
def test_a_covariance_below_its_noise_is_a_warning() -> None:
    def model(y: Any) -> None:
        precision = numpyro.sample("precision", dist.Wishart(4.0, jnp.eye(2)))
        with numpyro.plate("rows", y.shape[0]):
            y = numpyro.sample(
                "y",
                dist.MultivariateNormal(jnp.zeros(2), precision_matrix=precision),
                obs=y,
            )

    def warned(epsilon: float) -> list[str]:
        vi = vi_of(model, budget=epsilon, clipping_norm=10.0, insecure_seed=0)
        y = 0.1 * np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
        with warnings.catch_warnings(action="ignore"):
            found = vi.run(jax.random.key(0), y).diagnostics["warnings"]
        return [text for text in found if "below the noise" in text]

    (text,) = warned(0.1)
    assert "'precision'" in text
    assert warned(1e4) == []


def change(day: Any, y: Any) -> None:
    """A rate that changes on one of forty days."""
    rate: Any = numpyro.sample("rate", dist.Gamma(2.0, 0.5).expand([2]).to_event(1))
    last = numpyro.sample("last", dist.DiscreteUniform(0, 39))
    with numpyro.plate("rows", y.shape[0]):
        mine = jnp.where(day <= last, rate[0], rate[1])
        numpyro.sample("y", dist.Poisson(mine), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize(("epsilon", "warns"), [(1.0, True), (100.0, False)])
def test_the_place_of_a_change_is_as_uncertain_as_noise_makes_it(
    epsilon: float, warns: bool
) -> None:
    rng = np.random.default_rng(0)
    day = rng.integers(0, 40, 2_000)
    y = rng.poisson(np.where(day <= 24, 1.0, 6.0))
    for seed in range(3):
        vi = vi_of(nv.private(change, unit="rows"), budget=epsilon, insecure_seed=seed)
        with warnings.catch_warnings(action="ignore"):
            result = vi.run(jax.random.key(seed), day, y)
        draws = result.sample_posterior(jax.random.key(1), (2_000,))["last"]
        lower, upper = np.quantile(np.asarray(draws), [0.01, 0.99])
        assert lower <= 24 <= upper
        texts = result.diagnostics["warnings"]
        assert any("No state of 'last' is certain" in text for text in texts) == warns
