"""The public side of a step: noisy sums are averaged, and the globals solved for.

The running average is kept as it was released, without projection, so that its noise
averages out; only reading it as a posterior projects. Negative counts set to zero in
every step would bias it.
"""

import functools
from collections.abc import Mapping, Set

import numpy as np
from jaxtyping import Float, Float64

from numpyro_vips.privacy.releases import COVARIATES
from numpyro_vips.vips.m_step.global_programs import GlobalPrograms
from numpyro_vips.vips.m_step.sweeps import largest_change
from numpyro_vips.vips.program.named_arrays import InDouble, NewSums, Sums, as_rows_know
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.released_blocks import with_repeats
from numpyro_vips.vips.row_sums.row_programs import RowPrograms
from numpyro_vips.vips.steps.convergence import Trail
from numpyro_vips.vips.steps.drift import drift_of
from numpyro_vips.vips.steps.newton_steps import NewtonTarget, Way, step_from
from numpyro_vips.vips.steps.released_sums import Unclipped, asked_also
from numpyro_vips.vips.steps.state import VipsState, is_noisy, numpy_doubles
from numpyro_vips.vips.steps.statistic_roles import StatisticRoles
from numpyro_vips.vips.units.column_units import column_units, units_of

# How fast the steps of Newton's method become shorter; see `_gain`.
GAIN_DECAY = 0.3
# Sweeps in which the globals, and statistics that depend on them alone, take turns.
PUBLIC_SWEEPS = 100


