"""What runs on a chunk of rows: sums, norms, counts. One program for each shape."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped, UInt32

from numpyro_vips.dpvi.compiler import CompiledModel
from numpyro_vips.dpvi.gradients.clipped_gradients import Shared
from numpyro_vips.dpvi.posterior.clipped_slope import ClippedSlope
from numpyro_vips.dpvi.posterior.row_information import Point
from numpyro_vips.dpvi.program import GradientInputs
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.quick_compilation import jit_of_rows, jit_unoptimized
from numpyro_vips.jax_tools.row_sums import counts_of_norms, counts_of_parts
from numpyro_vips.model.sparse_rows import dense_rows


class Place(NamedTuple):
    """Where rows are asked for a matrix.

    Attributes:
      inputs: The globals there, and in which coordinates.
      gradient_norm: What the rows' gradients are clipped to in steps.
    """

    inputs: GradientInputs
    gradient_norm: float

    @property
    def point(self) -> Point:
        return self.inputs.variational.guide["loc"]


class DpviRowPrograms:
    """The programs of one model; they take rows as arrays, and keep none.

    Attributes:
      bounded_sum, bounded_matrix, norms, counts, matrix_counts, column_counts: The
        methods below, compiled.
    """

    def __init__(self, compiled: CompiledModel) -> None:
        self._compiled = compiled
        self._slope = ClippedSlope(
            compiled.row_gradients,
            0 if compiled.noise_aware is None else compiled.noise_aware.num_read,
        )
        num_numbers = compiled.program.graph.arguments.num_numbers
        jit = functools.partial(jit_of_rows, num_numbers=num_numbers)
        self.bounded_sum = jit(self._bounded_sum)
        self.bounded_matrix = jit(self._bounded_matrix, static_argnums=0)
        self.norms = jit_unoptimized(self._norms)
        self.counts = jit(self._counts, static_argnums=5)
        self.matrix_counts = jit(self._matrix_counts, static_argnums=0)
        self.column_counts = jit(self._column_counts)

    def _bounded_sum(
        self,
        inputs: GradientInputs,
        rows: Mapping[str, Any],
        mask: Bool[Array, " rows"],
        scales: Mapping[str, Any],
        clipping_norm: Any,
        row_keys: UInt32[Array, "rows 2"] | None,
    ) -> dict[str, Float[Array, "..."]]:
        """The clipped sum of a chunk's gradients; see `DpviEngine.bounded_sum`."""
        shared = self._compiled.program.shared(inputs)
        return self._compiled.row_gradients.bounded_sum(
            shared, self._as_traced(rows), mask, scales, clipping_norm, row_keys
        )

    def _bounded_matrix(
        self,
        name: str,
        place: Place,
        rows: Mapping[str, Any],
        mask: Bool[Array, " rows"],
        clipping_norm: Any,
        row_keys: UInt32[Array, "rows 2"] | None,
    ) -> Float[Array, "read read"]:
        """The sum of a chunk's matrices; see `RowInformation.bounded_sum`.

        With keys, the slope of the clipped differences to redrawn rows, see
        `clipped_slope.py`.
        """
        assert self._compiled.noise_aware is not None
        rows = self._as_traced(rows)
        if row_keys is not None:
            return self._slope.bounded_sum(
                self._at(place),
                rows,
                mask,
                row_keys,
                place.gradient_norm,
                clipping_norm,
            )
        return self._compiled.noise_aware.matrix(name).bounded_sum(
            place.point, place.inputs.units, rows, mask, clipping_norm
        )

    def _norms(
        self,
        inputs: GradientInputs,
        rows: Mapping[str, Any],
        row_keys: UInt32[Array, "rows 2"] | None = None,
    ) -> dict[str, Float[Array, " rows"]]:
        """Norm of every block in each row; NaN where the row would count as zero."""
        shared = self._compiled.program.shared(inputs)
        return self._compiled.row_gradients.norms(
            shared, self._as_traced(rows), row_keys
        )

    def _counts(
        self,
        inputs: GradientInputs,
        rows: Mapping[str, Any],
        mask: Bool[Array, " rows"],
        edges: Mapping[str, Any],
        row_keys: UInt32[Array, "rows 2"] | None,
        parts: tuple[tuple[str, tuple[str, ...]], ...],
    ) -> dict[str, Float[Array, " _one_more"]]:
        """The number of rows in each bin of every norm, and of those that count as
        zero, not yet private."""
        norms = self._norms(inputs, rows, row_keys)
        return counts_of_parts(norms, mask, parts, edges)

    def _matrix_counts(
        self,
        name: str,
        place: Place,
        rows: Mapping[str, Any],
        mask: Bool[Array, " rows"],
        edges: Float[Array, " _edges"],
        row_keys: UInt32[Array, "rows 2"] | None,
    ) -> Float[Array, " _one_more"]:
        """How many of the norms of a chunk's matrices lie in which bin, and how many
        rows count as zero."""
        assert self._compiled.noise_aware is not None
        rows = self._as_traced(rows)
        if row_keys is not None:
            norms = self._slope.norms(
                self._at(place), rows, row_keys, place.gradient_norm
            )
        else:
            of_row = self._compiled.noise_aware.matrix(name)
            norms = of_row.norms(place.point, place.inputs.units, rows)
        with double_precision():
            return counts_of_norms(norms, mask, edges)

    def _column_counts(
        self,
        rows: Mapping[str, Any],
        mask: Bool[Array, " rows"],
        edges: Mapping[str, Float[Array, " _edges"]],
    ) -> dict[str, Float[Array, "_columns _bins"]]:
        """The number of rows in each bin of every feature, not yet private."""
        first, program = self._compiled.first_coordinates, self._compiled.program
        assert first is not None
        place, rows = program.space.split(program.start), self._as_traced(rows)
        return {
            name: first.columns.counts(place, rows, mask, of)
            for name, of in edges.items()
        }

    def _at(self, place: Place) -> Shared:
        """What rows share whose gradients are taken at the place itself, not at a draw
        about it."""
        program, inputs = self._compiled.program, place.inputs
        tree = program.tree(inputs.variational, place.point)
        return program.shared(inputs)._replace(tree=tree)

    def _as_traced(self, rows: Mapping[str, Any]) -> dict[str, Shaped[Array, "..."]]:
        """Dense rows of the dtypes that the model was traced with."""
        shapes = self._compiled.program.graph.arguments.row_shapes()
        rows = dense_rows(rows)
        return {name: jnp.asarray(rows[name], shapes[name].dtype) for name in shapes}
