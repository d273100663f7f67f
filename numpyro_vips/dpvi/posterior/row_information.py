"""The observed information of rows about the globals, and its clipped sum.

A row's information is −∂² log p(row | z) in the unconstrained globals z that rows
depend on: what the row adds to the posterior's precision (Louis 1982). Where latents of
a row are solved for or integrated out, only the first derivative of what is left is
exact; and where a density has a kink, as a Laplace distribution's has at its centre,
all of the second derivative is in the kink. The outer product of the first one with
itself stands in: over rows it has the same mean at the truth. So it does for a row of
which the second derivative is not finite, as where a discrete latent that is summed out
has states in which the row cannot be: log p of them is minus infinity.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from numpyro_vips.dpvi.gradients.coordinates import Units
from numpyro_vips.dpvi.posterior.row_matrices import (
    MatricesOf,
    bounded_sum_of_matrices,
    matrices_at_a_time,
    norms_of_matrices,
)
from numpyro_vips.jax_tools.index_ranges import indices_in_range
from numpyro_vips.jax_tools.materialized import materialized
from numpyro_vips.jax_tools.precision import Precision
from numpyro_vips.jax_tools.row_sums import in_double
from numpyro_vips.jax_tools.separate_rows import over_rows
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import INFORMATION

# Unconstrained globals, those that rows depend on first.
Point = Float[Array, " size"]


class _Matrix(NamedTuple):
    """One row's information, and whether it may count."""

    matrix: Float[Array, "*rows read read"]
    is_valid: Bool[Array, "*rows"]


class RowInformation:
    """Information of single rows in the first coordinates of the globals.

    Attributes:
      block: What is released: a symmetric matrix, whose directions count as those of
        the vector that it is multiplied with.
      of_row: What one row's program is: `_matrix_of_row`, compiled.
    """

    def __init__(
        self,
        program: jex_core.ClosedJaxpr,
        inputs: Callable[[Point, Mapping[str, Any]], list[Any]],
        *,
        num_read: int,
        has_second_derivative: bool,
        name: str = INFORMATION,
    ) -> None:
        """Traces nothing yet.

        Args:
          program: A row's log density, `with_compared_maxima`, and whether its
            observations lie in the support.
          inputs: The program's inputs at unconstrained globals and a row.
          num_read: Number of coordinates that rows depend on, the first ones.
          has_second_derivative: Whether the program is the log density itself, rather
            than something that has the same gradient, and has it all; see `kinks.py`.
            Else outer products of gradients are taken.
          name: That of the block.
        """
        shape = (num_read, num_read)
        self.block = Block(name=name, shape=shape, symmetric=True, directions=num_read)
        self._program = program
        self._inputs = inputs
        self._has_second_derivative = has_second_derivative
        self.of_row = jax.jit(self._matrix_of_row)
        self._of_rows = over_rows(self.of_row)

    def second_moments(self, name: str) -> "RowInformation":
        """The outer products of the same rows' gradients, as a block of another name.

        Far from where the rows are, second derivatives may have any sign.
        """
        num_read, _ = self.block.shape
        return RowInformation(
            self._program,
            self._inputs,
            num_read=num_read,
            has_second_derivative=False,
            name=name,
        )

    def norms(
        self, point: Point, units: Units | None, rows: Mapping[str, Any]
    ) -> Float[Array, " rows"]:
        """Frobenius norm of each row's matrix; NaN where the row would add zero.

        In double precision, and as they are clipped by. They are not yet private.
        """

        matrices_of = self._matrices_of(point, units)
        return norms_of_matrices(matrices_of, rows, self._at_a_time)

    def bounded_sum(
        self,
        point: Point,
        units: Units | None,
        rows: Mapping[str, Any],
        mask: Bool[Array, " rows"],
        clipping_norm: Any,
    ) -> Float[Array, "read read"]:
        """The sum of the rows' matrices, each shortened to the clipping norm.

        Guarantees:
          Adding or removing one row changes the sum by at most `clipping_norm` in
          Frobenius norm, up to the rounding of a sum in double precision. A row that is
          masked, whose observations lie outside the support, whose indices are out of
          range, or whose density or matrix is not finite adds zero.
        """

        return bounded_sum_of_matrices(
            self._matrices_of(point, units), rows, mask, clipping_norm, self._at_a_time
        )

    @property
    def _at_a_time(self) -> int:
        size, _ = self.block.shape
        return matrices_at_a_time(size)

    def _matrices_of(self, point: Point, units: Units | None) -> MatricesOf:
        """Makes the rows' matrices in double precision, from rows that are worked on as
        exactly as the caller has JAX compute now."""
        callers = Precision.of_caller()

        def of_piece(rows: Any) -> _Matrix:
            with callers.restored():
                # The norm and the sum are of the same numbers.
                found = materialized(self._of_rows((point, units), rows))
            return _Matrix(in_double(found.matrix), found.is_valid)

        return of_piece

    def _matrix_of_row(
        self, place: tuple[Point, Units | None], row: Mapping[str, Any]
    ) -> _Matrix:
        num_read, _ = self.block.shape
        run = jex_core.jaxpr_as_fun(self._program)
        point, units = place

        def moved(away: Float[Array, " read"]) -> Float[Array, " read"]:
            return away if units is None else jnp.asarray(units) @ away

        def density(away: Float[Array, " read"]) -> tuple[Any, Any]:
            z = jnp.concatenate([point[:num_read] + moved(away), point[num_read:]])
            value, in_support = run(*self._inputs(z, row))
            return value, (value, in_support)

        def gradient(away: Float[Array, " read"]) -> tuple[Any, Any]:
            first, found = jax.grad(density, has_aux=True)(away)
            return first, (first, *found)

        here = jnp.zeros_like(point[:num_read])
        if self._has_second_derivative:
            second, found = jax.jacfwd(gradient, has_aux=True)(here)
            first, value, in_support = found
            outer = first[:, None] * first[None, :]
            matrix = jnp.where(jnp.all(jnp.isfinite(second)), -second, outer)
        else:
            _, (first, value, in_support) = gradient(here)
            matrix = first[:, None] * first[None, :]
        in_range = indices_in_range(self._program, self._inputs(point, row))
        return _Matrix(matrix, in_range & in_support & jnp.isfinite(value))
