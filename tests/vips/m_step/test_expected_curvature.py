"""The curvature to expect of logistic likelihoods, against sums over rows."""

import numpy as np
import pytest
from scipy import special

from numpyro_vips.vips.m_step.expected_curvature import expected_curvatures

ROWS = 40_000


def exact(X: np.ndarray, place: np.ndarray) -> np.ndarray:
    share = special.expit(X @ place)
    return (X * (share * (1.0 - share))[:, None]).T @ X


def noise(size: int, stddev: float, rng: np.random.Generator) -> np.ndarray:
    """Symmetric, with this standard deviation on the diagonal, and less beside it."""
    upper = np.triu(rng.normal(size=(size, size)), 1) / np.sqrt(2.0)
    return stddev * (upper + upper.T + np.diag(rng.normal(size=size)))


def stddevs(size: int, stddev: float) -> np.ndarray:
    return stddev * np.where(np.eye(size) > 0, 1.0, np.sqrt(0.5))


def expected(
    X: np.ndarray,
    place: np.ndarray,
    *,
    stddev: float = 0.0,
    constant: tuple[int, ...] = (),
    trials: int = 1,
    seed: int = 0,
) -> np.ndarray:
    size, rng = len(place), np.random.default_rng(seed)
    first = trials * exact(X, np.zeros(size)) + noise(size, stddev, rng)
    return expected_curvatures(
        first, stddevs(size, stddev), place, constant=constant, num_rows=len(X)
    )


def correlated(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.normal(size=(ROWS, size)) @ rng.normal(size=(size, size))


def assert_close(found: np.ndarray, truth: np.ndarray) -> None:
    size = np.sqrt(np.diag(truth))
    units = np.outer(size, size)
    np.testing.assert_allclose(found / units, truth / units, atol=0.05)


@pytest.mark.parametrize("intercept", [None, 0.0, -4.0])
def test_of_gaussian_features_it_is_what_it_is(intercept):
    rng = np.random.default_rng(0)
    X, place, constant = correlated(rng, 4), rng.normal(size=4), ()
    if intercept is not None:
        X = np.hstack([np.ones((ROWS, 1)), X + np.array([1.0, 0.0, -1.0, 0.0])])
        place, constant = np.array([intercept, *place]), (0,)
    assert_close(expected(X, place, constant=constant), exact(X, place))


def test_at_zero_it_is_what_was_released():
    X, place = correlated(np.random.default_rng(1), 3), np.zeros(3)
    np.testing.assert_allclose(expected(X, place), exact(X, place), rtol=1e-6)


def test_an_intercept_shows_several_trials_in_a_row():
    rng = np.random.default_rng(2)
    X = np.hstack([np.ones((ROWS, 1)), rng.normal(size=(ROWS, 2))])
    place = np.array([0.5, 1.0, -2.0])
    found = expected(X, place, constant=(0,), trials=20)
    assert_close(found, 20.0 * exact(X, place))


def test_a_direction_with_less_is_found_under_noise():
    """The release there has noise of three times the curvature along m."""
    rng = np.random.default_rng(3)
    X, place = rng.normal(size=(ROWS, 20)), rng.normal(size=20)
    u = place / np.linalg.norm(place)
    truth = exact(X, place)
    stddev = 3.0 * float(u @ truth @ u)
    for seed in range(5):
        found = expected(X, place, stddev=stddev, seed=seed)
        values, axes = np.linalg.eigh(found)
        assert abs(axes[:, 0] @ u) > 0.9
        assert values[0] < 0.5 * np.median(values)


def test_of_noise_alone_all_directions_are_alike():
    rng = np.random.default_rng(4)
    sizes = []
    for _ in range(20):
        first = 10.0 * np.eye(12) + noise(12, 100.0, rng)
        found = expected_curvatures(
            first, stddevs(12, 100.0), np.zeros(12), constant=(), num_rows=100
        )
        values = np.linalg.eigvalsh(found)
        sizes.append(np.ptp(values))
    # Those of the noise alone are 570 apart.
    assert np.median(sizes) < 120.0


def test_vectors_of_a_batch_are_by_themselves():
    rng = np.random.default_rng(5)
    X, places = correlated(rng, 3), rng.normal(size=(2, 3))
    first = np.stack([exact(X, np.zeros(3)) + noise(3, 50.0, rng) for _ in places])
    stddev = np.stack([stddevs(3, 50.0)] * 2)
    both = expected_curvatures(first, stddev, places, constant=(), num_rows=ROWS)
    for index, place in enumerate(places):
        alone = expected_curvatures(
            first[index], stddev[index], place, constant=(), num_rows=ROWS
        )
        np.testing.assert_array_equal(both[index], alone)


def test_coordinates_that_no_row_reads_have_none():
    X = np.hstack(
        [np.zeros((ROWS, 1)), np.random.default_rng(6).normal(size=(ROWS, 2))]
    )
    place, stddev = np.array([3.0, 1.0, -1.0]), stddevs(3, 10.0)
    stddev[0] = stddev[:, 0] = 0.0
    found = expected_curvatures(
        exact(X, np.zeros(3)), stddev, place, constant=(), num_rows=ROWS
    )
    assert not np.any(found[0]) and not np.any(found[:, 0])
    assert_close(found[1:, 1:], exact(X[:, 1:], place[1:]))
