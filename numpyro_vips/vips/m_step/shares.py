"""What the prior and the rows each add to the natural parameters of a factor."""

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.families.family import Moments, NewMoments
from numpyro_vips.conjugacy.families.positive_matrices import symmetric_part, times
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.e_step.coordinates import copies, divided_by_weight
from numpyro_vips.vips.program.expectations import (
    expected_natural_of,
    natural_parameters,
)
from numpyro_vips.vips.program.named_arrays import ByStatistic, MomentsByFactor
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.released_blocks import from_block, with_repeats


def share_of_prior(
    structure: Structure,
    factor: PosteriorFactor,
    moments: MomentsByFactor,
    prior: Sequence[Term],
) -> NewMoments:
    """The prior's share of a factor's natural parameters, given the other factors."""
    own = [t for t in prior if any(a.latent in factor.latents for a in t.atoms)]
    return natural_parameters(structure, factor, own, moments)


def released_share(
    structure: Structure,
    factor: PosteriorFactor,
    statistics: ByStatistic,
    noise_stddev: Mapping[str, Float[Array, "..."]],
    moments: MomentsByFactor,
) -> tuple[NewMoments, NewMoments]:
    """The statistics' share as it was released, and the noise in it."""

    def value(mine: Moments, sums: ByStatistic) -> Float[Array, ""]:
        expected_natural = expected_natural_of(
            structure, {**moments, factor.name: mine}
        )
        total = jnp.zeros(())
        for statistic in structure.statistics:
            summed = from_block(statistic, sums[statistic.name])
            total = total + jnp.vdot(summed, expected_natural[statistic.name])
        return total

    data = jax.grad(value)(dict(moments[factor.name]), statistics)
    noise = _noise_of_share(structure, factor, noise_stddev, moments)
    return data, noise


def _noise_of_share(
    structure: Structure,
    factor: PosteriorFactor,
    noise_stddev: Mapping[str, Float[Array, "..."]],
    moments: MomentsByFactor,
) -> NewMoments:
    """Standard deviations of the noise in a factor's share of the statistics.

    Each entry of the share is a sum of statistics, weighted with products of other
    factors' moments; their noises are independent, so that the squares add up.
    """
    squares = jax.tree.map(jnp.square, dict(moments))
    of_blocks = {
        statistic.name: _entry_stddev(statistic, noise_stddev[statistic.name])
        for statistic in structure.statistics
    }
    deviations = with_repeats(structure.statistics, of_blocks)

    def variance(mine: Moments) -> Float[Array, ""]:
        # It multiplies this factor's moments by products of the others' squares.
        weights = expected_natural_of(structure, {**squares, factor.name: mine})
        total = jnp.zeros(())
        for statistic in structure.statistics:
            stddev = jnp.asarray(deviations[statistic.name])
            squared = from_block(statistic, stddev) ** 2
            total = total + jnp.vdot(squared, weights[statistic.name])
        return total

    # Rounding may leave a negative one where a block's entries are put together.
    found = jax.grad(variance)(dict(moments[factor.name]))
    return jax.tree.map(lambda v: jnp.sqrt(jnp.maximum(v, 0.0)), found)


def _entry_stddev(
    statistic: Statistic, stddev: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Noise standard deviation of each entry of a block, in the block's shape."""
    entries = jnp.broadcast_to(stddev, statistic.block_shape)
    if statistic.matrix is None:
        return entries
    # The noise is isotropic in isometric coordinates; see `GaussianMechanism`.
    diagonal = jnp.eye(statistic.block_shape[-1], dtype=bool)
    return jnp.where(diagonal, entries, entries * math.sqrt(0.5))


def projected(
    structure: Structure,
    factor: PosteriorFactor,
    data: Moments,
    noise: Moments,
    centre: Mapping[str, Float[Array, "..."]],
    noise_read: float | Float[Array, ""],
) -> tuple[NewMoments, Int[Array, ""]]:
    """A factor's share as it was released, projected to where it is legal.

    Also how many of its entries are below their noise, of those that cannot be
    negative.
    """
    if factor.name in centre or factor.name in structure.flat:
        # Noise in the precision is no part of the linear statistic's where this is
        # centred, and a flat prior says nothing where noise hides the rows.
        nothing = jax.tree.map(jnp.zeros_like, data)
        share = factor.family.project(nothing, data, noise)
    else:
        to_widen = jnp.asarray(noise_read) > 0
        share = factor.family.project_either(data, noise, to_widen)
    below = factor.family.num_below_noise(data, noise)
    if factor.name in centre:
        share = about_zero(share, centre[factor.name])
    return share, below


def about_zero(share: Moments, centre: Float[Array, "..."]) -> NewMoments:
    """Linear statistics about m count for those about 0 less 2 · xx · m."""
    return {"x": share["x"] - 2.0 * times(share["xx"], centre), "xx": share["xx"]}


def total_of_shares(
    structure: Structure, factor: PosteriorFactor, own: Moments, share: Moments
) -> NewMoments:
    """Natural parameters, from the prior's share and that of the rows."""
    total = {statistic: own[statistic] + share[statistic] for statistic in own}
    if factor.name in structure.flat:
        return factor.family.beside_flat_prior(total, factor.shape)
    return total


def moments_of(
    structure: Structure, factor: PosteriorFactor, natural: Moments
) -> NewMoments:
    """Moments of a factor, each of the copies that it may stand for."""
    weight = copies(factor, structure.latents)
    if weight is not None:
        array = jnp.asarray(forms.constant_array(weight))
        natural = divided_by_weight(natural, array, factor.family)
    return factor.family.moments(natural)


def second_moments(
    program: ConjugateProgram,
    statistics: ByStatistic,
    noise_stddev: Mapping[str, Float[Array, "..."]],
    moments: MomentsByFactor,
    names: Sequence[str],
) -> dict[str, tuple[Float[Array, "..."], Float[Array, "..."]]]:
    """For each factor Σ ψψᵀ over rows times a number, and the noise in it.

    ψ is what a row multiplies each coordinate by. See `GlobalInputs`.
    """
    structure, found = program.structure, {}
    for name in names:
        factor = structure.posterior_factors[name]
        share, noise = released_share(
            structure, factor, statistics, noise_stddev, moments
        )
        found[name] = (
            -2.0 * symmetric_part(share["xx"]),
            2.0 * symmetric_part(noise["xx"]),
        )
    return found
