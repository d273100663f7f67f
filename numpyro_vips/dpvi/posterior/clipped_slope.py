"""How much clipped differences to redrawn rows move with the globals.

Steps that redraw rows release sums of clip(d), with d = g − g* the difference of a
row's gradient to that of the row which the model draws in its place. Where the model is
right, such sums are zero on average, and move with the globals by

    S = E[clip(d) gᵀ] = ½ E[clip(d) dᵀ],

since the derivative of a density is the density times its score, and g and g* can be
exchanged. Without clipping it is the rows' information. Clipping takes most off the
rows in the tails of their distribution, and so most in the directions that these rows
speak of, such as the degrees of freedom of a Student t: an information that is clipped
in its own way says that those are known more surely than the sums say.

Here d is the difference between two rows that the model draws, given the row's
covariates. Where the model is right that is the same. With the row itself, rows that
vary more than the model says would make S larger, and intervals narrower.

A row adds ½ clip(d) dᵀ, which is as long as d and no longer, where the information is
as long as its square.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from numpyro_vips.dpvi.gradients.clipped_gradients import RowGradients, Shared
from numpyro_vips.jax_tools.materialized import materialized
from numpyro_vips.jax_tools.precision import Precision, double_precision
from numpyro_vips.jax_tools.row_sums import (
    Norms,
    clipping_factor,
    in_double,
    map_over_rows,
    sum_over_rows,
)


class ClippedSlope:
    """The matrices ½ clip(d) dᵀ of rows, and their clipped sum."""

    def __init__(self, row_gradients: RowGradients) -> None:
        """Traces nothing yet.

        Args:
          row_gradients: What d is made of, for a model whose rows can be drawn anew and
            whose steps release a single block.
        """
        self._gradients = row_gradients

    def norms(
        self,
        shared: Shared,
        rows: Mapping[str, Any],
        row_keys: UInt32[Array, "rows 2"],
        gradient_norm: Any,
    ) -> Norms:
        """Frobenius norm of each row's matrix; NaN where the row would add zero.

        In double precision, and as they are clipped by. They are not yet private.

        Args:
          shared: Where, and in which coordinates, rows are asked.
          rows: With a leading axis of rows.
          row_keys: 64 secret bits for each row, see `privacy.row_keys`.
          gradient_norm: What d is clipped to.
        """

        def of_piece(piece: Any) -> Norms:
            _, lengths = self._gradients.differences(shared, piece, callers=callers)
            return _halves(lengths, gradient_norm) * lengths**2

        callers = Precision.of_caller()
        pieces = {"rows": rows, "keys": row_keys}
        with double_precision():
            return map_over_rows(of_piece, pieces, self._gradients.pairs_at_a_time)

    def bounded_sum(
        self,
        shared: Shared,
        rows: Mapping[str, Any],
        mask: Bool[Array, " rows"],
        row_keys: UInt32[Array, "rows 2"],
        gradient_norm: Any,
        clipping_norm: Any,
    ) -> Float[Array, "read read"]:
        """The sum of the rows' matrices, each shortened to the clipping norm.

        Guarantees:
          Adding or removing one row changes the sum by at most `clipping_norm` in
          Frobenius norm, up to the rounding of a sum in double precision, whatever the
          row and its key. A row that is masked, or that would add zero to the sum of
          clipped gradients, adds zero.

        Args:
          shared, rows, row_keys, gradient_norm: See `norms`.
          mask: True where a row is meant.
          clipping_norm: The bound on a row's matrix.
        """

        def of_piece(piece: Any, mask: Bool[Array, " piece"]) -> Float[Array, "r r"]:
            vectors, lengths = self._gradients.differences(
                shared, piece, callers=callers
            )
            halves = _halves(lengths, gradient_norm)
            norms = materialized(halves * lengths**2)
            counts = mask & jnp.isfinite(norms)
            weights = halves * clipping_factor(norms, in_double(clipping_norm))

            def with_row(row: Any, total: Float[Array, "r r"]) -> Float[Array, "r r"]:
                matrix = weights[row] * vectors[row][:, None] * vectors[row][None, :]
                return total + jnp.where(counts[row], matrix, 0.0)

            size = vectors.shape[1]
            zero = jnp.zeros((size, size), vectors.dtype)
            return jax.lax.fori_loop(0, len(vectors), with_row, zero)

        callers = Precision.of_caller()
        pieces = {"rows": rows, "keys": row_keys}
        with double_precision():
            size = self._gradients.pairs_at_a_time
            total, _ = sum_over_rows(of_piece, pieces, mask, size)
            # Symmetric but for rounding; this makes no matrix longer.
            return 0.5 * (total + total.T)


def _halves(lengths: Norms, gradient_norm: Any) -> Norms:
    """½ |clip(d)| / |d| for each length |d|."""
    return 0.5 * clipping_factor(lengths, in_double(gradient_norm))
