"""The E-step and the norm of a single row, as the library runs them over many."""

from collections.abc import Mapping
from typing import Any

import jax

from numpyro_vips.jax_tools.row_sums import in_double
from numpyro_vips.vips.e_step.e_step import moments_of_row
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.contributions import row_contribution
from numpyro_vips.vips.row_sums.row_norms import norm_of


def solve_locals(
    program: ConjugateProgram, expected_natural: Any, row: Any, sweeps: int
) -> Mapping[str, Any]:
    """Moments of a row's latents, by factor."""
    arrays, _ = program.row_constants.zero_if_invalid(row)
    return moments_of_row(program, expected_natural, arrays, sweeps)


def row_norm(
    program: ConjugateProgram,
    row: Any,
    local_moments: Any,
    scales: Mapping[str, float],
    means: Any = None,
) -> jax.Array:
    """L2 norm of one row's scaled statistics, by which `bounded_sum` clips it."""
    arrays, valid = program.row_constants.zero_if_invalid(row)
    contribution = row_contribution(
        program, arrays, valid, local_moments, scales, means or {}
    )
    with jax.enable_x64(True):
        return norm_of(
            program, in_double(contribution), in_double(scales), in_double(means or {})
        )
