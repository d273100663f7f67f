"""Reading released sums as a posterior.

What is done here to the averages of releases is post-processing: what clipping took off
them is added, what rows leave open of their latents is allowed for, and every family
reads its share with the noise in it.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from numpyro_vips.model.synthetic.simulated_rows import RowSimulator
from numpyro_vips.vips.corrections.clipping_bias import without_clipping
from numpyro_vips.vips.corrections.missing_information import load_optimizers, observed
from numpyro_vips.vips.corrections.row_simulation import FEWEST_SIMULATED, RowSimulation
from numpyro_vips.vips.corrections.simulated_answers import SimulatedAnswers
from numpyro_vips.vips.m_step.global_programs import GlobalPrograms
from numpyro_vips.vips.m_step.marginal_scales import MarginalScales, spread_out
from numpyro_vips.vips.m_step.newton_posterior import all_under_noise, is_proper
from numpyro_vips.vips.posterior.posterior import ConjugatePosterior
from numpyro_vips.vips.program.named_arrays import (
    InDouble,
    NewMeans,
    NewSums,
    Sums,
)
from numpyro_vips.vips.row_sums.covariates import Covariates
from numpyro_vips.vips.row_sums.row_programs import RowPrograms
from numpyro_vips.vips.steps.newton_steps import NewtonTarget
from numpyro_vips.vips.steps.released_sums import Bound, Unclipped
from numpyro_vips.vips.steps.state import VipsState, is_noisy
from numpyro_vips.vips.steps.statistic_coordinates import StatisticCoordinates
from numpyro_vips.vips.steps.statistic_roles import StatisticRoles

# Parameters beyond which a posterior does not say which part of its variance is noise.
_MOST_IN_PARTS = 100_000
# Sums beyond which what clipping took off them is not estimated. In a belief network
# of 42,600 sums that were clipped on purpose, what was put back took the share of
# pixels that are reconstructed from .934 to .920.
_MOST_CORRECTED = FEWEST_SIMULATED


class ObservedSums(NamedTuple):
    """Sums as rows know them, with what they are uncertain by in their noise.

    Attributes:
      with_noise, without_noise: With that of the releases, and without it.
      missing, left: See `missing_information.Observed`.
    """

    with_noise: Unclipped
    without_noise: Unclipped
    missing: float
    left: float | None


class Reading:
    """Reads the sums of a model.

    Args:
      on_rows, on_globals: The compiled programs.
      roles: What the statistics are.
    """

    def __init__(
        self, on_rows: RowPrograms, on_globals: GlobalPrograms, roles: StatisticRoles
    ):
        self._rows, self._globals, self._roles = on_rows, on_globals, roles
        self.program = on_rows.program
        self._margins = MarginalScales(self.program)
        # Of the last state that was asked for, as a posterior and what is known of it
        # both need it.
        self._last: tuple[VipsState, tuple[Unclipped, ObservedSums | None]] | None = (
            None
        )
        if roles.open:
            load_optimizers()

    def sums_of(self, state: VipsState) -> tuple[Unclipped, ObservedSums | None]:
        """The sums without clipping, and as rows know them; None where not known."""
        last = self._last  # Another fit may replace it meanwhile.
        if last is None or last[0] is not state:
            sums = self._sums_without_clipping(state)
            self._last = last = state, (sums, self._as_observed(state, sums))
        return last[1]

    def _sums_without_clipping(self, state: VipsState) -> Unclipped:
        """The sums that the posterior is read off.

        Rows are asked at the globals that the statistics have as they are, so that
        noise is not made up for twice. Factors that take Newton steps are asked
        elsewhere anyway, and the state has their natural parameters in this sense.
        """
        sums = Unclipped(state.statistics, state.noise_stddev)
        if not is_noisy(state.noise_stddev):
            return sums
        return self._without_clipping(state) or sums

    def _as_observed(self, state: VipsState, sums: Unclipped) -> ObservedSums | None:
        """Sums as rows know them; see `missing_information`.

        None where the model does not say how rows are distributed, or rows have nothing
        to say.
        """
        simulator, covariates = self._rows.simulator, None
        if not state.asked or simulator is None:
            return None
        if simulator.covariates:
            if state.covariates is None:
                return None
            covariates = self._covariates(state, sums.statistics)
        coordinates = StatisticCoordinates(
            [
                statistic
                for statistic in self._roles.statistics
                if statistic.release != "public" and statistic.name in state.released
            ]
        )
        answers = SimulatedAnswers(
            simulator,
            coordinates,
            self._rows,
            self._globals,
            state,
            sums,
            covariates,
        )
        depends = {
            statistic.name: float(statistic.name in self._roles.open)
            for statistic in coordinates.statistics
        }
        # Of these it is known where the rows were asked, and how they were clipped.
        released = {name: state.statistics[name] for name in self._roles.open}
        found = observed(
            coordinates.vector({**sums.statistics, **released}),
            coordinates.by_coordinate(sums.noise_stddev),
            coordinates.by_coordinate(depends) > 0,
            answers,
            start=coordinates.vector(sums.statistics),
            has_parted=state.has_waited,
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

    def _targets_of(
        self, state: VipsState, sums: Unclipped, moments: InDouble
    ) -> dict[str, NewtonTarget]:
        """What the averages say of the factors that take Newton steps.

        Args:
          state, sums: What was released.
          moments: Those of other globals that are not the state's.
        """
        if not self._roles.residuals:
            return {}
        targets = self._globals.newton_targets(
            state, sums, moments={**state.moments, **moments}
        )
        return self._globals.with_first_curvature(state, targets)

    def widths_over_prior(self, state: VipsState) -> dict[str, float]:
        """By site, the smallest width of its entries over that of their prior.

        Of the sites that noisy residuals are released of, and have a proper prior.
        """
        if not is_noisy(state.noise_stddev):
            return {}
        sums, _ = self.sums_of(state)
        frames, found = self._globals.frames_of(state), dict[str, float]()
        for name, target in self._targets_of(state, sums, {}).items():
            layout = self.program.structure.posterior_factors[name].layout
            if layout is None or not is_proper(target):
                continue
            prior = np.linalg.inv(target.prior_precision)
            if name in frames:
                prior = frames[name].covariance_from(prior)
            posterior = np.linalg.inv(-2.0 * state.natural[name]["xx"])
            squares = (np.diagonal(of, axis1=-2, axis2=-1) for of in (posterior, prior))
            ratio = np.sqrt(np.divide(*squares))
            found |= {k: float(np.min(v)) for k, v in layout.sites(ratio).items()}
        return found

    def _limit(self, state: VipsState) -> float:
        """What clipped rows can inform of; see `newton_posterior`.

        The curvatures were clipped as one vector, with noise in proportion to its norm.
        """
        limits = (
            self._rows.num_rows
            * state.clipped[name].clipping_norm
            / (state.clipped[name].scales[name] * self._noise_in_units(state, name))
            for name in self._roles.curvatures
            if name in state.clipped and np.any(state.noise_stddev[name])
        )
        return min(limits, default=math.inf)

    def _noise_in_units(self, state: VipsState, name: str) -> float:
        """Standard deviation of the noise in an entry, as it was added."""
        return float(np.max(state.noise_stddev[name] * state.units.get(name, 1.0)))

    def _without_clipping(self, state: VipsState) -> Unclipped | None:
        """The sums with what clipping took off them; None where nothing shows it.

        Rows simulated from the released posterior show it, with covariates of the
        moments that have been released. Not where these are fewer than the sums: what
        each lacks is then mostly what simulations differ by.
        """
        number = sum(np.size(of) for of in state.statistics.values())
        if number > _MOST_CORRECTED:
            return None
        simulation = self._simulation_at(state)
        if simulation is None:
            return None
        # Noise is of one size in the entries of a statistic if these are in its units.
        units = {name: state.units.get(name, 1.0) for name in state.statistics}

        def in_units(sums: Sums) -> NewSums:
            return {name: np.asarray(sums[name] * units[name]) for name in sums}

        def without_units(sums: Sums) -> NewSums:
            return {name: np.asarray(sums[name] / units[name]) for name in sums}

        def missing(sums: Sums) -> NewSums | None:
            found = simulation.missing(without_units(sums))
            return None if found is None else in_units(found)

        noise = {name: self._noise_in_units(state, name) for name in state.statistics}
        found = without_clipping(
            in_units(state.statistics),
            noise,
            missing,
            lambda sums: simulation.lost(without_units(sums)),
        )
        if found is None:
            return None
        deviations = {
            name: state.noise_stddev[name]
            if of == noise[name]
            else np.asarray(of / units[name])
            for name, of in found.noise_stddev.items()
        }
        return Unclipped(without_units(found.statistics), deviations)

    def share_clipped(self, state: VipsState, names: Sequence[str]) -> float | None:
        """The share of rows that the model expects to be clipped in a step.

        Args:
          state: What was released.
          names: The statistics of that step.

        Returns:
          None where rows cannot be simulated.
        """
        simulation = self._simulation_at(state)
        if simulation is None or names[0] not in state.clipped:
            return None
        sums, _ = self.sums_of(state)
        return simulation.share_clipped(sums.statistics, state.clipped[names[0]])

    def _simulation_at(self, state: VipsState) -> RowSimulation | None:
        """Rows as those of the last step; None where nothing shows what clipping does
        to them."""
        if self._roles.squares:
            return None  # Nothing has been released of their covariates.
        bounds = {
            name: bound
            for name, bound in state.clipped.items()
            if math.isfinite(bound.clipping_norm) and np.all(state.noise_stddev[name])
        }
        simulator = self._rows.simulator
        if not bounds or simulator is None:
            return None
        if simulator.covariates and not self._covariates(state, state.statistics):
            return None
        return self._simulation(state, simulator, bounds)

    def _covariates(self, state: VipsState, sums: Sums) -> Covariates | None:
        """A distribution for covariates of simulated rows; None if nothing tells one.

        Their moments are released where intervals need them. Those of features are in
        the sums of a regression.

        Args:
          state: What was released.
          sums: Those of a regression, with or without what clipping took off.
        """
        moments, num_rows = state.covariates, self._rows.num_rows
        if moments is None and self._regression is not None:
            there = Unclipped(dict(sums), state.noise_stddev)
            found = self._globals.features.moments_of_features(
                state, there, self._regression
            )
            if found is not None:
                features = self._rows.covariates_that_are_features
                places = [0, *(1 + features[i][1] for i in range(len(features)))]
                moments = num_rows * found[np.ix_(places, places)]
        if moments is None:
            return None
        return Covariates.with_moments(
            moments,
            num_rows,
            self._rows.units_of_covariates(state.standards),
            self._rows.positive_covariates,
        )

    @functools.cached_property
    def _regression(self) -> str | None:
        """The factor whose features are the covariates of rows, if there is one.

        Squares of covariates and products are no covariates. Where noise hides how
        these go together, they would be simulated of another size than rows have.
        """
        found = self._rows.covariates_that_are_features
        number = sum(map(len, self._rows.covariates.values()))
        factors = {factor for factor, _ in found.values()}
        if not number or len(found) != number or len(factors) != 1:
            return None
        (name,) = factors
        if len(self.program.features[name].places) != number:
            return None
        layout = self.program.structure.posterior_factors[name].layout
        is_vector = layout is not None and not layout.batch_shape
        return name if is_vector and name not in self.program.structure.newton else None

    def _simulation(
        self, state: VipsState, simulator: RowSimulator, bounds: Mapping[str, Bound]
    ) -> RowSimulation:
        """Rows that are asked as those of the last step were."""
        regression = self._regression

        def means_of_latents(sums: Sums) -> NewMeans | None:
            there = Unclipped(dict(sums), state.noise_stddev)
            means = self._globals.means_of_latents(state, there)
            if means is None or regression is None:
                return means
            # Residuals of coefficients that noise has led astray would be as long as
            # these are, and what clipping takes off them has no end.
            known = self._globals.features.known_coefficients(
                state, there, regression, means
            )
            return {**means, **known}

        return RowSimulation(
            simulator,
            means_of_latents,
            functools.partial(self._rows.sum_of_rows, state),
            bounds=bounds,
            released={name: state.statistics[name] for name in bounds},
            units=state.units,
            num_rows=self._rows.num_rows,
            valid_rows=state.valid_rows.number,
            has_locals=any(self.program.structure.posterior_factors_of("local")),
            covariates=(
                functools.partial(self._covariates, state)
                if simulator.covariates
                else None
            ),
        )

    def posterior(self, state: VipsState) -> ConjugatePosterior:
        """The posterior of the global latents, parameters alone."""
        sums, seen = self.sums_of(state)
        if not is_noisy(state.noise_stddev):
            natural = state.natural
            if seen is not None:
                # Coordinate ascent has settled: widths alone are not right yet.
                wider = Unclipped(state.statistics, seen.with_noise.noise_stddev)
                natural = self._globals.natural_of(state, wider)
            return self._globals.posterior_of(natural)
        alone, noise_read = sums, 0.0
        if seen is not None:
            sums, alone, noise_read = seen.with_noise, seen.without_noise, 1.0
        found = state.natural
        if sums.statistics is not state.statistics or not self._roles.residuals:
            found = self._globals.natural_of(state, sums)
        found = self._with_margins(state, sums, found, knows_noise=True)
        posterior = self._globals.posterior_of(found)
        if sum(value.size for value in posterior.params.values()) > _MOST_IN_PARTS:
            return posterior
        found = self._globals.natural_of(state, alone, noise_read)
        as_they_are = self._with_margins(state, sums, found, knows_noise=False)
        return posterior.beside(self._globals.posterior_of(as_they_are))

    def _with_margins(
        self, state: VipsState, sums: Unclipped, found: InDouble, *, knows_noise: bool
    ) -> InDouble:
        """Natural parameters of all globals, with scales of coefficients integrated out
        and those that know of the noise of factors that take Newton steps.

        Args:
          state: What was released.
          sums: The sums that are read.
          found: Natural parameters by coordinate ascent.
          knows_noise: See `newton_posterior.natural_under_noise`.
        """
        margin = self._margins.margin(found)
        targets = self._targets_of(state, sums, {} if margin is None else margin.middle)
        newton = all_under_noise(
            targets,
            self._globals.centre_in(state, state.centre),
            knows_noise=knows_noise,
            limit=self._limit(state) if knows_noise else math.inf,
        )
        in_model = self._globals.natural_from(state, newton)
        if margin is None:
            return {**found, **in_model}
        natural = {**found, **margin.natural, **in_model}
        for name, spread in margin.spread.items():
            natural[name] = spread_out(natural[name], spread)
        return natural
