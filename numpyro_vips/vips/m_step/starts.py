"""Where the globals start: near their priors, and apart where a symmetry would hold.

It is made of the model and of a public key alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from numpyro_vips.conjugacy.families.family import Moments
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure, is_real
from numpyro_vips.vips.e_step.coordinates import neutral_auxiliaries
from numpyro_vips.vips.program.expectations import natural_parameters
from numpyro_vips.vips.program.forgotten_steps import scaled_squares
from numpyro_vips.vips.program.named_arrays import NewByStatistic, NewMomentsByFactor
from numpyro_vips.vips.program.program import ConjugateProgram


class Start(NamedTuple):
    """Where a fit starts; public, like all that it is made of.

    Attributes:
      moments: Each global at its prior given its parents. Where a symmetric start would
        stay symmetric, as with mixture components or the factors of a product, it is
        perturbed at random.
      statistics: The sums that make `moments` of the priors, of counts alone.
      stddev: By factor that takes Newton steps, the priors' standard deviations, of
        each coordinate given the others.
      marginal_stddev: By factor whose features are standardised, the priors' standard
        deviations of its coordinates.
    """

    moments: NewMomentsByFactor
    statistics: NewByStatistic
    stddev: dict[str, Float[Array, "..."]]
    marginal_stddev: dict[str, Float[Array, "..."]]


def start(program: ConjugateProgram, key: PRNGKeyArray) -> Start:
    """Moments of the globals, and the sums that a running average goes on from.

    The average goes on from these sums, as in stochastic variational inference
    (Hoffman et al., 2013), where the random start loses its weight by and by. From
    sums of zero, what the first minibatches lack would count as all but impossible,
    and topics would never get out of the words that they met first.

    There is a sum for every statistic of which rows release one number for each entry
    of a family with pseudo-counts, such as a Dirichlet. The others start at zero: only
    for counts does the perturbation have a size that some rows' statistics could have.
    """
    structure = program.structure
    moments, added, priors = _perturbed(program, key)
    stddev = {name: _stddev_of(priors[name]) for name in structure.newton}
    marginal = {name: _marginal_stddev_of(priors[name]) for name in program.features}
    found = {}
    for statistic in structure.statistics:
        if statistic.release != "adaptive" or len(statistic.atoms) != 1:
            continue
        ((latent, function, _, numbers),) = statistic.atoms
        factor = structure.posterior_factors[structure.factor_of[latent]]
        whole = sorted(numbers) == list(range(len(statistic.shape)))
        if factor.family.has_pseudo_counts and whole:
            order = [numbers.index(i) for i in range(len(numbers))]
            found[statistic.name] = jnp.transpose(added[factor.name][function], order)
    return Start(moments, found, stddev, marginal)


def _stddev_of(natural: Moments) -> Float[Array, "*batch size"]:
    """Standard deviations of a Gaussian's coordinates, each given the others."""
    return (-2.0 * jnp.diagonal(natural["xx"], axis1=-2, axis2=-1)) ** -0.5


def _marginal_stddev_of(natural: Moments) -> Float[Array, "*batch size"]:
    """Standard deviations of a Gaussian's coordinates.

    They are not what its moments differ by, ⟨x²⟩ - ⟨x⟩²: in single precision nothing is
    left of that where a mean is a thousand times as large.
    """
    covariance = jnp.linalg.inv(-2.0 * natural["xx"])
    return jnp.sqrt(jnp.diagonal(covariance, axis1=-2, axis2=-1))


def _perturbed(
    program: ConjugateProgram, key: PRNGKeyArray
) -> tuple[NewMomentsByFactor, NewMomentsByFactor, NewMomentsByFactor]:
    """Moments at the start, what the perturbation adds to natural parameters, and what
    these would be without it."""
    structure, prior = program.structure, program.prior_terms_by_site
    factors = structure.posterior_factors_of("global")
    symmetric = symmetric_factors(program)
    close = any(factor.layout for factor in factors) and not _has_real_products(
        structure
    )
    displacement = _COMPONENT_DISPLACEMENT if close else 1.0
    # The factors of globals that say how real latents of rows vary.
    scales = scaled_squares(structure, program.row_terms)
    covariances = {structure.factor_of[scale] for _, scale in scales}
    moments = neutral_auxiliaries(structure, factors)
    added: NewMomentsByFactor = {}
    priors: NewMomentsByFactor = {}
    ordered = _parents_first(structure, factors)
    for number, factor in enumerate(ordered):
        subkey = jax.random.fold_in(key, number)
        if factor.name in moments:
            continue
        # Of a child's density, the part that is about this factor alone would be no
        # density: the scale of a prior has a power for every element of its plate.
        known = [
            term
            for site in factor.latents
            for term in prior.get(site, ())
            if any(atom.latent in factor.latents for atom in term.atoms)
            and {structure.factor_of[a.latent] for a in term.atoms}
            <= {*moments, factor.name}
        ]
        natural = natural_parameters(structure, factor, known, moments)
        if factor.name in structure.flat:
            neutral = factor.family.neutral(factor.shape)
            natural = {s: natural[s] + value for s, value in neutral.items()}
        if factor.name in covariances:
            natural = factor.family.wider(natural, _WIDE)
        own = priors[factor.name] = natural
        if factor.name in symmetric:
            distant = factor.family.perturb(natural, subkey)
            size = 1.0 if factor.family.has_pseudo_counts else displacement
            natural = {
                s: value + size * (distant[s] - value) for s, value in natural.items()
            }
            if close and factor.layout is not None:
                natural = {s: v / _STARTING_VARIANCE for s, v in natural.items()}
        elif factor.layout is not None:
            natural = {s: v / _NEARLY_A_POINT for s, v in natural.items()}
        added[factor.name] = {s: natural[s] - own[s] for s in natural}
        moments[factor.name] = factor.family.starting_moments(natural)
    return moments, added, priors


