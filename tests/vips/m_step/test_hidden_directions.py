"""Directions that noise hides explain no more of a response than there is of it."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.vips.m_step.hidden_directions import weighing_rows

pytestmark = pytest.mark.usefixtures("x64")

RNG = np.random.default_rng(0)
TURN = np.linalg.qr(RNG.normal(size=(3, 3)))[0]
SIZES = np.array([40.0, 5.0, 0.5])
LINEAR = np.array([30.0, -6.0, 0.2])  # Along the eigenvectors.


def weighed(
    mean: np.ndarray, covariance: np.ndarray, noise: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance as other factors see them; turned there and back."""
    precision = TURN @ np.diag(SIZES) @ TURN.T
    m, v = TURN @ mean, TURN @ covariance @ TURN.T
    found = weighing_rows(
        {"x": jnp.asarray(TURN @ LINEAR), "xx": jnp.asarray(-0.5 * precision)},
        {"x": jnp.zeros(3), "xx": jnp.full((3, 3), 0.5 * noise)},
        {"x": jnp.asarray(m), "xx": jnp.asarray(v + np.outer(m, m))},
    )
    mean = np.asarray(found["x"])
    covariance = np.asarray(found["xx"]) - np.outer(mean, mean)
    return TURN.T @ mean, TURN.T @ covariance @ TURN


def explained(mean: Any) -> np.ndarray:
    return mean * (2.0 * LINEAR - SIZES * mean)


MEAN = LINEAR / (SIZES + 1.0)


def test_a_direction_that_is_well_known_counts_as_it_is() -> None:
    covariance = np.diag(0.5 * explained(MEAN) / SIZES)
    covariance[0, 1] = covariance[1, 0] = 0.1 * np.sqrt(
        np.prod(np.diag(covariance)[:2])
    )
    mean, found = weighed(MEAN, covariance)
    np.testing.assert_allclose(mean, MEAN)
    np.testing.assert_allclose(found, covariance, atol=1e-12)


@pytest.mark.parametrize("noise", [0.0, 7.0])
def test_a_wide_direction_counts_up_to_what_it_explains(noise: float) -> None:
    """Then E[residuals²] is what it is without the direction."""
    wide = np.diag([1e-3, 50.0, 4000.0])
    mean, found = weighed(MEAN, wide, noise)
    np.testing.assert_allclose(mean, MEAN)
    # With one deviation s of all entries that of ⟨v, N v⟩ is s·√(2 − Σ v⁴).
    along = noise * np.sqrt(2.0 - (TURN**4).sum(0))
    cost = (SIZES + along) * np.diag(found)
    np.testing.assert_allclose(cost[1:], explained(MEAN)[1:], rtol=1e-9)
    assert cost[0] < explained(MEAN)[0]
    assert found[0, 0] == pytest.approx(1e-3)


def test_correlations_stay_where_one_of_two_directions_is_narrowed() -> None:
    wide = np.diag([1e-3, 50.0, 4000.0])
    wide[0, 1] = wide[1, 0] = 0.5 * np.sqrt(1e-3 * 50.0)
    _, found = weighed(MEAN, wide)
    correlation = found[0, 1] / np.sqrt(found[0, 0] * found[1, 1])
    assert correlation == pytest.approx(0.5)
    assert np.all(np.linalg.eigvalsh(found) > 0)


def test_a_mean_that_explains_nothing_leaves_no_variance() -> None:
    """As where the noise has turned the sign of a coefficient."""
    _, found = weighed(-MEAN, np.diag([1.0, 1.0, 1.0]))
    np.testing.assert_allclose(found, np.zeros((3, 3)), atol=1e-12)
