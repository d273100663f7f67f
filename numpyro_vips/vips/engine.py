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
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, PRNGKeyArray

from numpyro_vips.conjugacy.families.dirichlet import Categorical
from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.conjugacy.families.logistic_auxiliaries import PolyaGamma, Tangent
from numpyro_vips.conjugacy.structure.centring import Means
from numpyro_vips.conjugacy.structure.latents import known_family
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.conjugacy.structure.structure import is_real
from numpyro_vips.jax_tools.compiling_ahead import jit_ahead
from numpyro_vips.jax_tools.quick_compilation import jit_of_globals, jit_unoptimized
from numpyro_vips.jax_tools.random_keys import as_threefry
from numpyro_vips.jax_tools.row_sums import DIAGNOSTICS, aligned, counts_of_parts
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.row_queries import map_rows
from numpyro_vips.model.simulated_rows import RowSimulator
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import Release
from numpyro_vips.vips import m_step
from numpyro_vips.vips.bounded_sum import bounded_sum, norms_of_rows
from numpyro_vips.vips.clipping_bias import (
    Bound,
    Lost,
    Unclipped,
    without_clipping,
)
from numpyro_vips.vips.column_units import column_units, columns_with_squares
from numpyro_vips.vips.convergence import TOLERANCE, Trail, distance
from numpyro_vips.vips.e_step import DEFAULT_LOCAL_SWEEPS
from numpyro_vips.vips.evidence_bound import bound_of_globals, row_bound
from numpyro_vips.vips.expectations import expected_natural_of, means_of
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
from numpyro_vips.vips.posterior import KIND, ConjugatePosterior
from numpyro_vips.vips.program import ConjugateProgram
from numpyro_vips.vips.row_statistics import public_statistics, with_repeats

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

# Rows that are simulated for one of a fit, where they tell what clipping takes off, so
# many at least and at most,
_SIMULATED, _FEWEST_SIMULATED, _MOST_SIMULATED = 8, 16_384, 65_536
# and at most where rows have latents of their own to be solved for.
_MOST_WITH_LATENTS = 16_384
# Those of them that are worked on at a time at most.
_CHUNK = 4096
# Groups of them whose sums tell how much clipped sums vary with whole ones, and how
# little these are taken to do so.
_GROUPS = 48
_LEAST_CORRELATION = 0.1

# Parameters beyond which a posterior does not say which part of its variance is noise.
_MOST_IN_PARTS = 100_000
# Coordinates of a joint covariance from which on `explain` points it out.
_LARGE_COVARIANCE = 300


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

# Arrays of factors, whatever precision JAX is set to.
InDouble = dict[str, dict[str, Float64[np.ndarray, "..."]]]


class VipsState(NamedTuple):
    """Public quantities only.

    Attributes:
      statistics: Running average of each statistic, as an estimate of its sum over all
        rows: noisy, not projected.
      noise_stddev: Standard deviation of the noise in it, per isometric coordinate: one
        number, or one for each entry of those that have units.
      moments, natural: Moments and natural parameters of every global factor, in
        double precision.
      visited: The moments at which rows are asked next: those of the posterior, but for
        factors that take Newton steps under noise, see `conjugacy.structure.centring`.
      expected_natural: n̄, what the rows of a step need to know of the globals.
      released: Names of the statistics that have been released at least once.
      centre: The points about which statistics were taken, averaged like these; see
        `conjugacy.structure.centring`.
      num_steps: Number of updates so far.
      change: Largest relative change of the moments in the last step.
      drift: How far each statistic of the last step was from the average before it, as
        a root mean square in standard deviations of the noise of both.
      below_noise: See `m_step.Solution`.
      clipped: By statistic, how rows were clipped when it was released last.
      trail: Where steps without noise have led; None under noise.
      bounds: The evidence bounds of all starts of a fit without noise, best first.
      as_good: The globals that another start found elsewhere, with the same bound.
      units: What entries of statistics are multiplied by where rows are clipped and
        noise is added, by the statistic's name; see `column_units`.
    """

    statistics: NewSums
    noise_stddev: dict[str, Float64[np.ndarray, "..."] | float]
    moments: InDouble
    natural: InDouble
    visited: InDouble
    expected_natural: NewByStatistic
    released: frozenset[str]
    centre: dict[str, Float64[np.ndarray, "..."]]
    num_steps: int = 0
    change: float = 0.0
    drift: Mapping[str, float] = types.MappingProxyType({})
    below_noise: Mapping[str, int] = types.MappingProxyType({})
    clipped: Mapping[str, Bound] = types.MappingProxyType({})
    trail: Trail | None = None
    bounds: tuple[float, ...] = ()
    as_good: tuple[str, ...] = ()
    units: Mapping[str, Float64[np.ndarray, " columns"]] = types.MappingProxyType({})


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


