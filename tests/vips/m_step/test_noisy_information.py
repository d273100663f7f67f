"""What noisy matrices say of the rows' information."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from _symmetric_noise import symmetric_noise
from scipy import integrate, stats

from numpyro_vips.vips.m_step.noisy_information import (
    Information,
    known_precision,
    rows_information,
    share_known,
)


def test_without_noise_information_is_as_released():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(4, 6))
    matrix = root @ root.T
    found = rows_information(Information(matrix, 0.0), np.ones(4), 0.0)
    np.testing.assert_allclose(found.matrix(found.values), matrix, rtol=1e-10)


def prior_density(x: float, least: float, most: float) -> float:
    """Gamma distributions of all shapes and means: one value tells none apart."""
    means = np.geomspace(least, max(most, 1.01 * least), 13)
    shapes = 2.0 ** np.arange(6)[:, None]
    gamma: Any = stats.gamma
    return float(np.mean(gamma.pdf(x, shapes, scale=means / shapes)))


@pytest.mark.parametrize("released", [-3.0, 0.5, 2.0, 8.0])
def test_the_interval_is_that_of_all_that_the_information_may_be(released):
    stddev, prior, variance = 1.5, 0.2, 0.7
    normal: Any = stats.norm

    def density(x: float) -> float:
        """Of information other than zero, and what was released."""
        return prior_density(x, prior, released - stddev) * normal.pdf(
            released, x, stddev
        )

    end, places = released + 8.0 * stddev, [prior, 10.0 * prior]
    something, _ = integrate.quad(density, 0.0, end, points=places, limit=200)
    # With a probability of a tenth beforehand there is no information at all.
    nothing = 0.1 * normal.pdf(released, 0.0, stddev)
    nothing /= nothing + 0.9 * something

    def posterior_variance(value: float) -> float:
        (known,) = known_precision(np.array([value]), variance)
        return 1.0 / (prior + known)

    def expected(of: Callable[[float], float]) -> float:
        """Over what the information may be."""
        found, _ = integrate.quad(
            lambda x: of(x) * density(x), 0.0, end, points=places, limit=200
        )
        return nothing * of(0.0) + (1.0 - nothing) * found / something

    found, squares = (
        rows_information(
            Information(np.array([[released]]), stddev),
            np.array([prior]),
            variance,
            keeps_squares=keeps_squares,
        )
        for keeps_squares in (False, True)
    )
    # How probable it is that the coordinate is in the interval of 90 %.
    half = normal.isf(0.05) * math.sqrt(posterior_variance(found.values[0]))
    inside = expected(lambda x: normal.cdf(half / math.sqrt(posterior_variance(x))))
    assert 2.0 * inside - 1.0 == pytest.approx(0.9, abs=0.002)
    # Where expected squares are asked for, it is the variance.
    assert posterior_variance(squares.values[0]) == pytest.approx(
        expected(posterior_variance), rel=0.01
    )


def test_a_direction_that_may_be_hidden_by_chance_does_not_get_the_prior_s_width():
    """Noise makes seven standard deviations in no fit; the prior is ten thousand times
    as wide as the rows let the coordinate be."""
    found = rows_information(
        Information(np.array([[7.0]]), 1.0), np.array([1e-8]), np.array([0.01])
    )
    assert found.values[0] == pytest.approx(6.0, abs=1.0)


def test_eigenvalues_that_noise_has_driven_apart_are_moved_together():
    rng = np.random.default_rng(1)
    size, stddev = 60, 1.0
    truth = np.diag(np.linspace(15.0, 25.0, size))
    errors, naive = [], []
    for _ in range(5):
        noisy = truth + symmetric_noise(rng, size, stddev)
        found = rows_information(Information(noisy, stddev), np.ones(size), 1.0)
        errors.append(np.linalg.norm(found.matrix(found.values) - truth))
        naive.append(np.linalg.norm(noisy - truth))
    assert np.mean(errors) < 0.8 * np.mean(naive)


def test_a_column_of_zeros_leaves_nearly_its_prior():
    """Beside columns that rows say much of, at any draw of the noise."""
    rng = np.random.default_rng(2)
    truth, stddev, prior = np.diag([2000.0, 1500.0, 0.0]), 20.0, 1.0 / 9.0
    widths = []
    for _ in range(50):
        released = Information(truth + symmetric_noise(rng, 3, stddev), stddev)
        found = rows_information(released, np.full(3, prior), 400.0)
        known = known_precision(found.values, 400.0)
        assert (np.sort(known)[1:] > 500.0).all()
        widths.append(1.0 / math.sqrt(prior + known.min()))
    assert np.median(widths) > 2.0
    assert np.min(widths) > 1.0


def test_what_no_so_few_rows_add_up_to_is_noise():
    """Eight rows, whose sum is half a standard deviation of the noise at most."""
    rng = np.random.default_rng(5)
    stddev, limit, prior, variance = 14.0, 7.0, np.array([0.04, 0.6]), 20.0
    ratios = []
    for _ in range(50):
        released = Information(symmetric_noise(rng, 2, stddev), stddev, limit)
        found = rows_information(released, prior, variance)
        ratios.append(known_precision(found.values, variance) / found.along(prior))
    assert np.median(ratios) < 0.05
    assert np.quantile(ratios, 0.9) < 0.25
    assert np.max(ratios) < 1.5


def test_directions_are_known_above_the_edge_of_the_noise():
    rng = np.random.default_rng(3)
    size, stddev = 50, 1.0
    edge = stddev * math.sqrt(size / 2.0)
    truth = np.zeros(size)
    truth[:2] = 20.0 * edge, 0.1 * edge
    information = Information(np.diag(truth) + symmetric_noise(rng, size, stddev), 1.0)
    found = rows_information(information, np.ones(size), 1.0)
    shares = np.sort(share_known(found, information))
    assert shares[-1] > 0.99
    assert (shares[:-1] < 0.5).all()


def test_noise_in_the_diagonal_alone_drives_no_eigenvalues_apart():
    """Effects of groups that share no row: no product of two has been released."""
    released = np.array([-0.8, 0.1, 1.0, 1.8, 40.0])
    alone = Information(np.diag(released), np.eye(5))
    found = rows_information(alone, np.full(5, 0.05), 0.2)
    # What was found low is not believed to be high.
    assert (np.diff(found.values) > 0).all()
    assert found.values[0] < 0.3
    assert found.values[-1] == pytest.approx(40.0, rel=0.05)


def test_noise_of_one_size_is_one_number():
    rng = np.random.default_rng(2)
    matrix = np.diag([1.0, 5.0, 30.0]) + symmetric_noise(rng, 3, 2.0)
    entries = 2.0 * np.where(np.eye(3) > 0, 1.0, math.sqrt(0.5))
    one, each = Information(matrix, 2.0), Information(matrix, entries)
    expected = rows_information(one, np.ones(3), 1.0)
    found = rows_information(each, np.ones(3), 1.0)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-9)
    np.testing.assert_allclose(
        share_known(found, each), share_known(expected, one), rtol=1e-9
    )
