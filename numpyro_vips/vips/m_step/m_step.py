"""The M-step: the posterior of the globals, from sums of the rows' statistics.

Everything here is post-processing of released numbers, so it costs no privacy and runs
to convergence.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from numpyro_vips.conjugacy.families.family import Moments, NewMoments
from numpyro_vips.conjugacy.families.gaussian import Normal
from numpyro_vips.conjugacy.families.positive_matrices import symmetric_part, times
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.m_step.hidden_directions import weighing_rows
from numpyro_vips.vips.m_step.shares import (
    about_zero,
    moments_of,
    projected,
    released_share,
    share_of_prior,
    total_of_shares,
)
from numpyro_vips.vips.program.named_arrays import (
    AnyMoments,
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
        released, noise = released_share(
            structure, factor, statistics, noise_stddev, moments
        )
        assert isinstance(factor.family, Normal)
        share = factor.family.project_for_step(released, noise, gain)
        own = share_of_prior(structure, factor, moments, program.prior_terms)
        own = frames[name].natural_in(own) if name in frames else own
        share = _held_back(share, own, noise["x"])
        share = about_zero(share, centre[name])
        natural = total_of_shares(structure, factor, own, share)
        end = moments_of(structure, factor, natural)
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


# Sweeps come to rest where no moment changes by more of its size.
_TOLERANCE = 1e-9


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

    def sweep(before: MomentsByFactor, weighing: MomentsByFactor) -> _Swept:
        return _sweep(problem, before, weighing)

    if len(program.structure.posterior_factors_of("global")) == 1:
        return _solution(problem, sweep(moments, moments), jnp.zeros(()))
    return _solution(problem, *_swept_until_rest(sweep, moments, max_sweeps))


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
) -> _Swept:
    """One sweep: each factor in turn, given the moments of the others.

    Args:
      problem: What the sweep goes by.
      before: The moments that it starts from.
      weighing: See `_Swept.beside_rows`.
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
    return _Swept(current, beside, natural, below_noise)


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


def _swept_until_rest(
    sweep: Callable[[MomentsByFactor, MomentsByFactor], _Swept],
    moments: MomentsByFactor,
    max_sweeps: int | Int[Array, ""],
) -> tuple[_Swept, Float[Array, ""]]:
    """Sweeps over several factors until no moment moves.

    Single precision never gets to 1e-9, and where a covariance is nearly singular
    rounding keeps the changes far above its resolution. Sweeps that no longer bring the
    globals closer together stop.

    Args:
      sweep: One sweep, see `_sweep`.
      moments: Where to start.
      max_sweeps: When to stop at the latest.

    Returns:
      What the last sweep has left, and the largest relative change in it.
    """
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
    return found, change


def _solution(problem: _Problem, found: _Swept, change: Float[Array, ""]) -> Solution:
    """What a last sweep has found, in the coordinates of the model."""
    frames = problem.inputs.frames
    models = {n: frame.natural_from(found.natural[n]) for n, frame in frames.items()}
    return Solution(
        moments=_as_modelled(frames, found.moments),
        natural={**found.natural, **models},
        below_noise=found.below_noise,
        change=change,
    )


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
