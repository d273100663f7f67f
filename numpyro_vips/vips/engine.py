"""VIPS: variational Bayes with perturbed expected sufficient statistics.

Park, Foulds, Chaudhuri and Welling (2020), algorithm 1. On the private side, a step
sums the rows' clipped expected sufficient statistics; on the public side, the noisy
sums are averaged over the steps and the globals are brought to convergence for them.
The running average is kept as it was released, without projection, so that its noise
averages out; only reading it as a posterior projects (DESIGN: negative counts set to
zero in every step would bias it).
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, PRNGKeyArray

from numpyro_vips.conjugacy.families.dirichlet import Categorical
from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.conjugacy.structure.centring import Means
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.jax_tools.compiling_ahead import jit_ahead
from numpyro_vips.jax_tools.quick_compilation import jit_of_globals, jit_unoptimized
from numpyro_vips.jax_tools.random_keys import as_threefry
from numpyro_vips.jax_tools.row_sums import DIAGNOSTICS, counts_of_parts
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.row_queries import map_rows
from numpyro_vips.model.simulated_rows import RowSimulator
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import Release
from numpyro_vips.vips import m_step
from numpyro_vips.vips.asked_places import asked_also
from numpyro_vips.vips.bounded_sum import bounded_sum, norms_of_rows
from numpyro_vips.vips.clipping_bias import (
    Bound,
    Unclipped,
    without_clipping,
)
from numpyro_vips.vips.column_units import column_units, columns_with_squares
from numpyro_vips.vips.convergence import TOLERANCE, Trail, distance
from numpyro_vips.vips.description import (
    describe_site,
    describe_sparse_rows,
    describe_statistics,
    notes_on,
    warnings_of,
)
from numpyro_vips.vips.drift import drift_of, largest_drift
from numpyro_vips.vips.e_step import DEFAULT_LOCAL_SWEEPS
from numpyro_vips.vips.evidence_bound import bound_of_globals, row_bound
from numpyro_vips.vips.expectations import by_latent, expected_natural_of, means_of
from numpyro_vips.vips.missing_information import Coordinates, observed
from numpyro_vips.vips.named_arrays import (
    ByStatistic,
    MomentsByFactor,
    NewByStatistic,
    NewMomentsByFactor,
    NewSums,
    Row,
    Rows,
    Sums,
)
from numpyro_vips.vips.newton_posterior import all_under_noise
from numpyro_vips.vips.newton_steps import Target, Way, as_targets, step_from
from numpyro_vips.vips.posterior import KIND, ConjugatePosterior
from numpyro_vips.vips.program import ConjugateProgram
from numpyro_vips.vips.row_simulation import RowSimulation
from numpyro_vips.vips.row_statistics import (
    as_block,
    public_statistics,
    with_repeats,
)
from numpyro_vips.vips.simulated_answers import SimulatedAnswers, seed_of
from numpyro_vips.vips.state import InDouble, VipsState, is_noisy

# Steps that release what depends on the globals: more rows per step beat more steps.
DEFAULT_STEPS = 10
# Of Newton's method for centred factors, whose matrix is noisy and so held away from
# zero: directions of which rows say little take many steps to their optimum.
DEFAULT_NEWTON_STEPS = 50
# How fast the steps of Newton's method become shorter; see `_gain`.
GAIN_DECAY = 0.3
# Without noise there is no price on a step, and coordinate ascent needs some.
DEFAULT_STEPS_WITHOUT_NOISE = 100
# Those at most of a fit that ends when it has converged.
MOST_STEPS = 2000
# Sweeps over the globals in all steps together, and at least in each of them: they go
# on from where the step before has left them.
GLOBAL_SWEEPS = 500
SWEEPS_PER_STEP = 5
# Sweeps in which the globals, and statistics that depend on them alone, take turns.
PUBLIC_SWEEPS = 100

# Numbers in the statistics beyond which what rows leave open is not worked out.
_MOST_COORDINATES = 200

# Parameters beyond which a posterior does not say which part of its variance is noise.
_MOST_IN_PARTS = 100_000


# The relative change from which on `diagnostics` says that the globals are moving,
# after too few steps to tell how far they still have to go,
_STILL = 1e-3
# and how many standard deviations they may have to go otherwise.
_NEAR = 0.05

# Starts of a fit without noise where a symmetry is broken at random: some lead to where
# components stay alike, or to a worse place.
NUM_STARTS = 5
# Bounds that differ by less, in nats, are of posteriors about as good;
# these are not the same if they are so many standard deviations apart.
_ALIKE = 3.0
_APART = 1.0


def block_of(
    statistic: Statistic, directions: int | None = None, *, has_units: bool = False
) -> Block:
    """What the mechanism has to know of a statistic, at scale 1.

    Args:
      statistic: Which one.
      directions: See `Block`.
      has_units: Whether its entries are multiplied by numbers that are not known yet,
        which no limit on an entry outlasts.
    """
    if has_units:
        return Block(name=statistic.name, shape=statistic.block_shape)
    geometry, edges = statistic.geometry, {}
    lower, upper = statistic.lower, statistic.upper
    bounded = math.isfinite(lower) and math.isfinite(upper) and lower < upper
    # Of entries known to be of one sign, only a box that says so too is tighter.
    if bounded and (geometry == "signed" or lower >= 0 or upper <= 0):
        geometry, edges = "box", {"lower": lower, "upper": upper}
    return Block(
        name=statistic.name,
        shape=statistic.block_shape,
        symmetric=statistic.matrix is not None,
        hollow=statistic.diagonal is not None,
        geometry=geometry,
        directions=directions,
        **edges,
    )


def _has_noise(statistic: Statistic) -> bool:
    return statistic.release != "public"


def _in_double(arrays: MomentsByFactor) -> InDouble:
    """NumPy arrays, which JAX takes in whatever precision it is set to."""
    return jax.tree.map(lambda array: np.asarray(array, dtype=np.float64), arrays)


def _as_arrays(
    arrays: Mapping[str, Mapping[str, Float[Array | np.ndarray, "..."]]],
) -> NewMomentsByFactor:
    """JAX's arrays, in the precision in which programs of rows run."""
    return jax.tree.map(jnp.asarray, arrays)