def _in_noise(difference: np.ndarray, stddev: np.ndarray | float) -> float:
    """Root mean square, in standard deviations of the noise."""
    return float(np.sqrt(np.mean(np.square(difference / stddev))))


def _is_noisy(deviations: Mapping[str, np.ndarray | float]) -> bool:
    return any(np.any(stddev) for stddev in deviations.values())


@functools.partial(jit_unoptimized, static_argnums=0)
def _parameters(
    factors: tuple[tuple[str, Family], ...], natural: MomentsByFactor
) -> NewMomentsByFactor:
    """Standard parameters of each factor, as one program."""
    return {name: family.parameters(natural[name]) for name, family in factors}


class _Simulation:
    """Rows simulated from posteriors, and what clipping takes off their sums.

    Args:
      engine, state: Which rows are asked, and where.
      simulator: What draws them.
      bounds: By statistic, how rows are clipped.
    """

    def __init__(
        self,
        engine: "VipsEngine",
        state: VipsState,
        simulator: RowSimulator,
        bounds: Mapping[str, Bound],
    ):
        self._engine, self._state, self._simulator = engine, state, simulator
        self._bounds = bounds
        self._releases = {id(bound): bound for bound in bounds.values()}.values()
        # Of the length that the rows of a fit are worked on in, so that nothing new
        # is compiled.
        self._size = aligned(min(engine.num_rows, _CHUNK))
        with_latents = any(engine.program.structure.posterior_factors_of("local"))
        most = _MOST_WITH_LATENTS if with_latents else _MOST_SIMULATED
        wanted = max(_FEWEST_SIMULATED, _SIMULATED * engine.num_rows)
        self._number = math.ceil(min(wanted, most) / self._size)
        # Of its own for every release, as the rows' and the noise's are.
        released = (np.ascontiguousarray(state.statistics[n]) for n in sorted(bounds))
        self._seed = zlib.crc32(b"".join(part.tobytes() for part in released))

    def _latents(self, sums: Sums) -> dict[str, np.ndarray] | None:
        """The means of the globals, for some sums; None if they have none."""
        state, engine = self._state, self._engine
        natural = engine.natural_of(state, Unclipped(dict(sums), state.noise_stddev))
        moments = engine.posterior_of(natural).moments()
        latents = {name: m.mean for name, m in moments.items()}
        finite = all(np.isfinite(value).all() for value in latents.values())
        return latents if finite else None

    def _sums(
        self, latents: Mapping[str, np.ndarray], num_groups: int
    ) -> Iterator[dict[str, tuple[np.ndarray, np.ndarray]]]:
        """The whole and the clipped sum of groups of rows, by statistic."""
        for number in range(self._number):
            rows = self._simulator.rows(latents, self._size, self._seed + number)
            for group in range(num_groups):
                mask = np.arange(self._size) % num_groups == group
                found = {}
                for bound in self._releases:
                    whole, clipped = (
                        self._engine.sum_of_rows(
                            self._state,
                            rows,
                            mask,
                            scales=bound.scales,
                            clipping_norm=norm,
                        )
                        for norm in (math.inf, bound.clipping_norm)
                    )
                    for name in bound.scales:
                        if self._bounds.get(name) is bound:
                            found[name] = whole[name], clipped[name]
                yield found

    def missing(self, sums: Sums) -> NewSums | None:
        """See `without_clipping`."""
        latents = self._latents(sums)
        if latents is None:
            return None
        factor = self._engine.num_rows / (self._number * self._size)
        found = {name: np.zeros(np.shape(sums[name])) for name in self._bounds}
        for of_group in self._sums(latents, 1):
            for name, (whole, clipped) in of_group.items():
                found[name] += factor * (whole - clipped)
        finite = all(np.isfinite(value).all() for value in found.values())
        return found if finite else None

    def lost(self, sums: Sums) -> dict[str, Lost]:
        """See `without_clipping`."""
        latents = self._latents(sums)
        assert latents is not None  # So it was for `missing`.
        num_groups = math.ceil(_GROUPS / self._number)
        pairs = list(self._sums(latents, num_groups))
        rows_per_group = self._size / num_groups
        found = {}
        for name in self._bounds:
            parts = (np.stack([pair[name][i] for pair in pairs]) for i in (0, 1))
            whole, clipped = (part - part.mean(0) for part in parts)
            variances = (whole**2).sum(), (clipped**2).sum()
            product = variances[0] * variances[1]
            squared = (whole * clipped).sum() ** 2 / product if product > 0 else 1.0
            variance = variances[0] / (len(pairs) - 1) / whole[0].size
            excess = 1.0 / max(float(squared), _LEAST_CORRELATION**2) - 1.0
            missing = ((whole - clipped) ** 2).sum() / (len(pairs) - 1) / whole[0].size
            num_rows, simulated = self._engine.num_rows, self._number * self._size
            found[name] = Lost(
                of_rows=float(excess * variance * num_rows / rows_per_group),
                of_simulation=float(missing / rows_per_group * num_rows**2 / simulated),
            )
        return found


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
        self._step_size = step_size
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
        self._newton_step = jit_unoptimized(
            functools.partial(m_step.newton_step, program)
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
            state, rows, mask, scales=scales, clipping_norm=clipping_norm
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
        """The same of rows that are simulated, of which there may be any number.

        How often this is asked depends on what was released; how often `bounded_sum`
        is, of private rows, depends on public facts alone.
        """
        expected_natural, means = state.expected_natural, self._means(state.visited)
        if self.program.refreshed.issuperset(set(scales).difference(DIAGNOSTICS)):
            # Rarely released, so at the best globals that there are.
            expected_natural = self._expected_natural_of(_as_arrays(state.moments))
            means = self._means(state.moments)
        found = self._bounded_sum(
            expected_natural=expected_natural,
            rows=dict(rows),
            mask=mask,
            scales={s: float(scales[s]) for s in scales if s not in DIAGNOSTICS},
            clipping_norm=clipping_norm,
            means=means,
            units={name: of for name, of in state.units.items() if name in scales},
        )
        sums = {name: np.asarray(found[name]) for name in scales}
        in_units = {
            name: sums[name] * state.units[name] for name in sums if name in state.units
        }
        return sums | in_units

    def _means(self, moments: InDouble) -> NewByStatistic:
        """The points about which rows' statistics are taken, by latent."""
        return means_of(self.program.structure, _as_arrays(moments))

    def row_norms(
        self, state: VipsState, rows: Rows, names: Sequence[str]
    ) -> dict[str, Float[np.ndarray, " rows"]]:
        """Norms of each block, for rows that the caller may see."""
        shared = (state.expected_natural, self._means(state.visited), dict(state.units))
        norms = self._row_norms(shared, dict(rows), tuple(names))
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
        means = self._means(state.visited)
        names = tuple((part, tuple(blocks)) for part, blocks in parts.items())
        with jax.enable_x64(True):
            double = {part: jnp.asarray(edges[part]) for part in parts}
        shared = (state.expected_natural, means, dict(state.units))
        found = self._norm_counts(shared, dict(rows), mask, double, names)
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
        self, state: VipsState, scales: Mapping[str, float], clipping_norm: float
    ) -> VipsState:
        """The state that knows how the next release is clipped; see `SeesBounds`."""
        blocks = {s: float(scales[s]) for s in scales if s not in DIAGNOSTICS}
        bound = Bound(blocks, clipping_norm)
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
        rho = step_size
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
        drift = {
            name: _in_noise(
                released[name] - statistics[name],
                np.hypot(noise[name], deviations[name]),
            )
            for name in released
            if name in state.released and np.all(deviations[name])
        }
        for name, value in new.items():
            average = np.asarray((1.0 - rho) * statistics[name])
            average += rho * value  # In place: blocks can have millions of entries.
            statistics[name] = average
            deviations[name] = np.hypot(
                (1.0 - rho) * deviations[name], rho * noise.get(name, 0.0)
            )
        centre, latest = state.centre, None
        if self._linear & set(released):
            # Rows know the mean in their own precision.
            means = {name: _as_rows_know(state.visited[name]["x"]) for name in centre}
            if any(np.any(noise.get(name, 0.0)) for name in self._residuals):
                residuals = {name: new[name] for name in self._residuals}
                latest = {**statistics, **residuals}, means
            centre = {
                name: (1.0 - rho) * centre[name] + rho * means[name] for name in centre
            }
        state = state._replace(
            statistics=statistics,
            noise_stddev=deviations,
            centre=centre,
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
                )
                moments = _in_double(found.moments)
                natural = _in_double(found.natural)
                visited = moments
                if latest is not None:
                    sums, about = latest
                    visited = _in_double(
                        self._newton_step(sums, deviations, moments, about, _gain(rho))
                    )
                elif _is_noisy(deviations):
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
        if _is_noisy(deviations):
            return state
        return state._replace(trail=self._trail_after(state))

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
        if not _is_noisy(state.noise_stddev):
            return None
        sums = Unclipped(state.statistics, state.noise_stddev)
        return self._without_clipping(state) or sums

    def natural_of(
        self, state: VipsState, sums: Unclipped, noise_read: float = 1.0
    ) -> InDouble:
        """Natural parameters of the globals, for other sums.

        Args:
          state: Where to start from.
          sums: The sums, and their noise.
          noise_read: See `m_step.update_globals`.
        """
        with jax.enable_x64(True):
            found = self._update_globals(
                sums.statistics,
                sums.noise_stddev,
                state.moments,
                state.centre,
                self.global_sweeps,
                noise_read=noise_read,
            )
            return _in_double(found.natural)

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
        simulation = _Simulation(self, state, self._simulator, bounds)
        noise_stddev = {name: float(of) for name, of in state.noise_stddev.items()}
        return without_clipping(
            state.statistics, noise_stddev, simulation.missing, simulation.lost
        )

    def has_posterior(self, state: VipsState) -> bool:
        """Whether every statistic has been released."""
        return bool(state.natural) or not self.program.structure.posterior_factors_of(
            "global"
        )

    def posterior(self, state: VipsState) -> ConjugatePosterior:
        """The posterior of the global latents, parameters alone."""
        sums = self._sums_without_clipping(state)
        if sums is None:
            return self.posterior_of(state.natural)
        found = state.natural
        if sums.statistics is not state.statistics or not self._residuals:
            found = self.natural_of(state, sums)
        posterior = self.posterior_of(found)
        if sum(value.size for value in posterior.params.values()) > _MOST_IN_PARTS:
            return posterior
        as_they_are = self.natural_of(state, sums, noise_read=0.0)
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
        """The noisy sums, averaged over the steps, and the noise in them."""
        sums = {name: np.array(state.statistics[name]) for name in state.released}
        noise = {
            f"{name}.noise_stddev": np.asarray(state.noise_stddev[name])
            for name in sums
        }
        return {**sums, **noise}

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
          converged: Whether the globals no longer move; None under noise, where
            `drift` says how far a step still leads: 1 is noise alone.
          remaining: How far they still have to go at most, in standard deviations of
            the posterior; None if that is not known.
          evidence_bounds: Of the starts of a fit without noise, best first.
          as_good: The globals of which another start found another posterior, with the
            same bound.
          below_noise: By site, how many of its sums of squares are below their noise.
          bounds: By site, the auxiliary variables that make its log density a bound.
          warnings: See `Engine.diagnostics`.
        """
        structure = self.program.structure
        is_noisy = _is_noisy(state.noise_stddev)
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
        found = {
            "num_steps": state.num_steps,
            "change": state.change,
            "drift": dict(state.drift),
            "converged": None if is_noisy else is_still,
            "remaining": remaining if math.isfinite(remaining) else None,
            "evidence_bounds": list(state.bounds),
            "as_good": list(state.as_good),
            "below_noise": below,
            "bounds": {site: bound for site, bound in bounds.items() if bound},
        }
        return {**found, "warnings": list(self._warnings(found))}

    def _warnings(self, found: Mapping[str, Any]) -> Iterator[str]:
        if found["converged"] is False:
            left = found["remaining"]
            further = (
                "" if left is None else f", with up to {left:.1g} posterior sds left"
            )
            yield (
                f"VIPS has not converged: in the last of {found['num_steps']} steps "
                f"the globals moved by {found['change']:.1g} of their size{further}. "
                "Pass a larger num_steps=."
            )
        if found["as_good"]:
            sites = ", ".join(repr(site) for site in found["as_good"])
            yield (
                f"Another start led to another posterior of {sites} that is about as "
                "good, as where components may trade their labels. Means of single "
                "components are then up to relabelling: look at what does not depend "
                "on the order, or give the components different priors."
            )
        if found["below_noise"]:
            sites = ", ".join(repr(site) for site in found["below_noise"])
            yield (
                f"What the rows say of {sites} is below the noise, and its posterior "
                "is about as wide as the noise makes it. More rows, a larger epsilon "
                "or a smaller clipping_norm would say more."
            )
        yield from self._on_bounds()
        if found["converged"] is None:
            yield from self._on_flat_priors()

    def _on_bounds(self) -> Iterable[str]:
        """What a bound does to latents of single rows; those of globals are tight."""
        latents = self.program.structure.latents
        logistic = (PolyaGamma.name, Tangent.name)
        bounded: set[str] = set()
        for term in self.program.row_terms:
            together = [latents[name] for name in {a.latent for a in term.atoms}]
            if any(x.role == "local" and x.family in logistic for x in together):
                bounded |= {x.name for x in together if x.family is None}
        own = [x.name for x in latents.values() if x.name in bounded]
        own = [x for x in own if latents[x].role == "local" and is_real(latents[x])]
        if own:
            yield (
                f"Of {', '.join(map(repr, own))}, which every row has its own of, the "
                "logistic likelihood is replaced by a bound. It is looser the less a "
                "row says of them: globals that scale them come out too small, "
                "precisions too large, and both too certain. engine='dpvi' integrates "
                "one or two such latents by quadrature."
            )

    def _on_flat_priors(self) -> Iterable[str]:
        latents = self.program.structure.latents
        flat = [name for name, latent in latents.items() if latent.is_flat]
        if flat:
            yield (
                f"The prior of {', '.join(map(repr, flat))} is flat (ImproperUniform). "
                "Where noise hides what the rows say, the posterior is improper, and "
                "what is returned is as wide as numbers allow. A proper prior from "
                "public knowledge, such as a wide Normal, says what is possible."
            )

    # --- what `explain` says ----------------------------------------------------------

    @property
    def captured(self) -> Mapping[str, np.ndarray]:
        """Arrays that are held beside the model: none."""
        return {}

    def describe_site(self, name: str) -> dict[str, Any]:
        """The posterior of a latent, the augmentation of an observed site.

        A global that no statistic depends on has the role `"hyper"`.
        """
        structure = self.program.structure
        site, found = self.program.graph.sites[name], {}
        if site.is_latent:
            factor = structure.posterior_factors[structure.factor_of[name]]
            found["posterior"] = self._describe_factor(factor)
            if factor.role == "global" and not any(
                latent == name for s in self.statistics for latent, *_ in s.atoms
            ):
                found["role"] = "hyper"
        auxiliary = [
            family.augmentation or family.name
            for latent in structure.latents.values()
            if latent.family is not None and latent.name.startswith(f"{name}:")
            for family in [known_family(latent)]
            if family is not None
        ]
        found["augmentation"] = ", ".join(dict.fromkeys(auxiliary)) or None
        return found

    def _describe_factor(self, factor: PosteriorFactor) -> str:
        structure = self.program.structure
        used = sorted({s for latent in factor.latents for s in structure.used[latent]})
        family = factor.family.name
        if factor.layout is not None and factor.layout.size > 1:
            family = f"Normal block of {factor.layout.size}"
            if len(factor.latents) > 1:
                family += f" ({', '.join(factor.latents)})"
        return f"{family} [{', '.join(used)}]"

    def describe_statistics(self) -> list[dict[str, Any]]:
        """Name, shape and release label of each of a row's statistics."""
        return [
            {"statistic": s.name, "shape": list(s.block_shape), "released": s.release}
            for s in self.statistics
        ]

    def notes(self) -> Iterable[str]:
        """What else to know."""
        yield from self._on_flat_priors()
        yield from self._on_bounds()
        if self._squares:
            yield (
                f"Of {', '.join(self._squares)} rows are clipped, and norms counted, "
                "in units of columns that are made of the released "
                f"{', '.join(dict.fromkeys(self._squares.values()))}."
            )
        factors = self.program.structure.posterior_factors.values()
        largest = max((f.layout.size for f in factors if f.layout), default=0)
        if largest > _LARGE_COVARIANCE:
            yield (
                f"The joint covariance has {largest} coordinates, so about "
                f"{largest**2 // 2:,} noisy numbers: fewer features, chosen by "
                "public knowledge, cost less noise."
            )

    def describe_sparse_rows(self, name: str) -> str:
        """How an argument whose rows store few entries is worked on."""
        if name in self.program.dense:
            reason = self.program.dense[name]
            return f". The row is written out again: {reason}"
        if self.program.densified.get(name):
            reasons = ", ".join(self.program.densified[name])
            return f", and all the work is done on them but for {reasons}"
        return ", and all the work is done on them"
