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
from numpyro_vips.conjugacy.structure.log_joint import Energy
from numpyro_vips.conjugacy.structure.posterior_factors import Group
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.coordinates import Coordinate, Factor, Whole, copies, locals_of
from numpyro_vips.vips.element_updates import Elements, couples_elements
from numpyro_vips.vips.expectations import without_globals
from numpyro_vips.vips.invalid_rows import Clear
from numpyro_vips.vips.shared_messages import Base, gathered_base, with_shared_message
from numpyro_vips.vips.starting_moments import neutral_auxiliaries

# Sweeps over a row's latents where it has several that act on each other.
DEFAULT_LOCAL_STEPS = 20


def solve_row(
    structure: Structure,
    found: Energy,
    terms: Sequence[Term],
    cleared: Clear,
    joint: Mapping[str, jax.Array],
    sweeps: int,
) -> dict[str, Factor]:
    """The factors of a row's latents.

    Args:
      structure: What was found in the model.
      found: The row's energy.
      terms: Its terms, cleared if the row is not valid.
      cleared: What cleared them.
      joint: n̄, one array per statistic.
      sweeps: Number of sweeps where latents act on each other.

    Returns:
      By group, its moments and its natural parameters. Those of a latent of which
      there are several copies (`Latent.weight`) are of one copy. Probabilities of a
      discrete latent may be `padded` with states that it does not have; see
      `without_padding`.
    """
    groups = structure.groups_of("local")
    of_locals = [term for term in terms if locals_of(structure, term)]
    local_terms = [without_globals(structure, term, joint) for term in of_locals]

    def gathered(group: Group) -> Base | None:
        return gathered_base(structure, group, of_locals, found.latents, cleared, joint)

    coordinates = [
        _coordinate(structure, group, local_terms, gathered, found.latents, cleared)
        for group in groups
    ]
    moments = neutral_auxiliaries(structure, groups)
    for coordinate in coordinates:
        name = coordinate.group.name
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
    return {c.group.name: c.dense(factors[c.group.name]) for c in coordinates}


def without_padding(factors: Mapping[str, Factor]) -> dict[str, Factor]:
    """Factors without the states that probabilities were padded with."""

    def cut_one(factor: Factor) -> Factor:
        moments, natural = factor
        if "is" not in moments or "is" not in natural:
            return factor
        states = natural["is"].shape[-1]
        return {**moments, "is": moments["is"][..., :states]}, natural

    return {name: cut_one(factor) for name, factor in factors.items()}


def _coordinate(
    structure: Structure,
    group: Group,
    terms: Sequence[Term],
    gathered: Callable[[Group], Base | None],
    latents: Mapping[str, Latent],
    cleared: Clear,
) -> Coordinate:
    """How a group's factor is found, with all that does not change computed."""
    own = [t for t in terms if any(a.latent in group.latents for a in t.atoms)]
    weight = copies(group, latents)
    if any(couples_elements(term, group) for term in own):
        return Elements(structure, group, own)
    factored = with_shared_message(structure, group, own, gathered, weight, cleared)
    if factored is not None:
        return factored
    array = None if weight is None else cleared.array(forms.constant_array(weight))
    return Whole(structure, group, own, array)


def _sweep(
    coordinates: Sequence[Coordinate], moments: Mapping[str, Any]
) -> dict[str, Factor]:
    moments = dict(moments)
    factors = {}
    for coordinate in reversed(coordinates):
        name = coordinate.group.name
        factors[name] = coordinate.update(moments, known=None)
        moments[name] = coordinate.moments(factors[name])
    return factors


def _moments_of(
    coordinates: Sequence[Coordinate], factors: Mapping[str, Factor]
) -> dict[str, dict[str, jax.Array]]:
    return {c.group.name: c.moments(factors[c.group.name]) for c in coordinates}


def couples_latents(structure: Structure, terms: Sequence[Term]) -> bool:
    """Whether latents of a row act on each other."""
    return any(len(locals_of(structure, term)) > 1 for term in terms)


def entropy(
    group: Group,
    natural: Mapping[str, jax.Array],
    moments: Mapping[str, jax.Array],
    weight: jax.Array | None,
) -> jax.Array:
    """Entropy of a factor: log normaliser minus ⟨natural, moments⟩, of all its copies.

    Of an auxiliary variable: minus its divergence from its own base measure.

    Args:
      group: Which factor.
      natural: Its natural parameters, those of one copy.
      moments: Its moments.
      weight: Number of copies of each element; None for one.
    """
    normalizer = group.family.log_normalizer(natural)
    if weight is None:
        linear = sum(jnp.vdot(natural[s], moments[s]) for s in natural)
        return jnp.sum(normalizer) - linear
    total = jnp.sum(weight * normalizer)
    for statistic, value in natural.items():
        each = (value * moments[statistic]).reshape((*weight.shape, -1)).sum(-1)
        total = total - jnp.sum(weight * each)
    return total
