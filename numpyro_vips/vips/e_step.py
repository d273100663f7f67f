"""The E-step: the posterior of one row's latents, by coordinate ascent.

A row is solved from a fresh start: auxiliary variables at a neutral value, each latent
of the model at what its parents and its own likelihood make of it. Then all are swept
from the last to the first, so that what is observed moves first. What the globals
contribute is put into the row's terms beforehand, so a sweep only touches what changes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.structure.latents import Latent
from numpyro_vips.conjugacy.structure.log_joint import LogJoint
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.coordinates import (
    Coordinate,
    LocalFactor,
    Whole,
    copies,
    locals_of,
)
from numpyro_vips.vips.element_updates import Elements, couples_elements
from numpyro_vips.vips.expectations import without_globals
from numpyro_vips.vips.invalid_rows import ZeroInvalidRows
from numpyro_vips.vips.shared_messages import Base, gathered_base, with_shared_message
from numpyro_vips.vips.starting_moments import neutral_auxiliaries

# Sweeps over a row's latents where it has several that act on each other.
DEFAULT_LOCAL_SWEEPS = 20


def solve_row(
    structure: Structure,
    found: LogJoint,
    terms: Sequence[Term],
    zeroing: ZeroInvalidRows,
    expected_natural: Mapping[str, jax.Array],
    sweeps: int,
) -> dict[str, LocalFactor]:
    """The factors of a row's latents.

    Args:
      structure: What was found in the model.
      found: The row's log joint density.
      terms: Its terms, zeroed if the row is not valid.
      zeroing: What zeroed them.
      expected_natural: n̄, one array per statistic.
      sweeps: Number of sweeps where latents act on each other.

    Returns:
      By factor, its moments and its natural parameters. Those of a latent of which
      there are several copies (`Latent.weight`) are of one copy. Probabilities of a
      discrete latent may be `padded` with states that it does not have; see
      `without_padding`.
    """
    posterior_factors = structure.posterior_factors_of("local")
    of_locals = [term for term in terms if locals_of(structure, term)]
    local_terms = [
        without_globals(structure, term, expected_natural) for term in of_locals
    ]

    def gathered(posterior_factor: PosteriorFactor) -> Base | None:
        return gathered_base(
            structure,
            posterior_factor,
            of_locals,
            found.latents,
            zeroing,
            expected_natural,
        )

    coordinates = [
        _coordinate(
            structure, posterior_factor, local_terms, gathered, found.latents, zeroing
        )
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
    if couples_latents(structure, local_terms):
        factors = jax.lax.fori_loop(
            0,
            sweeps - 1,
            lambda _, before: _sweep(coordinates, _moments_of(coordinates, before)),
            factors,
        )
    return {
        c.posterior_factor.name: c.dense(factors[c.posterior_factor.name])
        for c in coordinates
    }


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
    structure: Structure,
    factor: PosteriorFactor,
    terms: Sequence[Term],
    gathered: Callable[[PosteriorFactor], Base | None],
    latents: Mapping[str, Latent],
    zeroing: ZeroInvalidRows,
) -> Coordinate:
    """How a row's factor is updated, with all that does not change computed."""
    own = [t for t in terms if any(a.latent in factor.latents for a in t.atoms)]
    weight = copies(factor, latents)
    if any(couples_elements(term, factor) for term in own):
        return Elements(structure, factor, own)
    factored = with_shared_message(structure, factor, own, gathered, weight, zeroing)
    if factored is not None:
        return factored
    array = None if weight is None else zeroing.array(forms.constant_array(weight))
    return Whole(structure, factor, own, array)


def _sweep(
    coordinates: Sequence[Coordinate], moments: Mapping[str, Any]
) -> dict[str, LocalFactor]:
    moments = dict(moments)
    factors = {}
    for coordinate in reversed(coordinates):
        name = coordinate.posterior_factor.name
        factors[name] = coordinate.update(moments, known=None)
        moments[name] = coordinate.moments(factors[name])
    return factors


def _moments_of(
    coordinates: Sequence[Coordinate], factors: Mapping[str, LocalFactor]
) -> dict[str, dict[str, jax.Array]]:
    return {
        c.posterior_factor.name: c.moments(factors[c.posterior_factor.name])
        for c in coordinates
    }


def couples_latents(structure: Structure, terms: Sequence[Term]) -> bool:
    """Whether latents of a row act on each other."""
    return any(len(locals_of(structure, term)) > 1 for term in terms)


def entropy(
    factor: PosteriorFactor,
    natural: Mapping[str, jax.Array],
    moments: Mapping[str, jax.Array],
    weight: jax.Array | None,
) -> jax.Array:
    """Entropy of a factor: log normaliser minus ⟨natural, moments⟩, of all its copies.

    Of an auxiliary variable: minus its divergence from its own base measure.

    Args:
      factor: Which factor.
      natural: Its natural parameters, those of one copy.
      moments: Its moments.
      weight: Number of copies of each element; None for one.
    """
    normalizer = factor.family.log_normalizer(natural)
    if weight is None:
        linear = sum(jnp.vdot(natural[s], moments[s]) for s in natural)
        return jnp.sum(normalizer) - linear
    total = jnp.sum(weight * normalizer)
    for statistic, value in natural.items():
        each = (value * moments[statistic]).reshape((*weight.shape, -1)).sum(-1)
        total = total - jnp.sum(weight * each)
    return total
