"""The Normal posterior of released scores and information, by itself."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _symmetric_noise import symmetric_noise

from numpyro_vips.dpvi.noise_aware import RunningScore
from numpyro_vips.dpvi.score_likelihood import Score, normal_of
from numpyro_vips.dpvi.score_trail import ScoreTrail
from numpyro_vips.dpvi.variational_newton import VectorNormal
from numpyro_vips.vips.noisy_information import (
    Information,
    rows_information,
    share_known,
)


def silent(size: int) -> ScoreTrail:
    """A trail that says nothing of the information: its scores are hidden by noise."""
    matrix = np.zeros((size, size))
    return ScoreTrail(np.float64(1e-12), np.zeros(size), np.zeros(size), matrix, matrix)


def ascent(
    rng: np.random.Generator,
    matrix: np.ndarray,
    rows_mode: np.ndarray,
    noise: float,
    *,
    rate: float,
    num_steps: int = 200,
) -> tuple[Score, np.ndarray]:
    """Noisy gradient steps from a standard normal prior's mean; released and average.

    The scores are those of rows with information `matrix` whose mode is `rows_mode`.
    """
    size = len(matrix)
    place, average = np.zeros(size), np.zeros(size)
    gradients, places = np.zeros((2, num_steps, size))
    for step in range(num_steps):
        places[step] = place
        gradients[step] = matrix @ (rows_mode - place) + noise * rng.normal(size=size)
        place = place + rate * (gradients[step] - place)
        average += 3.0 / (3.0 + step) * (place - average)
    with jax.enable_x64(True):
        running = jax.tree.map(np.asarray, released(gradients, places, noise**2))
    variance = float(running.variance)
    return Score(running.gradient, running.place, variance, running.trail), average


@jax.jit
def released(gradients: Any, places: Any, variance: Any) -> RunningScore:
    """What a fit carries on of the scores of all its steps."""
    size = places.shape[1]
    zero = jnp.zeros(size)
    first = RunningScore(zero, zero, jnp.zeros(()), ScoreTrail.empty(size, zero.dtype))

    def add(running: RunningScore, step: Any) -> tuple[RunningScore, None]:
        number, gradient, place = step
        return running.after(number, gradient, place, variance), None

    numbers = 1.0 + jnp.arange(len(places))
    return jax.lax.scan(add, first, (numbers, gradients, places))[0]


def gaussian_prior(mean: np.ndarray, stddev: np.ndarray):
    def log_prior(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        away = (points - mean) / stddev
        return -0.5 * np.sum(away**2, axis=1), -away / stddev

    return log_prior


def test_a_gaussian_prior_gives_the_closed_form():
    rng = np.random.default_rng(2)
    root = rng.normal(size=(3, 5))
    matrix, variance = 4.0 * root @ root.T, 2.5
    mean, stddev = np.array([0.5, -1.0, 0.0, 2.0]), np.array([1.0, 0.5, 2.0, 0.7])
    score = Score(
        gradient=rng.normal(size=3),
        place=rng.normal(size=4),
        variance=variance,
        trail=silent(3),
    )
    found = normal_of(
        score,
        Information(matrix, 0.0),
        gaussian_prior(mean, stddev),
        VectorNormal(np.zeros(4), 0.1 * np.eye(4)),
        mean,
        stddev,
    )
    assert found is not None
    normal = found.normal
    precision = np.diag(stddev**-2.0)
    weight = matrix @ np.linalg.inv(matrix + variance * np.eye(3))
    precision[:3, :3] += weight @ matrix
    linear = mean / stddev**2
    linear[:3] += weight @ (score.gradient + matrix @ score.place[:3])
    np.testing.assert_allclose(
        normal.loc, np.linalg.solve(precision, linear), atol=1e-3
    )
    without_noise = np.diag(stddev**-2.0)
    without_noise[:3, :3] += matrix
    data_variance = np.diag(np.linalg.inv(without_noise))
    np.testing.assert_allclose(found.data_stddev**2, data_variance, rtol=1e-2)
    np.testing.assert_allclose(
        normal.tril @ normal.tril.T, np.linalg.inv(precision), rtol=1e-3, atol=1e-5
    )


@pytest.mark.parametrize("noise", [0.0, 3.0, 30.0])
def test_intervals_hold_the_truth_as_often_as_they_say(noise):
    """Truth from the prior; rows and noise as the module's formula has them."""
    rng = np.random.default_rng(3)
    size, stddev = 3, np.full(3, 1.5)
    root = rng.normal(size=(size, 20))
    matrix = root @ root.T
    hits = []
    for _ in range(150):
        truth, place = stddev * rng.normal(size=size), rng.normal(size=size)
        rows = np.linalg.cholesky(matrix) @ rng.normal(size=size)
        gradient = matrix @ (truth - place) + rows + noise * rng.normal(size=size)
        released = matrix + symmetric_noise(rng, size, noise / 10.0)
        found = normal_of(
            Score(gradient, place, noise**2, silent(size)),
            Information(released, noise / 10.0),
            gaussian_prior(np.zeros(size), stddev),
            VectorNormal(np.zeros(size), 0.1 * np.eye(size)),
            np.zeros(size),
            stddev,
        )
        assert found is not None
        normal = found.normal
        hits.append(abs(normal.loc - truth) < 1.645 * normal.stddev)
    assert np.mean(hits) == pytest.approx(0.9, abs=0.04)


