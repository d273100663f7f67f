"""The M-step: the posterior of the globals, from sums of the rows' statistics.

Everything here is post-processing of released numbers, so it costs no privacy and runs
to convergence.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.families.family import Moments, NewMoments
from numpyro_vips.conjugacy.families.gaussian import Normal
from numpyro_vips.conjugacy.families.positive_matrices import symmetric_part, times
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.e_step.coordinates import (
    copies,
    divided_by_weight,
)
from numpyro_vips.vips.m_step.hidden_directions import weighing_rows
from numpyro_vips.vips.program.expectations import (
    expected_natural_of,
    natural_parameters,
)
from numpyro_vips.vips.program.named_arrays import (
    AnyMoments,
    ByStatistic,
    MomentsByFactor,
    NewMomentsByFactor,
)
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.row_statistics import from_block, with_repeats
from numpyro_vips.vips.units.frames import Frame


class Solution(NamedTuple):
    """What the M-step found.

    Attributes:
      moments, natural: Moments and natural parameters of every global factor. Where a
        latent stands for several copies (`Latent.weight`), its moments are of one of
        them, and its natural parameters are the sum of all of theirs.
      below_noise: By factor, how many sums of squares are below their noise.
      change: Largest relative change of the moments in the last sweep.
    """

    moments: MomentsByFactor
    natural: NewMomentsByFactor
    below_noise: dict[str, Int[Array, ""]]
    change: Float[Array, ""]


class _Swept(NamedTuple):
    """What a sweep over the globals leaves.

    Attributes:
      moments, natural, below_noise: See `Solution`.
      beside_rows: Moments that the rows' sums are weighed by in other factors' shares;
        see `hidden_directions`.
    """

    moments: MomentsByFactor
    beside_rows: MomentsByFactor
    natural: NewMomentsByFactor
    below_noise: dict[str, Int[Array, ""]]


def _from_prior(
    structure: Structure,
    factor: PosteriorFactor,
    moments: MomentsByFactor,
    prior: Sequence[Term],
) -> NewMoments:
    """The prior's share of a factor's natural parameters, given the other factors."""
    own = [t for t in prior if any(a.latent in factor.latents for a in t.atoms)]
    return natural_parameters(structure, factor, own, moments)


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


def _released_share(
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


def _from_data(
    structure: Structure,
    factor: PosteriorFactor,
    statistics: ByStatistic,
    noise_stddev: Mapping[str, Float[Array, "..."]],
    moments: MomentsByFactor,
    centre: Mapping[str, Float[Array, "..."]],
    noise_read: float | Float[Array, ""] = 0.0,
) -> tuple[NewMoments, NewMoments, Int[Array, ""]]:
    """The statistics' share, projected to where it is legal.

    Also the standard deviations of the noise in it, and how many of its entries are
    below their noise, of those that cannot be negative.
    """
    data, noise = _released_share(structure, factor, statistics, noise_stddev, moments)
    share, below = _projected(structure, factor, data, noise, centre, noise_read)
    return share, noise, below


def _projected(
    structure: Structure,
    factor: PosteriorFactor,
    data: Moments,
    noise: Moments,
    centre: Mapping[str, Float[Array, "..."]],
    noise_read: float | Float[Array, ""] = 0.0,
) -> tuple[NewMoments, Int[Array, ""]]:
    """A factor's share as it was released, projected; see `_from_data`."""
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
        share = _about_zero(share, centre[factor.name])
    return share, below


def _about_zero(share: Moments, centre: Float[Array, "..."]) -> NewMoments:
    """Linear statistics about m count for those about 0 less 2 · xx · m."""
    return {"x": share["x"] - 2.0 * times(share["xx"], centre), "xx": share["xx"]}


