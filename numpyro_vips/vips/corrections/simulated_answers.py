"""How the globals answer to sums, and simulated rows to the globals."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from numpyro_vips.jax_tools.row_sums import ZERO_ROWS, equal_chunks
from numpyro_vips.model.synthetic.simulated_rows import RowSimulator, seed_of
from numpyro_vips.vips.m_step.global_programs import GlobalPrograms
from numpyro_vips.vips.program.named_arrays import ByStatistic, MomentsByFactor, Rows
from numpyro_vips.vips.row_sums.covariates import Covariates
from numpyro_vips.vips.row_sums.row_programs import RowPrograms
from numpyro_vips.vips.steps.released_sums import Bound, Unclipped
from numpyro_vips.vips.steps.state import VipsState
from numpyro_vips.vips.steps.statistic_coordinates import StatisticCoordinates, Vector

# How often chunks of rows are worked on at most.
_MOST_CHUNKS = 16
# The share of simulated rows that may count as zero.
_MOST_LOST = 0.05
# Rows are asked twice for each coordinate, and once at each place: that many answers in
# all, or one chunk's.
_ANSWERS = 150_000


class SimulatedAnswers:
    """The `missing_information.Answers` of a model, near the sums of a state.

    Args:
      simulator: What draws rows of the model.
      coordinates: Those of the sums that vary.
      on_rows, on_globals: The compiled programs.
      state: It has the places where the rows of the fit were asked.
      sums: All sums; those that vary are given anew.
      covariates: Those of the simulated rows; None if rows have none.
    """

    def __init__(
        self,
        simulator: RowSimulator,
        coordinates: StatisticCoordinates,
        on_rows: RowPrograms,
        on_globals: GlobalPrograms,
        state: VipsState,
        sums: Unclipped,
        covariates: Covariates | None = None,
    ):
        self._simulator = simulator
        self._coordinates = coordinates
        self._rows, self._globals = on_rows, on_globals
        self._state, self._sums = state, sums
        _, self._size = equal_chunks(on_rows.num_rows)
        times = 2 * len(coordinates) + len(state.asked)
        wanted = math.ceil(_ANSWERS / (times * self._size))
        self._number = min(max(wanted, 1), _MOST_CHUNKS)
        self._factor = state.valid_rows.number / (self._number * self._size)
        self._seed = seed_of(state.statistics)
        self._covariates = covariates

    def _with(self, vector: Vector) -> Unclipped:
        blocks = self._coordinates.blocks(vector)
        return self._sums._replace(statistics={**self._sums.statistics, **blocks})

    def inside(self, sums: Vector, margins: Vector) -> Vector:
        """Sums kept off zero by margins; see `StatisticCoordinates.inside`."""
        return self._coordinates.inside(sums, margins)

    def sizes(self, sums: Vector) -> Vector:
        """The root mean square of each block; see `StatisticCoordinates.sizes`."""
        return self._coordinates.sizes(sums)

    def natural(self, sums: Vector) -> Vector | None:
        """The expected natural parameters n̄ that the globals answer these sums with.

        Returns:
          One number for each coordinate of the sums; None if any of them is not finite,
          as where the sums belong to no posterior.
        """
        return self._natural_of(self._moments(sums))

    def _moments(self, sums: Vector) -> MomentsByFactor:
        return self._globals.solve(self._state, self._with(sums), 0.0).moments

    def _natural_of(self, moments: MomentsByFactor) -> Vector | None:
        frames = self._globals.frames_of(self._state)
        found = self._coordinates.vector(self._globals.natural_in(moments, frames))
        return found if np.isfinite(found).all() else None

    def rows(self, sums: Vector) -> Sequence[Rows] | None:
        """Rows simulated where sums lead, in chunks; None if there is no posterior."""
        latents = self._globals.means_of_latents(self._state, self._with(sums), 0.0)
        if latents is None:
            return None
        seeds = range(self._seed, self._seed + self._number)
        found = [
            self._simulator.rows(
                latents,
                self._size,
                seed,
                self._covariates and self._covariates.drawn(self._size, seed),
            )
            for seed in seeds
        ]
        return found if self._covariates is None or self._counts(found[0]) else None

    def _counts(self, chunk: Rows) -> bool:
        """Whether nearly all of these rows are such as the model takes.

        Gaussian covariates may be none: a logarithm's, or labels.
        """
        scales = dict.fromkeys([*self._state.asked[0].place, ZERO_ROWS], 1.0)
        found = self._rows.sum_of_rows(
            self._state,
            chunk,
            np.ones(self._size, dtype=bool),
            scales=scales,
            clipping_norm=math.inf,
        )
        return float(found[ZERO_ROWS]) <= _MOST_LOST * self._size

    def sums(self, sums: Vector, rows: Sequence[Rows]) -> Vector | None:
        """The whole sums of rows at the globals of some sums, if these have any."""
        moments = self._moments(sums)
        if self._natural_of(moments) is None:
            return None
        return self._sums_at(self._rows.expected_natural_of(moments), rows)

    def early_sums(self, rows: Sequence[Rows]) -> Vector:
        """The average of what rows release where those of the fit were asked."""
        parts = [
            weight * self._sums_at(place, rows, bound)
            for weight, place, bound in self._state.asked
        ]
        return np.sum(parts, axis=0)

    def _sums_at(
        self, place: ByStatistic, rows: Sequence[Rows], bound: Bound | None = None
    ) -> Vector:
        """The sums at n̄, of rows that are clipped; None if they are not."""
        open_ones = self._state.asked[0].place
        bound = bound or Bound(dict.fromkeys(open_ones, 1.0), math.inf)
        there = {**self._state.expected_natural, **place}
        state = self._state._replace(expected_natural=there)
        # Statistics that do not depend on the globals answer nothing.
        statistics = self._coordinates.statistics
        nothing = {each.name: np.zeros(each.block_shape) for each in statistics}
        total: Float64[np.ndarray, " coordinates"] = np.zeros(len(self._coordinates))
        for chunk in rows:
            found = self._rows.sum_of_rows(
                state,
                chunk,
                np.ones(self._size, dtype=bool),
                scales=bound.scales,
                clipping_norm=bound.clipping_norm,
            )
            total += self._coordinates.vector(nothing | found)
        return self._factor * total
