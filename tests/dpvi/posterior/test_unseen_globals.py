"""Globals, and sums of them, of which rows may say nothing."""

import numpy as np
from _gaussian_prior import gaussian_prior
from _symmetric_noise import symmetric_noise

from numpyro_vips.dpvi.posterior.score_likelihood import Score, normal_of
from numpyro_vips.dpvi.posterior.unseen_globals import LinearGlobals
from numpyro_vips.dpvi.posterior.variational_newton import VectorNormal
from numpyro_vips.vips.m_step.noisy_information import Information


def test_of_a_column_that_no_row_has_the_prior_alone_speaks():
    """In coordinates of a pilot, too. Others are as they are without it."""
    rng = np.random.default_rng(0)
    information = np.diag([90.0, 60.0, 0.0, 80.0])
    units = np.linalg.inv(np.linalg.cholesky(information + 30.0 * np.eye(4))).T
    units = units @ np.linalg.qr(rng.normal(size=(4, 4)))[0]
    noise = 0.05
    matrix = units.T @ information @ units + symmetric_noise(rng, 4, noise)
    place, mean = np.array([0.3, -0.5, 2.0, 0.8]), np.zeros(4)
    gradient = units.T @ (5.0 * rng.normal(size=4)) + 0.2 * rng.normal(size=4)

    def posterior(linear: LinearGlobals | None) -> VectorNormal:
        found = normal_of(
            Score(gradient, place, 0.2**2),
            Information(matrix, noise),
            gaussian_prior(mean, np.ones(4)),
            VectorNormal(place, 0.1 * np.eye(4)),
            np.ones(4),
            units,
            linear=linear,
        )
        assert found is not None
        return found.normal

    of_columns = np.array([False, True, True, True])
    known = posterior(LinearGlobals(of_columns, np.ones(4, bool)))
    unknown = posterior(None)
    assert abs(known.loc[2]) < 0.3 < abs(unknown.loc[2])
    assert known.stddev[2] > 0.9
    others = [0, 1, 3]
    np.testing.assert_allclose(known.loc[others], unknown.loc[others], atol=0.05)
    np.testing.assert_allclose(known.stddev[others], unknown.stddev[others], rtol=0.1)


def test_of_a_sum_that_no_row_shows_the_prior_alone_speaks():
    """An intercept less the coefficients of indicators that add up to one."""
    rng = np.random.default_rng(1)
    silent = np.array([1.0, -1.0, -1.0, 0.0])
    root = rng.normal(size=(4, 40))
    root -= np.outer(silent, silent @ root) / 3.0
    information, noise, place = 20.0 * root @ root.T, 10.0, np.array([2.0, 2.0, 2.0, 1])
    gradient = information @ rng.normal(size=4) / 100.0 + 5.0 * rng.normal(size=4)
    pilot, last = (
        Information(information + symmetric_noise(rng, 4, noise), noise)
        for _ in range(2)
    )

    def along(pilot: Information | None, of_predictors: np.ndarray) -> float:
        found = normal_of(
            Score(gradient, place, 5.0**2),
            last,
            gaussian_prior(np.zeros(4), np.ones(4)),
            VectorNormal(place, 0.1 * np.eye(4)),
            np.ones(4),
            linear=LinearGlobals(np.zeros(4, bool), of_predictors),
            pilot=pilot,
        )
        assert found is not None
        return float(silent @ found.normal.loc) / np.sqrt(3.0)

    assert abs(along(None, np.ones(4, bool))) > 0.8
    assert abs(along(pilot, np.ones(4, bool))) < 0.3
    # Of globals that are not added nothing is looked for.
    assert abs(along(pilot, np.zeros(4, bool))) > 0.8