# How far the Gaussian components of a mixture start from the prior's mean, in its
# standard deviations; their precisions differ by as much less. Components that start
# far apart divide the rows before they know where the rows are, and one that gets none
# never comes back; close together they move to the rows first and part there. Of three
# clusters all were found from 36 of 50 random starts at a distance of 1, from 44 at 0.3
# and from 49 at 0.1 and 0.03 (`benchmarks/starts.py mixture`).
_COMPONENT_DISPLACEMENT = 0.1

# Their variances at the start, in those of the prior. A binary unit that adds its
# weights to the logits of many pixels pays for their uncertainty in every pixel when it
# is switched on. At the prior's variance no unit is ever worth that: all are off in the
# first minibatch, and stay off. (On MNIST 0.868 of the pixels are right after ten steps
# at 1, 0.947 at 0.1, 0.950 at 0.01 and 0.001: `benchmarks/starts.py belief-network`.)
_STARTING_VARIANCE = 0.01
# That of other Gaussians. With the variance of a wide prior a bound on a logistic
# likelihood starts where it is flat, and its first step goes as far as the prior lets
# it; latents of rows then make up for that, and coordinate ascent stays there.
_NEARLY_A_POINT = 1e-6


# By how much larger than their prior's the covariances of real latents of rows start.
# Where they start small, these latents stay near their mean: it moves by a few percent
# of its way in a step, and what is left over is taken for noise in the observations.
# From above, rows say at once where their latents are, and how far apart. A precision
# matrix has no prior that is vague about its size; for the scales of single latents,
# which come back from far above slowly, priors are the better start (tried with random
# intercepts and slopes).
_WIDE = 30.0


def _has_real_products(structure: Structure) -> bool:
    """Whether real factors are multiplied, which at 0 would hold each other there."""
    latents, factor_of = structure.latents, structure.factor_of
    if any(latent.role == "local" and is_real(latent) for latent in latents.values()):
        return True
    real = [
        {factor_of[name] for name, *_ in statistic.atoms if is_real(latents[name])}
        for statistic in structure.statistics
    ]
    return any(len(factors) > 1 for factors in real)


def _parents_first(
    structure: Structure, factors: Sequence[PosteriorFactor]
) -> list[PosteriorFactor]:
    """The factors in the model's order, each after the parents of all its sites."""
    position = {name: i for i, name in enumerate(structure.latents)}
    return sorted(factors, key=lambda factor: max(position[n] for n in factor.latents))


def symmetric_factors(program: ConjugateProgram) -> frozenset[str]:
    """The factors of globals that a symmetry may hold at their prior's mean.

    A mixture's components, topics and loadings meet a row only together with its
    allocation or its scores, whose expectations cannot tell them apart before they
    differ. A global that a row informs by itself, such as a coefficient, needs no
    perturbation; from a draw of a wide prior, which the latents of rows then make up
    for, coordinate ascent may not find back.
    """
    structure = program.structure

    def is_partner(name: str) -> bool:
        latent = structure.latents[name]
        if latent.role == "local" and latent.family is None:
            return True
        return latent.states is not None or is_real(latent)

    alone: set[str] = set()
    together: set[str] = set()
    for term in program.row_terms:
        names = {atom.latent for atom in term.atoms}
        for name in names:
            others = {
                other
                for other in names
                if structure.factor_of[other] != structure.factor_of[name]
            }
            (together if any(map(is_partner, others)) else alone).add(name)
    return frozenset(structure.factor_of[name] for name in together - alone)
