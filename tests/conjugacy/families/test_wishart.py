"""What a Wishart needs to be one, and what noise leaves of it."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

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
