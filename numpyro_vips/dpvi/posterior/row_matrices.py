"""Symmetric matrices of rows: their norms, and their clipped sum."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from numpyro_vips.jax_tools.materialized import materialized
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.row_sums import (
    Norms,
    clipping_factor,
    in_double,
    map_over_rows,
    piece_length,
    sum_over_rows,
)

# From some rows to their matrices, in double precision, and whether each may count;
# see `materialized`.
MatricesOf = Callable[
    [Any], tuple[Float[Array, "rows read read"], Bool[Array, " rows"]]
]

# Matrices of rows are held for so many numbers at a time: what fits a processor's cache
# is summed four times as quickly as what does not.
_MOST_NUMBERS = 2**20


def matrices_at_a_time(size: int) -> int:
    """How many rows are worked on together, with matrices of this size."""
    return piece_length(size**2, _MOST_NUMBERS)


def norms_of_matrices(
    matrices_of: MatricesOf, rows: Mapping[str, Any], at_a_time: int
) -> Norms:
    """Frobenius norm of each row's matrix; NaN where the row would add zero.

    In double precision, and as they are clipped by. They are not yet private.

    Args:
      matrices_of: Makes the matrices of some rows.
      rows: With a leading axis of rows.
      at_a_time: How many of them are worked on together.
    """
    with double_precision():
        return map_over_rows(lambda piece: _norms(*matrices_of(piece)), rows, at_a_time)


def bounded_sum_of_matrices(
    matrices_of: MatricesOf,
    rows: Mapping[str, Any],
    mask: Bool[Array, " rows"],
    clipping_norm: Any,
    at_a_time: int,
) -> Float[Array, "read read"]:
    """The sum of the rows' matrices, each shortened to the clipping norm.

    Guarantees:
      Adding or removing one row changes the sum by at most `clipping_norm` in Frobenius
      norm, up to the rounding of a sum in double precision. A row that is masked or not
      valid, or whose matrix is not finite, adds zero.

    Args:
      matrices_of, rows, at_a_time: See `norms_of_matrices`.
      mask: True where a row is meant.
      clipping_norm: The bound.
    """

    def of_piece(rows: Any, mask: Bool[Array, " piece"]) -> Float[Array, "r r"]:
        matrices, is_valid = matrices_of(rows)
        norms = _norms(matrices, is_valid)
        counts = mask & jnp.isfinite(norms)
        factors = clipping_factor(norms, in_double(clipping_norm))

        def with_row(row: Any, total: Float[Array, "r r"]) -> Float[Array, "r r"]:
            shortened = factors[row] * matrices[row]
            return total + jnp.where(counts[row], shortened, 0.0)

        # One row after the other: XLA's own sum over rows goes through all of them for
        # each entry, and takes ten times as long for large matrices.
        zero = jnp.zeros_like(matrices[0])
        return jax.lax.fori_loop(0, len(matrices), with_row, zero)

    with double_precision():
        total, _ = sum_over_rows(of_piece, rows, mask, at_a_time)
        # Symmetric but for rounding; this makes no matrix longer.
        return 0.5 * (total + total.T)


def _norms(
    matrices: Float[Array, "rows read read"], is_valid: Bool[Array, " rows"]
) -> Norms:
    norms = jnp.sqrt(jnp.sum(matrices**2, axis=(-2, -1)))
    return materialized(jnp.where(is_valid, norms, jnp.nan))
