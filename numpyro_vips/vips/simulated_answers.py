"""How simulated rows answer to the globals; see `missing_information`."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float64

from numpyro_vips.jax_tools.row_sums import aligned
from numpyro_vips.model.simulated_rows import RowSimulator
from numpyro_vips.vips.asked_places import AskedPlace
from numpyro_vips.vips.clipping_bias import Bound
from numpyro_vips.vips.missing_information import Coordinates, Vector
from numpyro_vips.vips.named_arrays import ByStatistic, NewSums, Rows, Sums

# Rows that are worked on at a time at most, times how often at most.
_CHUNK = 4096
_MOST_CHUNKS = 16
# Rows are asked twice for each coordinate, and once at each place: that many answers in
# all, or one chunk's.
_ANSWERS = 150_000


class SimulatedAnswers:
    """Answers of rows that are simulated at the posteriors of sums.

    Args:
      simulator: What draws rows.
      coordinates: Those of the sums.
      means_of_latents: The means of the globals, for some sums.
      natural_of: Their n̄, by statistic in the shape of its block.
      place_of: The n̄ that rows are asked at, where some sums lead.
      sum_of_rows: The sums of a chunk of rows at a place, by a mask, and clipped as in
        some release; None for whole rows.
      asked: The places where the rows of the fit were asked. What clipping takes off is
        told elsewhere, as if rows had been clipped in all steps as in the last one.
      num_rows: Public number of rows that the fit has.
      seed: Of what is drawn.
    """

    def __init__(
        self,
        simulator: RowSimulator,
        coordinates: Coordinates,
        means_of_latents: Callable[[Sums], Mapping[str, np.ndarray]],
        natural_of: Callable[[Sums], Sums],
        place_of: Callable[[Sums], ByStatistic],
        sum_of_rows: Callable[[ByStatistic, Rows, np.ndarray, Bound | None], NewSums],
        *,
        asked: Sequence[AskedPlace],
        num_rows: int,
        seed: int,
    ):
        self._simulator = simulator
        self._coordinates = coordinates
        self._means_of_latents = means_of_latents
        self._natural_of = natural_of
        self._place_of = place_of
        self._sum_of_rows = sum_of_rows
        self._asked = asked
        self._seed = seed
        # Of the length that the rows of a fit are worked on in, so that nothing new
        # is compiled.
        self._size = aligned(min(num_rows, _CHUNK))
        times = 2 * len(coordinates) + len(asked)
        wanted = _ANSWERS / (times * self._size)
        self._number = min(max(math.ceil(wanted), 1), _MOST_CHUNKS)
        self._factor = num_rows / (self._number * self._size)

    def natural(self, sums: Vector) -> Vector | None:
        """See `missing_information.Answers`."""
        found = self._coordinates.vector(
            self._natural_of(self._coordinates.blocks(sums))
        )
        return found if np.isfinite(found).all() else None

    def rows(self, sums: Vector) -> Sequence[Rows] | None:
        """See `missing_information.Answers`."""
        latents = self._means_of_latents(self._coordinates.blocks(sums))
        if not all(np.isfinite(value).all() for value in latents.values()):
            return None
        return [
            self._simulator.rows(latents, self._size, self._seed + number)
            for number in range(self._number)
        ]

    def sums(self, sums: Vector | None, rows: Sequence[Rows]) -> Vector:
        """See `missing_information.Answers`."""
        if sums is not None:
            place = self._place_of(self._coordinates.blocks(sums))
            return self._sums_at(place, rows)
        total = np.zeros(len(self._coordinates))
        last = self._asked[-1].bound
        for weight, place, bound in self._asked:
            found = self._sums_at(place, rows)
            if bound != last:
                found += self._sums_at(place, rows, bound)
                found -= self._sums_at(place, rows, last)
            total += weight * found
        return total

    def _sums_at(
        self, place: ByStatistic, rows: Sequence[Rows], bound: Bound | None = None
    ) -> Vector:
        mask = np.ones(self._size, dtype=bool)
        total: Float64[np.ndarray, " coordinates"] = np.zeros(len(self._coordinates))
        for chunk in rows:
            found = self._sum_of_rows(place, chunk, mask, bound)
            total += self._coordinates.vector(found)
        return self._factor * total


def seed_of(sums: Sums) -> int:
    """Of its own for every release, as the rows' and the noise's are."""
    parts = (np.ascontiguousarray(sums[name]) for name in sorted(sums))
    return zlib.crc32(b"".join(part.tobytes() for part in parts))
