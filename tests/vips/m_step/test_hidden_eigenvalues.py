"""What eigenvalues may be that were found with noise."""

import numpy as np
import pytest

from numpyro_vips.vips.m_step.hidden_eigenvalues import (
    hidden_eigenvalues,
    moved_together,
)


def test_probabilities_add_up_to_one():
    rng = np.random.default_rng(0)
    hidden = hidden_eigenvalues(3.0 + rng.normal(size=6), np.ones(6), least=0.1)
    assert (hidden.weights >= 0).all()
    total = hidden.weights.sum(1) + hidden.nothing
    np.testing.assert_allclose(total, 1.0, rtol=1e-12)
    assert (np.diff(hidden.values, axis=1) >= 0).all()


def test_what_noise_hides_is_like_the_others_if_these_are_alike():
    """The value of the first is next to zero in both, with noise of half of a mean."""
    alike = np.array([0.1, 1.0, 1.05, 0.95, 1.1, 0.9, 1.0, 1.0])
    apart = np.array([0.1, 0.2, 8.0, 0.05, 3.0, 0.3, 0.1, 20.0])
    stddev = np.array([0.5] + [0.05] * 7)
    of_alike, of_apart = (
        hidden_eigenvalues(found, stddev, least=0.01) for found in (alike, apart)
    )
    assert of_alike.mean[0] > 2.0 * of_apart.mean[0]
    # Though it may be zero.
    assert 0.05 < of_alike.nothing[0] < 0.6


def test_it_is_calibrated():
    """Where eigenvalues have such a distribution, each is below the median of what it
    may be half of the time; about, as means are bounded with caution."""
    rng = np.random.default_rng(1)
    below = []
    for _ in range(150):
        truth = np.where(rng.random(10) < 0.1, 0.0, rng.gamma(4.0, 0.5, size=10))
        stddev = rng.uniform(0.1, 1.0, size=10)
        hidden = hidden_eigenvalues(
            truth + stddev * rng.normal(size=10), stddev, least=0.01
        )
        below_truth = np.where(hidden.values <= truth[:, None], hidden.weights, 0.0)
        # Where the truth is zero, anywhere in the step of the distribution function.
        part = np.where(truth > 0, 1.0, rng.random(10))
        below.append(part * hidden.nothing + (truth > 0) * below_truth.sum(1))
    found = np.concatenate(below)
    for level in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert np.mean(found < level) == pytest.approx(level, abs=0.12)


def test_without_noise_they_are_known():
    found, stddev = np.array([-1.0, 0.0, 2.0, 3.0]), np.array([0.0, 0.0, 0.0, 1.0])
    hidden = hidden_eigenvalues(found, stddev, least=0.1)
    np.testing.assert_allclose(hidden.mean[:3], [0.0, 0.0, 2.0], rtol=1e-12)
    np.testing.assert_array_equal(hidden.nothing[:3], 0.0)
    assert 0.0 < hidden.nothing[3] < 0.1
    known = hidden_eigenvalues(found, np.zeros(4), least=0.1)
    np.testing.assert_allclose(known.mean, [0.0, 0.0, 2.0, 3.0])


def test_rounding_is_no_noise():
    """As of coordinates that no row reads, along axes that are not quite theirs."""
    found, stddev = np.array([1e-17, 2.0, 3.0]), np.array([1e-170, 1.0, 1.0])
    with np.errstate(all="raise", under="ignore"):
        hidden = hidden_eigenvalues(found, stddev, least=0.1)
    assert np.isfinite(hidden.weights).all()
    assert hidden.mean[0] < 1e-16
    assert (hidden.mean[1:] > 1.0).all()


def test_their_mean_is_no_more_than_rows_can_add_up_to():
    found, stddev = np.full(4, 10.0), np.full(4, 20.0)
    bounded = hidden_eigenvalues(found, stddev, least=0.01, most=1.0)
    assert (bounded.mean < 2.0).all()


def test_noise_alone_is_moved_together():
    """Of a multiple of the identity no eigenvalue is larger than another."""
    rng = np.random.default_rng(2)
    size, stddev = 40, 0.5
    noise = rng.normal(size=(size, size)) * stddev / 2.0
    found = np.linalg.eigvalsh(10.0 * np.eye(size) + noise + noise.T)
    between = np.full((size, size), 0.5 * stddev**2)
    moved = moved_together(found, between)
    assert np.std(moved) < 0.35 * np.std(found)
    assert np.mean(moved) == pytest.approx(np.mean(found))
