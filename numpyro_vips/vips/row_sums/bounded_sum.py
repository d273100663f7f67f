"""Clipped sums of the rows' expected sufficient statistics.

Rows are solved for and clipped in double precision one by one, as a program that was
checked for a single row; see `jax_tools.separate_rows`.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from numpyro_vips.jax_tools.materialized import materialized
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.row_sums import (
    DIAGNOSTICS,
    clipping_factor,
    diagnostic_counts,
    in_double,
    sum_over_rows,
)
from numpyro_vips.vips.program.expectations import expected
from numpyro_vips.vips.program.named_arrays import (
    ByStatistic,
    NewByStatistic,
    Rows,
    Scales,
)
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.contributions import (
    RowContribution,
    RowInputs,
    piece_size_of,
    row_contributions,
    terms_with,
)
from numpyro_vips.vips.row_sums.partial_sums import (
    PartialSum,
    ShapeOfSum,
    add,
    in_order,
    weighted,
    zero_sum,
)
from numpyro_vips.vips.row_sums.released_blocks import as_block
from numpyro_vips.vips.row_sums.row_norms import cancelling_statistics, norm_of


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
                contributions = row_contributions(program, inputs, scales, rows, sweeps)
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
            of_piece, rows, mask, piece_size_of(program), zeros=zeros, add=add_to
        )
        blocks = {
            s.name: as_block(
                s, in_order(sums[s.name], partial_sums[s.name], shapes[s.name])
            )
            for s in program.structure.statistics
            if s.name in scales
        }
        return blocks | {name: sums[name] for name in DIAGNOSTICS}


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
    norms = materialized(
        jax.vmap(lambda mine: norm_of(program, mine, scales, means, units))(
            contributions
        )
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
        each = materialized(gradients(contributions, apart))
        partial_sums |= {
            name: jnp.tensordot(weights, array, 1) for name, array in each.items()
        }
    return partial_sums | counts | (jax.grad(total)(rest) if rest else {})


# Entries of a statistic of which each row's is made where a row's terms may cancel.
_MOST_MADE = 512


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