def test_information_below_its_noise_leaves_the_prior():
    rng = np.random.default_rng(4)
    stddev = np.ones(5)
    found = normal_of(
        Score(100.0 * rng.normal(size=5), np.zeros(5), 1e6, silent(5)),
        Information(symmetric_noise(rng, 5, 1e3), 1e3),
        gaussian_prior(np.zeros(5), stddev),
        VectorNormal(np.zeros(5), 0.1 * np.eye(5)),
        np.zeros(5),
        stddev,
    )
    assert found is not None
    assert (found.normal.stddev > 0.5).all()


def test_a_prior_that_is_not_finite_gives_no_posterior():
    def nowhere(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(points), -np.inf), np.zeros_like(points)

    found = normal_of(
        Score(np.zeros(2), np.zeros(2), 1.0, silent(2)),
        Information(np.eye(2), 0.0),
        nowhere,
        VectorNormal(np.zeros(2), np.eye(2)),
        np.zeros(2),
        np.ones(2),
    )
    assert found is None


def test_directions_hidden_by_noise_stay_where_rows_have_led():
    """A matrix taken for too small must not lead away from where scores have led."""
    rng = np.random.default_rng(5)
    size, noise = 40, 100.0
    matrix = np.diag([1e4, *np.full(size - 1, 50.0)])
    truth = rng.normal(size=size)
    score, iterate = ascent(rng, matrix, truth, 20.0, rate=1e-4, num_steps=600)
    information = Information(matrix + symmetric_noise(rng, size, noise), noise)
    found = normal_of(
        score,
        information,
        gaussian_prior(np.zeros(size), np.ones(size)),
        VectorNormal(iterate, 0.1 * np.eye(size)),
        np.zeros(size),
        np.ones(size),
    )
    assert found is not None
    shares = share_known(
        rows_information(information, np.ones(size), score.variance), information
    )
    assert (np.sort(shares)[:-1] < 0.3).all()
    assert shares.max() > 0.99
    moved = found.normal.loc - iterate
    assert np.linalg.norm(moved[1:]) < 0.3 * np.linalg.norm(iterate[1:])
    # The strong direction is solved for.
    assert found.normal.loc[0] == pytest.approx(truth[0], abs=0.05)


@pytest.mark.parametrize("information", [0.0, 0.2, 60.0])
def test_iterates_count_as_far_as_rows_have_led_them(information: float):
    """With noise alone the posterior is the prior, wherever noise has led."""
    rng = np.random.default_rng(6)
    size, noise = 4, 100.0
    errors, widths, astray = [], [], []
    for _ in range(60):
        truth = rng.normal(size=size)
        matrix = information * np.eye(size)
        mode = truth
        if information:
            mode = truth + rng.normal(size=size) / np.sqrt(information)
        score, iterate = ascent(rng, matrix, mode, noise, rate=2e-3)
        # So much noise that its release says nothing of the information.
        stddev = 600.0
        found = normal_of(
            score,
            Information(matrix + symmetric_noise(rng, size, stddev), stddev),
            gaussian_prior(np.zeros(size), np.ones(size)),
            VectorNormal(iterate, 0.1 * np.eye(size)),
            np.zeros(size),
            np.ones(size),
        )
        assert found is not None
        errors.append(found.normal.loc - truth)
        widths.append(found.normal.stddev)
        astray.append(iterate - truth)
    error, covered = np.array(errors), np.abs(errors) < 1.645 * np.array(widths)
    assert np.sqrt(np.mean(error**2)) < 1.25
    assert np.mean(covered) > 0.8
    # Without information iterates are worse than the prior's mean, and with much of it
    # next to nothing is taken off them.
    ratio = np.sqrt(np.mean(error**2) / np.mean(np.square(astray)))
    assert ratio < (0.6 if information < 1.0 else 1.5)
