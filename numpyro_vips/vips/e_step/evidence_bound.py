"""The evidence lower bound: a row's part, and that of the globals.

For tests, for fits without noise and for rows that the caller may see; it is not
bounded and never released for private ones.
"""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.families.family import Moments
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.vips.e_step.coordinates import copies, copies_array, divided_by_weight
from numpyro_vips.vips.e_step.e_step import local_factors
from numpyro_vips.vips.e_step.local_quadrature import ENTROPY
from numpyro_vips.vips.program.expectations import expected
from numpyro_vips.vips.program.named_arrays import (
    ByStatistic,
    LocalFactor,
    MomentsByFactor,
    Row,
)
from numpyro_vips.vips.program.program import ConjugateProgram


def row_bound(
    program: ConjugateProgram,
    expected_natural: ByStatistic,
    row: Row,
    sweeps: int,
) -> Float[Array, ""]:
    """The row's part of the bound: E_q of its terms, plus entropies.

    Not a number if the row is not valid.
    """
    factors = local_factors(program, expected_natural, row, sweeps)
    total, valid = row_bound_at(program, expected_natural, row, factors)
    return jnp.where(valid, total, jnp.nan)


def row_bound_at(
    program: ConjugateProgram,
    expected_natural: ByStatistic,
    row: Row,
    factors: Mapping[str, LocalFactor],
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """The bound for given factors of the row's latents, and whether it is valid."""
    structure = program.structure
    arrays, valid = program.row_constants.zero_if_invalid(row)
    terms = [term.filled(arrays) for term in program.row_terms]
    moments = {name: mine for name, (mine, _) in factors.items()}
    total = expected(structure, terms, expected_natural, moments)
    for factor in structure.posterior_factors_of("local"):
        weight = copies_array(factor, structure.latents, arrays)
        mine, natural = factors[factor.name]
        total = total + entropy(factor, natural, mine, weight)
    return total, valid


def bound_of_globals(
    program: ConjugateProgram, moments: MomentsByFactor, natural: MomentsByFactor
) -> Float[Array, ""]:
    """The globals' part of the bound: E_q of their prior, plus entropies.

    Under a flat prior it is that up to a constant of the model.

    Args:
      program: The model.
      moments, natural: Those of every global factor; see `m_step.Solution`.
    """
    structure = program.structure
    total = expected(structure, program.prior_terms, None, moments)
    for factor in structure.posterior_factors_of("global"):
        mine, weight = natural[factor.name], copies(factor, structure.latents)
        array = None
        if weight is not None:
            array = jnp.asarray(forms.constant_array(weight))
            mine = divided_by_weight(mine, array, factor.family)
        total = total + entropy(factor, mine, moments[factor.name], array)
    return total


def entropy(
    factor: PosteriorFactor,
    natural: Moments,
    moments: Moments,
    weight: Float[Array, "*batch"] | None,
) -> Float[Array, ""]:
    """Entropy of a factor: log normaliser minus ⟨natural, moments⟩, of all its copies.

    Of an auxiliary variable: minus its divergence from its own base measure.

    Args:
      factor: Which factor.
      natural: Its natural parameters, those of one copy.
      moments: Its moments.
      weight: Number of copies of each element; None for one.
    """
    if ENTROPY in moments:
        return moments[ENTROPY]
    normalizer = factor.family.log_normalizer(natural)
    if weight is None:
        linear = sum(jnp.vdot(natural[s], moments[s]) for s in natural)
        return jnp.sum(normalizer) - linear
    total = jnp.sum(weight * normalizer)
    for statistic, value in natural.items():
        each = (value * moments[statistic]).reshape((*weight.shape, -1)).sum(-1)
        total = total - jnp.sum(weight * each)
    return total
