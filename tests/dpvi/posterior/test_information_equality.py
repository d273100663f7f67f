"""Second moments of scores that exceed the information are found, and noise is not."""

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
from numpyro_vips.dpvi.posterior.information_equality import (
    WORTH_A_WARNING,
    SecondMoments,
    largest_excess,
)
from numpyro_vips.vips.m_step.noisy_information import Information

RNG = np.random.default_rng(0)
ROOT = RNG.normal(size=(3, 3))
# The information of the globals, and two sets of coordinates.
OF_GLOBALS = 1e4 * ROOT @ ROOT.T
MEAN, NUM_ROWS = np.array([3.0, -1.0, 0.0]), 1_000
FIRST, LAST = (np.eye(3) + 0.3 * (root + root.T) for root in RNG.normal(size=(2, 3, 3)))


def noisy(matrix: np.ndarray, stddev: float, rng: np.random.Generator) -> Information:
    noise = rng.normal(0.0, stddev, matrix.shape)
    return Information(matrix + (noise + noise.T) / 2.0**0.5, stddev)


def excess_of(factor: np.ndarray, stddev: float = 0.0, seed: int = 0) -> Any:
    """That of second moments which are so many times the information along an axis."""
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(OF_GLOBALS)
    moments = root @ np.diag(factor) @ root.T
    second = SecondMoments(noisy(FIRST.T @ moments @ FIRST, stddev, rng), FIRST, MEAN)
    information = noisy(LAST.T @ OF_GLOBALS @ LAST, stddev, rng)
    return largest_excess(second, information, LAST, MEAN, NUM_ROWS)


def test_moments_are_those_of_the_same_globals_in_other_coordinates():
    """Noise is as large along a direction of the globals as it was there."""
    second = SecondMoments(Information(FIRST.T @ OF_GLOBALS @ FIRST, 7.0), FIRST, MEAN)
    turned = second.turned(LAST)
    np.testing.assert_allclose(turned.matrix, LAST.T @ OF_GLOBALS @ LAST, rtol=1e-9)
    axes = np.linalg.qr(RNG.normal(size=(3, 3)))[0]
    there = np.linalg.solve(LAST, FIRST @ axes)
    np.testing.assert_allclose(
        turned.noise_between(there), second.moments.noise_between(axes), rtol=1e-9
    )


def test_scores_with_a_mean_are_no_excess():
    """A pilot asks away from where the rows are."""
    away = np.array([1.0, -2.0, 0.5])
    score = OF_GLOBALS @ away
    moments = OF_GLOBALS + np.outer(score, score) / NUM_ROWS
    second = SecondMoments(
        Information(FIRST.T @ moments @ FIRST, 0.0), FIRST, MEAN - away
    )
    information = Information(LAST.T @ OF_GLOBALS @ LAST, 0.0)
    found = largest_excess(second, information, LAST, MEAN, NUM_ROWS)
    assert found.factor == pytest.approx(1.0, rel=1e-6)
    at_mean = second._replace(place=MEAN)
    assert largest_excess(at_mean, information, LAST, MEAN, NUM_ROWS).factor > 2.0


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
def test_without_noise_a_common_factor_is_found_in_any_coordinates(factor: float):
    assert excess_of(np.full(3, factor)).factor == pytest.approx(factor, rel=1e-6)


def test_the_direction_is_one_of_the_globals():
    none = np.zeros(2)
    second = SecondMoments(Information(np.diag([10.0, 50.0]), 0.0), np.eye(2), none)
    information = Information(np.diag([1.0, 20.0]), 0.0)
    # The first coordinate is half of the second global.
    units = np.array([[0.0, 1.0], [0.5, 0.0]])
    found = largest_excess(second, information, units, none, NUM_ROWS)
    assert found.factor == pytest.approx(0.25 * 50.0)
    np.testing.assert_allclose(abs(found.direction), [0.0, 0.5])


def test_noise_makes_no_excess():
    """Of the size of the least eigenvalue, and well above it."""
    least = np.linalg.eigvalsh(LAST.T @ OF_GLOBALS @ LAST)[0]
    for stddev in (0.1 * least, least, 30.0 * least):
        found = [excess_of(np.ones(3), stddev, seed).factor for seed in range(200)]
        assert max(found) < WORTH_A_WARNING


def test_where_noise_hides_the_information_there_is_no_excess():
    """Clipping may have left next to nothing of it along the first axis."""
    place, moments = np.zeros(2), Information(2000.0 * np.eye(2), 100.0)
    found = [
        largest_excess(
            SecondMoments(moments, np.eye(2), place),
            Information(np.diag([least, 2000.0]), 150.0),
            np.eye(2),
            place,
            2000,
        ).factor
        for least in (-100.0, 200.0, 600.0)
    ]
    assert found[0] == found[1] < 1.0 < WORTH_A_WARNING < found[2]


def counts(x: Any, y: Any) -> None:
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(level + slope * x)), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [0.3, np.inf])
def test_a_fit_says_that_counts_vary_more_than_a_poissons(shape: float):
    rng = np.random.default_rng(100)
    x = rng.normal(size=5000).astype(np.float32)
    mean = np.exp(1.0 + 0.5 * x)
    if np.isfinite(shape):
        mean = mean * rng.gamma(shape, 1 / shape, 5000)
    vi = vi_of(counts, budget=nv.PrivacyBudget(1.0, 1e-6), insecure_seed=0)
    with warnings.catch_warnings(action="ignore"):
        result = vi.run(jax.random.key(0), x, rng.poisson(mean))
    texts = result.diagnostics["warnings"]
    said = [text for text in texts if "Rows vary more about the model" in text]
    assert len(said) == np.isfinite(shape)
    assert (result.diagnostics["excess"] > WORTH_A_WARNING) == np.isfinite(shape)
