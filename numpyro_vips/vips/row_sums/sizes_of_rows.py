"""What histograms count of rows: their norms, and how large their features are."""

from collections.abc import Collection

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.row_sums import in_double, map_over_rows
from numpyro_vips.jax_tools.separate_rows import over_rows
from numpyro_vips.vips.program.features import Standards, standardised
from numpyro_vips.vips.program.named_arrays import Row, Rows
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.contributions import (
    RowContribution,
    RowInputs,
    num_states,
    piece_size_of,
    row_contributions,
)
from numpyro_vips.vips.row_sums.row_norms import norm_of


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
        state of a discrete latent of which it has one; see `num_states`.
    """
    is_double = jnp.result_type(float) == jnp.float64
    scales = dict.fromkeys(names, 1.0)

    def of_piece(
        rows: Rows, state: Int[Array, ""] | None = None
    ) -> dict[str, Float[Array, " rows"]]:
        with jax.enable_x64(is_double):
            contributions = row_contributions(
                program, inputs, scales, rows, sweeps, state
            )
        means, units = in_double((inputs.means, inputs.units))

        def of_row(mine: RowContribution) -> dict[str, Float[Array, ""]]:
            return {
                name: norm_of(program, mine, {name: 1.0}, means, units)
                for name in names
            }

        return jax.vmap(of_row)(in_double(contributions))

    size = piece_size_of(program)
    with double_precision():
        norms = map_over_rows(of_piece, rows, size)
        if in_any_state and num_states(program):
            states = jnp.arange(num_states(program), dtype=jnp.int32)
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
            found = row_contributions(program, inputs, {name: 1.0}, rows, sweeps)
        contributions = in_double(found)
        means, units = in_double((inputs.means, inputs.units))

        def of_column(unit: Float[Array, " columns"]) -> Float[Array, " rows"]:
            return jax.vmap(
                lambda mine: norm_of(program, mine, {name: 1.0}, means, {name: unit})
            )(contributions)

        return jax.lax.map(of_column, jnp.diag(units[name])).T

    with double_precision():
        return map_over_rows(of_piece, rows, piece_size_of(program)).T


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
