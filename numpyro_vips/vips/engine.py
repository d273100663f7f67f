"""VIPS: variational Bayes with perturbed expected sufficient statistics.

Park, Foulds, Chaudhuri and Welling (2020), algorithm 1. On the private side, a step
sums the rows' clipped expected sufficient statistics; on the public side, the noisy
sums are averaged over the steps and the globals are brought to convergence for them
(`global_step.py`).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, PRNGKeyArray, UInt32

from numpyro_vips.abilities import Abilities
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.jax_tools.random_keys import as_threefry, threefry_key
from numpyro_vips.jax_tools.row_sums import DIAGNOSTICS, increasing_edges
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.synthetic.simulated_rows import RowSimulator
from numpyro_vips.model.synthetic.synthetic_rows import synthetic_rows
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import (
    COVARIATES,
    ClippingEffect,
    Columns,
    Pull,
    Release,
    Together,
    ValidRows,
)
from numpyro_vips.vips.corrections.clipping_direction import pulls_of_clipping
from numpyro_vips.vips.corrections.reading import Reading
from numpyro_vips.vips.description import (
    describe_site,
    describe_sparse_rows,
    describe_statistics,
    note_on_forgetting,
    notes_on,
)
from numpyro_vips.vips.diagnostics import diagnostics_of
from numpyro_vips.vips.e_step.e_step import DEFAULT_LOCAL_SWEEPS
from numpyro_vips.vips.initial_state import initial_state
from numpyro_vips.vips.m_step.expected_squares import expected_squares
from numpyro_vips.vips.m_step.global_programs import GlobalPrograms
from numpyro_vips.vips.m_step.global_step import GlobalStep
from numpyro_vips.vips.m_step.starts import symmetric_factors
from numpyro_vips.vips.posterior.posterior import ConjugatePosterior
from numpyro_vips.vips.program.forgotten_steps import num_waiting
from numpyro_vips.vips.program.named_arrays import NewSums, Rows, Sums
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.covariates import moments_block
from numpyro_vips.vips.row_sums.row_programs import RowPrograms
from numpyro_vips.vips.steps.best_start import best_start
from numpyro_vips.vips.steps.convergence import TOLERANCE
from numpyro_vips.vips.steps.released_sums import Bound, Unclipped
from numpyro_vips.vips.steps.state import VipsState
from numpyro_vips.vips.steps.statistic_roles import StatisticRoles
from numpyro_vips.vips.steps.step_sizes import (
    default_num_steps,
    given_step_sizes,
    step_sizes,
)
from numpyro_vips.vips.units.column_units import suited_to_sizes
from numpyro_vips.vips.units.distant_means import need_several_pilots
from numpyro_vips.vips.units.entry_units import (
    Power,
    powers_of_others,
    suited_to_entries,
)
from numpyro_vips.vips.units.feature_units import (
    columns_of_features,
    growth_of_norms,
    narrower_start,
    units_of_norms,
    units_of_sizes,
)
from numpyro_vips.vips.units.whitening import (
    CURVATURE_PILOTS,
    PILOTS,
    features_in_units,
    of_several_pilots,
)

# Sweeps over the globals in all steps together, and at least in each of them: they go
# on from where the step before has left them.
GLOBAL_SWEEPS = 500
SWEEPS_PER_STEP = 5
# Starts of a fit without noise where a symmetry is broken at random: some lead to where
# components stay alike, or to a worse place.
NUM_STARTS = 5
# Synthetic rows on which it is tried whether entries are powers of others.
_TRIED_ROWS = 16


class VipsEngine(Abilities):
    """Runs a compiled conjugate model; the loop over steps is in `fitting.fit_loop`.

    No rows are redrawn: what clipping takes off is worked out after the release.

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
        self.program = program
        self.num_rows = num_rows
        self.local_steps = local_steps or DEFAULT_LOCAL_SWEEPS
        self._step_size = step_size
        self._num_steps = num_steps
        self._has_norms = has_norms
        self._roles = StatisticRoles(
            program,
            num_rows=num_rows,
            release_once=release_once,
            has_norms=has_norms,
        )
        # What is released once makes one step, however many the caller asks for.
        sharing = num_steps if num_steps and self._roles.adaptive else 1
        sweeps = max(SWEEPS_PER_STEP, GLOBAL_SWEEPS // sharing)
        self.on_rows = RowPrograms(
            program,
            num_rows,
            self.local_steps,
            columns_of_features(
                program,
                self._roles.recentred_factors | self._roles.whitened_factors,
                self._roles.together,
            ),
        )
        self.on_globals = GlobalPrograms(
            program, sweeps, noise_by_entry=bool(self._roles.open)
        )
        self._step = GlobalStep(program, self._roles, self.on_rows, self.on_globals)
        self._reading = Reading(self.on_rows, self.on_globals, self._roles)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        return self.program.structure.statistics

    def blocks(self, release: Release) -> tuple[Block, ...]:
        """What is released of this kind, at scale 1.

        Intervals need the covariates' moments, where rows have latents of their own.
        """
        if release == "information":
            number = self._num_covariates
            return (moments_block(number),) if number else ()
        additions = self.on_rows.additions
        return tuple(
            dataclasses.replace(block, additions=additions.get(block.name, 1))
            for block in self._roles.blocks(release)
        )

    @property
    def _num_covariates(self) -> int:
        """The covariates whose moments are needed."""
        if self._has_norms or not self._roles.open:
            return 0  # Norms that the caller gave are not theirs.
        return sum(map(len, self.on_rows.covariates.values()))

    @property
    def balanced(self) -> frozenset[str]:
        """Blocks whose sums end near zero; see `StatisticRoles.balanced`."""
        return self._roles.balanced

    @property
    def recentred(self) -> frozenset[str]:
        """Blocks that pilots recentre, see `StatisticRoles.recentred`, and the moments
        of covariates that are features."""
        found = self._roles.recentred
        if found and self._num_covariates and self.on_rows.covariates_that_are_features:
            found |= {COVARIATES}
        return found

    @property
    def together(self) -> tuple[Together, ...]:
        """Blocks that share a clipping norm; see `StatisticRoles.together`."""
        return self._roles.together

    @property
    def growing(self) -> frozenset[str]:
        """Blocks whose norms the start halves; see `StatisticRoles.growing`."""
        return self._roles.growing

    @property
    def curvatures_in_parts(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of curvatures of several latents together, with an axis twice."""
        factors = self.program.structure.posterior_factors
        return tuple(
            (*factors[name].shape, factors[name].shape[-1])
            for name in sorted(self.program.structure.newton)
            if len(factors[name].latents) > 1
        )

    @property
    def pilots(self) -> int:
        """How many pilots there are: two of a curvature, three of features (see
        `whitening`) or of means far from zero (see `distant_means`), one where other
        means are recentred, else none. Of what is adaptive the first steps are the
        pilots, and several mean that points are found twice."""
        if self._roles.whitened_factors:
            return CURVATURE_PILOTS
        features = self.program.features
        numbers = [
            len(features[name].places)
            for name in self._roles.recentred_factors & features.keys()
        ]
        if any(of_several_pilots(number, self.num_rows) for number in numbers):
            return PILOTS
        # Entries of a row get units of their own after a pilot, which is not repeated.
        if not self._roles.entries and self._has_distant_means:
            return PILOTS
        return int(bool(self._roles.recentred_factors))

    @functools.cached_property
    def _has_distant_means(self) -> bool:
        means = self._roles.recentred_factors - self.program.features.keys()
        return need_several_pilots(self.program, means, self.num_rows)

    @property
    def columns(self) -> dict[str, Columns]:
        """Columns that get units of their own: those of vectors of several residuals,
        see `column_units`, the features of a block, see `feature_units`, or else those
        of several measurements of a row, see `entry_units`."""
        sizes = {s.name: math.prod(s.block_shape) for s in self.statistics}
        of_residuals = {
            name: Columns(sizes[name])
            for name in self._roles.squares
            if sizes[name] > 1
        }
        of_features = {
            name: Columns(len(found.indices), found.reference)
            for name, found in self.on_rows.columns_of_features.items()
        }
        of_entries = {
            name: Columns(sizes[name], about_points=name in self._roles.recentred)
            for name in sorted(self._roles.entries - self._powers_of_entries.keys())
        }
        # All columns are counted or none, and these are worth less than the others.
        return of_residuals | of_features or of_entries

    @functools.cached_property
    def _powers_of_entries(self) -> Mapping[str, Power]:
        """Vectors of entries that are powers of others, found on synthetic rows."""
        names = sorted(self._roles.entries)
        if len(names) < 2:
            return {}
        rows = synthetic_rows(self.program.graph.arguments, _TRIED_ROWS, seed=0)
        return powers_of_others(
            self.on_rows.entries_of_rows(
                self.initial_state(threefry_key(0)),
                self.program.graph.arguments.as_taken(rows),
                names,
            )
        )

    @property
    def row_simulator(self) -> RowSimulator | None:
        return self.on_rows.simulator

    def default_num_steps(self, *, is_private: bool, until_converged: bool) -> int:
        adaptive = {block.name for block in self.blocks("adaptive")}
        return default_num_steps(
            is_private=is_private,
            until_converged=until_converged,
            takes_newton_steps=bool(adaptive) and adaptive <= self._roles.residuals,
            may_forget=self._may_forget,
        )

    def step_sizes(
        self, num_steps: int, *, is_private: bool, is_full: bool
    ) -> tuple[float, ...]:
        """The weights of adaptive steps in the average; see `step_sizes`.

        Raises:
          ValueError: The caller's function gives a weight outside (0, 1].
        """
        if self._step_size is not None:
            return given_step_sizes(self._step_size, num_steps)
        forgotten = self.forgotten_steps(
            num_steps, is_private=is_private, is_full=is_full
        )
        return step_sizes(num_steps, forgotten, averages=is_private or not is_full)

    def forgotten_steps(
        self, num_steps: int, *, is_private: bool, is_full: bool
    ) -> int:
        """How many first steps count for nothing; see `fitting.engine.Engine`.

        With minibatches sums have to be averaged from the start, and without noise
        several starts are compared.
        """
        forgets = self._may_forget and is_private and is_full
        return num_waiting(num_steps) if forgets else 0

    def _num_waiting(self) -> int:
        """How many steps of a fit under noise, with full batches, some globals wait."""
        if not self._may_wait:
            return 0
        return self.forgotten_steps(
            self._num_steps
            or self.default_num_steps(is_private=True, until_converged=False),
            is_private=True,
            is_full=True,
        )

    @property
    def _may_forget(self) -> bool:
        """Whether the average may go without the first steps."""
        return self._step_size is None and self.program.starts_far

    @property
    def _may_wait(self) -> bool:
        """Whether some globals wait; not where the caller weighs the steps."""
        return self._step_size is None and bool(self.program.waiting)

    def initial_state(self, rng_key: PRNGKeyArray) -> VipsState:
        """The globals near their priors, and no statistic released but public ones."""
        return initial_state(
            self._roles,
            self.on_rows,
            self.on_globals,
            as_threefry(rng_key),
            to_wait=self._num_waiting(),
        )

    def bounded_sum(
        self,
        state: VipsState,
        rows: Rows,
        mask: Bool[Array | np.ndarray, " rows"],
        *,
        scales: Mapping[str, float],
        clipping_norm: float,
        row_keys: UInt32[np.ndarray, "rows 2"] | None = None,
    ) -> NewSums:
        """The chunk's clipped sum of every block in `scales`, not yet private.

        See `fitting.engine.Engine.bounded_sum`. What has units is released in these,
        as noise of one size suits it there, and no row is redrawn.
        """
        assert row_keys is None
        sums = self.on_rows.sum_of_rows(
            state._replace(origins=state.next_origins, standards=state.next_standards),
            rows,
            mask,
            scales=scales,
            clipping_norm=clipping_norm,
        )
        in_units = {n: sums[n] * state.units[n] for n in sums if n in state.units}
        return sums | in_units

    def row_norms(
        self, state: VipsState, rows: Rows, names: Sequence[str]
    ) -> dict[str, Float[np.ndarray, " rows"]]:
        """Norms of each block, for rows that the caller may see."""
        norms = self.on_rows.norms(self.on_rows.inputs(state), dict(rows), tuple(names))
        return {name: np.asarray(norm) for name, norm in norms.items()}

    def norm_counts(
        self,
        state: VipsState,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        parts: Mapping[str, Sequence[str]],
        edges: Mapping[str, Float64[Array, " _edges"]],
        row_keys: UInt32[np.ndarray, "rows 2"] | None = None,
    ) -> Mapping[str, Any]:
        """The number of the chunk's rows in each bin of every norm, not yet private.

        See `abilities.ClippingNorms.norm_counts`.
        """
        names = tuple((part, tuple(blocks)) for part, blocks in parts.items())
        # Later the globals say which state a row is in.
        in_any_state = not state.asked
        return self.on_rows.counts(
            self.on_rows.inputs(state),
            dict(rows),
            mask,
            dict(edges),
            names,
            in_any_state,
        )

    def column_counts(
        self,
        state: VipsState,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        edges: Mapping[str, Float64[Array, " _edges"]],
    ) -> Mapping[str, Any]:
        """The number of the chunk's rows in each bin of every column, not yet private;
        see `abilities.ColumnUnits.column_counts`."""
        return self.on_rows.column_counts(
            self.on_rows.inputs(state), dict(rows), mask, dict(edges)
        )

    def with_column_sizes(
        self, state: VipsState, sizes: Mapping[str, Float64[np.ndarray, " _columns"]]
    ) -> VipsState:
        """The state with columns in units that suit their sizes.

        See `column_units.suited_to_sizes`, `feature_units.units_of_sizes`,
        `entry_units.suited_to_entries` and `abilities.ColumnUnits.with_column_sizes`.
        """
        if sizes.keys() <= self._roles.entries:
            units = suited_to_entries(
                state.units,
                sizes,
                powers=self._powers_of_entries,
                about_points=self._roles.recentred,
            )
            return state._replace(units=units)
        columns = self.on_rows.columns_of_features
        of_features = {n: s for n, s in sizes.items() if n in columns}
        of_residuals = {n: s for n, s in sizes.items() if n not in columns}
        standards = units_of_sizes(state.standards, columns, of_features)
        units, moments = suited_to_sizes(
            self.program, self._roles.squares, state.units, state.moments, of_residuals
        )
        if self._roles.whitened_factors:
            of_whitened, units = features_in_units(
                self.program,
                self._roles.whitened_factors,
                self._roles.squares,
                units,
                standards,
            )
            standards |= of_whitened
            of_curvatures = {
                name: of
                for name, of in of_features.items()
                if columns[name].factor in self._roles.whitened_factors
            }
            moments = narrower_start(self.program, columns, moments, of_curvatures)
        return state._replace(
            standards=standards,
            first_standards=standards,
            next_standards=standards,
            units=units,
            moments=moments,
            visited=moments,
            expected_natural=self.on_rows.expected_natural_of(moments),
        )

    def suited_to_norms(
        self, state: VipsState, ratios: Mapping[str, float]
    ) -> tuple[VipsState, dict[str, float]]:
        """The state with features that are as large as their intercept; see
        `feature_units` and `abilities.ClippingNorms.suited_to_norms`."""
        if not state.released.isdisjoint(self._roles.recentred):
            return state, {}  # A pilot has said more.
        recentred = {
            name: state.standards[name]
            for name in state.origins
            if name in state.standards
        }
        standards, by = units_of_norms(
            self.program, recentred, ratios, self._roles.together
        )
        standards = state.standards | standards
        return state._replace(standards=standards, next_standards=standards), by

    def recentre(self, state: VipsState) -> VipsState:
        """The state from which statistics are taken about where the globals are now.

        About other points these are other sums: the average over those so far ends.
        Components of a mixture start anew the first time, too. The noise in statistics
        about zero may have made them alike, and from there they part slowly. But where
        scales wait for them, they part quickly.
        """
        again, has_adaptive = state.moments, bool(self._roles.adaptive)
        is_first = not any(np.any(point) for point in state.origins.values())
        if not state.to_wait and (is_first or not has_adaptive):
            again = state.start or state.moments
        sums = Unclipped(state.statistics, state.noise_stddev)
        return state._replace(
            next_origins=self.on_globals.features.known_origins(
                state, sums, state.visited
            ),
            next_standards=state.standards
            | self.on_globals.features.standards(
                state, sums, self._roles.recentred_factors
            ),
            kept=0.0,
            # A pilot is no step of the fit.
            num_steps=state.num_steps if has_adaptive else 0,
            moments=again,
            visited=again,
            expected_natural=self.on_rows.expected_natural_of(again),
        )

    def recentre_again(self, state: VipsState) -> VipsState:
        """The state from which statistics are taken about where the globals are now.

        Features stay as they are standardised; see `abilities.Recentring`.
        """
        sums = Unclipped(state.statistics, state.noise_stddev)
        points = self.on_globals.features.known_origins(state, sums, state.visited)
        return state._replace(next_origins=points, kept=0.0)

    def stretched(self, state: VipsState) -> dict[str, float]:
        """By statistic, how much larger its rows may be of standardised features.

        See `abilities.Recentring.stretched`.
        """
        return growth_of_norms(self.program, state.standards, state.next_standards)

    def expected_squares(self, state: VipsState) -> dict[str, float]:
        """By block of residuals, about what rows' squared norms add up to.

        See `abilities.ClippingNorms.expected_squares`.
        """
        first = self.on_globals.features.first_curvature(state)
        places = {name: state.visited[name]["x"] for name in first}
        return expected_squares(
            self.program.structure,
            self._roles.residuals,
            {name: curvature for name, (curvature, _) in first.items()},
            self.on_globals.centre_in(state, places),
            units=state.units,
            num_rows=self.num_rows,
        )

    def with_bound(
        self,
        state: VipsState,
        scales: Mapping[str, float],
        clipping_norm: float,
        sampling_rate: float,
    ) -> VipsState:
        """The state that knows how rows are clipped for the next release.

        See `abilities.ClippingNorms.with_bound`.
        """
        if COVARIATES in scales:
            return state
        blocks = {s: float(scales[s]) for s in scales if s not in DIAGNOSTICS}
        release = 1 + max((b.release for b in state.clipped.values()), default=0)
        bound = Bound(blocks, clipping_norm, sampling_rate, release)
        clipped = {**state.clipped, **dict.fromkeys(blocks, bound)}
        return state._replace(clipped=clipped)

    @property
    def has_public_sums(self) -> bool:
        """Whether all rows add the same to some statistics."""
        return any(s.release == "public" for s in self.statistics)

    def valid_count(
        self, state: VipsState, rows: Rows, mask: Bool[Array | np.ndarray, " rows"]
    ) -> float:
        """How many of the chunk's rows are valid; see `abilities.PublicSums`."""
        name = next(s.name for s in self.statistics if s.release != "public")
        edges = {name: increasing_edges(np.ones(1))}
        found = self.norm_counts(state, rows, mask, parts={name: (name,)}, edges=edges)
        return float(np.asarray(found[name])[:-1].sum())

    def with_valid_rows(self, state: VipsState, valid: ValidRows) -> VipsState:
        """The state with public sums over so many rows; see `abilities.PublicSums`."""
        before = state.valid_rows.number
        ratio = valid.number / before if before else 1.0
        public = (s.name for s in self.statistics if s.release == "public")
        now = {name: ratio * state.statistics[name] for name in public}
        return state._replace(statistics={**state.statistics, **now}, valid_rows=valid)

    def compile_update(self, state: VipsState) -> None:
        """Starts to compile the solution for the globals; see `Engine`."""
        deviations = {n: np.hypot(of, 0.0) for n, of in state.noise_stddev.items()}
        sums = Unclipped(dict(state.statistics), deviations)
        self.on_globals.solve(state, sums, 0.0)

    def update(
        self,
        state: VipsState,
        released: Sums,
        noise_stddev: Mapping[str, float],
        step_size: float,
        *,
        is_pilot: bool = False,
        redraws: bool = False,
    ) -> VipsState:
        """Averages the released sums in and solves for the globals.

        Args:
          state: The state before the step.
          released: Noisy estimates of the sums over all rows.
          noise_stddev: Standard deviation of their noise.
          step_size: Weight ρ of these sums in the average.
          is_pilot: Of curvatures, whether they only say how to standardise features;
            see `whitening`. Other pilots are averaged like any sums.
          redraws: No row is redrawn.
        """
        assert not redraws
        if is_pilot and self._roles.curvatures & released.keys():
            return self._step.after_pilot(state, released, noise_stddev)
        return self._step.after(state, released, noise_stddev, step_size)

    def has_posterior(self, state: VipsState) -> bool:
        """Whether every statistic has been released."""
        return bool(state.natural) or not self.program.structure.posterior_factors_of(
            "global"
        )

    def posterior(self, state: VipsState) -> ConjugatePosterior:
        """The posterior of the global latents, parameters alone."""
        return self._reading.posterior(state)

    def released(self, state: VipsState) -> NewSums:
        """The noisy sums, averaged over the steps, the noise in them, and the points
        and the features that they are about."""
        sums = {name: np.array(state.statistics[name]) for name in state.released}
        noise = {
            f"{name}.noise_stddev": np.asarray(state.noise_stddev[name])
            for name in sums
        }
        origins = {
            f"{latent}.origin": np.asarray(point)
            for latent, point in self.on_rows.by_latent(state.origins).items()
        }
        origins |= {
            f"{name}.{field}": np.asarray(value)
            for name, standard in state.standards.items()
            for field, value in (
                ("feature_means", standard.means),
                ("feature_matrix", standard.matrix),
            )
        }
        of_rows = {} if state.covariates is None else {COVARIATES: state.covariates}
        return {**sums, **noise, **origins, **of_rows}

    def has_converged(self, state: VipsState) -> bool:
        """Whether further steps would leave the posterior where it is."""
        return state.trail is not None and state.trail.remaining <= TOLERANCE

    def other_starts(self, rng_key: PRNGKeyArray) -> list[VipsState]:
        """Further initial states, where a start breaks a symmetry at random."""
        if not symmetric_factors(self.program):
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
        return best_start(self.program, states, bounds)

    def informed(self, state: VipsState, arguments: ModelArguments) -> VipsState:
        """The state with what widths need of rows, for fits without privacy.

        That is the moments of covariates, and the information of logistic likelihoods.

        The quadratic bound is steeper than the likelihood, at the optimum too. Under
        noise the information is released instead (Louis, 1982); here all rows are asked
        for it.
        """
        if self._num_covariates:
            moments = self.on_rows.moments_of_covariates(arguments)
            state = state._replace(covariates=moments)
        if not self._roles.residuals or not state.natural:
            return state
        found = self.on_rows.information(state, arguments)
        sums = Unclipped({**state.statistics, **found}, state.noise_stddev)
        frames = self.on_globals.frames_of(state)
        natural = dict(state.natural)
        for name, target in self.on_globals.newton_targets(state, sums).items():
            covariance = target.covariance
            if name in frames:
                covariance = frames[name].covariance_from(covariance)
            precision = np.linalg.inv(covariance)
            linear = np.einsum("...ij,...j->...i", precision, state.moments[name]["x"])
            natural[name] = {"x": linear, "xx": -0.5 * precision}
        return state._replace(natural=natural)

    def _bound(self, state: VipsState, arguments: ModelArguments) -> float:
        """The evidence bound of all rows; that of rows that do not count is none."""
        of_rows = self.on_rows.evidence_bound(state.expected_natural, arguments)
        total = of_rows + self.on_globals.evidence_bound(state)
        return total if math.isfinite(total) else -math.inf

    def diagnostics(self, state: VipsState) -> dict[str, Any]:
        """What is known of how good the posterior is; see `diagnostics_of`."""
        seen, widths, parameters = None, dict[str, float](), {}
        if self.has_posterior(state):
            _, seen = self._reading.sums_of(state)
            widths = self._reading.widths_over_prior(state)
            globals_ = self.program.structure.posterior_factors_of("global")
            if any(factor.family.num_states is not None for factor in globals_):
                parameters = self.posterior(state).params
        return diagnostics_of(
            self.program, self._roles, state, seen, widths, parameters
        )

    def clipping_effect(self, state: VipsState, names: Sequence[str]) -> ClippingEffect:
        """Which way clipping draws each global, see `clipping_direction`, and whether
        what it took off was added back, see `clipping_bias`."""
        pulls = pulls_of_clipping(self.program.structure, names, self.recentred)
        sites = self.program.graph.sites
        of_sites: dict[str, Pull] = {k: v for k, v in pulls.items() if k in sites}
        is_corrected, expected = False, None
        if self.has_posterior(state):
            sums, _ = self._reading.sums_of(state)
            is_corrected = sums.statistics is not state.statistics
            expected = self._reading.share_clipped(state, names)
        return ClippingEffect(
            of_sites,
            is_corrected=is_corrected,
            expected=expected,
            has_plain_norms=not (self.recentred or self._roles.squares),
        )

    # --- what `explain` says ----------------------------------------------------------

    def describe_site(self, name: str) -> dict[str, Any]:
        """What a row of `Plan.sites` says of a site; see `description`."""
        return describe_site(self.program, name)

    def describe_statistics(self) -> list[dict[str, Any]]:
        """Name, shape and release label of each of a row's statistics."""
        return describe_statistics(self.program, self.blocks("information"))

    def notes(self) -> Iterable[str]:
        """What else to know."""
        yield from notes_on(self.program, self._roles.squares)
        if self._may_forget:
            yield note_on_forgetting(self.program)

    def describe_sparse_rows(self, name: str) -> str:
        """How an argument whose rows store few entries is worked on."""
        return describe_sparse_rows(self.program, name)