def _widened(
    factor: PosteriorFactor,
    prior: Moments,
    share: Moments,
    noise: Moments,
    moments: MomentsByFactor,
    centre: Mapping[str, Float[Array, "..."]],
    noise_read: float | Float[Array, ""],
) -> NewMoments:
    """The share as a posterior has it that knows of the noise.

    See `Family.share_under_noise`.

    Noise in the precision of Gaussian coordinates w moves their linear statistic, too,
    by itself times w; not that of centred ones, which rows were asked about until they
    were near w.
    """
    noise = {s: noise_read * of for s, of in noise.items()}
    if factor.layout is not None and factor.name not in centre:
        squares = jnp.diagonal(moments[factor.name]["xx"], axis1=-2, axis2=-1)
        # The natural parameter is minus half the precision. A product of two latents
        # may stand on one side of the diagonal alone.
        of_precision = 2.0 * symmetric_part(noise["xx"])
        by_precision = times(of_precision**2, jnp.maximum(squares, 0.0))
        noise["x"] = jnp.sqrt(noise["x"] ** 2 + by_precision)
    return factor.family.share_under_noise(prior, share, noise)


def _depends_on_others(structure: Structure, posterior_factor: PosteriorFactor) -> bool:
    """Whether a statistic multiplies moments of this factor by another's."""
    for statistic in structure.statistics:
        factors = {structure.factor_of[name] for name, *_ in statistic.atoms}
        if posterior_factor.name in factors and len(factors) > 1:
            return True
    return False


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


def _total(
    structure: Structure, factor: PosteriorFactor, own: Moments, share: Moments
) -> NewMoments:
    """Natural parameters, from the prior's share and that of the rows."""
    total = {statistic: own[statistic] + share[statistic] for statistic in own}
    if factor.name in structure.flat:
        return factor.family.beside_flat_prior(total, factor.shape)
    return total


def _moments(
    structure: Structure, factor: PosteriorFactor, natural: Moments
) -> NewMoments:
    """Moments of a factor, each of the copies that it may stand for."""
    weight = copies(factor, structure.latents)
    if weight is not None:
        array = jnp.asarray(forms.constant_array(weight))
        natural = divided_by_weight(natural, array, factor.family)
    return factor.family.moments(natural)


def newton_targets(
    program: ConjugateProgram,
    statistics: ByStatistic,
    noise_stddev: Mapping[str, Float[Array, "..."]],
    moments: MomentsByFactor,
    centre: Mapping[str, Float[Array, "..."]],
    gain: float | Float[Array, ""] = 1.0,
    frames: Mapping[str, Frame] | None = None,
) -> dict[str, dict[str, Float[Array, "..."]]]:
    """Where full steps lead of the factors that take Newton steps: a `Target` of each.

    They go by the latest residuals, with the factors' priors given the other factors;
    see `conjugacy.structure.centring`.

    Args:
      program: The compiled model.
      statistics: One sum over all rows per statistic, with the latest residuals.
      noise_stddev: Standard deviation of the noise in each of them.
      moments: Those of the posterior.
      centre: By factor, the point about which the latest residuals were taken, and from
        which the step goes.
      gain: Which part of the step will be taken.
      frames: By factor, the coordinates in which its statistics were taken, its centre
        is given and its target is found; those of the model for other factors.
    """
    structure, frames = program.structure, frames or {}
    found = {}
    for name in sorted(structure.newton):
        factor = structure.posterior_factors[name]
        released, noise = _released_share(
            structure, factor, statistics, noise_stddev, moments
        )
        assert isinstance(factor.family, Normal)
        share = factor.family.project_for_step(released, noise, gain)
        own = _from_prior(structure, factor, moments, program.prior_terms)
        own = frames[name].natural_in(own) if name in frames else own
        share = _held_back(share, own, noise["x"])
        share = _about_zero(share, centre[name])
        end = _moments(structure, factor, _total(structure, factor, own, share))
        found[name] = {
            "mean": end["x"],
            "covariance": end["xx"] - factor.family.at(end["x"])["xx"],
            "residual": released["x"],
            "noise_stddev": noise["x"],
            "curvature": -2.0 * symmetric_part(released["xx"]),
            "curvature_noise": 2.0 * symmetric_part(noise["xx"]),
            "prior_linear": own["x"],
            "prior_precision": -2.0 * symmetric_part(own["xx"]),
        }
    return found


