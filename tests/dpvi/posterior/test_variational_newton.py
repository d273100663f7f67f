"""Newton's method for a Normal posterior, and what is known of it afterwards."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, special, stats

from numpyro_vips.dpvi.posterior.variational_newton import Draws, VectorNormal, ascend
from numpyro_vips.dpvi.posterior.without_noise import fit_normal


def parabola(mean: np.ndarray, precision: np.ndarray) -> Any:
    constant = 0.5 * (np.linalg.slogdet(precision)[1] - len(mean) * math.log(2 * np.pi))

    def target(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        away = points - mean
        gradients = -away @ precision
        return constant + 0.5 * np.sum(away * gradients, axis=1), gradients

    return target


# Standard deviations that differ by ten orders of magnitude, and strong correlations.
SCALE = np.array([1e-4, 1.0, 1e6])
CORRELATION = np.array([[1.0, 0.999, 0.0], [0.999, 1.0, -0.04], [0.0, -0.04, 1.0]])
COVARIANCE = SCALE[:, None] * CORRELATION * SCALE
MEAN = np.array([0.02, -30.0, 8e6])


def last(steps: Any) -> Any:
    *_, found = steps
    return found


def far_start() -> VectorNormal:
    return VectorNormal(np.zeros(3), 0.1 * np.eye(3))


def test_a_normal_is_found_whatever_its_units():
    target = parabola(MEAN, np.linalg.inv(COVARIANCE))
    draws = Draws.of(np.random.default_rng(0), 3, points=16, bases=2)
    found = last(ascend(target, far_start(), draws))
    assert found.is_still
    sd = np.sqrt(np.diag(COVARIANCE))
    np.testing.assert_allclose((found.normal.loc - MEAN) / sd, 0.0, atol=0.1)
    covariance = found.normal.tril @ found.normal.tril.T
    np.testing.assert_allclose(
        covariance / np.outer(sd, sd), CORRELATION, atol=0.06, rtol=0.0
    )
    # A normalised density has evidence one.
    assert abs(found.elbo) < 0.01


def test_independent_coordinates_have_the_precisions_of_the_conditionals():
    precision = np.linalg.inv(COVARIANCE)
    draws = Draws.of(np.random.default_rng(0), 3, points=16, bases=2)
    steps = ascend(parabola(MEAN, precision), far_start(), draws, diagonal=True)
    found = last(steps).normal
    assert np.count_nonzero(found.tril - np.diag(np.diag(found.tril))) == 0
    conditional = 1.0 / np.sqrt(np.diag(precision))
    np.testing.assert_allclose(np.diag(found.tril), conditional, rtol=0.06)
    np.testing.assert_allclose((found.loc - MEAN) / conditional, 0.0, atol=0.1)


def log_gamma_density(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The logarithm of a Gamma(3, 1): skewed, with a maximum that is not its mean."""
    rates = np.exp(points)
    values = np.sum(3.0 * points - rates - special.gammaln(3.0), axis=1)
    return values, 3.0 - rates


def test_the_normal_is_the_best_one_of_a_skewed_density():
    fit = last(
        fit_normal(
            log_gamma_density,
            [VectorNormal(np.array([5.0]), np.array([[0.1]]))],
            np.random.default_rng(0),
        )
    )
    # E[1 exp(z)] = 3 and E[exp(z)] = precision, so exp(m + s²/2) = 3 = 1/s².
    s2 = 1.0 / 3.0
    assert abs(fit.normal.tril[0, 0] - math.sqrt(s2)) < 0.05 * math.sqrt(s2)
    assert abs(fit.normal.loc[0] - (math.log(3.0) - s2 / 2)) < 0.05
    assert fit.diagnostics is not None
    assert fit.diagnostics["converged"]
    q: Any = stats.norm(fit.normal.loc[0], fit.normal.tril[0, 0])
    expected, _ = integrate.quad(
        lambda z: q.pdf(z) * (log_gamma_density(np.array([[z]]))[0][0] - q.logpdf(z)),
        *(-8.0, 8.0),
    )
    error = fit.diagnostics["elbo_standard_error"]
    assert abs(fit.diagnostics["elbo"] - expected) < 4 * error


def test_a_density_without_an_end_does_not_count_as_converged():
    def slope(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.sum(points, axis=1), np.ones_like(points)

    start = VectorNormal(np.zeros(2), np.eye(2))
    fit = last(fit_normal(slope, [start], np.random.default_rng(0)))
    assert fit.diagnostics is not None
    assert not fit.diagnostics["converged"]
    assert "not converged" in fit.diagnostics["warnings"][0]


@pytest.mark.thorough
def test_tails_that_a_normal_misses_are_reported():
    def cauchy(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = stats.cauchy.logpdf(points).sum(1)
        return values, -2.0 * points / (1.0 + points**2)

    start = VectorNormal(np.zeros(20), np.eye(20))
    fit = last(fit_normal(cauchy, [start], np.random.default_rng(0)))
    assert fit.diagnostics is not None
    assert fit.diagnostics["pareto_k"] > 0.7
    assert "Pareto" in fit.diagnostics["warnings"][-1]


def test_the_better_of_two_starts_is_taken():
    def two_peaks(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        log = np.stack(
            [
                math.log(weight) + stats.norm.logpdf(points[:, 0], loc, 1.0)
                for weight, loc in ((0.1, -10.0), (0.9, 10.0))
            ]
        )
        share = special.softmax(log, axis=0)
        slopes = share[0] * (-10.0 - points[:, 0]) + share[1] * (10.0 - points[:, 0])
        return special.logsumexp(log, axis=0), slopes[:, None]

    starts = [VectorNormal(np.array([loc]), 0.1 * np.eye(1)) for loc in (-9.0, 9.0)]
    fit = last(fit_normal(two_peaks, starts, np.random.default_rng(0)))
    assert abs(fit.normal.loc[0] - 10.0) < 0.1


def test_normals_are_turned_and_mixed():
    rng = np.random.default_rng(3)
    one, other = (
        VectorNormal(rng.normal(size=3), np.linalg.cholesky(root @ root.T))
        for root in rng.normal(size=(2, 3, 5))
    )

    def covariance(of: VectorNormal) -> np.ndarray:
        return of.tril @ of.tril.T

    matrix = rng.normal(size=(3, 3))
    turned = one.moved(matrix)
    np.testing.assert_allclose(turned.loc, matrix @ one.loc)
    np.testing.assert_allclose(covariance(turned), matrix @ covariance(one) @ matrix.T)
    assert np.all(np.diag(turned.tril) > 0)
    draws = np.concatenate(
        [of.at(rng.normal(size=(n, 3))) for of, n in ((one, 700_000), (other, 300_000))]
    )
    mixed = one.mixed(other, 0.3)
    np.testing.assert_allclose(mixed.loc, draws.mean(0), atol=0.02)
    np.testing.assert_allclose(covariance(mixed), np.cov(draws.T), atol=0.1)
