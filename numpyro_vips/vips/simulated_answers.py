"""How the globals answer to sums, and simulated rows to the globals."""

import math
import zlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64

from numpyro_vips.jax_tools.row_sums import equal_chunks
from numpyro_vips.model.simulated_rows import RowSimulator
from numpyro_vips.vips.clipping_bias import Bound, Unclipped
from numpyro_vips.vips.global_programs import GlobalPrograms
from numpyro_vips.vips.missing_information import Coordinates, Vector
from numpyro_vips.vips.named_arrays import ByStatistic, Rows
from numpyro_vips.vips.row_programs import RowPrograms
from numpyro_vips.vips.state import VipsState

# Rows that are worked on at a time at most, times how often at most.
_CHUNK = 4096
_MOST_CHUNKS = 16
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
    """

    def __init__(
        self,
        simulator: RowSimulator,
        coordinates: Coordinates,
        on_rows: RowPrograms,
        on_globals: GlobalPrograms,
        state: VipsState,
        sums: Unclipped,
    ):
        self._simulator = simulator
        self._coordinates = coordinates
        self._rows, self._globals = on_rows, on_globals
        self._state, self._sums = state, sums
        # Of the length that the rows of a fit are worked on in, so that nothing new
        # is compiled.
        _, self._size = equal_chunks(on_rows.num_rows, _CHUNK)
        times = 2 * len(coordinates) + len(state.asked)
        wanted = math.ceil(_ANSWERS / (times * self._size))
        self._number = min(max(wanted, 1), _MOST_CHUNKS)
        self._factor = on_rows.num_rows / (self._number * self._size)
        # Of its own for every release, as the rows' and the noise's are.
        blocks = (state.statistics[name] for name in sorted(state.statistics))
        whole = b"".join(np.ascontiguousarray(block).tobytes() for block in blocks)
        self._seed = zlib.crc32(whole)

    def _with(self, vector: Vector) -> Unclipped:
        blocks = self._coordinates.blocks(vector)
        return self._sums._replace(statistics={**self._sums.statistics, **blocks})

    def inside(self, sums: Vector, margins: Vector) -> Vector:
        """See `missing_information.Coordinates.inside`."""
        return self._coordinates.inside(sums, margins)

    def sizes(self, sums: Vector) -> Vector:
        """See `missing_information.Coordinates.sizes`."""
        return self._coordinates.sizes(sums)

    def natural(self, sums: Vector) -> Vector | None:
        """See `missing_information.Answers`; about the same points as the sums."""
        moments = self._globals.solve(self._state, self._with(sums), 0.0).moments
        points = {name: -point for name, point in self._state.origins.items()}
        found = self._coordinates.vector(self._globals.natural_about(moments, points))
        return found if np.isfinite(found).all() else None

    def rows(self, sums: Vector) -> Sequence[Rows] | None:
        """See `missing_information.Answers`."""
        natural = self._globals.natural_of(self._state, self._with(sums), 0.0)
        found = self._globals.posterior_of(natural).moments()
        latents = {name: moments.mean for name, moments in found.items()}
        if not all(np.isfinite(value).all() for value in latents.values()):
            return None
        return [
            self._simulator.rows(latents, self._size, self._seed + number)
            for number in range(self._number)
        ]

    def sums(self, sums: Vector | None, rows: Sequence[Rows]) -> Vector:
        """See `missing_information.Answers`."""
        if sums is not None:
            moments = self._globals.solve(self._state, self._with(sums), 0.0).moments
            return self._sums_at(self._rows.expected_natural_of(moments), rows)
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
