"""Clipped sums of the rows' expected sufficient statistics.

Rows are solved for and clipped in double precision one by one, as a program that was
checked for a single row; see `jax_tools.separate_rows`.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.row_sums import (
    DIAGNOSTICS,
    clipping_factor,
    diagnostic_counts,
    in_double,
    map_over_rows,
    piece_length,
    sum_over_rows,
)
from numpyro_vips.jax_tools.separate_rows import over_rows
from numpyro_vips.vips.e_step.e_step import couples_latents, moments_of_row
from numpyro_vips.vips.program.expectations import expected
from numpyro_vips.vips.program.features import (
    Standardisation,
    Standards,
    standardised,
)
from numpyro_vips.vips.program.named_arrays import (
    ByStatistic,
    NewByStatistic,
    NewMomentsByFactor,
    Row,
    Rows,
    Scales,
)
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.row_statistics import (
    RowContribution,
    Scattered,
    as_block,
    cancelling_statistics,
    norm_of,
    row_contribution,
    terms_with,
)


class RowInputs(NamedTuple):
    """What rows' statistics depend on beside the rows: public, and the same for all.

    Attributes:
      expected_natural: n̄, one array per statistic.
      means: The points about which statistics are taken, by latent; zero if left out.
      units: What each entry of a statistic is multiplied by for the norm, by the
        statistic's name; 1 if left out.
      standards: How the features of each factor are standardised beforehand; see
        `features.py`. They stay as they are if left out.
    """

    expected_natural: ByStatistic
    means: Mapping[str, Float[Array, "..."]] = {}
    units: Mapping[str, Float[Array, "..."]] = {}
    standards: Mapping[str, Standardisation] = {}


def bounded_sum(
    program: ConjugateProgram,
    inputs: RowInputs,
    rows: Rows,
    mask: Bool[Array, " rows"],
    scales: Scales,
    clipping_norm: float | Float[Array, ""],
    sweeps: int,
) -> NewByStatistic:
    """Sums the rows' expected sufficient statistics, each clipped in L2 norm.

    Guarantees:
      Adding or removing one row changes the sum, each block times its scale and its
      units, by at most `clipping_norm` in L2 norm, whatever the rows hold: a row that
      holds something not finite or outside its support counts as zero.

    Args:
      program: The compiled model.
      inputs: What statistics depend on beside the rows. The sum is returned without
        the units.
      rows: The private arguments, with a leading axis of rows.
      mask: Whether each row is part of the minibatch.
      scales: Scale of each block that is released; the others are left out.
      clipping_norm: Bound on the norm of one row's scaled statistics.
      sweeps: Number of coordinate-ascent sweeps over a row's latents.

    Returns:
      The sum of each block in `scales`, not yet private, in double precision; and the
      counts of `row_sums.diagnostic_counts`.
    """
    # Which precision latents are solved for in is for the caller to say.
    is_double = jnp.result_type(float) == jnp.float64
    units = {name: array for name, array in inputs.units.items() if name in scales}
    inputs = inputs._replace(
        expected_natural=dict(inputs.expected_natural), units=units
    )
    with double_precision():
        double, double_scales, norm = in_double((inputs, dict(scales), clipping_norm))
        shapes = {name: jnp.shape(inputs.expected_natural[name]) for name in scales}
        shapes |= dict.fromkeys(DIAGNOSTICS, ())

        def of_piece(rows: Rows, mask: Bool[Array, " rows"]) -> dict[str, PartialSum]:
            with jax.enable_x64(is_double):
                contributions = _row_contributions(
                    program, inputs, scales, rows, sweeps
                )
            return _sum_of_contributions(
                program, double, double_scales, in_double(contributions), mask, norm
            )

        def add_to(
            sums: ByStatistic, partial_sums: Mapping[str, PartialSum]
        ) -> NewByStatistic:
            return {name: add(sums[name], partial_sums[name]) for name in shapes}

        def zeros(partial_sums: Mapping[str, ShapeOfSum]) -> NewByStatistic:
            return {name: zero_sum(partial_sums[name], shapes[name]) for name in shapes}

        sums, partial_sums = sum_over_rows(
            of_piece, rows, mask, _piece_size(program), zeros=zeros, add=add_to
        )
        blocks = {
            s.name: as_block(
                s, in_order(sums[s.name], partial_sums[s.name], shapes[s.name])
            )
            for s in program.structure.statistics
            if s.name in scales
        }
        return blocks | {name: sums[name] for name in DIAGNOSTICS}


def norms_of_rows(
    program: ConjugateProgram,
    inputs: RowInputs,
    rows: Rows,
    names: Collection[str],
    sweeps: int,
    *,
    in_any_state: bool = False,
) -> dict[str, Float[Array, " rows"]]:
    """Norms of the rows' expected sufficient statistics, by name: (number of rows,).

    They are the norms by which `bounded_sum` clips, in double precision, and not finite
    where a row counts as zero.

    Args:
      program, rows, sweeps: As in `bounded_sum`.
      inputs: What they depend on beside the rows.
      names: The statistics.
      in_any_state: Whether they are the largest that a row may come to have, in any
        state of a discrete latent of which it has one; see `_num_states`.
    """
    is_double = jnp.result_type(float) == jnp.float64
    scales = dict.fromkeys(names, 1.0)

    def of_piece(
        rows: Rows, state: Int[Array, ""] | None = None
    ) -> dict[str, Float[Array, " rows"]]:
        with jax.enable_x64(is_double):
            contributions = _row_contributions(
                program, inputs, scales, rows, sweeps, state
            )
        means, units = in_double((inputs.means, inputs.units))

        def of_row(mine: RowContribution) -> dict[str, Float[Array, ""]]:
            return {
                name: norm_of(program, mine, {name: 1.0}, means, units)
                for name in names
            }

        return jax.vmap(of_row)(in_double(contributions))

    size = _piece_size(program)
    with double_precision():
        norms = map_over_rows(of_piece, rows, size)
        if in_any_state and _num_states(program):
            states = jnp.arange(_num_states(program), dtype=jnp.int32)
            found = jax.lax.map(
                lambda state: map_over_rows(
                    lambda rows: of_piece(rows, state), rows, size
                ),
                states,
            )
            # Norms that are not finite stay so.
            norms = {n: jnp.maximum(norms[n], jnp.max(found[n], 0)) for n in norms}
        return norms


def columns_of_rows(
    program: ConjugateProgram,
    inputs: RowInputs,
    rows: Rows,
    name: str,
    sweeps: int,
) -> Float[Array, "columns rows"]:
    """Absolute values of the entries of a vector of residuals, in double precision.

    They are in units, and not finite where a row counts as zero.

    Args:
      program, inputs, rows, sweeps: As in `norms_of_rows`.
      name: The vector, which has units.
    """
    is_double = jnp.result_type(float) == jnp.float64

    def of_piece(rows: Rows) -> Float[Array, "rows columns"]:
        with jax.enable_x64(is_double):
            found = _row_contributions(program, inputs, {name: 1.0}, rows, sweeps)
        contributions = in_double(found)
        means, units = in_double((inputs.means, inputs.units))

        def of_column(unit: Float[Array, " columns"]) -> Float[Array, " rows"]:
            return jax.vmap(
                lambda mine: norm_of(program, mine, {name: 1.0}, means, {name: unit})
            )(contributions)

        return jax.lax.map(of_column, jnp.diag(units[name])).T

    with double_precision():
        return map_over_rows(of_piece, rows, _piece_size(program)).T


def features_of_rows(
    program: ConjugateProgram,
    inputs: RowInputs,
    rows: Rows,
    factor: str,
) -> Float[Array, "features rows"]:
    """Absolute values of a factor's features, in double precision.

    They are standardised as `inputs` say, and not finite where a row counts as zero.

    Args:
      program, inputs, rows: As in `norms_of_rows`.
      factor: Whose features these are.
    """
    features = program.features[factor]

    def of_row(standards: Standards, row: Row) -> Float[Array, " features"]:
        arrays, valid = program.row_constants.zero_if_invalid(row)
        found = features.flat(standardised(program.features, standards, arrays))
        return jnp.where(valid, jnp.abs(found), jnp.nan)

    found = over_rows(of_row)(inputs.standards, rows)
    with double_precision():
        return in_double(found).T


# States of a row's discrete latent beyond which its rows are not tried in each.
_MOST_STATES = 8


def _num_states(program: ConjugateProgram) -> int:
    """How many states the discrete latents have of which a row has one; 0 without any.

    Which component of a mixture a row belongs to depends on the globals, and at those
    that a fit starts from a component may have next to no rows.
    """
    most = max((number for _, number in _single_labels(program)), default=0)
    return most if most <= _MOST_STATES else 0


def _single_labels(program: ConjugateProgram) -> list[tuple[str, int]]:
    """The factors of discrete latents of which a row has one, and how many states."""
    return [
        (factor.name, factor.family.num_states)
        for factor in program.structure.posterior_factors_of("local")
        if factor.family.num_states is not None and math.prod(factor.shape) == 1
    ]


def _in_state(
    program: ConjugateProgram,
    moments: NewMomentsByFactor,
    state: Int[Array, ""] | None,
) -> NewMomentsByFactor:
    """Moments with the latents of `_num_states` in one state, the last if they have
    fewer; None leaves them as they are."""
    if state is None:
        return moments
    found = dict(moments)
    for name, number in _single_labels(program):
        mine = moments[name]["is"]
        here = jnp.minimum(state, jnp.int32(number - 1))
        one = jnp.arange(mine.shape[-1], dtype=jnp.int32) == here
        one = jnp.broadcast_to(one, mine.shape).astype(mine.dtype)
        found[name] = {"is": one}
    return found


def _row_contributions(
    program: ConjugateProgram,
    inputs: RowInputs,
    scales: Scales,
    rows: Rows,
    sweeps: int,
    state: Int[Array, ""] | None = None,
) -> RowContribution:
    """The E-step: rows' contributions, with a leading axis of rows.

    Alone, the refreshed statistics are what rows say of the globals at all, and so the
    observed information.

    Args:
      program, scales, rows, sweeps: See `bounded_sum`.
      inputs: What they depend on beside the rows.
      state: See `_in_state`.
    """
    is_information = program.refreshed.issuperset(scales)

    def solve(given: tuple[RowInputs, Scales, Any], row: Row) -> RowContribution:
        inputs, scales, state = given
        arrays, valid = program.row_constants.zero_if_invalid(row)
        local_moments = moments_of_row(
            program, inputs.expected_natural, arrays, sweeps, observed=is_information
        )
        local_moments = _in_state(program, local_moments, state)
        # The row's latents know nothing of how statistics are released.
        arrays = standardised(program.features, inputs.standards, arrays)
        return row_contribution(
            program, arrays, valid, local_moments, scales, inputs.means
        )

    given = jax.tree.map(jnp.asarray, (inputs, dict(scales), state))
    contributions = over_rows(solve)(given, rows)
    # Else XLA may work out a number twice, for the norm and for the sum, and round it
    # in two ways.
    return jax.lax.optimization_barrier(contributions)


def _sum_of_contributions(
    program: ConjugateProgram,
    inputs: RowInputs,
    scales: Scales,
    contributions: RowContribution,
    mask: Bool[Array, " rows"],
    clipping_norm: Float[Array, ""],
) -> "dict[str, PartialSum]":
    """Clips the rows' contributions and adds them up, in double precision."""
    expected_natural, means, units, _ = inputs
    norms = jax.vmap(lambda mine: norm_of(program, mine, scales, means, units))(
        contributions
    )
    weights, usable = clipping_weights(norms, mask, clipping_norm)
    counts = diagnostic_counts(norms, mask, clipping_norm)
    # What is not usable must not reach the sum even as 0 · nan.
    contributions = jax.tree.map(lambda x: where_rows(usable, x), contributions)
    partial_sums: dict[str, PartialSum] = {
        name: weighted(partial_sum, weights)
        for name, partial_sum in contributions.scattered.items()
    }

    def of_row(
        contribution: RowContribution, released: ByStatistic
    ) -> Float[Array, ""]:
        return expected(
            program.structure,
            terms_with(program, contribution.numbers, means),
            {**expected_natural, **released},
            contribution.local_moments,
        )

    def total(released: ByStatistic) -> Float[Array, ""]:
        of_rows = jax.vmap(of_row, in_axes=(0, None))
        return jnp.vdot(weights, of_rows(contributions, released))

    rest = {name: expected_natural[name] for name in scales if name not in partial_sums}
    made = cancelling_statistics(program, means).intersection(rest)
    made = {name for name in made if rest[name].size <= _MOST_MADE}
    apart = {name: rest.pop(name) for name in made}
    if apart:
        # A row's terms meet before rows do. Sums of terms that cancel are far larger
        # than their difference, and every row would have a say in how they are rounded.
        gradients = jax.vmap(jax.grad(of_row, argnums=1), in_axes=(0, None))
        each = jax.lax.optimization_barrier(gradients(contributions, apart))
        partial_sums |= {
            name: jnp.tensordot(weights, array, 1) for name, array in each.items()
        }
    return partial_sums | counts | (jax.grad(total)(rest) if rest else {})


