"""What rows contribute to a step, from the E-step: their numbers and latents' moments.

Norms (`row_norms`) and sums (`bounded_sum`) are made of the same contributions.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.jax_tools.materialized import materialized
from numpyro_vips.jax_tools.row_sums import piece_length
from numpyro_vips.jax_tools.separate_rows import over_rows
from numpyro_vips.vips.e_step.e_step import couples_latents, moments_of_row
from numpyro_vips.vips.program.features import Standardisation, standardised
from numpyro_vips.vips.program.named_arrays import (
    ByStatistic,
    MomentsByFactor,
    NewMomentsByFactor,
    Numbers,
    Points,
    Row,
    Rows,
    Scales,
)
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.scattered import Scattered, scattered_statistics


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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowContribution:
    """What a row's norm and its part of the sum are computed from, for one row or
    several.

    Attributes:
      numbers: What the slots of its terms stand for, by token.
      local_moments: Moments of its latents, by factor.
      scattered: The statistics that are made already.
      valid: Whether the row may count.
      epsilon: Machine epsilon of the precision in which latents were solved for.
    """

    numbers: Numbers
    local_moments: MomentsByFactor
    scattered: Mapping[str, Scattered]
    valid: Bool[Array, "*rows"]
    epsilon: float = dataclasses.field(metadata={"static": True})


def row_contribution(
    program: ConjugateProgram,
    arrays: Numbers,
    valid: Bool[Array, ""],
    local_moments: MomentsByFactor,
    scales: Scales,
    means: Points,
) -> RowContribution:
    """A row's contribution, from which norm and sum are made.

    Both are made of the same numbers and in double precision, where no product of a
    few of them is too large or too small: they have sizes that single precision has,
    and are zero, or the row is not valid, where they are smaller or larger. Squares of
    smaller ones would be zero, and a row could count with a norm of zero and not be
    clipped.

    Args:
      program: The compiled model.
      arrays: The row's constants by token, zeros if it is not valid.
      valid: Whether it is.
      local_moments: Moments of its latents, by factor.
      scales: Scale of each block that is released; the others are left out.
      means: The points about which statistics are taken, by latent; may be empty.
    """
    tokens = {slot.token for term in program.row_terms for slot in term.slots}
    numbers = {token: array for token, array in arrays.items() if token in tokens}
    (arrays, local_moments), valid = _of_single_size((numbers, local_moments), valid)
    scattered = scattered_statistics(
        program.structure,
        terms_with(program, arrays, means),
        local_moments,
        scales,
    )
    return RowContribution(arrays, local_moments, scattered, valid, rounding_unit())


_SINGLE = jnp.finfo(jnp.float32)


def _of_single_size(numbers: Any, valid: Bool[Array, ""]) -> tuple[Any, Any]:
    """A row's numbers in the range of single precision, and whether it is valid so.

    Args:
      numbers: A tree of arrays. In single precision they are returned as they are.
      valid: Whether the row was valid.

    Returns:
      The same tree, with zeros for what is too small, and zeros alone if something is
      too large; and whether the row is valid still.
    """
    if jnp.result_type(float) != jnp.float64:
        return numbers, valid

    def is_real(array: Shaped[Array, "..."]) -> bool:
        return jnp.issubdtype(jnp.result_type(array), jnp.floating)

    for array in filter(is_real, jax.tree.leaves(numbers)):
        valid = valid & jnp.all(jnp.abs(array) <= _SINGLE.max)

    def limited(array: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        if not is_real(array):
            return array
        return jnp.where(valid & (jnp.abs(array) >= _SINGLE.tiny), array, 0.0)

    return jax.tree.map(limited, numbers), valid


def terms_with(
    program: ConjugateProgram, numbers: Numbers, means: Points
) -> list[Term]:
    """A row's terms with its numbers, taken about the means."""
    terms = program.centred_terms if means else program.row_terms
    return [term.filled({**numbers, **means}) for term in terms]


def rounding_unit() -> float:
    """The gap between 1 and the next number of JAX's current type of floats."""
    return float(jnp.finfo(jnp.result_type(float)).eps)


# States of a row's discrete latent beyond which its rows are not tried in each.
_MOST_STATES = 8


def num_states(program: ConjugateProgram) -> int:
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
    """Moments with the latents of `num_states` in one state, the last if they have
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


def row_contributions(
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
    # The norm and the sum are of the same numbers.
    return materialized(contributions)


def piece_size_of(program: ConjugateProgram) -> int | None:
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


# Rows whose latents are swept are worked on in pieces that stay near the processor.
MAX_PIECE = 256
_PIECE_BYTES = 2**26


def piece_size(bytes_per_row: int) -> int:
    """How many rows to work on together, given what the latents of one take."""
    return min(MAX_PIECE, piece_length(bytes_per_row, _PIECE_BYTES))