def _held_back(
    share: Moments, prior: Moments, noise_stddev: Float[Array, "..."]
) -> NewMoments:
    """A share of rows with a ridge, so that noise does not carry steps off.

    Where rows say less than noise, residuals are a random walk, which the prior alone
    holds back: with few rows it went ten of the prior's standard deviations away, where
    residuals are no longer linear in the coordinates. Steps of noise with standard
    deviation s through a ridge s/σ have the size of the prior's σ. The ridge is about
    the point where rows were asked, so that it moves no optimum.

    Args:
      share: Of a Gaussian factor, about that point.
      prior: Natural parameters of the prior, given the other factors.
      noise_stddev: Of the noise in the residuals of a step.
    """
    precision = -2.0 * jnp.diagonal(prior["xx"], axis1=-2, axis2=-1)
    ridge = noise_stddev * jnp.sqrt(jnp.maximum(precision, 0.0))
    matrix = ridge[..., None] * jnp.eye(ridge.shape[-1])
    return {"x": share["x"], "xx": share["xx"] - 0.5 * matrix}


def second_moments(
    program: ConjugateProgram,
    statistics: ByStatistic,
    noise_stddev: Mapping[str, Float[Array, "..."]],
    moments: MomentsByFactor,
    names: Sequence[str],
) -> dict[str, tuple[Float[Array, "..."], Float[Array, "..."]]]:
    """Of each of these factors, Σ ψψᵀ times a number, and the noise in it.

    ψ is what a row multiplies each coordinate by. See `update_globals`.
    """
    structure, found = program.structure, {}
    for name in names:
        factor = structure.posterior_factors[name]
        share, noise = _released_share(
            structure, factor, statistics, noise_stddev, moments
        )
        found[name] = (
            -2.0 * symmetric_part(share["xx"]),
            2.0 * symmetric_part(noise["xx"]),
        )
    return found


# Sweeps come to rest where no moment changes by more of its size.
_TOLERANCE = 1e-9


