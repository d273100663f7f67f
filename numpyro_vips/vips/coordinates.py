"""The update of one factor of a row's posterior, given the others.

Natural parameters are the gradient of the expected terms in the factor's moments. The
two special cases have files of their own: `shared_messages` and `element_updates`.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.conjugacy.structure.latents import Latents
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.expectations import (
    MomentsByFactor,
    expected,
    without_globals,
)
from numpyro_vips.vips.starting_moments import zero_moments

# Moments and natural parameters of one factor.
LocalFactor = tuple[dict[str, jax.Array], dict[str, jax.Array]]


@dataclasses.dataclass(frozen=True)
class Given:
    """What a row's latents are solved for from.

    Attributes:
      structure: What was found in the model.
      arrays: What the slots of the row's terms stand for.
      expected_natural: n̄, one array per statistic.
    """

    structure: Structure
    arrays: Mapping[int, jax.Array]
    expected_natural: Mapping[str, jax.Array]

    def row_terms(self, terms: Sequence[Term]) -> list[Term]:
        """Terms as functions of the row's latents alone."""
        return [
            without_globals(
                self.structure, term.filled(self.arrays), self.expected_natural
            )
            for term in terms
        ]


@dataclasses.dataclass(frozen=True)
class Coordinate(abc.ABC):
    structure: Structure
    posterior_factor: PosteriorFactor

    @abc.abstractmethod
    def update(self, moments: MomentsByFactor, known: set[str] | None) -> LocalFactor:
        """The factor given the others' moments; only `known` ones are looked at."""

    def moments(self, factor: LocalFactor) -> dict[str, jax.Array]:
        """What the other latents need to know of the factor."""
        return factor[0]

    def dense(self, factor: LocalFactor) -> LocalFactor:
        """The factor with its moments written out."""
        return factor

    def _select(self, terms: Sequence[Term], known: set[str] | None) -> list[Term]:
        return [
            term
            for term in terms
            if known is None or locals_of(self.structure, term) <= known
        ]


class Whole(Coordinate):
    """Natural parameters are the gradient of the expected terms in the moments."""

    def __init__(
        self,
        structure: Structure,
        factor: PosteriorFactor,
        terms: Sequence[Term],
        weight: jax.Array | None,
    ):
        super().__init__(structure, factor)
        alone, coupled = by_coupling(structure, terms)
        self._coupled = coupled
        self._weight = weight
        self.of_own_terms = self._gradient(alone, {})

    def _gradient(self, terms: Sequence[Term], moments: MomentsByFactor) -> Any:
        def value(mine: Mapping[str, jax.Array]) -> jax.Array:
            with_mine = {**moments, self.posterior_factor.name: mine}
            return expected(self.structure, terms, None, with_mine)

        return jax.grad(value)(zero_moments(self.posterior_factor))

    def update(self, moments: MomentsByFactor, known: set[str] | None) -> LocalFactor:
        terms = self._select(self._coupled, known)
        natural = self.of_own_terms
        if terms:
            natural = jax.tree.map(jnp.add, natural, self._gradient(terms, moments))
        if self._weight is not None:
            natural = divided_by_weight(
                natural, self._weight, self.posterior_factor.family
            )
        return self.posterior_factor.family.moments(natural), natural


def locals_of(structure: Structure, term: Term) -> set[str]:
    """The factors of row latents that a term mentions."""
    return {
        structure.factor_of[atom.latent]
        for atom in term.atoms
        if structure.latents[atom.latent].role == "local"
    }


def by_coupling(
    structure: Structure, terms: Sequence[Term]
) -> tuple[list[Term], list[Term]]:
    """Terms in this factor alone, and terms that other latents of the row are in."""
    alone = [term for term in terms if len(locals_of(structure, term)) == 1]
    coupled = [term for term in terms if len(locals_of(structure, term)) > 1]
    return alone, coupled


def copies(factor: PosteriorFactor, latents: Latents) -> forms.Form | None:
    """The number of independent copies that each element of a factor stands for."""
    weights = [latents[name].weight for name in factor.latents]
    return None if any(weight is None for weight in weights) else weights[0]


def copies_array(
    factor: PosteriorFactor,
    latents: Latents,
    arrays: Mapping[int, jax.Array],
) -> jax.Array | None:
    """The same as an array; None for one copy.

    Args:
      factor: Which factor.
      latents: All latents of the model.
      arrays: What the slots of a row stand for.
    """
    weight = copies(factor, latents)
    if weight is None:
        return None
    return jnp.asarray(forms.constant_array(weight.filled(arrays)), float)


def divided_by_weight(
    natural: Mapping[str, jax.Array],
    weight: jax.Array,
    family: Family,
) -> dict[str, jax.Array]:
    """Natural parameters of one of `weight` independent copies.

    Of no copy, as where an observation is masked out, those of a neutral member: they
    must only be such that nothing becomes infinite.
    """
    neutral = family.neutral(weight.shape)

    def divide(statistic: str, value: jax.Array) -> jax.Array:
        each = weight.reshape(weight.shape + (1,) * (value.ndim - weight.ndim))
        divided = value / jnp.where(each > 0, each, 1.0)
        return jnp.where(each > 0, divided, neutral[statistic])

    return {statistic: divide(statistic, value) for statistic, value in natural.items()}
