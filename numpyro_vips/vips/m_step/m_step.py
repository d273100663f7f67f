"""The M-step: the posterior of the globals, from sums of the rows' statistics.

Everything here is post-processing of released numbers, so it costs no privacy and runs
to convergence.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from numpyro_vips.conjugacy.families.family import Moments, NewMoments
from numpyro_vips.conjugacy.families.positive_matrices import symmetric_part, times
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.m_step.hidden_directions import weighing_rows
from numpyro_vips.vips.m_step.shares import (
    moments_of,
    projected,
    released_share,
    share_of_prior,
    total_of_shares,
)
from numpyro_vips.vips.m_step.sweeps import Swept, swept_until_rest
from numpyro_vips.vips.program.named_arrays import (
    ByStatistic,
    MomentsByFactor,
    NewMomentsByFactor,
)
from numpyro_vips.vips.program.program import ConjugateProgram
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


class _Share(NamedTuple):
    """What rows add to the natural parameters of a factor.

    Attributes:
      natural: From released sums, projected to where it is legal.
      noise_stddev: Standard deviations of the noise in it.
      below_noise: How many of its sums of squares are below their noise.
    """

    natural: NewMoments
    noise_stddev: NewMoments
    below_noise: Int[Array, ""]


class GlobalInputs(NamedTuple):
    """What the globals are solved for: sums over rows, and how they are read.

    Attributes:
      statistics: One sum over all rows per statistic, noisy or public.
      noise_stddev: Standard deviation of the noise in each of them.
      centre: By factor, the point about which its linear statistics were taken; about
        zero for other factors.
      noise_read: 1 for the posterior that knows of the noise, 0 for the one that reads
        the sums as they are, at which rows are asked.
      frames: By recentred factor, the coordinates in which its statistics were taken.
        Such factors are solved for in these; the prior is one of the model's own.
      given: By factor, what rows add to its natural parameters where that is known
        already, see `newton_posterior.share_of_rows`.
      are_held: Whether the moments of factors that may wait stay as they are; see
        `forgotten_steps`.
    """

    statistics: ByStatistic
    noise_stddev: Mapping[str, Float[Array, "..."]]
    centre: Mapping[str, Float[Array, "..."]]
    noise_read: float | Float[Array, ""] = 0.0
    frames: Mapping[str, Frame] = {}
    given: Mapping[str, NewMoments] = {}
    are_held: bool | Bool[Array, ""] = False


class _Problem(NamedTuple):
    """What sweeps over the globals go by.

    Attributes:
      program, inputs: See `update_globals`.
      reads_noise: Whether `noise_read` is positive.
      fixed: By factor, shares of rows that no other factor has a part in.
      below_noise: By factor in `given`, how many sums of squares are below their noise.
    """

    program: ConjugateProgram
    inputs: GlobalInputs
    reads_noise: bool | Bool[Array, ""] = False
    fixed: Mapping[str, _Share] = {}
    below_noise: Mapping[str, Int[Array, ""]] = {}


def _from_data(
    problem: _Problem, factor: PosteriorFactor, moments: MomentsByFactor
) -> _Share:
    """The statistics' share of a factor, given the moments of the others."""
    structure = problem.program.structure
    data, noise = released_share(
        structure,
        factor,
        problem.inputs.statistics,
        problem.inputs.noise_stddev,
        moments,
    )
    share, below = projected(
        structure, factor, data, noise, problem.inputs.centre, problem.inputs.noise_read
    )
    return _Share(share, noise, below)


def _widened(
    problem: _Problem,
    factor: PosteriorFactor,
    prior: Moments,
    share: _Share,
    moments: MomentsByFactor,
) -> NewMoments:
    """The rows' share, made less informative by the noise in it.

    See `Family.share_under_noise`.

    Noise in the precision of Gaussian coordinates w moves their linear statistic, too,
    by itself times w; not that of centred ones, which rows were asked about until they
    were near w.
    """
    noise = {s: problem.inputs.noise_read * of for s, of in share.noise_stddev.items()}
    if factor.layout is not None and factor.name not in problem.inputs.centre:
        squares = jnp.diagonal(moments[factor.name]["xx"], axis1=-2, axis2=-1)
        # The natural parameter is minus half the precision. A product of two latents
        # may stand on one side of the diagonal alone.
        of_precision = 2.0 * symmetric_part(noise["xx"])
        by_precision = times(of_precision**2, jnp.maximum(squares, 0.0))
        noise["x"] = jnp.sqrt(noise["x"] ** 2 + by_precision)
    return factor.family.share_under_noise(prior, share.natural, noise)


def _depends_on_others(structure: Structure, posterior_factor: PosteriorFactor) -> bool:
    """Whether a statistic multiplies moments of this factor by another's."""
    for statistic in structure.statistics:
        factors = {structure.factor_of[name] for name, *_ in statistic.atoms}
        if posterior_factor.name in factors and len(factors) > 1:
            return True
    return False


