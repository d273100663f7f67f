"""Newton steps by a matrix that is too large, on densities whose optimum is known."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to
from scipy import special

import numpyro_vips as nv
from numpyro_vips.vips.steps.newton_steps import (
    BLOCK,
    Bend,
    NewtonTarget,
    Way,
    gradients,
    step_from,
)

STEPS = 50


def _target(
    *, place: np.ndarray, matrix: np.ndarray, residual: np.ndarray, noise: float = 0.0
) -> NewtonTarget:
    size = len(matrix)
    covariance = np.linalg.inv(matrix)
    return NewtonTarget(
        mean=place + covariance @ residual,
        covariance=covariance,
        residual=residual,
        noise_stddev=np.full(size, noise),
        curvature=matrix,
        curvature_noise=np.zeros((size, size)),
        prior_linear=np.zeros(size),
        prior_precision=np.zeros((size, size)),
    )


def run(
    gradient: Callable[[np.ndarray], np.ndarray],
    matrix: np.ndarray,
    *,
    noise: float,
    seed: int = 0,
) -> tuple[list[np.ndarray], list[float], float]:
    """Places, weights of the sums in the average, and the share kept at the end."""
    rng = np.random.default_rng(seed)
    size = len(matrix)
    way, place = Way(), np.zeros(size)
    places, weights = [], []
    for t in range(STEPS):
        noisy = gradient(place) + noise * rng.normal(size=size)
        target = _target(place=place, matrix=matrix, residual=noisy, noise=noise)
        step_size = 2.0 / (t + 2.0)
        weights.append(way.weight(step_size))
        places.append(place)
        found, way = step_from(
            way,
            {"w": place},
            {"w": target},
            gain=(t + 1.0) ** -0.3,
            step_size=step_size,
        )
        place = found["w"]
    return places, weights, way.kept


def test_a_matrix_that_rounding_has_made_singular_ends_no_fit():
    """Noise that is paid for must not end in an error of linear algebra."""
    singular = np.array([[1e-4, 1e-9, 0.0], [1e-9, 1e-14, 0.0], [0.0, 0.0, 0.0]])
    target = NewtonTarget(
        mean=np.array([1.0, 1e-5, 2.0]),
        covariance=singular,
        residual=np.ones(3),
        noise_stddev=np.ones(3),
        curvature=np.eye(3),
        curvature_noise=np.zeros((3, 3)),
        prior_linear=np.zeros(3),
        prior_precision=np.eye(3),
    )
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.inv(singular)
    (found,) = gradients({"w": np.zeros(3)}, {"w": target}).values()
    # The displacement lies in the directions that there are.
    np.testing.assert_allclose(singular @ found, [1.0, 1e-5, 0.0], rtol=1e-6)
    regular = target._replace(covariance=np.diag([1e-4, 1e-14, 2.0]))
    (found,) = gradients({"w": np.zeros(3)}, {"w": regular}).values()
    np.testing.assert_allclose(found, [1e4, 1e9, 1.0])


OPTIMUM = np.array([4.0, 0.0, 0.0])
TRUE = np.diag([5.0, 100.0, 100.0])


def parabola(place: np.ndarray) -> np.ndarray:
    return TRUE @ (OPTIMUM - place)


@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_a_direction_of_little_curvature_is_followed_to_its_end(noise):
    matrix = 100.0 * np.eye(3)
    places, weights, _ = run(parabola, matrix, noise=noise)
    np.testing.assert_allclose(places[-1], OPTIMUM, atol=0.15)
    average = np.zeros(3)
    for place, weight in zip(places, weights, strict=True):
        average += weight * (place - average)
    # Steps by the matrix alone have an eighth of the way left, their average a third.
    np.testing.assert_allclose(average, OPTIMUM, atol=0.25)


def test_at_the_optimum_noise_makes_no_step_longer_and_starts_no_average_again():
    again, far = 0, []
    for seed in range(40):
        places, _, kept = run(lambda place: TRUE @ -place, TRUE, noise=10.0, seed=seed)
        again += kept < 0.999
        far.append(np.diag(TRUE) ** 0.5 * places[-1])
    # Ten looks at a Gaussian's upper 0.6 %, which follow each other.
    assert again <= 6
    # The gain at the end is 0.3: places have about 0.2 of a step's variance.
    of_step = 10.0 / np.diag(TRUE) ** 0.5
    assert np.std(far, axis=0) == pytest.approx(0.45 * of_step, rel=0.5)


def test_steps_go_on_by_the_curvature_that_two_blocks_have_shown():
    places, _, _ = run(parabola, 100.0 * np.eye(3), noise=1e-6)
    steps = np.diff([place[0] for place in places])
    # Steps before the end of the second block are by the matrix.
    in_block, last = steps[BLOCK : 2 * BLOCK - 1], steps[2 * BLOCK - 1]
    assert last > 3 * in_block.max()


def test_a_bend_adds_what_the_matrix_leaves_of_a_newton_step_along_the_way():
    way, gradient = np.array([2.0, 0.0, 0.0]), np.array([10.0, 7.0, -3.0])
    target = _target(place=np.zeros(3), matrix=100.0 * np.eye(3), residual=gradient)
    bend = Bend({"w": way}, curvature=float(way @ TRUE @ way))
    lacking = bend.lacks({"w": gradient}, {"w": target})
    step = target.mean + lacking * way
    np.testing.assert_allclose(step, gradient / [5.0, 100.0, 100.0], rtol=1e-12)


def test_a_bend_makes_no_step_shorter_than_the_matrix_does():
    gradient = np.array([10.0, 0.0, 0.0])
    target = _target(place=np.zeros(3), matrix=TRUE, residual=gradient)
    bend = Bend({"w": np.array([1.0, 0.0, 0.0])}, curvature=50.0)
    assert bend.lacks({"w": gradient}, {"w": target}) == 0.0


def test_weights_are_those_of_an_average_since_it_started_again():
    way = Way(kept=0.0)
    total, average = 0.0, 0.0
    for t in range(10, 20):
        step_size = 2.0 / (t + 2.0)
        average += way.weight(step_size) * (t - average)
        way = way._replace(kept=way.kept_with(step_size))
        total += t + 1.0
    expected = sum(t * (t + 1.0) for t in range(10, 20)) / total
    assert average == pytest.approx(expected, rel=1e-9)


@pytest.mark.thorough
def test_strong_effects_are_found_under_noise():
    """The curvature at the optimum is a tenth of that at the start."""
    rng = np.random.default_rng(0)
    n, size = 20_000, 20
    X = rng.normal(size=(n, size)).astype(np.float32)
    w = rng.normal(size=size)
    y = (rng.random(n) < special.expit(X @ w)).astype(np.int32)

    def logistic(X: Any, y: Any) -> None:
        w: Any = numpyro.sample("w", dist.Normal(np.zeros(size), 1.0).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    slopes, errors = [], []
    for seed in range(3):
        with pytest.warns(UserWarning, match="insecure_seed"):
            result = fit_to(logistic, X, y, engine="vips", insecure_seed=seed)
        mean = np.asarray(result.params["w/loc"])
        stddev = np.sqrt(np.diag(np.asarray(result.params["w/covariance_matrix"])))
        slopes.append(mean @ w / (w @ w))
        errors.append((mean - w) / stddev)
    # Before secant steps it was 0.8 of it, with errors of ten standard deviations.
    assert np.mean(slopes) == pytest.approx(1.0, abs=0.04)
    assert np.sqrt(np.mean(np.square(errors))) < 1.5


@pytest.mark.thorough
@pytest.mark.parametrize(
    "engine", ["vips", pytest.param("dpvi", marks=pytest.mark.slow)]
)
def test_the_weight_of_a_column_of_zeros_keeps_its_prior(engine):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(5000, 3)).astype(np.float32)
    X[:, 2] = 0.0
    y = (rng.random(5000) < special.expit(X @ [1.0, -1.0, 0.0])).astype(np.int32)

    @nv.private(unit="rows")
    def logistic(X: Any, y: Any) -> None:
        w: Any = numpyro.sample("w", dist.Normal(np.zeros(3), 3.0).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    found = []
    for seed in range(3):
        with pytest.warns(UserWarning, match="insecure_seed"):
            result = fit_to(logistic, X, y, engine=engine, insecure_seed=seed)
        draws = result.sample_posterior(jax.random.key(1), (2000,))["w"]
        found.append(np.std(np.asarray(draws), axis=0))
    assert np.median(found, axis=0)[2] > 1.0
    assert (np.median(found, axis=0)[:2] < 0.3).all()
