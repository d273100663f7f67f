"""Information that noise may have made is told from information that rows have."""

import warnings

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_vips as nv
from numpyro_vips.dpvi.gradients.coordinates import GradientCoordinates
from numpyro_vips.dpvi.posterior.clear_information import SEEN, clarity
from numpyro_vips.dpvi.posterior.variational_newton import VectorNormal
from numpyro_vips.vips.m_step.noisy_information import Information


def normal_with(covariance: np.ndarray) -> VectorNormal:
    return VectorNormal(np.zeros(len(covariance)), np.linalg.cholesky(covariance))


def test_globals_that_are_independent_have_their_own() -> None:
    information = Information(np.diag([900.0, 4.0]), 2.0)
    found = clarity(information, None, normal_with(np.diag([0.1, 3.0])))
    np.testing.assert_allclose(found, [450.0, 2.0])


def test_what_is_known_only_of_a_sum_is_not_clear() -> None:
    """Rows know the sum of two globals, and next to nothing of each."""
    sum_of, difference = np.array([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5
    matrix = 900.0 * np.outer(sum_of, sum_of) + np.outer(difference, difference)
    found = clarity(Information(matrix, 2.0), None, normal_with(np.linalg.inv(matrix)))
    np.testing.assert_allclose(found, 0.5, rtol=1e-2)


def test_it_is_that_of_the_globals_in_turned_coordinates() -> None:
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    covariance = np.diag([1.0, 2.0, 3.0])
    coordinates = GradientCoordinates(turn, turn.T, np.zeros((3, 0)))
    information = Information(turn.T @ np.diag([10.0, 20.0, 30.0]) @ turn, 1.0)
    found = clarity(information, coordinates, normal_with(covariance))
    np.testing.assert_allclose(found, [10.0, 20.0, 30.0])


def test_globals_that_no_row_reads_come_last_and_have_none() -> None:
    covariance = np.array([[1.0, 0.5], [0.5, 1.0]])
    found = clarity(Information(np.eye(1), 0.1), None, normal_with(covariance))
    np.testing.assert_allclose(found, [10.0])


def test_directions_that_rows_say_nothing_of_do_not_count() -> None:
    """The posterior is wide there, and moves with everything."""
    silent = np.array([[0.0], [1.0]])
    coordinates = GradientCoordinates(np.eye(2), np.eye(2), silent)
    covariance = np.array([[1.0, 0.9], [0.9, 50.0]])
    information = Information(np.diag([10.0, 0.0]), 1.0)
    found = clarity(information, coordinates, normal_with(covariance))
    np.testing.assert_allclose(found, [10.0, 10.0])


def test_without_noise_all_is_clear() -> None:
    found = clarity(Information(np.eye(2), 0.0), None, normal_with(np.eye(2)))
    assert np.all(found == np.inf)


def test_noise_alone_is_seldom_clear() -> None:
    rng, found = np.random.default_rng(0), []
    for _ in range(2_000):
        noise = rng.normal(0.0, 2.0, (4, 4))
        information = Information((noise + noise.T) / 2.0, 2.0)
        root = rng.normal(size=(4, 4))
        covariance = normal_with(root @ root.T + np.eye(4))
        found.append(clarity(information, None, covariance))
    # It is standard Normal along any direction, as noise is √2 less off the diagonal.
    assert np.std(found) == pytest.approx(1.0, rel=0.05)
    assert np.mean(np.array(found) > SEEN) < 0.035


def model(X, y=None):
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([X.shape[1]]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(2.0))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.StudentT(nu, X @ b, s), obs=y)


@pytest.mark.parametrize(("epsilon", "warns"), [(0.3, True), (30.0, False)])
def test_degrees_of_freedom_that_noise_hides_are_named(epsilon, warns) -> None:
    """Of a fit at ε = 0.3 the scale was off by several standard deviations, silently;
    that at ε = 30 is right."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1_000, 3)).astype(np.float32)
    y = (X @ [0.5, -1.0, 0.3] + rng.standard_t(4.0, 1_000)).astype(np.float32)
    vi = nv.PrivateVI(
        nv.private(model, unit="people"),
        budget=nv.PrivacyBudget(epsilon, 1e-5),
        engine="dpvi",
        insecure_seed=1,
        progress_bar=False,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = vi.run(jax.random.key(0), X, y)
    named = [
        str(w.message) for w in caught if "how much the rows say" in str(w.message)
    ]
    assert bool(named) == warns
    assert all("'nu'" in text for text in named)
    assert set(result.diagnostics["clarity"]) == {"nu", "s"}
    assert (result.diagnostics["clarity"]["nu"] < SEEN) == warns
