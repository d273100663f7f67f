"""The posterior of factors that take Newton steps, by itself."""

import math

import numpy as np
import pytest

from numpyro_vips.vips.m_step.newton_posterior import (
    all_under_noise,
    natural_under_noise,
)
from numpyro_vips.vips.steps.newton_steps import NewtonTarget


def target_of(
    curvature: np.ndarray,
    *,
    residual: np.ndarray,
    stddev: float | np.ndarray,
    curvature_stddev: float,
    prior: np.ndarray,
) -> NewtonTarget:
    size = len(residual)
    noise = np.where(np.eye(size) > 0, 1.0, np.sqrt(0.5)) * curvature_stddev
    return NewtonTarget(
        mean=np.zeros(size),
        covariance=np.eye(size),
        residual=residual,
        noise_stddev=np.broadcast_to(np.asarray(stddev, float), (size,)),
        curvature=curvature,
        curvature_noise=noise,
        prior_linear=np.zeros(size),
        prior_precision=prior,
    )


def test_a_known_matrix_gives_the_closed_form():
    """Residuals R about m say w = m + I⁻¹R, with the variance I⁻¹(I + V)I⁻¹."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 6))
    curvature, centre = 50.0 * root @ root.T, rng.normal(size=3)
    residual, variance = 10.0 * rng.normal(size=3), np.array([4.0, 9.0, 100.0])
    target = target_of(
        curvature,
        residual=residual,
        stddev=np.sqrt(variance),
        curvature_stddev=1e-9,
        prior=np.eye(3),
    )
    for knows_noise in (True, False):
        found = natural_under_noise(target, centre, knows_noise=knows_noise)
        noise = np.diag(variance) if knows_noise else np.zeros((3, 3))
        likely = curvature @ np.linalg.solve(curvature + noise, curvature)
        precision = likely + np.eye(3)
        np.testing.assert_allclose(-2.0 * found["xx"], precision, rtol=1e-6)
        expected = np.linalg.solve(
            precision, likely @ (centre + np.linalg.solve(curvature, residual))
        )
        mean = np.linalg.solve(precision, found["x"])
        np.testing.assert_allclose(mean, expected, rtol=1e-6)


def test_a_hidden_matrix_leaves_the_mean_where_residuals_have_led():
    rng = np.random.default_rng(1)
    centre = rng.normal(size=8)
    noise = rng.normal(size=(8, 8))
    target = target_of(
        noise + noise.T,
        residual=20.0 * rng.normal(size=8),
        stddev=5.0,
        curvature_stddev=2.0**1.5,
        prior=0.1 * np.eye(8),
    )
    found = natural_under_noise(target, centre, knows_noise=True)
    covariance = np.linalg.inv(-2.0 * found["xx"])
    assert (np.sqrt(np.diag(covariance)) > 1.0).all()
    moved = covariance @ found["x"] - centre
    assert (abs(moved) < np.sqrt(np.diag(covariance))).all()


def test_what_was_released_elsewhere_is_taken_to_the_place_of_the_posterior():
    """It is off from what was expected there by a factor, as it is here then."""
    rng = np.random.default_rng(5)
    here, there = (root @ root.T for root in rng.normal(size=(2, 3, 6)))
    target = target_of(
        40.0 * there,
        residual=np.zeros(3),
        stddev=1e-6,
        curvature_stddev=1e-6,
        prior=np.eye(3),
    )._replace(expected=here, expected_there=there)
    found = natural_under_noise(target, np.zeros(3), knows_noise=True)
    np.testing.assert_allclose(
        -2.0 * found["xx"], 40.0 * here + np.eye(3), rtol=1e-6, atol=1e-6
    )


def test_noise_does_not_hide_that_a_direction_has_less():
    """Otherwise its eigenvalue may be read as nearly that of all others."""
    size, noise, variance = 20, 8.0, 100.0
    truth = np.diag([4.0] + [40.0] * (size - 1))
    known = 4.0**2 / (4.0 + variance)
    most = []
    for expected in (None, truth):
        rng, found = np.random.default_rng(6), []
        for _ in range(20):
            draw = noise * rng.normal(size=(size, size)) / 2.0
            target = target_of(
                truth + draw + draw.T,
                residual=np.zeros(size),
                stddev=np.sqrt(variance),
                curvature_stddev=noise,
                prior=0.01 * np.eye(size),
            )._replace(expected=expected, expected_there=expected)
            natural = natural_under_noise(target, np.zeros(size), knows_noise=True)
            found.append(1.0 / np.linalg.inv(-2.0 * natural["xx"])[0, 0])
        most.append(np.quantile(found, 0.9))
    assert most[0] > 10.0 * known
    assert most[1] < known


def test_where_rows_cannot_have_led_the_posterior_is_the_prior():
    """Where residuals have led by noise alone, the mean of the places is noise too."""
    rng = np.random.default_rng(2)
    centre = 5.0 * rng.normal(size=(2, 8))
    noise = rng.normal(size=(2, 8, 8))
    one, other = (
        target_of(
            matrix + matrix.T,
            residual=20.0 * rng.normal(size=8),
            stddev=20.0,
            curvature_stddev=2.0**1.5,
            prior=np.eye(8),
        )
        for matrix in noise
    )
    both = NewtonTarget(
        *(np.stack(fields) for fields in zip(one[:8], other[:8], strict=True))
    )

    def means(limit: float) -> np.ndarray:
        found = natural_under_noise(both, centre, knows_noise=True, limit=limit)
        return np.linalg.solve(-2.0 * found["xx"], found["x"][..., None])[..., 0]

    # Twenty rows, whose information is at most a tenth of the noise each.
    assert abs(means(2.0)).max() < 0.5
    # Any number of rows.
    assert abs(means(math.inf) - centre).max() < abs(means(2.0) - centre).max()
    # The limit is one of both vectors together.
    alone = natural_under_noise(one, centre[0], knows_noise=True, limit=1.0)
    together = natural_under_noise(both, centre, knows_noise=True, limit=2.0)
    np.testing.assert_array_equal(together["x"][0], alone["x"])


def test_what_rows_know_through_the_prior_alone_has_no_information_of_its_own():
    """The mean of an effect: the second coordinate, which no residual is about."""
    prior = np.array([[1.0, -1.0], [-1.0, 1.5]])
    target = NewtonTarget(
        mean=np.zeros(2),
        covariance=np.eye(2),
        residual=np.array([30.0, 0.0]),
        noise_stddev=np.array([3.0, 0.0]),
        curvature=np.diag([100.0, 0.0]),
        curvature_noise=np.diag([5.0, 0.0]),
        prior_linear=np.zeros(2),
        prior_precision=prior,
    )
    found = natural_under_noise(target, np.array([2.0, 0.3]), knows_noise=True)
    precision = -2.0 * found["xx"]
    assert precision[1, 1] == prior[1, 1]
    assert precision[0, 1] == prior[0, 1]
    mean = np.linalg.solve(precision, found["x"])
    # Its mean is that of its prior given the effect.
    np.testing.assert_allclose(mean[1], mean[0] / 1.5, rtol=1e-9)


def test_where_residuals_were_asked_says_nothing_of_what_no_row_reads():
    """Effects near -3 whose mean was left at 5: the posterior is that of any place."""
    prior = np.array([[4.0, 0.0, -4.0], [0.0, 4.0, -4.0], [-4.0, -4.0, 8.5]])
    target = NewtonTarget(
        mean=np.zeros(3),
        covariance=np.eye(3),
        residual=np.zeros(3),
        noise_stddev=np.array([3.0, 3.0, 0.0]),
        # Noise hides the second effect's information in part.
        curvature=np.diag([100.0, 10.0, 0.0]),
        curvature_noise=np.diag([5.0, 5.0, 0.0]),
        prior_linear=np.zeros(3),
        prior_precision=prior,
    )
    means = []
    for place in (-3.0, 5.0):
        centre = np.array([-3.0, -3.0, place])
        found = natural_under_noise(target, centre, knows_noise=True)
        means.append(np.linalg.solve(-2.0 * found["xx"], found["x"]))
    np.testing.assert_allclose(*means, rtol=1e-9)
    assert abs(means[0][:2] + 3.0).max() < 0.3


def test_batches_are_factors_of_their_own_and_flat_priors_are_left_alone():
    one = target_of(
        np.diag([30.0, 40.0]),
        residual=np.array([1.0, 2.0]),
        stddev=1.0,
        curvature_stddev=1.0,
        prior=np.eye(2),
    )
    both = NewtonTarget(*(np.stack([field, 2.0 * field]) for field in one[:8]))
    centre = np.array([[0.1, 0.2], [0.3, 0.4]])
    found = natural_under_noise(both, centre, knows_noise=True)
    alone = natural_under_noise(one, centre[0], knows_noise=True)
    np.testing.assert_array_equal(found["xx"][0], alone["xx"])
    np.testing.assert_array_equal(found["x"][0], alone["x"])
    flat = one._replace(prior_precision=np.zeros((2, 2)))
    assert set(
        all_under_noise({"a": one, "b": flat}, {"a": centre[0]}, knows_noise=True)
    ) == {"a"}


def test_of_directions_that_are_silent_the_prior_alone_speaks():
    """Noise in residuals and curvature is as large there as anywhere."""
    rng = np.random.default_rng(0)
    silent = np.array([[1.0], [-1.0], [0.0]]) / np.sqrt(2.0)
    noise = 5.0 * rng.normal(size=(3, 3))
    projection = np.eye(3) - silent @ silent.T
    target = target_of(
        projection @ np.diag([400.0, 400.0, 90.0]) @ projection + noise + noise.T,
        residual=20.0 * rng.normal(size=3),
        stddev=20.0,
        curvature_stddev=7.0,
        prior=np.eye(3),
    ).with_silent(np.zeros(3), silent)
    assert np.abs(silent.T @ target.residual) < 1e-12
    found = natural_under_noise(target, np.zeros(3), knows_noise=True)
    covariance = np.linalg.inv(-2.0 * found["xx"])
    along = (silent.T @ covariance @ silent).item()
    assert along == pytest.approx(1.0, rel=1e-6)
    assert np.trace(covariance) < 1.6


def test_units_of_silent_directions_are_as_large_as_the_others():
    """What is expected has noise along them; units that small would hide the rest."""
    rng = np.random.default_rng(0)
    silent = np.linalg.qr(rng.normal(size=(5, 2)))[0]
    projection = np.eye(5) - silent @ silent.T
    root = projection @ rng.normal(size=(5, 40))
    truth = 10.0 * root @ root.T
    noise = 5.0 * rng.normal(size=(5, 5))
    values, axes = np.linalg.eigh(truth + noise + noise.T)
    expected = (axes * np.maximum(values, 0.0)) @ axes.T
    target = target_of(
        truth,
        residual=np.zeros(5),
        stddev=10.0,
        curvature_stddev=10.0,
        prior=0.01 * np.eye(5),
    ).with_silent(np.zeros(5), silent)
    known = target._replace(expected=expected, expected_there=expected)
    precisions = [
        -2.0 * natural_under_noise(of, np.zeros(5), knows_noise=True)["xx"]
        for of in (target, known)
    ]
    widths = [np.diag(projection @ np.linalg.inv(p) @ projection) for p in precisions]
    np.testing.assert_allclose(widths[1], widths[0], rtol=0.3)


def test_of_what_no_row_has_the_prior_alone_speaks():
    """And the others are as they are without it."""
    rng = np.random.default_rng(0)
    curvature = np.diag([500.0, 0.0, 400.0])
    noise = 20.0 * rng.normal(size=(3, 3))
    target = target_of(
        curvature + noise + noise.T,
        residual=np.array([30.0, 60.0, -20.0]),
        stddev=20.0,
        curvature_stddev=40.0,
        prior=np.eye(3),
    )
    target = target._replace(
        axes=np.eye(3),
        absent=np.array([0.0, 0.999, 0.0]),
        most_known=np.array([np.inf, 1e-9, np.inf]),
    )
    centre = np.array([0.5, -3.0, 0.2])
    found = natural_under_noise(target, centre, knows_noise=True)
    covariance = np.linalg.inv(-2.0 * found["xx"])
    mean = covariance @ found["x"]
    assert mean[1] == pytest.approx(0.0, abs=1e-6)
    assert covariance[1, 1] == pytest.approx(1.0, rel=1e-6)
    chosen = [0, 2]
    without = target_of(
        (curvature + noise + noise.T)[np.ix_(chosen, chosen)],
        residual=np.array([30.0, -20.0]),
        stddev=20.0,
        curvature_stddev=40.0,
        prior=np.eye(2),
    )
    alone = natural_under_noise(without, centre[chosen], knows_noise=True)
    of_alone = np.linalg.inv(-2.0 * alone["xx"])
    np.testing.assert_allclose(mean[chosen], of_alone @ alone["x"], atol=0.05)
    np.testing.assert_allclose(
        covariance[np.ix_(chosen, chosen)], of_alone, rtol=0.1, atol=0.002
    )


def test_what_rows_may_have_is_between():
    """In units of a frame, too. The other latent keeps what is known of it."""
    matrix = np.array([[1.0, 0.4], [0.0, 2.0]])
    axes = np.linalg.inv(matrix)
    target = target_of(
        matrix.T @ np.array([[300.0, 60.0], [60.0, 30.0]]) @ matrix,
        residual=np.zeros(2),
        stddev=1.0,
        curvature_stddev=1e-6,
        prior=matrix.T @ matrix,
    )
    centre = axes @ np.array([0.7, -1.0])
    means, covariances = [], []
    for chance, most in ((0.0, np.inf), (0.2, 3.0), (0.4, 0.5)):
        at_chance = target._replace(
            axes=axes,
            absent=np.array([0.0, chance]),
            most_known=np.array([np.inf, most]),
        )
        found = natural_under_noise(at_chance, centre, knows_noise=True)
        covariance = np.linalg.inv(-2.0 * found["xx"])
        means.append(matrix @ covariance @ found["x"])
        covariances.append(matrix @ covariance @ matrix.T)
    away = means[0][1]
    for mean, covariance, chance, most in zip(
        means[1:], covariances[1:], (0.2, 0.4), (3.0, 0.5), strict=True
    ):
        between = chance * (1.0 - chance) * away**2
        assert covariance[1, 1] == pytest.approx(1.0 / (1.0 + most) + between, rel=1e-6)
        assert mean[1] == pytest.approx((1.0 - chance) * away, rel=1e-6)
        assert mean[0] == pytest.approx(means[0][0], rel=1e-6)
        assert covariance[0, 0] == pytest.approx(covariances[0][0, 0], rel=1e-6)
        assert covariance[0, 1] == pytest.approx(covariances[0][0, 1], rel=1e-6)


def test_an_effect_of_a_group_without_rows_follows_the_mean_of_effects():
    """Not the prior's own mean, which is zero for all of them."""
    tau, size = 0.5, 5
    prior = np.diag([1e-4, *[tau**-2.0] * (size - 1)])
    prior[0, 0] += (size - 1) * tau**-2.0
    prior[0, 1:] = prior[1:, 0] = -(tau**-2.0)
    information = np.diag([0.0, 900.0, 800.0, 850.0, 3.0])
    noise = np.where(np.eye(size) > 0, 5.0, 0.0)
    noise[0, 0] = 0.0
    stddev = np.array([0.0, 4.0, 4.0, 4.0, 4.0])
    target = NewtonTarget(
        mean=np.zeros(size),
        covariance=np.eye(size),
        residual=np.zeros(size),
        noise_stddev=stddev,
        curvature=information,
        curvature_noise=noise,
        prior_linear=np.zeros(size),
        prior_precision=prior,
        axes=np.eye(size),
    )
    centre = np.array([0.0, 3.0, 3.2, 2.8, 1.0])
    for chance in (0.4, 0.9):
        absent = target._replace(
            absent=np.array([0.0, 0.0, 0.0, 0.0, chance]),
            most_known=np.array([np.inf] * 4 + [0.1]),
        )
        found = natural_under_noise(absent, centre, knows_noise=True)
        covariance = np.linalg.inv(-2.0 * found["xx"])
        mean, widths = covariance @ found["x"], np.sqrt(np.diag(covariance))
        assert abs(mean[4] - 3.0) < (0.9 if chance < 0.5 else 0.1)
        assert widths[4] > 0.95 * np.hypot(tau, 0.9 * chance * widths[0])
        np.testing.assert_allclose(mean[1:4], [3.0, 3.2, 2.8], atol=0.05)
