"""Inverses, determinants and eigenvalues of many positive definite matrices.

Matrices go to LAPACK one at a time. jaxlib 0.10 gives a batch of them to the threads
that XLA computes in, and blocks one of these threads until the batch is done: with as
many batches at once as there are threads, all wait for each other for good. One at a
time takes no longer, and tiny ones are faster without LAPACK.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

# Up to this size operations on all matrices together are faster than LAPACK on each.
_TINY = 8
# Up to this size a triangle is not worth halving.
_SMALL = 32

# No accelerator may round these products to half floats.
_product = functools.partial(jnp.matmul, precision="highest")


def _one_at_a_time(
    function: Callable[[Float[Array, "dim dim"]], Any],
) -> Callable[[Float[Array, "*batch dim dim"]], Any]:
    """Lets a function of one matrix take a batch, of which it never sees two at once.

    Not even under `jax.vmap`, so it has no derivatives of its own.
    """
    single = jax.custom_batching.sequential_vmap(function)

    @functools.wraps(function)
    def mapped(
        matrices: Float[Array, "*batch dim dim"],
    ) -> PyTree[Float[Array, "..."]]:
        batch = matrices.shape[:-2]
        if not batch:
            return single(matrices)
        found = jax.lax.map(single, matrices.reshape(-1, *matrices.shape[-2:]))
        return jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), found)

    return mapped


@jax.custom_jvp
def inverse(matrices: Float[Array, "*batch dim dim"]) -> Float[Array, "*batch dim dim"]:
    """Inverses, by Cholesky factors; not a number where one is not positive definite.

    Args:
      matrices: Symmetric, (..., D, D).
    """
    if matrices.shape[-1] > _TINY:
        return _inverse(matrices)
    root = _inverse_root(_factor(matrices))
    return _product(jnp.swapaxes(root, -1, -2), root)


@inverse.defjvp
def _inverse_jvp(
    primals: tuple[Float[Array, "*batch dim dim"]],
    tangents: tuple[Float[Array, "*batch dim dim"]],
) -> tuple[Float[Array, "*batch dim dim"], Float[Array, "*batch dim dim"]]:
    (matrices,), (change,) = primals, tangents
    found = inverse(matrices)
    return found, -_product(_product(found, change), found)


@jax.custom_jvp
def log_det(matrices: Float[Array, "*batch dim dim"]) -> Float[Array, "*batch"]:
    """Log determinants, (...); not a number where one is not positive definite.

    Args:
      matrices: Symmetric, (..., D, D).
    """
    tiny = matrices.shape[-1] <= _TINY
    factor = _factor(matrices) if tiny else _cholesky(matrices)
    diagonal = jnp.diagonal(factor, axis1=-2, axis2=-1)
    return 2.0 * jnp.log(diagonal).sum(-1)


@log_det.defjvp
def _log_det_jvp(
    primals: tuple[Float[Array, "*batch dim dim"]],
    tangents: tuple[Float[Array, "*batch dim dim"]],
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    (matrices,), (change,) = primals, tangents
    return log_det(matrices), (inverse(matrices) * change).sum((-2, -1))


@_one_at_a_time
def eigh(
    matrix: Float[Array, "dim dim"],
) -> tuple[Float[Array, " dim"], Float[Array, "dim dim"]]:
    """Eigenvalues and eigenvectors of symmetric matrices, as by `jnp.linalg.eigh`."""
    values, vectors = jnp.linalg.eigh(matrix)
    return values, vectors


def times(
    matrices: Float[Array, "*batch dim dim"], vectors: Float[Array, "*batch dim"]
) -> Float[Array, "*batch dim"]:
    """Products of (..., D, D) and (..., D), at full precision like the others here."""
    return jnp.einsum("...ij,...j->...i", matrices, vectors, precision="highest")


def symmetric_part(
    matrix: Float[Array, "*batch dim dim"],
) -> Float[Array, "*batch dim dim"]:
    return 0.5 * (matrix + jnp.swapaxes(matrix, -1, -2))


class DiagonalAxes(NamedTuple):
    """Where noisy symmetric matrices are diagonal, and what they read there.

    Attributes:
      basis, inverse: B, with axes b in columns, and B⁻¹.
      values: What bᵀ A b is expected to be without the noise, which drives these apart.
      noise_stddev: Standard deviations of the noise in them.
    """

    basis: Float[Array, "*batch dim dim"]
    inverse: Float[Array, "*batch dim dim"]
    values: Float[Array, "*batch dim"]
    noise_stddev: Float[Array, "*batch dim"]


def along_axes(
    matrices: Float[Array, "*batch dim dim"],
    deviation: Float[Array, "*batch dim dim"],
) -> DiagonalAxes:
    """The axes of noisy matrices.

    They are eigenvectors in the units of the noise: it is about as large along all of
    them, so that a coordinate with little noise keeps it to itself.

    Args:
      matrices: Noisy, symmetric.
      deviation: Standard deviations of the noise in them.
    """
    unit, _ = _units_of(deviation)
    units = unit[..., :, None] * unit[..., None, :]
    values, vectors = eigh(matrices / units)
    scaled = deviation / units
    expected = _expected_eigenvalues(values, _spectral_norm(scaled))
    return DiagonalAxes(
        basis=vectors / unit[..., :, None],
        inverse=jnp.swapaxes(vectors, -1, -2) * unit[..., None, :],
        values=expected,
        noise_stddev=noise_along(vectors, scaled),
    )


# How far, in multiples of the largest entry.
_FAR = 1e3


def denoised(
    precision: Float[Array, "*batch dim dim"],
    deviation: Float[Array, "*batch dim dim"],
    room: float | Float[Array, ""] = 0.5,
) -> Float[Array, "*batch dim dim"]:
    """What a noisy precision matrix is expected to be, with room for its noise.

    Noise drives eigenvalues apart, and most where they are close together: of hundreds
    that are small, half read negative and half as large as the noise. Eigenvalues go
    back to where they are expected to be given what was read
    (`_expected_eigenvalues`), and those that stay negative to zero. A part of the
    noise's spectral norm is added to the diagonal. Without it, directions that the
    noise has emptied get almost the prior's width, and a mean along them that is noise
    alone.

    Noise is taken to be as large in an entry as its row's and its column's units say,
    which are divided out first; see `_units_of`.

    Args:
      precision: Noisy, symmetric.
      deviation: Standard deviations of the noise in it.
      room: The part that is added.
    """

    def with_room() -> Float[Array, "*batch dim dim"]:
        """The matrix with room for noise, in the case that some entry has any."""
        unit, is_noisy = _units_of(deviation)
        units = unit[..., :, None] * unit[..., None, :]
        noise = _spectral_norm(deviation / units)
        scaled = precision / units
        # Coordinates without any noise, such as the mean of effects, of which rows say
        # nothing, are no part of what the noise has mixed: they are put far away. One
        # may have noise beside the diagonal alone: in its products with others, where
        # its own square is a public count.
        is_mixed = deviation.max(-1) > 0
        both = is_mixed[..., :, None] & is_mixed[..., None, :]
        size = jnp.abs(scaled).max((-1, -2)) + noise
        far = jnp.where(is_mixed, 0.0, _FAR * size[..., None])
        diagonal = jnp.eye(precision.shape[-1])
        mixed = jnp.where(both, scaled, 0.0) + far[..., None] * diagonal
        values, vectors = eigh(mixed)
        expected = _expected_eigenvalues(values, noise)
        weighted = vectors * jnp.maximum(expected, 0.0)[..., None, :]
        found = _product(weighted, jnp.swapaxes(vectors, -1, -2))
        found = jnp.where(both, found, scaled)
        # Rounding may leave negative ones again, however small the noise is.
        rounding = 4.0 * jnp.finfo(values.dtype).eps * size
        least = precision.shape[-1] ** 2 * rounding
        ridge = jnp.where(is_noisy, room * noise[..., None], 0.0)
        ridge = jnp.maximum(ridge, least[..., None])[..., None]
        with_ridge = (found + ridge * diagonal) * units
        return jnp.where(noise[..., None, None] > 0, with_ridge, precision)

    # Without noise the matrix is left alone to the last digit.
    return jax.lax.cond(jnp.any(deviation > 0), with_room, lambda: precision)


def _units_of(
    deviation: Float[Array, "*batch dim dim"],
) -> tuple[Float[Array, "*batch dim"], Bool[Array, "*batch dim"]]:
    """Returns each coordinate's unit, the root of the noise in its own square, and
    whether there is noise in it.

    A square may be public, as that of an intercept is. Then the noise in its products
    with others says in what unit the coordinate is: were it taken to be as large as the
    largest of the others, a shift of a raw column, which hardly differs from an
    intercept, would look smaller than the noise.
    """
    own = jnp.diagonal(deviation, axis1=-2, axis2=-1)
    is_noisy = own > 1e-9 * own.max(-1, keepdims=True)
    unit = jnp.sqrt(jnp.where(is_noisy, own, 1.0))
    by_products = jnp.where(is_noisy, 1.0 / unit, 0.0)[..., None, :] * deviation
    of_public = by_products.max(-1)
    # Two that are public both have noise in their product alone.
    rest = jnp.sqrt(deviation.max(-1))
    of_public = jnp.where(of_public > 0, of_public, rest)
    unit = jnp.where(is_noisy, unit, of_public)
    return jnp.where(unit > 0, unit, 1.0), is_noisy


def noise_along(
    vectors: Float[Array, "*batch dim dim"], deviation: Float[Array, "*batch dim dim"]
) -> Float[Array, "*batch dim"]:
    """Standard deviations of ⟨v, N v⟩ for noise N in a symmetric matrix.

    Args:
      vectors: In columns.
      deviation: Standard deviations of the entries of N, independent but for symmetry.
    """
    squares, variance = vectors**2, deviation**2
    both = jnp.einsum(
        "...ik,...ij,...jk->...k", squares, variance, squares, precision="highest"
    )
    own = jnp.diagonal(variance, axis1=-2, axis2=-1)
    return jnp.sqrt(2.0 * both - (squares**2 * own[..., :, None]).sum(-2))


def _expected_eigenvalues(
    values: Float[Array, "*batch dim"], spectral_norm: Float[Array, "*batch"]
) -> Float[Array, "*batch dim"]:
    """⟨v, A v⟩ for the eigenvectors v of A + noise, from the eigenvalues λ alone.

    It is λᵢ − 2s² Σⱼ 1 / (λᵢ − λⱼ), s the standard deviation of the noise off the
    diagonal: with these in the place of λ the error is the least that any function of
    the eigenvalues leaves, as matrices become large (Bun, Allez, Bouchaud and Potters,
    2016). The poles are smoothed at the width s. The trace stays what it was.

    Args:
      values: Eigenvalues of noisy matrices.
      spectral_norm: 2s√d of the noise.
    """
    variance = 0.25 * spectral_norm**2 / (values.shape[-1] + 1)
    variance = variance[..., None, None]
    apart = values[..., :, None] - values[..., None, :]
    near = apart**2 + variance
    push = jnp.where(near > 0, apart / jnp.where(near > 0, near, 1.0), 0.0)
    return values - 2.0 * (variance * push).sum(-1)


def num_small(
    matrices: Float[Array, "*batch dim dim"],
    deviation: Float[Array, "*batch dim dim"],
) -> Int[Array, ""]:
    """How many eigenvalues of noisy matrices the noise may have made.

    They are below half of its spectral norm, which is one standard deviation where a
    matrix is one number.

    Args:
      matrices: Noisy, symmetric; positive semidefinite without the noise.
      deviation: Standard deviations of the noise in them.
    """
    limit = 0.5 * _spectral_norm(deviation)[..., None]

    def count() -> Int[Array, ""]:
        return jnp.sum((limit > 0) & (eigh(matrices)[0] < limit))

    return jax.lax.cond(jnp.any(limit > 0), count, lambda: jnp.zeros((), int))


def _spectral_norm(
    deviation: Float[Array, "*batch dim dim"],
) -> Float[Array, "*batch"]:
    """The expected size of the noise's largest eigenvalue, about."""
    return 2.0 * jnp.sqrt((deviation**2).sum(-1).max(-1))


