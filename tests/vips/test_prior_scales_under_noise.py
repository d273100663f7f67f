"""Precisions of weights, learnt where noise hides what rows say of the weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _engine_fit import EngineFit
from _fits import fit_to
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from numpyro_vips.vips.m_step.newton_posterior import share_of_rows
from numpyro_vips.vips.steps.released_sums import Unclipped

COLUMNS, PRECISION = 60, 0.3


def logistic(X: Any, y: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
    with numpyro.plate("feature", X.shape[1]):
        w = numpyro.sample("w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


class Release:
    """Sums that a fit may have averaged, of weights with the precision `PRECISION`.

    Args:
      rng: What they are drawn with.
      hidden: The largest eigenvalue of the noise in the curvature, in units of the mean
        eigenvalue of the curvature.
    """

    def __init__(self, rng: np.random.Generator, hidden: float):
        shares = np.arange(1.0, COLUMNS + 1) ** -0.8
        shares *= COLUMNS / shares.sum()
        rows = rng.normal(size=(4 * COLUMNS, COLUMNS)) * np.sqrt(shares)
        self.curvature = rows.T @ rows / len(rows)
        self.stddev = hidden / np.sqrt(2 * COLUMNS)
        noise = self.stddev * rng.normal(size=(COLUMNS, COLUMNS))
        self.noisy = self.curvature + 0.5 * (noise + noise.T)
        weights = rng.normal(size=COLUMNS) / np.sqrt(PRECISION)
        # The noise in residuals has the variance 1.
        self.likely = self.curvature + np.eye(COLUMNS)
        errors = np.linalg.cholesky(self.likely) @ rng.normal(size=COLUMNS)
        # Rows were asked near where residuals and a prior that is too tight balance.
        self.centre = np.linalg.solve(
            self.curvature + np.eye(COLUMNS), self.curvature @ weights + errors
        )
        self.residual = self.curvature @ (weights - self.centre) + errors

    def with_known_curvature(self) -> float:
        """The precision that coordinate ascent finds, had the curvature no noise."""
        kept = self.curvature @ np.linalg.inv(self.likely)
        linear = kept @ (self.curvature @ self.centre + self.residual)
        precision = 1.0
        for _ in range(500):
            covariance = np.linalg.inv(
                kept @ self.curvature + precision * np.eye(COLUMNS)
            )
            squares = np.sum((covariance @ linear) ** 2) + np.trace(covariance)
            precision = (1.0 + 0.5 * COLUMNS) / (1.0 + 0.5 * squares)
        return precision


@pytest.fixture(scope="module")
def fit() -> EngineFit:
    rows = np.zeros((10, COLUMNS), np.float32), np.zeros(10, np.int32)
    return EngineFit(logistic, rows, engine="vips")


def _learnt(fit: EngineFit, release: Release) -> float:
    """The precision that the steps of a fit end with, with these sums."""
    state, engine = fit.start, fit.engine
    sums = Unclipped(
        {"⟨w⟩": release.residual, "⟨w w⟩": -0.5 * release.noisy},
        {"⟨w⟩": 1.0, "⟨w w⟩": 0.5 * release.stddev},
    )
    (weights,) = state.centre
    state = state._replace(centre={weights: release.centre})
    for _ in range(20):
        moments = engine.on_globals.solve(state, sums, 1.0).moments
        state = state._replace(moments=jax.tree.map(np.asarray, moments))
    return float(state.moments["alpha"]["x"])


@pytest.mark.thorough
@pytest.mark.parametrize("hidden", [9.0, 18.0])
def test_directions_that_noise_hides_say_nothing_of_the_precision(
    fit: EngineFit, hidden: float
) -> None:
    """It is about that of a curvature without noise."""
    rng = np.random.default_rng(0)
    releases = [Release(rng, hidden) for _ in range(8)]
    known = np.log([release.with_known_curvature() for release in releases])
    learnt = np.log([_learnt(fit, release) for release in releases])
    # What residuals leave open of it in a single fit.
    assert np.std(known) < 0.45
    assert abs(np.mean(learnt - known)) < 0.45
    assert abs(np.mean(learnt) - np.log(PRECISION)) < 0.45


@pytest.mark.thorough
def test_without_noise_it_is_the_sums_as_they_are(fit: EngineFit) -> None:
    release = Release(np.random.default_rng(1), 1.0)
    state = fit.start
    (weights,) = state.centre
    state = state._replace(centre={weights: release.centre})
    sums = Unclipped(
        {"⟨w⟩": release.residual, "⟨w w⟩": -0.5 * release.curvature},
        {"⟨w⟩": 0.0, "⟨w w⟩": 0.0},
    )
    target = fit.engine.on_globals.newton_targets(state, sums)
    share = share_of_rows(
        target[weights], release.centre, knows_noise=True, keeps_squares=True
    )
    np.testing.assert_allclose(share["xx"], -0.5 * release.curvature, rtol=1e-12)
    linear = release.curvature @ release.centre + release.residual
    np.testing.assert_allclose(share["x"], linear, rtol=1e-12)


LEVELS = (2, 5, 7, 8, 14, 16, 6, 5, 9, 20)


def _table(rng: np.random.Generator, num_rows: int) -> np.ndarray:
    """Rows of norm 1: ten categories, coded as indicators, four numbers, a constant.

    A few levels of each category are common and the others rare, as in a census.
    """
    blocks = [rng.uniform(size=(num_rows, 4)), np.ones((num_rows, 1))]
    for levels in LEVELS:
        frequencies = np.arange(1.0, levels + 1) ** -1.5
        frequencies /= frequencies.sum()
        blocks.append(np.eye(levels)[rng.choice(levels, num_rows, p=frequencies)])
    X = np.concatenate(blocks, axis=1)
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*insecure_seed")
@pytest.mark.parametrize("seed", range(5))
def test_the_precision_of_weights_of_indicators_is_learnt_by_whole_fits(
    seed: int,
) -> None:
    """Nearly a hundred weights, most of them of rare indicators.

    Where a precision follows the noise of single fits to zero or far above the truth,
    a few of several fits are much worse than the others.
    """
    rng = np.random.default_rng(0)
    X = _table(rng, 24_000)
    precision = 0.05
    weights = rng.normal(size=X.shape[1]) / np.sqrt(precision)
    weights[4] -= 4.0
    chances = expit(X @ weights)
    y = (rng.uniform(size=len(X)) < chances).astype(np.int32)
    train, test = slice(4_000), slice(4_000, None)
    result = fit_to(
        logistic, X[train], y[train], budget=2.0, engine="vips", insecure_seed=seed
    )
    draws = result.sample_posterior(jax.random.key(1), (400,))
    assert precision / 2 < np.mean(draws["alpha"]) < 3 * precision
    scores = X[test] @ np.mean(draws["w"], axis=0)
    best = roc_auc_score(y[test], chances[test])
    assert roc_auc_score(y[test], scores) > best - 0.025
