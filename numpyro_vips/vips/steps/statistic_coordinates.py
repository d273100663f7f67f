"""The free numbers in the blocks of statistics, as one vector."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Float64, Int64

from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.vips.program.named_arrays import NewSums, Sums

Vector = Float64[np.ndarray, " coordinates"]


class StatisticCoordinates:
    """The free numbers in the blocks of some statistics, as one vector.

    Equal entries of a symmetric matrix are one number, larger by √2: noise has the same
    standard deviation in every coordinate of a block.
    """

    def __init__(self, statistics: Sequence[Statistic]):
        self.statistics = tuple(statistics)

    def __len__(self) -> int:
        return sum(self._size(statistic) for statistic in self.statistics)

    @staticmethod
    def _triangle(
        statistic: Statistic,
    ) -> tuple[
        Int64[np.ndarray, " entries"],
        Int64[np.ndarray, " entries"],
        Float64[np.ndarray, " entries"],
    ]:
        rows, columns = np.triu_indices(statistic.block_shape[-1])
        return rows, columns, np.where(rows == columns, 1.0, np.sqrt(2.0))

    def _size(self, statistic: Statistic) -> int:
        size = int(np.prod(statistic.block_shape, dtype=int))
        if statistic.matrix is None:
            return size
        width = statistic.block_shape[-1]
        return size // width**2 * (width * (width + 1) // 2)

    def vector(self, blocks: Sums) -> Vector:
        """The coordinates of blocks."""
        parts = [np.zeros(0)]
        for statistic in self.statistics:
            block = np.asarray(blocks[statistic.name], np.float64)
            if statistic.matrix is not None:
                rows, columns, weights = self._triangle(statistic)
                block = block[..., rows, columns] * weights
            parts.append(block.ravel())
        return np.concatenate(parts)

    def blocks(self, vector: Vector) -> NewSums:
        """The blocks that have these coordinates."""
        found, start = {}, 0
        for statistic in self.statistics:
            end = start + self._size(statistic)
            part, start = vector[start:end], end
            if statistic.matrix is None:
                found[statistic.name] = part.reshape(statistic.block_shape)
                continue
            rows, columns, weights = self._triangle(statistic)
            entries = part.reshape(*statistic.block_shape[:-2], len(rows)) / weights
            block = np.zeros(statistic.block_shape)
            block[..., rows, columns] = entries
            block[..., columns, rows] = entries
            found[statistic.name] = block
        return found

    def by_coordinate(
        self, by_statistic: Mapping[str, Float[np.ndarray, "..."] | float]
    ) -> Vector:
        """A number for each coordinate, the same for entries that are one coordinate.

        So are standard deviations of noise; see `GaussianMechanism`.
        """
        parts = [np.zeros(0)]
        for statistic in self.statistics:
            block = np.asarray(by_statistic[statistic.name], np.float64)
            block = np.broadcast_to(block, statistic.block_shape)
            if statistic.matrix is not None:
                rows, columns, _ = self._triangle(statistic)
                block = block[..., rows, columns]
            parts.append(block.ravel())
        return np.concatenate(parts)

    def inside(self, vector: Vector, margins: Vector) -> Vector:
        """Sums moved to where every statistic of one sign has that sign.

        Args:
          vector: Coordinates of sums.
          margins: How far from zero the coordinates of such statistics are at least;
            those of others are not moved.
        """
        signs = {
            s.name: float(s.lower >= 0.0) or -float(s.upper <= 0.0)
            for s in self.statistics
        }
        sign = self.by_coordinate(signs)
        lower = np.where(sign > 0.0, margins, -np.inf)
        upper = np.where(sign < 0.0, -margins, np.inf)
        return np.clip(vector, lower, upper)

    def sizes(self, vector: Vector) -> Vector:
        """For every coordinate the root mean square of the block that it is in."""
        found = {
            name: np.full(block.shape, np.sqrt(np.mean(np.square(block))))
            for name, block in self.blocks(vector).items()
        }
        return self.by_coordinate(found)

    def blocks_of_stddevs(self, vector: Vector) -> NewSums:
        """Standard deviations of the entries, from those of the coordinates."""
        weights = self.vector({s.name: np.ones(s.block_shape) for s in self.statistics})
        return self.blocks(vector * weights)
