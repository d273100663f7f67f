"""Vectors and matrices of one or two dimensions, written out by coordinates.

Products of small matrices would take most of the time.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from numpyro_vips.jax_tools.gauss_hermite import root_of

# Rounding errors of what is left where numbers cancel, in units of machine epsilon.
_ROUNDING = 8.0

Point = Float[Array, " dim"]
Matrix = Float[Array, "dim dim"]


def dot(a: Float[Array, " logits"], b: Float[Array, " logits"]) -> Float[Array, ""]:
    return jnp.vdot(a, b, precision="highest")


def quadratic_form(
    linear: Float[Array, "dim ..."],
    quadratic: Float[Array, "dim dim ..."],
    z: Point,
) -> Float[Array, "..."]:
    """⟨linear, z⟩ + zᵀ quadratic z."""
    total = jnp.zeros(linear.shape[1:], linear.dtype)
    for i, j in itertools.product(range(len(z)), repeat=2):
        total += (z[i] * z[j]) * quadratic[i, j]
    for i in range(len(z)):
        total += z[i] * linear[i]
    return total


def matrix_of(rows: Sequence[Sequence[Any]]) -> Matrix:
    return jnp.stack([jnp.stack(row) for row in rows])


def times(matrix: Matrix, vector: Point) -> Point:
    return jnp.stack([sum(row * vector) for row in matrix])


def lower_root(matrix: Matrix) -> Matrix:
    """The Cholesky factor, of a matrix that rounding may have made singular."""
    least = rounding_of(matrix)
    return root_of(matrix, lambda left, whole: jnp.maximum(left, least * whole))


def rounding_of(array: Float[Array, "..."]) -> float:
    """The share of a number below which what is left of it may be rounding."""
    return _ROUNDING * float(jnp.finfo(array.dtype).eps)


def inverse_root(matrix: Matrix) -> Matrix:
    """R of the inverse R Rᵀ: the inverse of the transposed Cholesky factor."""
    root = lower_root(matrix)
    if len(matrix) == 1:
        return 1.0 / root
    first, below, last = root[0, 0], root[1, 0], root[1, 1]
    top = jnp.stack([1.0 / first, -below / (first * last)])
    return jnp.stack([top, jnp.stack([jnp.zeros_like(first), 1.0 / last])])


def square_of(root: Matrix) -> Matrix:
    """R Rᵀ."""
    return matrix_of([[sum(a * b) for b in root] for a in root])


def solved(matrix: Matrix, vector: Point) -> Point:
    return times(square_of(inverse_root(matrix)), vector)
