"""How much clipped differences to redrawn rows move with the globals.

Steps that redraw rows release sums of clip(d), with d = g − g* the difference of a
row's gradient to that of the row which the model draws in its place. Where the model is
right, such sums are zero on average, and move with the globals by

    S = E[clip(d) gᵀ] = ½ E[clip(d) dᵀ],

since the derivative of a density is the density times its score, and g and g* can be
exchanged. Without clipping it is the rows' information. Clipping takes most off the
rows in the tails of their distribution, and so most in the directions that these rows
inform, such as the degrees of freedom of a Student t: an information that is clipped in
its own way is larger there than the sums allow.

Here d is the difference between two rows that the model draws, given the row's
covariates. Where the model is right that is the same. With the row itself, rows that
vary more than the model says would make S larger, and intervals narrower.

A row adds the average of ½ clip(d) dᵀ over several pairs of such rows. The average has
shorter tails than its terms, so that it is clipped to a smaller norm, under less noise.

What the sums vary by goes with S, and is less: clipped rows add the square of the norm
to it. How much less a histogram of the lengths of d says, see `SeenNorms.kept`. Where a
caller has given the norm there is none, but the trace of S is how long d is on average.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32
from scipy import special

from numpyro_vips.accounting.gaussian import last_true
from numpyro_vips.dpvi.gradients.clipped_gradients import RowGradients, Shared
from numpyro_vips.dpvi.posterior.row_matrices import (
    MatricesOf,
    bounded_sum_of_matrices,
    matrices_at_a_time,
    norms_of_matrices,
)
from numpyro_vips.jax_tools.materialized import materialized
from numpyro_vips.jax_tools.precision import Precision
from numpyro_vips.jax_tools.row_sums import Norms, clipping_factor, in_double
from numpyro_vips.vips.m_step.noisy_information import Information

# The logarithms of c² over the scale of |d|² between which it is looked for.
_RANGE = (-30.0, 30.0)


class ClippedSlope:
    """The matrices ½ clip(d) dᵀ of rows, and their clipped sum."""

    def __init__(self, row_gradients: RowGradients, size: int) -> None:
        """Traces nothing yet.

        Args:
          row_gradients: What d is made of, for a model whose rows can be drawn anew and
            whose steps release a single block.
          size: That of the block.
        """
        self._gradients = row_gradients
        self._size = size

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

        return norms_of_matrices(
            self._matrices_of(shared, gradient_norm),
            {"rows": rows, "keys": row_keys},
            self._at_a_time,
        )

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

        return bounded_sum_of_matrices(
            self._matrices_of(shared, gradient_norm),
            {"rows": rows, "keys": row_keys},
            mask,
            clipping_norm,
            self._at_a_time,
        )

    def _matrices_of(self, shared: Shared, gradient_norm: Any) -> MatricesOf:
        """Makes the rows' matrices in double precision, from rows that are worked on as
        exactly as the caller has JAX compute now."""
        callers = Precision.of_caller()

        def of_piece(
            piece: Any,
        ) -> tuple[Float[Array, "rows r r"], Bool[Array, " rows"]]:
            d, is_valid = self._gradients.differences(shared, piece, callers=callers)
            lengths = jnp.sqrt(jnp.sum(d**2, axis=-1))
            weights = clipping_factor(lengths, in_double(gradient_norm)) / d.shape[1]
            matrices = 0.5 * jnp.einsum("nk,nki,nkj->nij", weights, d, d)
            return materialized(matrices), is_valid

        return of_piece

    @property
    def _at_a_time(self) -> int:
        return min(self._gradients.pairs_at_a_time, matrices_at_a_time(self._size))


def variance_if_gaussian(
    slope: Information, gradient_norm: float, num_rows: int
) -> float:
    """`Kept.variance_per_slope` as if differences were Gaussian.

    |d|² then has about a gamma distribution, of half as many degrees of freedom as
    tr(S)²/tr(S²) (Satterthwaite 1946), and tr S is half of E[min(|d|, c) |d|] for each
    row. Tails are mostly longer, and with them the variance is less.

    Args:
      slope: The release.
      gradient_norm: The norm c to which differences are clipped.
      num_rows: Public number of rows.
    """
    values = np.maximum(np.linalg.eigvalsh(slope.matrix), 0.0)
    if not values.any() or not 0 < gradient_norm < np.inf:
        return 1.0
    shape = 0.5 * float(np.sum(values) ** 2 / np.sum(values**2))
    mean = 2.0 * float(np.sum(values)) / num_rows / gradient_norm**2

    def parts(log_bound: float) -> tuple[float, float]:
        """E[min(|d|, c) |d|] and E[min(|d|, c)²], over c²."""
        bound = np.exp(log_bound)
        kept = shape * special.gammainc(shape + 1.0, bound) / bound
        log_mean = special.gammaln(shape + 0.5) - special.gammaln(shape)
        length = np.exp(log_mean - 0.5 * log_bound)
        longer = length * special.gammaincc(shape + 0.5, bound)
        return float(kept + longer), float(kept + special.gammaincc(shape, bound))

    def excess(log_bound: float) -> float:
        return float(np.log(parts(log_bound)[0] / mean))

    low, high = _RANGE
    if excess(low) <= 0 or excess(high) >= 0:
        return min(1.0, 1.0 / mean)
    # Of SciPy's root finders the import alone takes longer.
    found, square = parts(last_true(lambda bound: excess(bound) > 0, low, high))
    return square / found