class GlobalStep:
    """Leads from one public state to the next, by what a step has released.

    Args:
      program: The model.
      roles: What each statistic is released for.
      on_rows: The sums that are public.
      on_globals: Solves for the globals.
    """

    def __init__(
        self,
        program: ConjugateProgram,
        roles: StatisticRoles,
        on_rows: RowPrograms,
        on_globals: GlobalPrograms,
    ) -> None:
        self._program = program
        self._statistics = program.structure.statistics
        self._roles = roles
        self._on_rows = on_rows
        self._on_globals = on_globals

    def after(
        self,
        state: VipsState,
        released: Sums,
        noise_stddev: Mapping[str, float],
        step_size: float,
    ) -> VipsState:
        """The state after a step, see `VipsEngine.update`."""
        if COVARIATES in released:
            units = self._on_rows.units_of_covariates(state.next_standards)
            moments = np.asarray(released[COVARIATES], np.float64)
            return state._replace(covariates=units.to_own(moments))
        rho = step_size
        if self._roles.residuals & set(released):
            rho = state.way.weight(step_size)
        here, noise = _without_units(state, released, noise_stddev)
        asked_about = {n: as_rows_know(state.visited[n]["x"]) for n in state.centre}
        after = self._averaged(state, here, noise, rho, asked_about)
        if after.released != {s.name for s in self._statistics}:
            return after  # Another step of the schedule releases what is missing.
        latest = self._latest(after, here, noise)
        return self._solved(after, latest, asked_about, step_size)

    def after_pilot(
        self, state: VipsState, released: Sums, noise_stddev: Mapping[str, float]
    ) -> VipsState:
        """The state with features standardised as a pilot's curvature says.

        Args:
          state: The state before the pilot.
          released, noise_stddev: See `VipsEngine.update`.
        """
        here, noise = _without_units(state, released, noise_stddev)
        dense = with_repeats(self._statistics, here)
        sums = Unclipped(
            {
                **state.statistics,
                **{name: np.asarray(value) for name, value in dense.items()},
            },
            {**state.noise_stddev, **noise},
        )
        found = self._on_globals.features.standards(
            state, sums, self._roles.whitened_factors
        )
        standards = {**state.standards, **found}
        return state._replace(standards=standards, next_standards=standards)

    def _averaged(
        self,
        state: VipsState,
        released: Sums,
        noise: Mapping[str, Float[np.ndarray, "..."] | float],
        rho: float,
        asked_about: Mapping[str, Float64[np.ndarray, "..."]],
    ) -> VipsState:
        """The state with these sums in its averages, with weight `rho`.

        Args:
          state: The state before the step.
          released, noise: See `VipsEngine.update`, in units of the statistics.
          rho: Their weight.
          asked_about: By factor, the mean about which linear statistics were taken.
        """
        roles, names = self._roles, set(released)
        new = {
            **self._public_sums(state, state.valid_rows.number),
            **with_repeats(self._statistics, released),
        }
        kept, moved = state.kept, roles.moved & names
        if moved:
            kept = (1.0 - rho) * kept + rho
        weights = {name: rho / kept if name in moved else rho for name in new}
        drift = self._drift(state, released, noise)
        statistics, deviations = _with_sums(state, new, noise, weights)
        if state.valid_rows.stddev:
            # The same noise in every step: no average has less of it.
            deviations |= {
                name: np.full(np.shape(deviations[name]), np.max(np.abs(of)))
                for name, of in self._public_sums(
                    state, state.valid_rows.stddev
                ).items()
            }
        centre = state.centre
        if roles.linear & names:
            centre = {
                name: (1.0 - rho) * centre[name] + rho * asked_about[name]
                for name in centre
            }
        asked = state.asked
        if roles.open & names:
            first = min(roles.open & names)
            place = {name: state.expected_natural[name] for name in roles.open}
            asked = asked_also(asked, weights[first], place, state.clipped.get(first))
        of_curvature, places = None, state.curvature_places
        if curvatures := roles.curvatures & names:
            places = asked_about
            of_curvature = Unclipped(
                {name: statistics[name] for name in curvatures},
                {name: deviations[name] for name in curvatures},
            )
        return state._replace(
            statistics=statistics,
            noise_stddev=deviations,
            asked=asked,
            centre=centre,
            origins=state.next_origins if moved else state.origins,
            standards=state.next_standards if moved else state.standards,
            kept=kept,
            released=state.released | names,
            num_steps=state.num_steps + 1,
            drift=drift or state.drift,
            first_curvature=state.first_curvature or of_curvature,
            curvature_places=places,
            units=self._units(state, names, statistics, deviations),
        )

    def _public_sums(self, state: VipsState, number: float) -> NewSums:
        """What so many rows add to the sums that need no release."""
        return self._on_rows.public_sums(state.expected_natural, number)

    def _drift(
        self,
        state: VipsState,
        released: Sums,
        noise: Mapping[str, Float[np.ndarray, "..."] | float],
    ) -> dict[str, float]:
        """By statistic, how far new sums are from the averages; see `drift_of`."""
        return {
            name: drift_of(
                self._roles.released_as[name],
                np.asarray(released[name] - state.statistics[name]),
                np.asarray(np.hypot(noise[name], state.noise_stddev[name])),
            )
            for name in released
            # The first sums about other points have none before them.
            if name in state.released
            and state.kept
            and np.all(state.noise_stddev[name])
        }

    def _units(
        self,
        state: VipsState,
        released: Set[str],
        statistics: Sums,
        deviations: Mapping[str, Float[np.ndarray, "..."] | float],
    ) -> dict[str, Float64[np.ndarray, "..."]]:
        """Units of columns, where their squares were released; see `column_units`.

        Args:
          state: The state before the step.
          released: The statistics that were released. Residuals that were among them
            are in the units of before.
          statistics, deviations: The averages after it, and the noise in them.
        """
        units = dict(state.units)
        for name, square in self._roles.squares.items():
            if square in released and name not in released:
                of_columns = column_units(
                    statistics[square],
                    np.diagonal(deviations[square]),
                    before=units[name],
                )
                units |= units_of(name, square, of_columns)
        return units

    def _latest(
        self,
        state: VipsState,
        released: Sums,
        noise: Mapping[str, Float[np.ndarray, "..."] | float],
    ) -> Unclipped | None:
        """The sums with the residuals of this step alone; None without noisy ones."""
        residuals = self._roles.residuals
        if not any(np.any(noise.get(name, 0.0)) for name in residuals):
            return None
        dense = with_repeats(self._statistics, released)
        sums = {**state.statistics, **{name: dense[name] for name in residuals}}
        of_step = {name: noise[name] for name in residuals}
        return Unclipped(
            {name: np.asarray(value) for name, value in sums.items()},
            {**state.noise_stddev, **of_step},
        )

    def _solved(
        self,
        state: VipsState,
        latest: Unclipped | None,
        asked_about: Mapping[str, Float64[np.ndarray, "..."]],
        step_size: float,
    ) -> VipsState:
        """The state with the globals of its averages, and where rows are asked next.

        Args:
          state: That after the step, with the globals before it.
          latest: What Newton steps go by; see `_latest`.
          asked_about, step_size: See `_averaged` and `VipsEngine.update`.
        """
        noisy = is_noisy(state.noise_stddev)
        is_full = all(bound.sampling_rate == 1.0 for bound in state.clipped.values())
        are_held = noisy and is_full and state.to_wait > 0
        statistics = dict(state.statistics)
        for _ in range(self._public_sweeps):
            if self._public_sweeps > 1:
                statistics |= self._public_sums(state, state.valid_rows.number)
            # Rows are not asked at these where factors take Newton steps.
            noise_read = float(bool(self._roles.residuals))
            sums = Unclipped(statistics, state.noise_stddev)
            found = self._on_globals.solve(state, sums, noise_read, are_held=are_held)
            moments, natural = (
                numpy_doubles(found.moments),
                numpy_doubles(found.natural),
            )
            visited, way = moments, state.way
            if latest is not None:
                targets = self._on_globals.newton_targets(
                    state,
                    latest,
                    moments=moments,
                    about=asked_about,
                    gain=_gain(step_size),
                )
                visited, way = self._next_visited(
                    state, asked_about, targets, moments, step_size
                )
            elif noisy:
                newton = self._program.structure.newton
                visited = {**moments, **{n: state.visited[n] for n in newton}}
            # A step from the prior is no sign of what the next would do.
            change = (
                float(largest_change(state.moments, moments)) if state.natural else 0.0
            )
            state = state._replace(
                statistics=statistics,
                moments=moments,
                natural=natural,
                visited=visited,
                way=way,
                expected_natural=self._on_rows.expected_natural_of(visited),
                change=max(float(found.change), change),
                below_noise={k: int(v) for k, v in found.below_noise.items()},
            )
        state = state._replace(
            to_wait=max(state.to_wait - 1, 0) if are_held else 0,
            has_waited=state.has_waited or are_held,
        )
        return state if noisy else state._replace(trail=self._trail_after(state))

    def _next_visited(
        self,
        state: VipsState,
        about: Mapping[str, Float64[np.ndarray, "..."]],
        targets: Mapping[str, NewtonTarget],
        moments: InDouble,
        step_size: float,
    ) -> tuple[InDouble, Way]:
        """The moments at which rows are asked next, and the way to there.

        Args:
          state: What is known of the way to where rows were asked last.
          about: Where they were asked last.
          targets: See `newton_targets`.
          moments: Those of the posterior.
          step_size: The step's weight in the average over all steps.
        """
        is_sampled = any(
            state.clipped[name].sampling_rate < 1.0
            for name in self._roles.residuals & set(state.clipped)
        )
        # How rows are drawn is noise of unknown size in a gradient.
        way = Way() if is_sampled else state.way
        places, found = step_from(
            way,
            self._on_globals.centre_in(state, {name: about[name] for name in targets}),
            targets,
            gain=_gain(step_size),
            step_size=step_size,
        )
        visited, frames = dict(moments), self._on_globals.frames_of(state)
        for name, place in places.items():
            covariance = targets[name].covariance
            if name in frames:
                place = frames[name].place_from(place)
                covariance = frames[name].covariance_from(covariance)
            square = place[..., :, None] * place[..., None, :]
            visited[name] = {"x": place, "xx": covariance + square}
        return visited, state.way if is_sampled else found

    @functools.cached_property
    def _public_sweeps(self) -> int:
        """The number of times that the globals are solved for in a step.

        Where no further step asks rows for anything, what depends on the globals alone
        is brought up to date here.
        """
        structure = self._program.structure
        if any(statistic.release == "adaptive" for statistic in self._statistics):
            return 1
        names = {factor.name for factor in structure.posterior_factors_of("local")}
        return PUBLIC_SWEEPS if names - structure.data_dependent_factors else 1

    def _trail_after(self, state: VipsState) -> Trail:
        place = state.natural, state.moments, state.num_steps
        if state.trail is None:
            return Trail.starting(*place)
        return state.trail.after(*place, self._program.structure.posterior_factors)