# Entries of a statistic of which each row's is made where a row's terms may cancel.
_MOST_MADE = 512


def _piece_size(program: ConjugateProgram) -> int | None:
    """Rows to work on together; None for all, where no latents are swept."""
    structure = program.structure
    if not couples_latents(structure, program.row_terms):
        return None
    sizes = [
        math.prod(shape)
        for factor in structure.posterior_factors_of("local")
        for shape in factor.family.moment_shapes(factor.shape).values()
    ]
    return piece_size(sum(sizes) * np.dtype(np.float64).itemsize)


# --- partial sums ---------------------------------------------------------------------

# What some rows add to a statistic: an array, or their contributions, still scattered.
PartialSum = Float[Array, "..."] | Scattered
# Of the same, or of what will be the same when a program runs, the shapes alone.
ShapeOfSum = PartialSum | Float[jax.ShapeDtypeStruct, "..."]


def weighted(scattered: Scattered, weights: Float[Array, " rows"]) -> Scattered:
    """Contributions of rows, each multiplied by the weight of its row, (rows,)."""
    values = scattered.values
    each = weights.reshape(-1, *(1,) * (values.ndim - 1))
    return dataclasses.replace(scattered, values=each * values)


def zero_sum(partial_sum: ShapeOfSum, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """The zeros from which partial sums are added up; `shape` is the statistic's."""
    if not isinstance(partial_sum, Scattered):
        return jnp.zeros(shape, partial_sum.dtype)
    picked = [shape[partial_sum.axes.index(i)] for i in range(len(partial_sum.indices))]
    # The values have axes of rows and of each row's entries first.
    return jnp.zeros((*picked, *partial_sum.values.shape[2:]), partial_sum.values.dtype)


def add(total: Float[Array, "*sum"], partial_sum: PartialSum) -> Float[Array, "*sum"]:
    """Adds a partial sum to a total that began as its `zero_sum`."""
    if not isinstance(partial_sum, Scattered):
        return total + partial_sum
    return total.at[partial_sum.indices].add(partial_sum.values, mode="drop")


def in_order(
    total: Float[Array, "..."], partial_sum: ShapeOfSum, shape: tuple[int, ...]
) -> Float[Array, "..."]:
    """A total of partial sums, with the statistic's own axes."""
    if not isinstance(partial_sum, Scattered):
        return total
    axes = partial_sum.axes
    total = total[tuple(slice(shape[axes.index(i)]) for i in range(total.ndim))]
    if len(axes) == total.ndim:
        return jnp.transpose(total, axes)
    entries = jnp.ogrid[tuple(slice(size) for size in total.shape)]
    diagonal = tuple(entries[axis] for axis in axes)
    return jnp.zeros(shape, total.dtype).at[diagonal].set(total)


# --- rows -----------------------------------------------------------------------------

# Rows whose latents are swept are worked on in pieces that stay near the processor.
MAX_PIECE = 256
_PIECE_BYTES = 2**26


def piece_size(bytes_per_row: int) -> int:
    """How many rows to work on together, given what the latents of one take."""
    return min(MAX_PIECE, piece_length(bytes_per_row, _PIECE_BYTES))


def clipping_weights(
    norms: Float[Array, " rows"],
    mask: Bool[Array, " rows"],
    clipping_norm: float | Float[Array, ""],
) -> tuple[Float[Array, " rows"], Bool[Array, " rows"]]:
    """What each row is multiplied by, and which rows may be looked at at all."""
    usable = mask & jnp.isfinite(norms)
    factors = clipping_factor(norms, clipping_norm)
    return jnp.where(usable, factors, 0.0), usable


def where_rows(
    usable: Bool[Array, " rows"], array: Shaped[Array, "rows ..."]
) -> Shaped[Array, "rows ..."]:
    """The array with zeros in the place of rows that are not usable."""
    shape = (-1, *(1,) * (array.ndim - 1))
    return jnp.where(usable.reshape(shape), array, jnp.zeros((), array.dtype))
