"""Quadrature against moments of the Normal and an integral in closed form."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.gauss_hermite import grid_of_nodes, root_of


def integral(values: np.ndarray, log_weights: np.ndarray) -> float:
    return float(np.sum(values * np.exp(log_weights)))


@pytest.mark.parametrize("number", [2, 5, 16])
def test_polynomials_times_the_normal_density_are_exact(number: int) -> None:
    """Up to degree 2n - 1: E[x^(2k)] = (2k - 1)!!, and odd ones are zero."""
    grid, log_weights = grid_of_nodes(number, 1)
    points = grid[:, 0]
    density = np.exp(-0.5 * points**2) / math.sqrt(2 * math.pi)
    for power in range(2 * number):
        exact = 0 if power % 2 else math.prod(range(power - 1, 0, -2))
        size = math.prod(range(power | 1, 0, -2))
        found = integral(points**power * density, log_weights)
        assert found == pytest.approx(exact, abs=1e-11 * size)
    # The next one is not, so the nodes are no more than they are said to be.
    power = 2 * number
    found = integral(points**power * density, log_weights)
    assert abs(found / math.prod(range(power - 1, 0, -2)) - 1) > 1e-9


def test_a_grid_has_every_combination_of_the_nodes() -> None:
    line = grid_of_nodes(3, 1)[0][:, 0]
    grid, log_weights = grid_of_nodes(3, 2)
    assert grid.shape == (9, 2) and log_weights.shape == (9,)
    assert {tuple(p) for p in grid} == set(itertools.product(line, repeat=2))


def test_an_integral_over_the_plane_is_that_of_a_correlated_normal() -> None:
    """∫ exp(-x'Ax/2 + b'x) dx = 2π |A|^-1/2 exp(b'A⁻¹b/2)."""
    A, b = np.array([[1.2, 0.3], [0.3, 0.9]]), np.array([0.4, -0.2])
    grid, log_weights = grid_of_nodes(24, 2)
    values = np.exp(-0.5 * np.einsum("ni,ij,nj->n", grid, A, grid) + grid @ b)
    exact = 2 * math.pi * np.exp(0.5 * b @ np.linalg.solve(A, b))
    exact /= math.sqrt(np.linalg.det(A))
    assert integral(values, log_weights) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("size", [1, 2])
def test_roots_are_those_of_lapack(size: int) -> None:
    half = np.random.default_rng(size).normal(size=(3, 4, size, 5)).astype(np.float32)
    matrices = jnp.asarray(half @ np.swapaxes(half, -1, -2))
    found = root_of(matrices)
    np.testing.assert_allclose(found, np.linalg.cholesky(matrices), rtol=1e-4)
    np.testing.assert_array_equal(jax.vmap(jax.vmap(root_of))(matrices), found)


def test_what_is_left_on_a_diagonal_may_be_held() -> None:
    singular = jnp.asarray([[4.0, 6.0], [6.0, 9.0]])
    root = root_of(singular, lambda left, whole: jnp.maximum(left, 0.25 * whole))
    np.testing.assert_array_equal(root, [[2.0, 0.0], [3.0, 1.5]])
    assert root_of(singular)[1, 1] == 0.0
