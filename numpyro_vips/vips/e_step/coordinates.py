"""The update of one factor of a row's posterior, given the others.

Natural parameters are the gradient of the expected terms in the factor's moments. The
two special cases have files of their own: `shared_messages` and `element_updates`.
"""

import abc
import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.families.family import Family, Moments, NewMoments
from numpyro_vips.conjugacy.structure.latents import Latents
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.program.expectations import natural_parameters, without_globals
from numpyro_vips.vips.program.named_arrays import (
    ByStatistic,
    LocalFactor,
    MomentsByFactor,
    NewMomentsByFactor,
    Numbers,
)


@dataclasses.dataclass(frozen=True)
class Given:
    """What a row's latents are solved for from.

    Attributes:
      structure: What was found in the model.
      arrays: What the slots of the row's terms stand for.
      expected_natural: n̄, one array per statistic.
    """

    structure: Structure
    arrays: Numbers
    expected_natural: ByStatistic

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
    """One factor of a row's posterior, with all that no sweep changes computed.

    Attributes:
      structure: What was found in the model.
      posterior_factor: Which factor.
      terms: The row's terms that make its update depend on the other factors, as
        functions of the row's latents alone.
    """

    structure: Structure
    posterior_factor: PosteriorFactor
    terms: Sequence[Term]

    @abc.abstractmethod
    def update(self, moments: MomentsByFactor, known: set[str] | None) -> LocalFactor:
        """The factor given the others' moments.

        Args:
          moments: Moments of the row's factors.
          known: Those that have moments yet, with this one; only terms in these are
            looked at. None for all.
        """

    def moments(self, factor: LocalFactor) -> NewMoments:
        """What the other latents need to know of the factor."""
        return factor[0]

    def dense(self, factor: LocalFactor) -> LocalFactor:
        """The factor with its moments as dense arrays."""
        return factor

    def terms_in(self, known: set[str] | None) -> list[Term]:
        """The terms that mention no other factors than the known ones."""
        return [
            term
            for term in self.terms
            if known is None or locals_of(self.structure, term) <= known
        ]


@dataclasses.dataclass(frozen=True)
class WholeFactor(Coordinate):
    """Natural parameters are the gradient of the expected terms in the moments.

    Attributes:
      own: The share of the terms in this factor alone.
      weight: Number of copies of each element; None for one.
    """

    own: Moments
    weight: Float[Array, "*batch"] | None

    def update(self, moments: MomentsByFactor, known: set[str] | None) -> LocalFactor:
        factor, terms = self.posterior_factor, self.terms_in(known)
        natural = dict(self.own)
        if terms:
            others = natural_parameters(self.structure, factor, terms, moments)
            natural = jax.tree.map(jnp.add, natural, others)
        if self.weight is not None:
            natural = divided_by_weight(natural, self.weight, factor.family)
        if factor.layout is not None:
            diagonal = jnp.diagonal(natural["xx"], axis1=-2, axis2=-1)
            unit = jnp.eye(diagonal.shape[-1], dtype=diagonal.dtype)
            idle = idle_quadratic(diagonal)[..., None] * unit
            natural = {**natural, "xx": natural["xx"] + idle}
        return factor.family.moments(natural), natural


def idle_quadratic(
    diagonal: Float[Array, "*batch size"],
) -> Float[Array, "*batch size"]:
    """What makes a density of Gaussian coordinates of which a row says nothing at all.

    A latent may be masked in a row that does not use it, as where a value that is
    missing elsewhere has been seen. Any density will do: it must only be such that
    nothing becomes infinite.

    Args:
      diagonal: Of the quadratic coefficients of a row's log density.
    """
    return jnp.where(diagonal == 0, -0.5, 0.0).astype(diagonal.dtype)


def whole_factor(
    given: Given, factor: PosteriorFactor, terms: Sequence[Term]
) -> WholeFactor:
    """A factor that is updated as a whole, from the terms that mention it."""
    structure = given.structure
    alone, coupled = by_coupling(structure, given.row_terms(terms))
    own = natural_parameters(structure, factor, alone, {})
    weight = copies_array(factor, structure.latents, given.arrays)
    return WholeFactor(structure, factor, coupled, own, weight)


def neutral_auxiliaries(
    structure: Structure, factors: Sequence[PosteriorFactor]
) -> NewMomentsByFactor:
    """Moments from which the auxiliary variables among some factors start."""
    return {
        factor.name: factor.family.neutral_moments(factor.shape)
        for factor in factors
        if structure.latents[factor.latents[0]].family is not None
    }


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
    arrays: Numbers,
) -> Float[Array, "*batch"] | None:
    """For each element of a row's factor how many independent copies it stands for.

    Args:
      factor: Which factor.
      latents: All latents of the model.
      arrays: What the slots of a row stand for.

    Returns:
      Array of the shape of the factor's batch; None if each stands for itself alone.
    """
    weight = copies(factor, latents)
    if weight is None:
        return None
    return jnp.asarray(forms.constant_array(weight.filled(arrays)), float)


def divided_by_weight(
    natural: Moments,
    weight: Float[Array | np.ndarray, "*batch"],
    family: Family,
) -> NewMoments:
    """Natural parameters of one of `weight` independent copies.

    Of no copy, as where an observation is masked out, those of a neutral member: they
    must only be such that nothing becomes infinite.
    """
    neutral = family.neutral(weight.shape)

    def divide(statistic: str, value: Float[Array, "..."]) -> Float[Array, "..."]:
        each = weight.reshape(weight.shape + (1,) * (value.ndim - weight.ndim))
        divided = value / jnp.where(each > 0, each, 1.0)
        return jnp.where(each > 0, divided, neutral[statistic])

    return {statistic: divide(statistic, value) for statistic, value in natural.items()}
