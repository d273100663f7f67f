"""The E-step: the posterior of one row's latents, by coordinate ascent: `solve_row`.

A row is solved from a fresh start: auxiliary variables at a neutral value, each latent
of the model at what its parents and its own likelihood make of it. Then all are swept
from the last to the first, so that what is observed moves first. What the globals
contribute is put into the row's terms beforehand, so a sweep only touches what changes.
One or two real latents under logistic likelihoods are integrated out instead; see
`local_quadrature`.
"""

from collections.abc import Mapping, Sequence

import jax

from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.e_step.coordinates import (
    Coordinate,
    Given,
    locals_of,
    neutral_auxiliaries,
    whole_factor,
)
from numpyro_vips.vips.e_step.element_updates import Elements, couples_elements
from numpyro_vips.vips.e_step.integrated_latents import integrated_latents
from numpyro_vips.vips.e_step.local_quadrature import ENTROPY, integrate
from numpyro_vips.vips.e_step.shared_messages import with_shared_message
from numpyro_vips.vips.program.named_arrays import (
    ByStatistic,
    LocalFactor,
    MomentsByFactor,
    NewMomentsByFactor,
    Numbers,
    Row,
)
from numpyro_vips.vips.program.program import ConjugateProgram

# Sweeps over a row's latents where it has several that act on each other.
DEFAULT_LOCAL_SWEEPS = 20


def solve_row(
    structure: Structure,
    terms: Sequence[Term],
    arrays: Numbers,
    expected_natural: ByStatistic,
    sweeps: int,
    *,
    observed: bool = False,
    by_quadrature: bool = True,
) -> dict[str, LocalFactor]:
    """The factors of a row's latents.

    Args:
      structure: What was found in the model.
      terms: The row's terms.
      arrays: What its slots stand for, zeros if the row is not valid.
      expected_natural: n̄, one array per statistic.
      sweeps: Number of sweeps where latents act on each other.
      observed: See `local_quadrature.integrate`.
      by_quadrature: Whether the latents that can be are integrated out; otherwise the
        bound says where they are.

    Returns:
      By factor, its moments and its natural parameters; what `local_quadrature` makes
      of some of them is said there. Those of a latent of which
      there are several copies (`Latent.weight`) are of one copy. Probabilities of a
      discrete latent may be `padded` with states that it does not have; see
      `without_padding`.
    """
    of_locals = [term for term in terms if locals_of(structure, term)]
    given = Given(structure, arrays, expected_natural)
    integrals: dict[str, LocalFactor] = {}
    found = integrated_latents(structure, of_locals) if by_quadrature else ()
    for integrated in found:
        integrals |= integrate(given, integrated, of_locals, observed=observed)
    of_locals = [t for t in of_locals if not locals_of(structure, t) & set(integrals)]
    posterior_factors = [
        factor
        for factor in structure.posterior_factors_of("local")
        if factor.name not in integrals
    ]
    coordinates = [
        _coordinate(given, posterior_factor, of_locals)
        for posterior_factor in posterior_factors
    ]
    moments = neutral_auxiliaries(structure, posterior_factors)
    for coordinate in coordinates:
        name = coordinate.posterior_factor.name
        if name not in moments:
            factor = coordinate.update(moments, known={*moments, name})
            moments[name] = coordinate.moments(factor)
    # The first sweep gives every factor its natural parameters. It is exact at once
    # where latents do not act on each other.
    factors = _sweep(coordinates, moments)
    if couples_latents(structure, of_locals):
        factors = jax.lax.fori_loop(
            0,
            sweeps - 1,
            lambda _, before: _sweep(coordinates, _moments_of(coordinates, before)),
            factors,
        )
    return integrals | {
        c.posterior_factor.name: c.dense(factors[c.posterior_factor.name])
        for c in coordinates
    }


def moments_of_row(
    program: ConjugateProgram,
    expected_natural: ByStatistic,
    arrays: Numbers,
    sweeps: int,
    *,
    observed: bool = False,
) -> NewMomentsByFactor:
    """Moments of a row's latents, by coordinate ascent from a fresh start.

    Those of a discrete latent may be padded with states that it does not have.

    Args:
      program, expected_natural: The compiled model, and n̄.
      arrays: The row's constants by token, zeros if it is not valid.
      sweeps: Number of sweeps where latents act on each other.
      observed: Whether they are for the observed information of the globals; see
        `Family.observed_moments`.
    """
    structure = program.structure
    factors = solve_row(
        structure,
        program.row_terms,
        arrays,
        expected_natural,
        sweeps,
        observed=observed,
    )
    found = {}
    for name, (moments, natural) in factors.items():
        known = {s: array for s, array in moments.items() if s != ENTROPY}
        if observed and ENTROPY not in moments:
            known = structure.posterior_factors[name].family.observed_moments(
                moments, natural
            )
        found[name] = known
    return found


def local_factors(
    program: ConjugateProgram,
    expected_natural: ByStatistic,
    row: Row,
    sweeps: int,
    *,
    by_quadrature: bool = True,
) -> dict[str, LocalFactor]:
    """Moments and natural parameters of a row's factors; see `solve_row`."""
    arrays, _ = program.row_constants.zero_if_invalid(row)
    factors = solve_row(
        program.structure,
        program.row_terms,
        arrays,
        expected_natural,
        sweeps,
        by_quadrature=by_quadrature,
    )
    return without_padding(factors)


def without_padding(factors: Mapping[str, LocalFactor]) -> dict[str, LocalFactor]:
    """Factors without the states that probabilities were padded with."""

    def cut_one(factor: LocalFactor) -> LocalFactor:
        moments, natural = factor
        if "is" not in moments or "is" not in natural:
            return factor
        states = natural["is"].shape[-1]
        return {**moments, "is": moments["is"][..., :states]}, natural

    return {name: cut_one(factor) for name, factor in factors.items()}


def _coordinate(
    given: Given, factor: PosteriorFactor, terms: Sequence[Term]
) -> Coordinate:
    """How a row's factor is updated, with all that does not change computed."""
    own = [t for t in terms if any(a.latent in factor.latents for a in t.atoms)]
    if any(couples_elements(term, factor) for term in own):
        return Elements(given.structure, factor, given.row_terms(own))
    factored = with_shared_message(given, factor, own)
    if factored is not None:
        return factored
    return whole_factor(given, factor, own)


def _sweep(
    coordinates: Sequence[Coordinate], moments: MomentsByFactor
) -> dict[str, LocalFactor]:
    """Every factor given the others' latest moments, from the last to the first."""
    moments = dict(moments)
    factors = {}
    for coordinate in reversed(coordinates):
        name = coordinate.posterior_factor.name
        factors[name] = coordinate.update(moments, known=None)
        moments[name] = coordinate.moments(factors[name])
    return factors


def _moments_of(
    coordinates: Sequence[Coordinate], factors: Mapping[str, LocalFactor]
) -> NewMomentsByFactor:
    return {
        c.posterior_factor.name: c.moments(factors[c.posterior_factor.name])
        for c in coordinates
    }


def couples_latents(structure: Structure, terms: Sequence[Term]) -> bool:
    """Whether latents of a row act on each other."""
    return any(len(locals_of(structure, term)) > 1 for term in terms)
