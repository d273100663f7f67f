"""The Normal posterior of released scores and information, by itself."""

import numpy as np
import pytest
from _gaussian_prior import gaussian_prior
from _symmetric_noise import symmetric_noise

from numpyro_vips.dpvi.posterior.score_likelihood import (
    Score,
    before_clipping,
    normal_of,
)
from numpyro_vips.dpvi.posterior.variational_newton import VectorNormal
from numpyro_vips.vips.m_step.noisy_information import (
    Information,
    rows_information,
    share_known,
)


def test_a_gaussian_prior_gives_the_closed_form():
    rng = np.random.default_rng(2)
    root = rng.normal(size=(3, 5))
    matrix, variance = 4.0 * root @ root.T, 2.5
    mean, stddev = np.array([0.5, -1.0, 0.0, 2.0]), np.array([1.0, 0.5, 2.0, 0.7])
    score = Score(
        gradient=rng.normal(size=3), place=rng.normal(size=4), variance=variance
    )
    found = normal_of(
        score,
        Information(matrix, 0.0),
        gaussian_prior(mean, stddev),
        VectorNormal(np.zeros(4), 0.1 * np.eye(4)),
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


def test_clipped_scores_say_what_is_left_of_them():
    """ḡ = S (θ − z̄) + N(0, κ S + V), and the prior of θ, by Gaussian elimination."""
    rng = np.random.default_rng(5)
    root = rng.normal(size=(3, 6))
    slope, variance, stddev = root @ root.T, 3.0, np.array([1.0, 2.0, 0.5])
    gradient, place, ratio = rng.normal(size=3), rng.normal(size=3), 0.55
    score, information = before_clipping(
        Score(gradient, place, variance), Information(slope, 0.0, 9.0), ratio
    )
    start = VectorNormal(np.zeros(3), 0.1 * np.eye(3))
    prior = gaussian_prior(np.zeros(3), stddev)
    found = normal_of(score, information, prior, start, stddev)
    assert found is not None
    of_noise = np.linalg.inv(ratio * slope + variance * np.eye(3))
    precision = np.diag(stddev**-2.0) + slope @ of_noise @ slope
    linear = slope @ of_noise @ (gradient + slope @ place)
    np.testing.assert_allclose(
        found.normal.loc, np.linalg.solve(precision, linear), atol=1e-3
    )
    covariance = found.normal.tril @ found.normal.tril.T
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=2e-3)
    without_noise = np.diag(stddev**-2.0) + slope / ratio
    data_variance = np.diag(np.linalg.inv(without_noise))
    np.testing.assert_allclose(found.data_stddev**2, data_variance, rtol=1e-2)
    # Where all is kept nothing changes, and the limit is in the matrix's units.
    same, all_of_it = before_clipping(score, information, 1.0)
    np.testing.assert_array_equal(same.gradient, score.gradient)
    np.testing.assert_array_equal(all_of_it.matrix, information.matrix)
    assert information.limit == pytest.approx(9.0 / ratio)


@pytest.mark.thorough
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
            Score(gradient, place, noise**2),
            Information(released, noise / 10.0),
            gaussian_prior(np.zeros(size), stddev),
            VectorNormal(np.zeros(size), 0.1 * np.eye(size)),
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
        Score(100.0 * rng.normal(size=5), np.zeros(5), 1e6),
        Information(symmetric_noise(rng, 5, 1e3), 1e3),
        gaussian_prior(np.zeros(5), stddev),
        VectorNormal(np.zeros(5), 0.1 * np.eye(5)),
        stddev,
    )
    assert found is not None
    assert (found.normal.stddev > 0.5).all()


def test_a_prior_that_is_not_finite_gives_no_posterior():
    def nowhere(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(points), -np.inf), np.zeros_like(points)

    found = normal_of(
        Score(np.zeros(2), np.zeros(2), 1.0),
        Information(np.eye(2), 0.0),
        nowhere,
        VectorNormal(np.zeros(2), np.eye(2)),
        np.ones(2),
    )
    assert found is None


def test_directions_hidden_by_noise_stay_where_the_iterates_are():
    """A matrix taken for too small must not lead away from where scores have led."""
    rng = np.random.default_rng(5)
    size, noise = 40, 10.0
    strong = np.zeros(size)
    strong[0] = 1e4
    released = np.diag(strong) + symmetric_noise(rng, size, noise)
    iterates, place = rng.normal(size=size), rng.normal(size=size)
    found = normal_of(
        Score(30.0 * rng.normal(size=size), place, 25.0),
        Information(released, noise),
        gaussian_prior(np.zeros(size), np.ones(size)),
        VectorNormal(iterates, 0.1 * np.eye(size)),
        np.ones(size),
    )
    assert found is not None
    shares = share_known(
        rows_information(Information(released, noise), np.ones(size), 25.0),
        Information(released, noise),
    )
    assert (np.sort(shares)[:-1] < 0.3).all()
    assert shares.max() > 0.99
    moved = found.normal.loc - iterates
    assert np.linalg.norm(moved[1:]) < 0.3 * np.linalg.norm(iterates[1:])
    # The strong direction is solved for: the score's place counts, not the iterates'.
    assert found.normal.loc[0] == pytest.approx(place[0], abs=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("limit", "least", "most"), [(20.0, 0.0, 0.1), (1e6, 0.9, 1.0)]
)
def test_iterates_count_if_so_many_rows_can_have_led_them(limit, least, most):
    """With few rows the posterior is the prior, wherever noise has led."""
    rng = np.random.default_rng(6)
    size, noise = 5, 500.0
    iterates = 3.0 * rng.normal(size=size)
    found = normal_of(
        Score(50.0 * rng.normal(size=size), iterates, 2500.0),
        Information(symmetric_noise(rng, size, noise), noise, limit),
        gaussian_prior(np.zeros(size), np.ones(size)),
        VectorNormal(iterates, 0.1 * np.eye(size)),
        np.ones(size),
    )
    assert found is not None
    kept = np.linalg.norm(found.normal.loc) / np.linalg.norm(iterates)
    assert least <= kept <= most
    assert (found.normal.stddev > 0.5).all()


def test_without_noise_in_the_matrix_coordinates_make_no_difference():
    """Scores and information in u, with globals U u, say the same of the globals."""
    rng = np.random.default_rng(7)
    root = rng.normal(size=(3, 6))
    matrix, stddev = root @ root.T, np.array([1.0, 2.0, 0.5, 3.0])
    gradient, place = rng.normal(size=3), rng.normal(size=4)
    mean = np.array([0.2, -0.4, 0.1, 1.0])
    start = VectorNormal(rng.normal(size=4), 0.1 * np.eye(4))
    units = np.eye(4)
    units[:3, :3] = np.array([[0.5, 0.1, 0.0], [0.1, 0.2, 0.0], [0.0, 0.0, 2.0]])
    within = units[:3, :3]
    found = [
        normal_of(
            Score(by.T @ gradient, place, 0.0),
            Information(by.T @ matrix @ by, 0.0),
            gaussian_prior(mean, stddev),
            start,
            stddev,
            of_all,
        )
        for by, of_all in ((np.eye(3), None), (within, units))
    ]
    assert found[0] is not None and found[1] is not None
    own, other = found[0].normal, found[1].normal
    np.testing.assert_allclose(other.loc, own.loc, atol=1e-3)
    np.testing.assert_allclose(
        other.tril @ other.tril.T, own.tril @ own.tril.T, rtol=1e-2, atol=1e-3
    )
    assert np.all(np.diag(other.tril) > 0)
    np.testing.assert_allclose(found[1].data_stddev, found[0].data_stddev, rtol=1e-2)
