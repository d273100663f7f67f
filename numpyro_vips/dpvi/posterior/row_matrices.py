"""Symmetric matrices of rows, and their clipped sum."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from numpyro_vips.jax_tools.materialized import materialized
from numpyro_vips.jax_tools.row_sums import (
    Norms,
    clipping_factor,
    in_double,
    piece_length,
)

# Matrices of rows are held for so many numbers at a time: what fits a processor's cache
# is summed four times as quickly as what does not.
_MOST_NUMBERS = 2**20


def matrices_at_a_time(size: int) -> int:
    """How many rows are worked on together, with matrices of this size."""
    return piece_length(size**2, _MOST_NUMBERS)


def matrix_norms(
    matrices: Float[Array, "rows read read"], is_valid: Bool[Array, " rows"]
) -> Norms:
    """Their Frobenius norms; NaN where the row would add zero."""
    norms = jnp.sqrt(jnp.sum(matrices**2, axis=(-2, -1)))
    return materialized(jnp.where(is_valid, norms, jnp.nan))


def sum_of_clipped(
    matrices: Float[Array, "rows read read"],
    norms: Norms,
    mask: Bool[Array, " rows"],
    clipping_norm: Any,
) -> Float[Array, "read read"]:
    """The sum of the rows' matrices, each shortened to the clipping norm.

    Guarantees:
      A row adds at most `clipping_norm` in Frobenius norm, and zero where it is masked
      or its norm is not finite.

    Args:
      matrices: In double precision, as norms are of them; see `materialized`.
      norms: Those of `matrix_norms`.
      mask: True where a row is meant.
      clipping_norm: The bound.
    """
    counts = mask & jnp.isfinite(norms)
    factors = clipping_factor(norms, in_double(clipping_norm))

    def with_row(row: Any, total: Float[Array, "r r"]) -> Float[Array, "r r"]:
        shortened = factors[row] * matrices[row]
        return total + jnp.where(counts[row], shortened, 0.0)

    # One row after the other: XLA's own sum over rows goes through all of them for each
    # entry, and takes ten times as long for large matrices.
    zero = jnp.zeros_like(matrices[0])
    return jax.lax.fori_loop(0, len(matrices), with_row, zero)
