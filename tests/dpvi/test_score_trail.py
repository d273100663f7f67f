"""Moments of scores along places, and what they say of the information."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from numpyro_vips.dpvi.score_trail import ScoreTrail, led_by_rows
from numpyro_vips.vips.noisy_information import Information, Spectrum


def trail_of(
    gradients: np.ndarray, places: np.ndarray, variances: np.ndarray
) -> ScoreTrail:
    """The moments of these steps, in double precision."""
    with jax.enable_x64(True):
        trail = ScoreTrail.empty(places.shape[1], jnp.float64)
        for gradient, place, variance in zip(gradients, places, variances, strict=True):
            trail = trail.after(jnp.asarray(gradient), jnp.asarray(place), variance)
    return ScoreTrail(*(np.asarray(moment) for moment in trail))


def test_moments_are_weighed_by_the_precision_of_each_score():
    rng = np.random.default_rng(0)
    gradients, places = rng.normal(size=(2, 30, 3))
    variances = rng.uniform(0.5, 4.0, 30)
    trail = trail_of(gradients, places, variances)
    weights = 1.0 / variances
    np.testing.assert_allclose(trail.weight, weights.sum())
    np.testing.assert_allclose(trail.place, np.average(places, axis=0, weights=weights))
    away = places - trail.place
    changed = gradients - np.average(gradients, axis=0, weights=weights)
    np.testing.assert_allclose(
        trail.cross,
        np.einsum("t,ti,tj->ij", weights, changed, away) / weights.sum(),
        atol=1e-12,
    )
    np.testing.assert_allclose(
        trail.place_square,
        np.einsum("t,ti,tj->ij", weights, away, away) / weights.sum(),
        atol=1e-12,
    )


def test_the_likelihood_is_that_of_all_scores():
    """Against the joint normal density of the scores at given places."""
    rng = np.random.default_rng(1)
    places, gradients = rng.normal(size=(2, 7, 1))
    variances = rng.uniform(0.5, 4.0, 7)
    trail = trail_of(gradients, places, variances)
    mean, precision = 0.3, 0.7
    tried = np.array([[0.1, 1.0, 5.0]])
    found = trail.log_likelihood(
        np.eye(1), tried, np.array([mean]), np.array([precision])
    )
    expected = []
    for information in tried[0]:
        # All scores share what rows do not know of the truth, and the truth.
        shared = information**2 / precision + information
        expected.append(
            stats.multivariate_normal.logpdf(
                gradients[:, 0],
                information * (mean - places[:, 0]),
                np.diag(variances) + shared,
            )
        )
    np.testing.assert_allclose(
        found[0] - found[0, 0], np.array(expected) - expected[0], rtol=1e-9
    )


def test_a_known_information_gives_the_posterior_mean():
    """Iterates at rest are the posterior's mean where there is no noise in scores."""
    information, prior = 4.0, 2.0
    nothing = ScoreTrail(
        np.float64(1e-12), np.zeros(1), np.zeros(1), np.zeros((1, 1)), np.zeros((1, 1))
    )
    led = led_by_rows(
        nothing,
        Spectrum(np.eye(1), np.array([information])),
        Information(np.array([[information]]), 1e-3),
        variance=0.0,
        way=np.array([1.5]),
        prior_mean=np.zeros(1),
        prior_precision=np.array([prior]),
    )
    np.testing.assert_allclose(led.share, 1.0, rtol=1e-6)
    np.testing.assert_allclose(led.precision, information, rtol=0.1)
