"""Sums of coefficients of which rows say nothing."""

import numpy as np
import pytest
from _logistic_fits import posterior_draws
from _symmetric_noise import noisy_information

from numpyro_vips.vips.m_step.noisy_information import Information
from numpyro_vips.vips.m_step.unseen_sums import unseen_sums


def silent_basis(size: int) -> np.ndarray:
    """Of an intercept and indicators of all categories, and numbers beside them."""
    found = np.zeros((size, 1))
    found[:4, 0] = [1.0, -1.0, -1.0, -1.0]
    return found / 2.0


def test_sums_of_which_rows_say_nothing_are_found():
    rng = np.random.default_rng(6)
    silent, cosines, others = silent_basis(6), [], 0
    for _ in range(30):
        root = rng.normal(size=(6, 60))
        root -= silent @ (silent.T @ root)
        matrix = root @ root.T
        first, last = (
            noisy_information(matrix, 8.0, rng, factor=factor) for factor in (2.0, 1.0)
        )
        likely = unseen_sums(first, last, np.zeros((6, 0))).likely
        others += max(likely.shape[1] - 1, 0)
        if likely.shape[1]:
            basis = np.linalg.qr(likely)[0]
            cosines.append(np.linalg.norm(basis.T @ silent))
    assert len(cosines) > 20 and min(cosines) > 0.95 and others < 3


def test_noise_does_not_find_any():
    """It moves the least eigenvalue of one release down; the other has its own."""
    rng, found = np.random.default_rng(7), 0
    for _ in range(30):
        root = rng.normal(size=(6, 60))
        first, last = (noisy_information(root @ root.T, 15.0, rng) for _ in range(2))
        found += unseen_sums(first, last, np.zeros((6, 0))).likely.shape[1]
    assert found <= 2


def test_what_is_known_is_not_looked_at():
    """Nor coordinates that no row reads."""
    rng, silent = np.random.default_rng(8), silent_basis(7)
    root = rng.normal(size=(7, 60))
    root -= silent @ (silent.T @ root)
    root[6] = 0.0
    stddev = np.where(np.eye(7) > 0, 8.0, 5.6)
    stddev[6], stddev[:, 6] = 0.0, 0.0
    noisy = (
        noisy_information(matrix, 8.0, rng).matrix
        for matrix in (2.0 * root @ root.T, root @ root.T)
    )
    first, last = (
        Information(np.where(stddev > 0, matrix, 0.0), stddev) for matrix in noisy
    )
    found = unseen_sums(first, last, np.zeros((7, 0)))
    assert found.likely.shape[1] + found.doubtful.shape[1] == 1
    for known in (silent, np.eye(7)):
        found = unseen_sums(first, last, known)
        assert found.likely.shape[1] + found.doubtful.shape[1] == 0


@pytest.mark.thorough
def test_indicators_of_all_categories_leave_a_sum_to_the_prior() -> None:
    """As plain arrays, of which no schema says that they add up to one."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 3, 5000)
    X = np.c_[np.eye(3)[codes], rng.normal(size=5000)].astype(np.float32)
    w, intercepts, differences = np.array([0.8, -0.5, 0.2, 1.0]), [], []
    for draws in posterior_draws(X, 0.3, w, rng, fits=6):
        drawn = np.asarray(draws["w"])
        intercepts.append((np.mean(draws["b"]), np.std(draws["b"])))
        differences.append(drawn[:, 0].mean() - drawn[:, 1].mean())
    means, stddevs = np.asarray(intercepts).T
    # Rows know b + w_k, which are 1.1, -0.2 and 0.5. Given these b is as in the prior.
    precision = 1.0 / 4.0 + 3.0
    assert np.abs(means - (1.1 - 0.2 + 0.5) / precision).mean() < 0.35
    assert stddevs.mean() == pytest.approx(precision**-0.5, rel=0.25)
    assert np.abs(np.asarray(differences) - 1.3).mean() < 0.3