@_one_at_a_time
def _cholesky(matrix: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    return jnp.linalg.cholesky(matrix)


@_one_at_a_time
def _inverse(matrix: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    root = _inverse_of_triangle(jnp.linalg.cholesky(matrix))
    return _product(root.T, root)


def _inverse_of_triangle(factor: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
    """The inverse of a lower triangle, in halves: that leaves out what is zero.

    Of a hundred columns, the matrix and its inverse take two thirds of the time.
    """
    size = factor.shape[-1]
    if size <= _SMALL:
        identity = jnp.eye(size, dtype=factor.dtype)
        return jax.scipy.linalg.solve_triangular(factor, identity, lower=True)
    half = size // 2
    above = _inverse_of_triangle(factor[:half, :half])
    below = _inverse_of_triangle(factor[half:, half:])
    corner = -_product(below, _product(factor[half:, :half], above))
    return jnp.block([[above, jnp.zeros_like(corner.T)], [corner, below]])


def _factor(matrices: Float[Array, "*batch dim dim"]) -> Float[Array, "*batch dim dim"]:
    """Cholesky factors, a column at a time."""
    rest, columns = matrices, []
    for i in range(matrices.shape[-1]):
        column = rest[..., :, i] / jnp.sqrt(rest[..., i, i])[..., None]
        # What is above the diagonal has been eliminated up to rounding.
        column = jnp.where(jnp.arange(matrices.shape[-1]) >= i, column, 0.0)
        rest = rest - column[..., :, None] * column[..., None, :]
        columns.append(column)
    return jnp.stack(columns, axis=-1)


def _inverse_root(
    factor: Float[Array, "*batch dim dim"],
) -> Float[Array, "*batch dim dim"]:
    """The inverse of a triangular factor, a row at a time."""
    rows: list[Float[Array, "*batch dim"]] = []
    for i in range(factor.shape[-1]):
        row = jnp.zeros_like(factor[..., 0, :]).at[..., i].set(1.0)
        for j, above in enumerate(rows):
            row = row - factor[..., i, j, None] * above
        rows.append(row / factor[..., i, i, None])
    return jnp.stack(rows, axis=-2)
