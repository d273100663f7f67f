"""Adam that shares its second moment, against the formulas written out."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.dpvi.gradients.noisy_adam import (
    FIRST_DECAY,
    LEARNING_RATE,
    PARAMETER_LEARNING_RATE,
    SECOND_DECAY,
    default_optimizer,
    noisy_adam,
)
from numpyro_vips.dpvi.iterates import Variational


def moves(optimizer: Any, gradients: Any) -> list[Any]:
    state, found = optimizer.init(gradients[0]), []
    for gradient in gradients:
        move, state = optimizer.update(gradient, state)
        found.append(move)
    return found


def test_the_second_moment_is_shared_within_a_site():
    optimizer: Any = noisy_adam([2, 1], learning_rate=0.1, constant_steps=2)
    state = optimizer.init({"loc": jnp.zeros(3), "log_scale": jnp.zeros(3)})
    gradient = {"loc": jnp.array([3.0, 4.0, -1e-3]), "log_scale": jnp.zeros(3)}
    first, state = optimizer.update(gradient, state)
    rms = math.sqrt((9 + 16) / 2)
    # 4 / rms > 1 is held to the learning rate, as is the only coordinate of its site.
    np.testing.assert_allclose(first["loc"], [-0.3 / rms, -0.1, 0.1], rtol=1e-5)
    np.testing.assert_array_equal(first["log_scale"], np.zeros(3))
    _, state = optimizer.update(gradient, state)
    _, state = optimizer.update(gradient, state)
    later, state = optimizer.update(gradient, state)
    np.testing.assert_allclose(later["loc"], first["loc"] / 2, rtol=1e-5)


def test_each_move_is_the_formula_at_changing_gradients():
    rng, sizes = np.random.default_rng(0), [2, 3]
    gradients = rng.normal(size=(6, 5)) * [1, 1, 5, 5, 5]
    found = moves(
        noisy_adam(sizes, constant_steps=4), list(map(jnp.asarray, gradients))
    )
    m, v = np.zeros(5), np.zeros(5)
    for t, (gradient, move) in enumerate(zip(gradients, found, strict=True), 1):
        m = FIRST_DECAY * m + (1 - FIRST_DECAY) * gradient
        squares = [np.mean(part**2) for part in np.split(gradient, [2])]
        v = SECOND_DECAY * v + (1 - SECOND_DECAY) * np.repeat(squares, sizes)
        relative = (m / (1 - FIRST_DECAY**t)) / np.sqrt(v / (1 - SECOND_DECAY**t))
        rate = LEARNING_RATE * min(1.0, 4 / t)
        np.testing.assert_allclose(move, -rate * np.clip(relative, -1, 1), rtol=1e-4)


def test_noise_moves_a_coordinate_without_signal_less_than_adam_would():
    """Alike noise in both; the other coordinate of the site has the signal."""
    rng = np.random.default_rng(0)
    gradients = 0.5 * rng.normal(size=(50, 2)) + np.array([10.0, 0.0])
    together = np.abs(moves(noisy_adam([2]), list(map(jnp.asarray, gradients)))[-1])
    apart = np.abs(moves(noisy_adam([1, 1]), list(map(jnp.asarray, gradients)))[-1])
    assert together[0] == pytest.approx(LEARNING_RATE, rel=0.1)
    assert together[1] < 0.1 * apart[1]


def test_rows_of_a_matrix_belong_to_sites_as_the_coordinates_do():
    gradient = jnp.array([[3.0, 0.0], [0.0, 4.0], [1.0, 1.0]])
    (found,) = moves(noisy_adam([2, 1]), [gradient])
    first = -LEARNING_RATE * np.clip(gradient[:2] / math.sqrt((9 + 16) / 4), -1, 1)
    np.testing.assert_allclose(found[:2], first, rtol=1e-5)
    np.testing.assert_allclose(found[2], [-LEARNING_RATE] * 2, rtol=1e-5)
    # Without sizes an array is one site.
    (found,) = moves(noisy_adam(), [gradient])
    rms = math.sqrt(27 / 6)
    expected = -LEARNING_RATE * np.clip(gradient / rms, -1, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_each_kind_of_array_has_its_rate():
    variational = Variational(
        guide={"loc": jnp.zeros(4), "factor": jnp.zeros((4, 2))},
        params={"net": {"weights": jnp.zeros(3)}},
    )
    gradient = jax.tree.map(jnp.ones_like, variational)
    (found,) = moves(default_optimizer([4], rank=2), [gradient])
    np.testing.assert_allclose(found.guide["loc"], -LEARNING_RATE, rtol=1e-5)
    np.testing.assert_allclose(found.guide["factor"], -LEARNING_RATE / 2, rtol=1e-5)
    weights = found.params["net"]["weights"]
    np.testing.assert_allclose(weights, -PARAMETER_LEARNING_RATE, rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{"learning_rate": 0.0}, {"constant_steps": 0}, {"constant_steps": 1.5}]
)
def test_settings_are_checked(options: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(options))):
        noisy_adam(**options)