def _without_units(
    state: VipsState, released: Sums, noise_stddev: Mapping[str, float]
) -> tuple[NewSums, dict[str, Float64[np.ndarray, "..."] | float]]:
    """Released sums, and the noise in their entries, in units of the statistics."""
    units = state.units
    sums = {
        n: value / units[n] if n in units else value for n, value in released.items()
    }
    noise = {
        name: stddev / units[name] if name in units else stddev
        for name, stddev in noise_stddev.items()
    }
    return sums, noise


def _with_sums(
    state: VipsState,
    new: Sums,
    noise_stddev: Mapping[str, Float[np.ndarray, "..."] | float],
    weights: Mapping[str, float],
) -> tuple[NewSums, dict[str, Float[np.ndarray, "..."] | float]]:
    """The averages of a state with new sums in them, and the noise in these averages.

    Args:
      state: The state before the step.
      new: The sums, released and public ones.
      noise_stddev: The noise in those that were released.
      weights: Of each of the sums.
    """
    statistics, deviations = dict(state.statistics), dict(state.noise_stddev)
    for name, value in new.items():
        weight = weights[name]
        average = np.asarray((1.0 - weight) * statistics[name])
        average += weight * value  # In place: blocks can have millions of entries.
        statistics[name] = average
        deviations[name] = np.hypot(
            (1.0 - weight) * deviations[name], weight * noise_stddev.get(name, 0.0)
        )
    return statistics, deviations


def _gain(step_size: float) -> float:
    """How far Newton's method goes in a step of this weight, from 0 to 1.

    With weights 2 / (t + 2) it is (t + 1)^-GAIN_DECAY: rows are asked ever closer to
    the average, where residuals are nearly linear in the noise, and all steps together
    still get from anywhere to anywhere (Polyak and Juditsky, 1992).
    """
    return (step_size / (2.0 - step_size)) ** GAIN_DECAY