def update_globals(
    program: ConjugateProgram,
    statistics: ByStatistic,
    noise_stddev: Mapping[str, Float[Array, "..."]],
    moments: MomentsByFactor,
    centre: Mapping[str, Float[Array, "..."]],
    max_sweeps: int | Int[Array, ""] = 500,
    noise_read: float | Float[Array, ""] = 0.0,
    frames: Mapping[str, Frame] | None = None,
    given: NewMomentsByFactor | None = None,
    are_held: bool | Bool[Array, ""] = False,
) -> Solution:
    """Coordinate ascent over the globals for given sums of row statistics.

    Args:
      program: The compiled model.
      statistics: One sum over all rows per statistic, noisy or public.
      noise_stddev: Standard deviation of the noise in each of them.
      moments: Where to start.
      centre: By factor, the point about which its linear statistics were taken; about
        zero for other factors.
      max_sweeps: When to stop, if the moments still move then.
      noise_read: 1 for the posterior that knows of the noise, 0 for the one that reads
        the sums as they are, at which rows are asked.
      frames: By recentred factor, the coordinates in which its statistics were taken.
        Such factors are solved for in these; the prior is one of the model's own.
      given: By factor, what rows add to its natural parameters where that is known
        already, see `newton_posterior.share_of_rows`.
      are_held: Whether the moments of factors that may wait stay as they are; see
        `waiting_globals`.
    """
    structure, frames, given = program.structure, frames or {}, given or {}
    factors = structure.posterior_factors_of("global")
    prior = program.prior_terms

    def as_modelled(moments: MomentsByFactor) -> NewMomentsByFactor:
        found = {name: dict(of) for name, of in moments.items()}
        for name, frame in frames.items():
            found[name] = frame.moments_from(moments[name])
        return found

    def from_prior(factor: PosteriorFactor, moments: MomentsByFactor) -> NewMoments:
        own = _from_prior(structure, factor, as_modelled(moments), prior)
        return frames[factor.name].natural_in(own) if factor.name in frames else own

    moments = {
        **moments,
        **{name: frame.moments_in(moments[name]) for name, frame in frames.items()},
    }
    # The projection takes eigenvalues, so it is made once where that is enough.
    fixed = {
        factor.name: _from_data(
            structure, factor, statistics, noise_stddev, moments, centre, noise_read
        )
        for factor in factors
        if factor.name not in given and not _depends_on_others(structure, factor)
    }
    of_given = {
        factor.name: factor.family.num_below_noise(
            *_released_share(structure, factor, statistics, noise_stddev, moments)
        )
        for factor in factors
        if factor.name in given
    }

    reads_noise = jnp.asarray(noise_read) > 0

    def sweep(before: MomentsByFactor, weighing: MomentsByFactor) -> _Swept:
        current, beside = dict(before), dict(weighing)
        natural, below_noise = {}, {}
        for factor in factors:
            name = factor.name
            own = from_prior(factor, current)
            shown = None
            if name in given:
                share, below_noise[name] = given[name], of_given[name]
            else:
                of_data = fixed.get(name)
                if of_data is None:
                    of_data = _from_data(
                        structure,
                        factor,
                        statistics,
                        noise_stddev,
                        {**beside, name: current[name]},
                        centre,
                        noise_read,
                    )
                    shown = of_data
                share, noise, below_noise[name] = of_data
                share = _widened(factor, own, share, noise, current, centre, noise_read)
            natural[name] = _total(structure, factor, own, share)
            found = _moments(structure, factor, natural[name])
            if name in program.waiting:
                found = {
                    s: jnp.where(jnp.asarray(are_held), current[name][s], value)
                    for s, value in found.items()
                }
            current[name] = beside[name] = found
            if factor.layout is not None and shown is not None:
                # Without noise no eigenvalues are taken.
                beside[name] = jax.lax.cond(
                    reads_noise,
                    weighing_rows,
                    lambda share, noise, found: dict(found),
                    *shown[:2],
                    found,
                )
        return _Swept(current, beside, natural, below_noise)

    def solution(found: _Swept, change: Float[Array, ""]) -> Solution:
        models = {n: f.natural_from(found.natural[n]) for n, f in frames.items()}
        natural = {**found.natural, **models}
        return Solution(as_modelled(found.moments), natural, found.below_noise, change)

    if len(factors) == 1:
        return solution(sweep(moments, moments), jnp.zeros(()))

    # Single precision never gets to 1e-9, and where a covariance is nearly singular
    # rounding keeps the changes far above its resolution. Sweeps that no longer
    # bring the globals closer together stop.
    resolution = 16.0 * float(jnp.finfo(jnp.result_type(float)).eps)
    enough = max(_TOLERANCE, resolution)

    def going(carry: tuple) -> Bool[Array, ""]:
        count, change, _, stalled, _ = carry
        return (count < max_sweeps) & (change > enough) & (stalled < 5)

    def step(carry: tuple) -> tuple:
        count, _, least, stalled, before = carry
        after = sweep(before.moments, before.beside_rows)
        # The first sweep is one in the loop too, so that it is compiled once, but how
        # far it leads says nothing about the distance to the end.
        change = jnp.where(
            count > 0, largest_change(before.moments, after.moments), jnp.inf
        )
        # Far from the end the largest change may well grow for a while.
        stalled = jnp.where((change < least) | (change > 0.01), 0, stalled + 1)
        least = jnp.minimum(least, change)
        return count + 1, change, least, stalled, after

    like = jax.eval_shape(sweep, dict(moments), dict(moments))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    first = nothing._replace(moments=dict(moments), beside_rows=dict(moments))
    infinite = jnp.asarray(jnp.inf)
    _, change, _, _, found = jax.lax.while_loop(
        going, step, (0, infinite, infinite, 0, first)
    )
    return solution(found, change)


def largest_change(
    before: Mapping[str, AnyMoments], after: Mapping[str, AnyMoments]
) -> float | Float[Array | np.ndarray, ""] | np.floating[Any]:
    """The largest change in an array, over the largest of its entries.

    Args:
      before, after: By factor, arrays of the same shapes, either all in NumPy, as the
        result is then, or some in JAX; 0 if there are none.
    """
    pairs = list(zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))
    if not pairs:
        return 0.0
    in_numpy = all(isinstance(x, np.ndarray) for pair in pairs for x in pair)
    xp: Any = np if in_numpy else jnp
    changes = [
        xp.max(xp.abs(x - y)) / (1e-12 + xp.max(xp.abs(y))) for x, y in pairs if x.size
    ]
    return xp.max(xp.stack(changes))