def _as_rows_know(array: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """The array rounded to the precision in which programs of rows run."""
    return array.astype(jax.dtypes.canonicalize_dtype(np.float64)).astype(np.float64)


def _relative_change(before: Any, after: Any) -> float:
    def of_array(x: np.ndarray, y: np.ndarray) -> float:
        size = np.max(np.abs(y), initial=0.0)
        return float(np.max(np.abs(x - y), initial=0.0) / (size or 1.0))

    return max(jax.tree.leaves(jax.tree.map(of_array, before, after)), default=0.0)


def _gain(step_size: float) -> float:
    """How far Newton's method goes in a step of this weight, from 0 to 1.

    With weights 2 / (t + 2) it is (t + 1)^-GAIN_DECAY: rows are asked ever closer to
    the average, where residuals are nearly linear in the noise, and all steps together
    still get from anywhere to anywhere (Polyak and Juditsky, 1992).
    """
    return (step_size / (2.0 - step_size)) ** GAIN_DECAY


@functools.partial(jit_unoptimized, static_argnums=0)
def _parameters(
    factors: tuple[tuple[str, Family], ...], natural: MomentsByFactor
) -> NewMomentsByFactor:
    """Standard parameters of each factor, as one program."""
    return {name: family.parameters(natural[name]) for name, family in factors}


class ObservedSums(NamedTuple):
    """Sums as rows know them, with what they are uncertain by in their noise.

    Attributes:
      with_noise, without_noise: With that of the releases, and without it.
      missing, left: See `missing_information.Observed`.
    """

    with_noise: Unclipped
    without_noise: Unclipped
    missing: float
    left: float


class VipsEngine:
    """Runs a compiled conjugate model; the loop over steps is in `inference`.

    Args:
      program: The model.
      num_rows: Public number of rows.
      local_steps: See `VIPS`, and so for `step_size` and `release_once`.
      num_steps: Number of steps, if the caller fixed it.
      has_norms: Whether the caller gave clipping norms.
    """

    name = "vips"
    is_one_vector = False

    def __init__(
        self,
        program: ConjugateProgram,
        *,
        num_rows: int,
        local_steps: int | None,
        num_steps: int | None = None,
        step_size: Callable[[int], float] | None = None,
        release_once: bool = True,
        has_norms: bool = False,
    ):
        # Norms that the caller gave are those of statistics as they are.
        self._squares = {} if has_norms else columns_with_squares(program)
        can_pilot = release_once and not has_norms
        self._recentred = program.structure.recentred if can_pilot else frozenset()
        self._step_size = step_size
        # Of the last state that was asked for, as a posterior and what is known of it
        # both need it.
        self._last_read: (
            tuple[VipsState, tuple[Unclipped | None, ObservedSums | None]] | None
        ) = None
        self._release_once = release_once
        self.program = program
        # What is released once makes one step, however many the caller asks for.
        is_adaptive = any(s.release == "adaptive" for s in self.statistics)
        sharing = num_steps if num_steps and is_adaptive else 1
        self.global_sweeps = max(SWEEPS_PER_STEP, GLOBAL_SWEEPS // sharing)
        self.num_rows = num_rows
        self.local_steps = local_steps or DEFAULT_LOCAL_SWEEPS
        # Kept, as a fit starts twice: default clipping norms are read off a start too.
        self._start = jit_unoptimized(functools.partial(m_step.start, program))
        self._expected_natural_of = jax.jit(
            functools.partial(expected_natural_of, program.structure)
        )
        self._public_contributions = jax.jit(
            functools.partial(public_statistics, program, sweeps=self.local_steps)
        )
        self._bounded_sum = jit_ahead(
            functools.partial(bounded_sum, program, sweeps=self.local_steps)
        )
        self._newton_targets = jit_unoptimized(
            functools.partial(m_step.newton_targets, program)
        )
        self._update_globals = jit_of_globals(
            functools.partial(m_step.update_globals, program)
        )

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        return self.program.structure.statistics

    def blocks(self, release: Release) -> tuple[Block, ...]:
        """What is released of this kind, at scale 1; intervals need nothing more."""
        labels: tuple[Release, ...] = (release,)
        if not self._release_once:
            everything = ("once", "refreshed", "adaptive")
            labels = everything if release == "adaptive" else ()
        return tuple(
            block_of(
                statistic,
                self._directions(statistic),
                has_units=statistic.name in self._squares,
            )
            for label in labels
            for statistic in self.statistics
            if statistic.release == label
        )

    def _directions(self, statistic: Statistic) -> int | None:
        """The numbers that noise in the precision of Gaussian coordinates moves.

        It is not said of a matrix that many vectors share, as the units of a belief
        network do.
        """
        if statistic.matrix is None or statistic.summed:
            return None
        factor_of = self.program.structure.factor_of
        factors = {factor_of[latent] for latent, *_ in statistic.atoms}
        gaussian = [
            name
            for name in factors
            if self.program.structure.posterior_factors[name].layout is not None
        ]
        return math.prod(statistic.block_shape[:-1]) if len(gaussian) == 1 else None

    @functools.cached_property
    def _released_as(self) -> dict[str, Block]:
        return {statistic.name: block_of(statistic) for statistic in self.statistics}

    def default_num_steps(self, *, is_private: bool, until_converged: bool) -> int:
        if until_converged:
            return MOST_STEPS
        if not is_private:
            return DEFAULT_STEPS_WITHOUT_NOISE
        adaptive = {block.name for block in self.blocks("adaptive")}
        if adaptive and adaptive <= self._residuals:
            return DEFAULT_NEWTON_STEPS
        return DEFAULT_STEPS

    def step_sizes(
        self, num_steps: int, *, is_private: bool, is_full: bool
    ) -> tuple[float, ...]:
        """The weights of adaptive steps; the first one counts fully by default.

        Raises:
          ValueError: The caller's function gives a weight outside (0, 1].
        """
        if self._step_size is not None:
            return tuple(self._given_step_size(t) for t in range(num_steps))
        if not is_private and is_full:
            # Full batches without noise need no averaging at all.
            return (1.0,) * num_steps
        # Near 2/t, so that early statistics, which belong to poor globals, fade while
        # noise still averages out.
        return tuple(2.0 / (t + 2.0) for t in range(num_steps))

    def _given_step_size(self, number: int) -> float:
        assert self._step_size is not None
        value = float(self._step_size(number))
        if not 0 < value <= 1:
            raise ValueError(
                f"Expected step_size({number}) to be in (0, 1], got {value!r}."
            )
        return value

    def initial_state(self, rng_key: PRNGKeyArray) -> VipsState:
        """The globals near their priors, and no statistic released but public ones."""
        moments, start = self._start(as_threefry(rng_key))
        expected_natural = self._expected_natural_of(moments)
        moments = _in_double(moments)
        statistics = {s.name: np.zeros(s.block_shape) for s in self.statistics}
        for name, value in start.items():
            statistics[name] = np.asarray(value, dtype=np.float64)
        public = self._public_sums(expected_natural)
        statistics.update(public)
        origins = {name: np.zeros_like(moments[name]["x"]) for name in self._recentred}
        return VipsState(
            statistics=statistics,
            noise_stddev={
                s.name: np.zeros(s.shape) if s.name in self._squares else 0.0
                for s in self.statistics
            },
            moments=moments,
            natural={},
            visited=moments,
            expected_natural=expected_natural,
            released=frozenset(public),
            centre={
                name: np.zeros_like(moments[name]["x"])
                for name in self.program.structure.centred
            },
            origins=origins,
            next_origins=origins,
            start=moments if m_step.symmetric_factors(self.program) else {},
            units={name: np.ones(statistics[name].shape) for name in self._squares},
        )

    def _public_sums(self, expected_natural: ByStatistic) -> NewSums:
        """What needs no noise: sums over all rows to which every row adds the same."""
        contributions = self._public_contributions(expected_natural)
        return {
            name: np.asarray(self.num_rows * np.asarray(each, dtype=np.float64))
            for name, each in contributions.items()
        }

    def bounded_sum(
        self,
        state: VipsState,
        rows: Rows,
        mask: Bool[Array | np.ndarray, " rows"],
        *,
        scales: Mapping[str, float],
        clipping_norm: float,
    ) -> NewSums:
        """The chunk's clipped sum of every block in `scales`, not yet private.

        See `fitting.engine.Engine.bounded_sum`. What has units is summed in these.
        """
        return self.sum_of_rows(
            state._replace(origins=state.next_origins),
            rows,
            mask,
            scales=scales,
            clipping_norm=clipping_norm,
        )

    def recentre(self, state: VipsState) -> VipsState:
        """The state from which statistics are taken about where the globals are now.

        About other points these are other sums: the average over those so far ends.
        Components of a mixture start anew, too. The noise in statistics about zero may
        have made them alike, and from there they part slowly.
        """
        again = state.start or state.moments
        origins = {n: _as_rows_know(state.visited[n]["x"]) for n in state.origins}
        return state._replace(
            next_origins=origins,
            kept=0.0,
            # A pilot is no step of the fit.
            num_steps=state.num_steps if self._adaptive else 0,
            moments=again,
            visited=again,
            expected_natural=self._expected_natural_of(_as_arrays(again)),
        )

    def sum_of_rows(
        self,
        state: VipsState,
        rows: Rows,
        mask: Bool[Array | np.ndarray, " rows"],
        *,
        scales: Mapping[str, float],
        clipping_norm: float,
    ) -> NewSums:
        """The same about `state.origins`, of rows of which there may be any number.

        How often this is asked depends on what was released; how often `bounded_sum`
        is, of private rows, depends on public facts alone.
        """
        expected_natural, moments = state.expected_natural, state.visited
        if self.program.refreshed.issuperset(set(scales).difference(DIAGNOSTICS)):
            # Rarely released, so at the best globals that there are.
            expected_natural = self._expected_natural_of(_as_arrays(state.moments))
            moments = state.moments
        found = self._bounded_sum(
            expected_natural=expected_natural,
            rows=dict(rows),
            mask=mask,
            scales={s: float(scales[s]) for s in scales if s not in DIAGNOSTICS},
            clipping_norm=clipping_norm,
            means=self._means(moments, state.origins),
            units={name: of for name, of in state.units.items() if name in scales},
        )
        sums = {name: np.asarray(found[name]) for name in scales}
        in_units = {
            name: sums[name] * state.units[name] for name in sums if name in state.units
        }
        return sums | in_units

    def _means(
        self, moments: InDouble, origins: Mapping[str, Float64[np.ndarray, "..."]]
    ) -> NewByStatistic:
        """The points about which rows' statistics are taken, by latent."""
        means = means_of(self.program.structure, _as_arrays(moments))
        return means | self._origins_by_latent(origins)

    def _origins_by_latent(
        self, origins: Mapping[str, Float64[np.ndarray, "..."]]
    ) -> NewByStatistic:
        points = {name: jnp.asarray(point) for name, point in origins.items()}
        return by_latent(self.program.structure, points)

    def _shared(self, state: VipsState) -> tuple[ByStatistic, Means, ByStatistic]:
        """What norms of rows depend on beside the rows."""
        means = self._means(state.visited, state.next_origins)
        units = {name: jnp.asarray(of) for name, of in state.units.items()}
        return state.expected_natural, means, units

    def row_norms(
        self, state: VipsState, rows: Rows, names: Sequence[str]
    ) -> dict[str, Float[np.ndarray, " rows"]]:
        """Norms of each block, for rows that the caller may see."""
        norms = self._row_norms(self._shared(state), dict(rows), tuple(names))
        return {name: np.asarray(norm) for name, norm in norms.items()}

    @functools.cached_property
    def _row_norms(self) -> Any:
        def norms(
            shared: tuple[ByStatistic, Means, ByStatistic],
            rows: Rows,
            names: tuple[str, ...],
        ) -> dict[str, Float[Array, " rows"]]:
            return self._norms_of_rows(shared, rows, names)

        return jit_unoptimized(norms, static_argnums=2)

    def _norms_of_rows(
        self,
        shared: tuple[ByStatistic, Means, ByStatistic],
        rows: Rows,
        names: Sequence[str],
    ) -> dict[str, Float[Array, " rows"]]:
        expected_natural, means, units = shared
        return norms_of_rows(
            self.program, expected_natural, rows, names, self.local_steps, means, units
        )

    def norm_counts(
        self,
        state: VipsState,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        parts: Mapping[str, Sequence[str]],
        edges: Mapping[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """In how many of the chunk's rows each norm lies in which bin, not yet private.

        See `fitting.engine.Engine.norm_counts`.
        """
        names = tuple((part, tuple(blocks)) for part, blocks in parts.items())
        with jax.enable_x64(True):
            double = {part: jnp.asarray(edges[part]) for part in parts}
        found = self._norm_counts(self._shared(state), dict(rows), mask, double, names)
        return {name: np.asarray(counts) for name, counts in found.items()}

    @functools.cached_property
    def _norm_counts(self) -> Any:
        def counts(
            shared: tuple[ByStatistic, Means, ByStatistic],
            rows: Rows,
            mask: Bool[Array, " rows"],
            edges: Mapping[str, Float[Array, " _edges"]],
            parts: tuple[tuple[str, tuple[str, ...]], ...],
        ) -> dict[str, Float[Array, " _bins"]]:
            names = sorted({name for _, blocks in parts for name in blocks})
            norms = self._norms_of_rows(shared, rows, names)
            return counts_of_parts(norms, mask, parts, edges)

        return jit_ahead(counts, static_argnums=4)

    @property
    def balanced(self) -> frozenset[str]:
        """Sums of residuals, which the prior alone keeps from zero.

        So are the sums of a regression together: a row is clipped as a whole, so that
        its product yx of response and covariates loses the share that xxᵀ loses, and
        what the estimate xxᵀw = yx lacks are residuals.
        """
        return self._residuals | self._of_regressions

    @property
    def recentred(self) -> frozenset[str]:
        """Statistics that are others when taken about the means of a pilot."""
        moved = {statistic.name for statistic in self.statistics if statistic.recentred}
        return frozenset(moved if self._recentred else ())

    @functools.cached_property
    def _moved(self) -> frozenset[str]:
        """Statistics whose average ends where others are recentred."""
        return self.recentred | (self._adaptive if self.recentred else frozenset())

    @functools.cached_property
    def _adaptive(self) -> frozenset[str]:
        return frozenset(s.name for s in self.statistics if s.release == "adaptive")

    @property
    def growing(self) -> frozenset[str]:
        """Residuals, for logits are near zero at the start."""
        return self._residuals

    @functools.cached_property
    def _of_regressions(self) -> frozenset[str]:
        """The statistics of Gaussian blocks that are all released at once.

        Not those of a mean, whose precision has a public number of rows in it, which
        no clipping makes smaller.
        """
        structure, found = self.program.structure, set()
        for factor in structure.posterior_factors_of("global"):
            if factor.layout is None or factor.layout.batch_shape:
                continue
            mine = [
                statistic
                for statistic in self.statistics
                if any(latent in factor.latents for latent, *_ in statistic.atoms)
            ]
            if {statistic.release for statistic in mine} == {"once"}:
                found |= {statistic.name for statistic in mine}
        return frozenset(found)

    @functools.cached_property
    def _linear(self) -> frozenset[str]:
        """The statistics that are others when taken about the current mean."""
        return self._linear_in(self.program.structure.centred)

    @functools.cached_property
    def _residuals(self) -> frozenset[str]:
        """Those of factors that take Newton steps."""
        return self._linear_in(self.program.structure.newton)

    def _linear_in(self, factors: frozenset[str]) -> frozenset[str]:
        factor_of = self.program.structure.factor_of
        return frozenset(
            s.name
            for s in self.statistics
            if sum(factor_of[latent] in factors for latent, *_ in s.atoms) == 1
        )

    def with_bound(
        self,
        state: VipsState,
        scales: Mapping[str, float],
        clipping_norm: float,
        sampling_rate: float,
    ) -> VipsState:
        """The state that knows how the next release is clipped; see `SeesBounds`."""
        blocks = {s: float(scales[s]) for s in scales if s not in DIAGNOSTICS}
        bound = Bound(blocks, clipping_norm, sampling_rate)
        clipped = {**state.clipped, **dict.fromkeys(blocks, bound)}
        return state._replace(clipped=clipped)

    def update(
        self,
        state: VipsState,
        released: Sums,
        noise_stddev: Mapping[str, float],
        step_size: float,
    ) -> VipsState:
        """Averages the released sums in and solves for the globals.

        Args:
          state: The state before the step.
          released: Noisy estimates of the sums over all rows.
          noise_stddev: Standard deviation of their noise.
          step_size: Weight ρ of these sums in the average.
        """
        statistics, deviations = dict(state.statistics), dict(state.noise_stddev)
        rho, moves = step_size, bool(self._residuals & set(released))
        if moves:
            rho = state.way.weight(step_size)
        released = {
            name: value / state.units[name] if name in state.units else value
            for name, value in released.items()
        }
        noise = {
            name: stddev / state.units[name] if name in state.units else stddev
            for name, stddev in noise_stddev.items()
        }
        dense = with_repeats(self.statistics, released)
        new = {**self._public_sums(state.expected_natural), **dense}
        kept, moved = state.kept, self._moved & set(released)
        if moved:
            kept = (1.0 - rho) * kept + rho
        weights = {name: rho / kept if name in moved else rho for name in new}
        drift = {
            name: drift_of(
                self._released_as[name],
                np.asarray(released[name] - statistics[name]),
                np.asarray(np.hypot(noise[name], deviations[name])),
            )
            for name in released
            # The first sums about other points have none before them.
            if name in state.released and state.kept and np.all(deviations[name])
        }
        for name, value in new.items():
            weight = weights[name]
            average = np.asarray((1.0 - weight) * statistics[name])
            average += weight * value  # In place: blocks can have millions of entries.
            statistics[name] = average
            deviations[name] = np.hypot(
                (1.0 - weight) * deviations[name], weight * noise.get(name, 0.0)
            )
        centre, latest = state.centre, None
        if self._linear & set(released):
            # Rows know the mean in their own precision.
            means = {name: _as_rows_know(state.visited[name]["x"]) for name in centre}
            if any(np.any(noise.get(name, 0.0)) for name in self._residuals):
                residuals = {name: new[name] for name in self._residuals}
                of_step = {name: noise[name] for name in self._residuals}
                latest = {**statistics, **residuals}, {**deviations, **of_step}, means
            centre = {
                name: (1.0 - rho) * centre[name] + rho * means[name] for name in centre
            }
        asked = state.asked
        if self._open & set(released):
            (weight,) = {weights[name] for name in self._open & set(released)}
            bound = state.clipped.get(min(self._open & set(released)))
            place = {name: state.expected_natural[name] for name in self._open}
            asked = asked_also(asked, weight, place, bound)
        state = state._replace(
            statistics=statistics,
            noise_stddev=deviations,
            asked=asked,
            centre=centre,
            origins=state.next_origins if moved else state.origins,
            kept=kept,
            released=state.released | set(released),
            num_steps=state.num_steps + 1,
            drift=drift or state.drift,
            units={
                **state.units,
                **{
                    name: _as_rows_know(
                        column_units(statistics[square], float(deviations[square]))
                    )
                    for name, square in self._squares.items()
                    if square in released and name not in released
                },
            },
        )
        if state.released != {s.name for s in self.statistics}:
            return state  # Another step of the schedule releases what is missing.
        for _ in range(self._public_sweeps):
            statistics |= (
                self._public_sums(state.expected_natural)
                if self._public_sweeps > 1
                else {}
            )
            # In double precision: residual sums are differences of large ones, and
            # precisions of scales span many orders of magnitude.
            with jax.enable_x64(True):
                found = self._update_globals(
                    statistics,
                    deviations,
                    state.moments,
                    state.centre,
                    self.global_sweeps,
                    # Rows are not asked at these where factors take Newton steps.
                    noise_read=float(bool(self._residuals)),
                    origins=state.origins,
                )
                moments = _in_double(found.moments)
                natural = _in_double(found.natural)
                visited = moments
                if latest is not None:
                    sums, noise_of_step, about = latest
                    targets = as_targets(
                        self._newton_targets(sums, noise_of_step, moments, about)
                    )
                    visited, way = self._next_visited(
                        state, about, targets, moments, step_size
                    )
                    state = state._replace(way=way)
                elif is_noisy(deviations):
                    newton = self.program.structure.newton
                    asked = {name: state.visited[name] for name in newton}
                    visited = {**moments, **asked}
            expected_natural = self._expected_natural_of(_as_arrays(visited))
            state = state._replace(
                statistics=statistics,
                moments=moments,
                natural=natural,
                visited=visited,
                expected_natural=expected_natural,
                change=max(
                    float(found.change),
                    # A step from the prior is no sign of what the next would do.
                    _relative_change(state.moments, moments) if state.natural else 0.0,
                ),
                below_noise={k: int(v) for k, v in found.below_noise.items()},
            )
        if is_noisy(deviations):
            return state
        return state._replace(trail=self._trail_after(state))

    def _next_visited(
        self,
        state: VipsState,
        about: Mapping[str, Float64[np.ndarray, "..."]],
        targets: Mapping[str, Target],
        moments: InDouble,
        step_size: float,
    ) -> tuple[InDouble, Way]:
        """The moments at which rows are asked next, and the way to there.

        Args:
          state: What is known of the way to where rows were asked last.
          about: Where they were asked last.
          targets: See `m_step.newton_targets`.
          moments: Those of the posterior.
          step_size: The step's weight in the average over all steps.
        """
        is_sampled = any(
            state.clipped[name].sampling_rate < 1.0
            for name in self._residuals & set(state.clipped)
        )
        # How rows are drawn is noise of unknown size in a gradient.
        way = Way() if is_sampled else state.way
        places, found = step_from(
            way,
            {name: about[name] for name in targets},
            targets,
            gain=_gain(step_size),
            step_size=step_size,
        )
        visited = dict(moments)
        for name, place in places.items():
            square = place[..., :, None] * place[..., None, :]
            visited[name] = {"x": place, "xx": targets[name].covariance + square}
        return visited, state.way if is_sampled else found

    def _trail_after(self, state: VipsState) -> Trail:
        place = state.natural, state.moments, state.num_steps
        if state.trail is None:
            return Trail.starting(*place)
        return state.trail.after(*place, self.program.structure.posterior_factors)

    @functools.cached_property
    def _public_sweeps(self) -> int:
        """The number of times that the globals are solved for in a step.

        Where no further step asks rows for anything, what depends on the globals alone
        is brought up to date here.
        """
        structure = self.program.structure
        if any(statistic.release == "adaptive" for statistic in self.statistics):
            return 1
        names = {group.name for group in structure.posterior_factors_of("local")}
        return PUBLIC_SWEEPS if names - structure.data_dependent_factors else 1

    def _sums_without_clipping(self, state: VipsState) -> Unclipped | None:
        """The sums that the posterior is read off; None if there is no noise.

        Rows are asked at the globals that the statistics have as they are, so that
        noise is not made up for twice. Factors that take Newton steps are asked
        elsewhere anyway, and the state has their natural parameters in this sense.
        """
        if not is_noisy(state.noise_stddev):
            return None
        sums = Unclipped(state.statistics, state.noise_stddev)
        return self._without_clipping(state) or sums

    @functools.cached_property
    def _open(self) -> frozenset[str]:
        """Statistics that are not known although they are released.

        They are expected ones, given what a row says of its latents. Factors that take
        Newton steps have a curvature for that.
        """
        statistics = [s for s in self.statistics if s.release != "public"]
        if (
            self.program.structure.centred
            or self._squares
            or any(s.diagonal is not None for s in statistics)
            or len(Coordinates(statistics)) > _MOST_COORDINATES
        ):
            return frozenset()
        return self._adaptive

    def _read(self, state: VipsState) -> tuple[Unclipped | None, ObservedSums | None]:
        """The sums without clipping, and as rows know them; None where not known."""
        if self._last_read is None or self._last_read[0] is not state:
            sums = None
            if self.has_posterior(state):
                sums = self._sums_without_clipping(state)
            seen = None if sums is None else self._as_observed(state, sums)
            self._last_read = state, (sums, seen)
        return self._last_read[1]

    def _as_observed(self, state: VipsState, sums: Unclipped) -> ObservedSums | None:
        """Sums as rows know them; see `missing_information`.

        None where the model does not say how rows are distributed, or rows have nothing
        to tell.
        """
        if not state.asked or self._simulator is None:
            return None
        coordinates = Coordinates(
            [s for s in self.statistics if s.name in state.released and _has_noise(s)]
        )
        named = {s.name: s for s in coordinates.statistics}

        def unclipped(blocks: Sums) -> Unclipped:
            return Unclipped({**sums.statistics, **blocks}, sums.noise_stddev)

        def means_of_latents(blocks: Sums) -> dict[str, np.ndarray]:
            natural = self.natural_of(state, unclipped(blocks), noise_read=0.0)
            moments = self.posterior_of(natural).moments()
            return {name: found.mean for name, found in moments.items()}

        def natural_of(blocks: Sums) -> NewSums:
            # About the same points as the sums.
            points = {name: -point for name, point in state.origins.items()}
            moments = self._solved(state, unclipped(blocks), 0.0).moments
            found = self._natural_about(moments, points)
            return {name: found[name] for name in named}

        def place_of(blocks: Sums) -> ByStatistic:
            moments = self._solved(state, unclipped(blocks), 0.0).moments
            return self._expected_natural_of(_as_arrays(_in_double(moments)))

        def sum_of_rows(
            place: ByStatistic, rows: Rows, mask: np.ndarray, bound: Bound | None
        ) -> NewSums:
            bound = bound or Bound(dict.fromkeys(self._open, 1.0), math.inf)
            found = self.sum_of_rows(
                state._replace(expected_natural={**state.expected_natural, **place}),
                rows,
                mask,
                scales=bound.scales,
                clipping_norm=bound.clipping_norm,
            )
            nothing = {name: np.zeros(s.block_shape) for name, s in named.items()}
            return nothing | found

        answers = SimulatedAnswers(
            self._simulator,
            coordinates,
            means_of_latents,
            natural_of,
            place_of,
            sum_of_rows,
            asked=state.asked,
            num_rows=self.num_rows,
            seed=seed_of(state.statistics),
        )
        depends = {
            name: np.full(statistic.block_shape, float(name in self._open))
            for name, statistic in named.items()
        }
        found = observed(
            coordinates.vector(sums.statistics),
            coordinates.stddevs(sums.noise_stddev),
            coordinates.stddevs(depends) > 0,
            answers,
        )
        if found is None:
            return None
        statistics = {**sums.statistics, **coordinates.blocks(found.sums)}
        with_noise, without_noise = (
            Unclipped(
                statistics,
                {**sums.noise_stddev, **coordinates.blocks_of_stddevs(stddev)},
            )
            for stddev in (found.stddev, found.stddev_of_rows)
        )
        return ObservedSums(with_noise, without_noise, found.missing, found.left)

    def _natural_about(
        self, moments: MomentsByFactor, points: Mapping[str, np.ndarray]
    ) -> NewSums:
        """n̄ of the globals with points added to them, as blocks."""
        with jax.enable_x64(True):
            found = self._blocks_of_natural(moments, points)
            return {name: np.asarray(block) for name, block in found.items()}

    @functools.cached_property
    def _blocks_of_natural(self) -> Any:
        def blocks(
            moments: MomentsByFactor, points: Mapping[str, Float[Array, "..."]]
        ) -> NewByStatistic:
            natural = expected_natural_of(
                self.program.structure, m_step.moved(moments, points)
            )
            return {s.name: as_block(s, natural[s.name]) for s in self.statistics}

        return jit_unoptimized(blocks)

    def _solved(
        self, state: VipsState, sums: Unclipped, noise_read: float
    ) -> m_step.Solution:
        """The posterior for other sums; see `m_step.update_globals`."""
        with jax.enable_x64(True):
            return self._update_globals(
                sums.statistics,
                sums.noise_stddev,
                state.moments,
                state.centre,
                self.global_sweeps,
                noise_read=noise_read,
                origins=state.origins,
            )

    def natural_of(
        self, state: VipsState, sums: Unclipped, noise_read: float = 1.0
    ) -> InDouble:
        """Natural parameters of the globals, for other sums.

        Args:
          state: Where to start from.
          sums: The sums, and their noise.
          noise_read: See `m_step.update_globals`.
        """
        return _in_double(self._solved(state, sums, noise_read).natural)

    def _targets_of(self, state: VipsState, sums: Unclipped) -> dict[str, Target]:
        """What the averages say of the factors that take Newton steps."""
        if not self._residuals:
            return {}
        with jax.enable_x64(True):
            found = self._newton_targets(
                sums.statistics, sums.noise_stddev, state.moments, state.centre
            )
        return as_targets(found)

    @functools.cached_property
    def _simulator(self) -> RowSimulator | None:
        return RowSimulator.of(self.program.graph)

    def _without_clipping(self, state: VipsState) -> Unclipped | None:
        """The sums with what clipping took off them; None where nothing tells.

        Where the model says how rows are distributed, rows simulated from the released
        posterior tell.
        """
        if state.units:
            return None  # Their rows have covariates, of which no model says anything.
        bounds = {
            name: bound
            for name, bound in state.clipped.items()
            if math.isfinite(bound.clipping_norm) and state.noise_stddev[name] > 0
        }
        if not bounds or self._simulator is None:
            return None
        simulation = self._simulation(state, self._simulator, bounds)
        noise_stddev = {name: float(of) for name, of in state.noise_stddev.items()}
        return without_clipping(
            state.statistics, noise_stddev, simulation.missing, simulation.lost
        )

    def _simulation(
        self, state: VipsState, simulator: RowSimulator, bounds: Mapping[str, Bound]
    ) -> RowSimulation:
        """Rows that are asked as those of the last step were."""

        def means_of_latents(sums: Sums) -> dict[str, np.ndarray]:
            natural = self.natural_of(state, Unclipped(dict(sums), state.noise_stddev))
            moments = self.posterior_of(natural).moments()
            return {name: found.mean for name, found in moments.items()}

        return RowSimulation(
            simulator,
            means_of_latents,
            functools.partial(self.sum_of_rows, state),
            bounds=bounds,
            released={name: state.statistics[name] for name in bounds},
            num_rows=self.num_rows,
            has_locals=any(self.program.structure.posterior_factors_of("local")),
        )

    def has_posterior(self, state: VipsState) -> bool:
        """Whether every statistic has been released."""
        return bool(state.natural) or not self.program.structure.posterior_factors_of(
            "global"
        )

    def posterior(self, state: VipsState) -> ConjugatePosterior:
        """The posterior of the global latents, parameters alone."""
        sums, seen = self._read(state)
        if sums is None:
            return self.posterior_of(state.natural)
        alone = sums
        if seen is not None:
            sums, alone = seen.with_noise, seen.without_noise
        found = state.natural
        if sums.statistics is not state.statistics or not self._residuals:
            found = self.natural_of(state, sums)
        targets = self._targets_of(state, sums)
        newton = all_under_noise(targets, state.centre, knows_noise=True)
        posterior = self.posterior_of({**found, **newton})
        if sum(value.size for value in posterior.params.values()) > _MOST_IN_PARTS:
            return posterior
        as_they_are = {
            **self.natural_of(state, alone, noise_read=float(seen is not None)),
            **all_under_noise(targets, state.centre, knows_noise=False),
        }
        return posterior.beside(self.posterior_of(as_they_are))

    def posterior_of(self, natural: MomentsByFactor | InDouble) -> ConjugatePosterior:
        """The posterior with these natural parameters."""
        structure = self.program.structure
        factors, families = [], []
        for group in structure.posterior_factors_of("global"):
            if structure.latents[group.latents[0]].family is not None:
                continue  # An auxiliary variable is no part of the user's posterior.
            factor: dict[str, Any] = {"name": group.name, "family": group.family.name}
            if isinstance(group.family, Categorical):
                factor["num_states"] = group.family.num_states
            if group.layout is not None:
                factor["layout"] = group.layout.to_dict()
            factors.append(factor)
            families.append((group.name, group.family))
        with jax.enable_x64(True):
            chosen = {name: dict(natural[name]) for name, _ in families}
            parameters = _parameters(tuple(families), chosen)
        params = {
            f"{factor}/{name}": jnp.asarray(np.asarray(value))
            for factor, found in parameters.items()
            for name, value in found.items()
        }
        sites = self.program.graph.latents("global")
        site_dims = {site.name: site.dims for site in sites}
        specification = {"kind": KIND, "blocks": factors, "site_dims": site_dims}
        return ConjugatePosterior(specification, params)

    def released(self, state: VipsState) -> dict[str, np.ndarray]:
        """The noisy sums, averaged over the steps, the noise in them, and the points
        that they are about."""
        sums = {name: np.array(state.statistics[name]) for name in state.released}
        noise = {
            f"{name}.noise_stddev": np.asarray(state.noise_stddev[name])
            for name in sums
        }
        origins = {
            f"{latent}.origin": np.asarray(point)
            for latent, point in self._origins_by_latent(state.origins).items()
        }
        return {**sums, **noise, **origins}

    def until_converged(
        self, state: VipsState, arguments: ModelArguments
    ) -> Iterator[VipsState] | None:
        """None: these are steps like any others."""
        return None

    def has_converged(self, state: VipsState) -> bool:
        """Whether further steps would leave the posterior where it is."""
        return state.trail is not None and state.trail.remaining <= TOLERANCE

    def other_starts(self, rng_key: PRNGKeyArray) -> list[VipsState]:
        """Further initial states, where a start breaks a symmetry at random."""
        if not m_step.symmetric_factors(self.program):
            return []
        key = as_threefry(rng_key)
        return [
            self.initial_state(jax.random.fold_in(key, number))
            for number in range(1, NUM_STARTS)
        ]

    def best(self, states: Sequence[VipsState], arguments: ModelArguments) -> VipsState:
        """The state with the largest evidence bound, and what the others say of it.

        Args:
          states: Where starts have led without noise.
          arguments: The model's, with the rows.
        """
        bounds = [self._bound(state, arguments) for state in states]
        order = sorted(range(len(states)), key=lambda i: -bounds[i])
        best, factors = states[order[0]], self.program.structure.posterior_factors
        elsewhere = {
            site
            for i in order[1:]
            if bounds[order[0]] - bounds[i] < _ALIKE
            for name in best.natural
            if distance(
                factors[name],
                (best.natural[name], states[i].natural[name]),
                (best.moments[name], states[i].moments[name]),
            )
            > _APART
            for site in factors[name].latents
            if site in self.program.graph.sites
        }
        return best._replace(
            bounds=tuple(bounds[i] for i in order), as_good=tuple(sorted(elsewhere))
        )

    def _bound(self, state: VipsState, arguments: ModelArguments) -> float:
        """The evidence bound of all rows; that of rows that do not count is none."""
        parts = map_rows(
            arguments, lambda rows: self._row_bounds(state.expected_natural, dict(rows))
        )
        of_rows = sum(float(np.nansum(np.asarray(part, np.float64))) for part in parts)
        with jax.enable_x64(True):
            found = self._bound_of_globals(
                _as_arrays(state.moments), _as_arrays(state.natural)
            )
        total = of_rows + float(found)
        return total if math.isfinite(total) else -math.inf

    @functools.cached_property
    def _row_bounds(self) -> Any:
        def bound(expected_natural: ByStatistic, row: Row) -> Float[Array, ""]:
            return row_bound(self.program, expected_natural, row, self.local_steps)

        return jax.jit(jax.vmap(bound, in_axes=(None, 0)))

    @functools.cached_property
    def _bound_of_globals(self) -> Any:
        return jax.jit(functools.partial(bound_of_globals, self.program))

    def diagnostics(self, state: VipsState) -> dict[str, Any]:
        """What is known of how good the posterior is.

        Returns:
          num_steps, change, drift: See `VipsState`.
          converged: Whether the globals no longer move. Under noise False where sums
            of the last step had moved, and None where noise hides whether.
          moving: The sites whose statistics had, under noise; see `drift`.
          remaining: How far they still have to go at most, in standard deviations of
            the posterior; None if that is not known.
          evidence_bounds: Of the starts of a fit without noise, best first.
          as_good: The globals of which another start found another posterior, with the
            same bound.
          missing_information: The largest share of the information about a direction of
            the globals that is missing, as rows do not show their own latents; None if
            that is not known.
          errors_left: What is left of the errors of early steps, in standard deviations
            of the posterior, which knows of them; None if that is not known.
          below_noise: By site, how many of its sums of squares are below their noise.
          bounds: By site, the auxiliary variables that make its log density a bound.
          warnings: See `Engine.diagnostics`.
        """
        structure = self.program.structure
        below = {
            site: count
            for name, count in state.below_noise.items()
            for site in structure.posterior_factors[name].latents
            if count
        }
        bounds = {
            site: self.describe_site(site)["augmentation"]
            for site in self.program.graph.sites
        }
        remaining = math.inf if state.trail is None else state.trail.remaining
        is_still = state.change < _STILL
        if state.trail is not None and state.trail.is_long:
            is_still = remaining <= _NEAR
        _, seen = self._read(state)
        # The posterior allows for what is left of early steps, where that is known.
        moving, converged = [] if seen else self._moving(state), is_still
        if is_noisy(state.noise_stddev):
            converged = False if moving else None
        found = {
            "num_steps": state.num_steps,
            "change": state.change,
            "drift": dict(state.drift),
            "moving": moving,
            "converged": converged,
            "remaining": remaining if math.isfinite(remaining) else None,
            "evidence_bounds": list(state.bounds),
            "as_good": list(state.as_good),
            "missing_information": None if seen is None else seen.missing,
            "errors_left": None if seen is None else seen.left,
            "below_noise": below,
            "bounds": {site: bound for site, bound in bounds.items() if bound},
        }
        return {**found, "warnings": list(warnings_of(self.program, found))}

    def _moving(self, state: VipsState) -> list[str]:
        """The sites whose sums moved in the last step by more than noise explains.

        Newton steps go where noise drives them, and residuals move with the place that
        they are asked at. Minibatches differ from each other without any movement.
        """
        structure, found = self.program.structure, dict[str, None]()
        for statistic in self.statistics:
            name = statistic.name
            if name not in state.drift or name in self._residuals:
                continue
            if name in state.clipped and state.clipped[name].sampling_rate < 1.0:
                continue
            if state.drift[name] > largest_drift(self._released_as[name]):
                factors = {
                    structure.factor_of[latent] for latent, *_ in statistic.atoms
                }
                for factor in sorted(factors):
                    found |= dict.fromkeys(structure.posterior_factors[factor].latents)
        return [name for name in found if name in self.program.graph.sites]

    # --- what `explain` says ----------------------------------------------------------

    @property
    def captured(self) -> Mapping[str, np.ndarray]:
        """Arrays that are held beside the model: none."""
        return {}

    def describe_site(self, name: str) -> dict[str, Any]:
        """See `description.describe_site`."""
        return describe_site(self.program, name)

    def describe_statistics(self) -> list[dict[str, Any]]:
        """Name, shape and release label of each of a row's statistics."""
        return describe_statistics(self.program)

    def notes(self) -> Iterable[str]:
        """What else to know."""
        return notes_on(self.program, self._squares)

    def describe_sparse_rows(self, name: str) -> str:
        """How an argument whose rows store few entries is worked on."""
        return describe_sparse_rows(self.program, name)
