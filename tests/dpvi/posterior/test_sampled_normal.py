"""Normals with the intervals of densities that are no Normals."""

import numpy as np
import pytest

from numpyro_vips.dpvi.posterior.sampled_normal import with_its_intervals
from numpyro_vips.dpvi.posterior.variational_newton import (
    Draws,
    VectorNormal,
    ascend,
)

EFFECTS, STDDEV = 8, 0.5
SEEN = np.array([1.2, -0.4, 0.3, -1.0, 0.1, 0.6, -0.7, 0.2])


def funnel(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log τ and effects ~ Normal(0, τ), seen with noise; τ ~ HalfNormal(1)."""
    log, effects = points[:, 0], points[:, 1:]
    squared = np.sum(effects**2, axis=1) * np.exp(-2.0 * log)
    away = SEEN - effects
    values = log - 0.5 * np.exp(2.0 * log) - EFFECTS * log - 0.5 * squared
    values = values - 0.5 * np.sum(away**2, axis=1) / STDDEV**2
    slope = 1.0 - np.exp(2.0 * log) - EFFECTS + squared
    slopes = -effects * np.exp(-2.0 * log)[:, None] + away / STDDEV**2
    return values, np.column_stack([slope, slopes])


def quantiles_of_the_margin() -> np.ndarray:
    """Of log τ, with the effects integrated out."""
    logs = np.linspace(-12.0, 3.0, 20_000)
    variance = np.exp(2.0 * logs) + STDDEV**2
    density = logs - 0.5 * np.exp(2.0 * logs) - 0.5 * EFFECTS * np.log(variance)
    density -= 0.5 * np.sum(SEEN**2) / variance
    total = np.cumsum(np.exp(density - density.max()))
    return np.interp([0.05, 0.95], total / total[-1], logs)


@pytest.fixture
def draws() -> Draws:
    rng = np.random.default_rng(0)
    return Draws.of(rng, EFFECTS + 1, points=64, bases=28)


def test_a_funnel_has_the_intervals_of_its_margin(draws: Draws):
    start = VectorNormal(np.zeros(EFFECTS + 1), np.eye(EFFECTS + 1))
    *_, best = ascend(funnel, start, draws)
    found = with_its_intervals(funnel, best.normal, draws)
    low, high = quantiles_of_the_margin()
    width = high - low
    ends = found.loc[0] + np.array([-1.645, 1.645]) * found.stddev[0]
    assert abs(ends[0] - low) < 0.3 * width  # The neck is hard to get to.
    assert abs(ends[1] - high) < 0.1 * width
    # What is mended.
    assert 3.29 * best.normal.stddev[0] < 0.75 * width


def test_a_normal_is_its_own(draws: Draws):
    rng = np.random.default_rng(1)
    root = np.tril(rng.normal(size=(EFFECTS + 1, EFFECTS + 1))) + 3 * np.eye(
        EFFECTS + 1
    )
    normal = VectorNormal(rng.normal(size=EFFECTS + 1), root)

    def target(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        units = np.linalg.solve(root, (points - normal.loc).T).T
        return -0.5 * np.sum(units**2, axis=1), -np.linalg.solve(root.T, units.T).T

    assert with_its_intervals(target, normal, draws) is normal


def test_where_nothing_is_accepted_the_normal_stays(draws: Draws):
    def nowhere(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        steps = np.where(points[:, 0] > 0, 0.0, -5.0)
        return steps, np.full_like(points, 1e200)

    normal = VectorNormal(np.zeros(EFFECTS + 1), np.eye(EFFECTS + 1))
    assert with_its_intervals(nowhere, normal, draws) is normal
