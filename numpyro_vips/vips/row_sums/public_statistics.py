"""Statistics that no row changes."""

import dataclasses

import jax

from numpyro_vips.vips.e_step.coordinates import locals_of
from numpyro_vips.vips.e_step.e_step import solve_row
from numpyro_vips.vips.program.expectations import binding, expected
from numpyro_vips.vips.program.named_arrays import ByStatistic, NewByStatistic
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.released_blocks import as_block


def public_statistics(
    program: ConjugateProgram, expected_natural: ByStatistic, sweeps: int
) -> NewByStatistic:
    """One row's contribution to each public statistic; every row has the same.

    Of a row's latents, only those take part whose factors do not depend on private
    rows.
    """
    structure = program.structure
    alike = dataclasses.replace(
        structure,
        posterior_factors={
            name: factor
            for name, factor in structure.posterior_factors.items()
            if factor.role == "global" or name not in structure.data_dependent_factors
        },
    )
    terms = [
        term
        for term in program.row_terms
        if not term.is_private
        and locals_of(structure, term) <= set(alike.posterior_factors)
    ]
    factors = solve_row(alike, terms, {}, expected_natural, sweeps)
    local_moments = {name: moments for name, (moments, _) in factors.items()}
    released = [
        term
        for term in terms
        if (found := binding(structure, term)) and found[0].release == "public"
    ]
    gradients = jax.grad(
        lambda natural: expected(structure, released, natural, local_moments)
    )(dict(expected_natural))
    return {
        s.name: as_block(s, gradients[s.name])
        for s in structure.statistics
        if s.release == "public"
    }
