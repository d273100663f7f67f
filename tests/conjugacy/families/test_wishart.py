"""What a Wishart needs to be one, and what noise leaves of it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from numpyro_vips.conjugacy import families
from numpyro_vips.conjugacy.families.wishart import Wishart


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "matrix"),
    [(families.Wishart(), "rate_matrix"), (families.InverseWishart(), "scale_matrix")],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize(("degrees", "is_one"), [(2.5, True), (1.5, False)])
def test_wishart_needs_more_degrees_than_its_size_less_one(
    family: Any, matrix: str, degrees: float, is_one: bool
) -> None:
    parameters = {"concentration": jnp.asarray(degrees), matrix: jnp.eye(3)}
    found = family.requirements(parameters)
    assert all(bool(holds) for holds in found.values()) is is_one


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_wishart_knows_the_least_eigenvalue_as_little_as_the_noise_lets_it(
    correlation: float,
) -> None:
    """The largest precision is the inverse of what noise hides first."""
    rng, rows, stddev = np.random.default_rng(0), 5000, 60.0
    covariance = np.array([[1.0, correlation], [correlation, 1.0]])
    squares = rows * covariance
    least = []
    for _ in range(2000):
        noise = stddev * rng.normal(size=(2, 2)) / np.sqrt(2.0)
        least.append(np.linalg.eigvalsh(squares + (noise + noise.T) / np.sqrt(2.0))[0])
    by_noise = np.std(least) / np.mean(least)
    entries = np.where(np.eye(2) > 0, stddev, stddev / np.sqrt(2.0))
    share = Wishart().widened(
        {"x": jnp.asarray(-0.5 * squares), "logdet": jnp.asarray(0.5 * rows)},
        {"x": jnp.asarray(0.5 * entries), "logdet": jnp.asarray(0.0)},
    )
    parameters = Wishart().parameters(share)
    # A Wishart's relative standard deviation along any axis is √(2 / concentration).
    found = np.sqrt(2.0 / parameters["concentration"])
    expected = np.hypot(np.sqrt(2.0 / rows), by_noise)
    assert 0.9 * expected < found < 2.0 * expected


def _read(size: int, rows: int, relative: float, repetitions: int) -> tuple[Any, ...]:
    """Matrices drawn from a prior, and draws of their posteriors from noisy sums.

    Args:
      size: Of the matrices.
      rows: How many rows there are.
      relative: The noise's standard deviation, over the sum of rows of unit variance.
      repetitions: How many matrices are drawn.

    Returns:
      The true matrices, 400 draws of each, and the parameters of the posteriors.
    """
    rng, degrees = np.random.default_rng(0), size + 2.0
    of_prior = stats.wishart(df=degrees, scale=np.eye(size) / degrees)
    true = of_prior.rvs(repetitions, random_state=rng)
    sums = np.stack(
        [
            stats.wishart(df=rows, scale=np.linalg.inv(t)).rvs(random_state=rng)
            for t in true
        ]
    )
    noise = rng.normal(size=sums.shape)
    sums = sums + relative * rows * 0.5 * (noise + np.swapaxes(noise, 1, 2))
    entries = relative * rows * np.where(np.eye(size) > 0, 1.0, np.sqrt(0.5))
    family, every = Wishart(), np.ones(repetitions)
    prior = family.from_parameters(
        {
            "concentration": jnp.asarray(degrees * every),
            "rate_matrix": jnp.asarray(
                degrees * np.stack([np.eye(size)] * repetitions)
            ),
        }
    )
    noise = {
        "x": jnp.asarray(0.5 * np.stack([entries] * repetitions)),
        "logdet": jnp.asarray(0.0 * every),
    }
    released = {
        "x": jnp.asarray(-0.5 * sums),
        "logdet": jnp.asarray(0.5 * rows * every),
    }
    data = family.project_to_widen(released, noise)
    share = family.share_under_noise(prior, data, noise)
    found = family.parameters({name: prior[name] + share[name] for name in prior})
    draws = family.distribution(found).sample(jax.random.key(0), (400,))
    return true, np.asarray(draws, float), found


@pytest.mark.quick_with("1.0")
@pytest.mark.parametrize("relative", [0.01, 0.1, 1.0, 30.0])
def test_wishart_holds_a_matrix_as_often_as_it_says(relative: float) -> None:
    """Also where noise is as large as the sums, or hides them."""
    true, draws, _ = _read(size=2, rows=300, relative=relative, repetitions=300)
    for of_matrix in (
        lambda m: m[..., 0, 0],
        lambda m: np.linalg.inv(m)[..., 0, 0],
        lambda m: np.linalg.slogdet(m)[1],
    ):
        low, high = np.quantile(of_matrix(draws), [0.05, 0.95], axis=0)
        inside = np.mean((low <= of_matrix(true)) & (of_matrix(true) <= high))
        assert 0.84 <= inside <= 0.97


def test_wishart_is_the_prior_where_noise_hides_all() -> None:
    _, draws, found = _read(size=3, rows=300, relative=1e4, repetitions=50)
    assert np.all(np.asarray(found["concentration"]) < 5.5)
    np.testing.assert_allclose(draws.mean((0, 1)), np.eye(3), atol=0.25)


def test_wishart_reads_many_matrices_without_a_quadrature_each() -> None:
    """The share is then that of `widened`, and legal."""
    family, number = Wishart(), 2000
    data = {
        "x": jnp.asarray(-50.0 * np.stack([np.eye(2)] * number)),
        "logdet": jnp.full(number, 50.0),
    }
    noise = {"x": jnp.full((number, 2, 2), 5.0), "logdet": jnp.zeros(number)}
    prior = family.neutral((number, 2, 2))
    moved = family.project_to_widen(data, noise)
    share = family.share_under_noise(prior, moved, noise)
    expected = family.widened(moved, noise)
    np.testing.assert_array_equal(share["x"], expected["x"])
    assert np.linalg.eigvalsh(np.asarray(-share["x"])).min() > 0