def update_globals(
    program: ConjugateProgram,
    inputs: GlobalInputs,
    moments: MomentsByFactor,
    max_sweeps: int | Int[Array, ""] = 500,
) -> Solution:
    """Coordinate ascent over the globals for given sums of row statistics.

    Args:
      program: The compiled model.
      inputs: The sums, and how they are read.
      moments: Where to start.
      max_sweeps: When to stop, if the moments still move then.
    """
    moments = _in_frames(inputs.frames, moments)
    problem = _with_fixed_shares(_Problem(program, inputs), moments)

    def sweep(before: MomentsByFactor, weighing: MomentsByFactor) -> Swept:
        return _sweep(problem, before, weighing)

    if len(program.structure.posterior_factors_of("global")) == 1:
        return _solution(problem, sweep(moments, moments), jnp.zeros(()))
    return _solution(problem, *swept_until_rest(sweep, moments, max_sweeps))


def _in_frames(
    frames: Mapping[str, Frame], moments: MomentsByFactor
) -> MomentsByFactor:
    """Moments in the coordinates of the statistics, from those of the model."""
    own = {name: frame.moments_in(moments[name]) for name, frame in frames.items()}
    return {**moments, **own}


def _as_modelled(
    frames: Mapping[str, Frame], moments: MomentsByFactor
) -> NewMomentsByFactor:
    """Moments in the coordinates of the model, from those of the statistics."""
    found = {name: dict(of) for name, of in moments.items()}
    for name, frame in frames.items():
        found[name] = frame.moments_from(moments[name])
    return found


def _with_fixed_shares(problem: _Problem, moments: MomentsByFactor) -> _Problem:
    """The problem with all that is the same in every sweep.

    The projection takes eigenvalues, so it is made once where that is enough.
    """
    structure = problem.program.structure
    factors = structure.posterior_factors_of("global")
    fixed = {
        factor.name: _from_data(problem, factor, moments)
        for factor in factors
        if factor.name not in problem.inputs.given
        and not _depends_on_others(structure, factor)
    }
    below_noise = {
        factor.name: factor.family.num_below_noise(
            *released_share(
                structure,
                factor,
                problem.inputs.statistics,
                problem.inputs.noise_stddev,
                moments,
            )
        )
        for factor in factors
        if factor.name in problem.inputs.given
    }
    return problem._replace(
        fixed=fixed,
        below_noise=below_noise,
        reads_noise=jnp.asarray(problem.inputs.noise_read) > 0,
    )


def _sweep(
    problem: _Problem, before: MomentsByFactor, weighing: MomentsByFactor
) -> Swept:
    """One sweep: each factor in turn, given the moments of the others.

    Args:
      problem: What the sweep goes by.
      before: The moments that it starts from.
      weighing: See `Swept.beside_rows`.
    """
    structure = problem.program.structure
    current, beside = dict(before), dict(weighing)
    natural, below_noise = {}, {}
    for factor in structure.posterior_factors_of("global"):
        name = factor.name
        own = _own_prior(problem, factor, current)
        asked = None
        if name in problem.inputs.given:
            share, below_noise[name] = (
                problem.inputs.given[name],
                problem.below_noise[name],
            )
        else:
            of_rows = problem.fixed.get(name)
            if of_rows is None:
                at = {**beside, name: current[name]}
                of_rows = asked = _from_data(problem, factor, at)
            share = _widened(problem, factor, own, of_rows, current)
            below_noise[name] = of_rows.below_noise
        natural[name] = total_of_shares(structure, factor, own, share)
        found = _moments_unless_held(problem, factor, natural[name], current[name])
        current[name] = found
        beside[name] = _beside_rows(problem, factor, asked, found)
    return Swept(current, beside, natural, below_noise)


def _own_prior(
    problem: _Problem, factor: PosteriorFactor, moments: MomentsByFactor
) -> NewMoments:
    """A factor's prior, given the other factors, in its statistics' coordinates."""
    frames, program = problem.inputs.frames, problem.program
    modelled = _as_modelled(frames, moments)
    own = share_of_prior(program.structure, factor, modelled, program.prior_terms)
    return frames[factor.name].natural_in(own) if factor.name in frames else own


def _moments_unless_held(
    problem: _Problem, factor: PosteriorFactor, natural: Moments, before: Moments
) -> NewMoments:
    """The moments of a factor; those of before while it waits."""
    found = moments_of(problem.program.structure, factor, natural)
    if factor.name not in problem.program.waiting:
        return found
    are_held = jnp.asarray(problem.inputs.are_held)
    return {s: jnp.where(are_held, before[s], value) for s, value in found.items()}


def _beside_rows(
    problem: _Problem, factor: PosteriorFactor, share: _Share | None, found: NewMoments
) -> NewMoments:
    """A factor's moments as other factors' shares are weighed by them.

    Args:
      problem: What the sweep goes by.
      factor: The factor.
      share: That of its rows, where it depends on other factors.
      found: Its moments.
    """
    if factor.layout is None or share is None:
        return found
    # Without noise no eigenvalues are taken.
    return jax.lax.cond(
        problem.reads_noise,
        weighing_rows,
        lambda share, noise, found: dict(found),
        share.natural,
        share.noise_stddev,
        found,
    )


def _solution(problem: _Problem, found: Swept, change: Float[Array, ""]) -> Solution:
    """What a last sweep has found, in the coordinates of the model."""
    frames = problem.inputs.frames
    models = {n: frame.natural_from(found.natural[n]) for n, frame in frames.items()}
    return Solution(
        moments=_as_modelled(frames, found.moments),
        natural={**found.natural, **models},
        below_noise=found.below_noise,
        change=change,
    )
