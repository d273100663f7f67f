"""How large columns are, from a private histogram of each.

Ages stand beside incomes, and noise is equal in all coordinates of a released vector:
next to a column that is a thousand times as large nothing is seen of the others, and
clipping at its norm clips nothing of theirs. So every row counts once for each column,
in the bin of a public logarithmic grid that its entry falls into. That costs √d times
the noise of one histogram, so it is done where columns are few or rows are many. The
sizes that are read off the noisy counts are post-processing.
"""

import math

import numpy as np
from jaxtyping import Float64

from numpyro_vips.fitting.bounds.norm_histogram import (
    GRID_FACTOR,
    norm_grid,
    standing_bins,
)
from numpyro_vips.fitting.bounds.norm_parts import NormPart
from numpyro_vips.privacy.gaussian_mechanism import Block

# Every so many edges of a grid of norms: a unit may be wrong by a small factor.
_STRIDE = 2
# A size that noise makes up hides the column, and says that it is known surely. There
# are thousands of windows to be deceived by: of a million fits not one is.
_THRESHOLD = 7.0


def column_grid(part: NormPart) -> Float64[np.ndarray, " edges"]:
    """The edges of the bins of every column's histogram; public."""
    return norm_grid(_columns_of(part)[1])[::_STRIDE]


def column_block(part: NormPart) -> Block:
    """The counts as one block: a row counts once for each column, or not at all."""
    number, _ = _columns_of(part)
    return Block(
        name=part.name,
        shape=(number, len(column_grid(part)) + 1),
        geometry="nonnegative",
        norm_bound=math.sqrt(number),
    )


def sizes_from_counts(
    counts: Float64[np.ndarray, "columns bins"],
    part: NormPart,
    *,
    noise_stddev: float,
    num_rows: int,
) -> Float64[np.ndarray, " columns"]:
    """How large each column's entries are, over what they would be in unit rows.

    Args:
      counts: Noisy number of rows by column and bin.
      part: Whose columns these are.
      noise_stddev: Standard deviation of the noise in each count.
      num_rows: Public number of rows.

    Returns:
      The median of the entries in bins that stand out of the noise, of which the first
      is none: an entry there is zero. It is the middle of its bin; but of columns that
      are counted again about points, whose entries are of one size afterwards, it is
      where it lies if entries are spread evenly in the bin. Where no bin of a column
      does, that of the largest other one: were it taken for small it could hide the
      others. 1 where no bin of any does.
    """
    number, reference = _columns_of(part)
    is_finer = part.columns is not None and part.columns.about_points
    typical = reference / math.sqrt(number)
    edges = column_grid(part)
    uppers = np.append(edges[1:], edges[-1])
    sizes = np.full(number, np.nan)
    for column, of_column in enumerate(counts[:, 1:]):
        standing = standing_bins(
            of_column, noise_stddev, num_rows, None, is_known=True, threshold=_THRESHOLD
        )
        if standing.any():
            rows = np.maximum(of_column[standing], 0.0)
            reached = np.cumsum(rows)
            half = 0.5 * reached[-1]
            median = np.searchsorted(reached, half)
            above = (reached[median] - half) / rows[median] if is_finer else 0.5
            sizes[column] = uppers[standing][median] * GRID_FACTOR ** (-_STRIDE * above)
    sizes /= typical
    unseen = np.isnan(sizes)
    return np.where(unseen, 1.0 if unseen.all() else np.nanmax(sizes), sizes)


def _columns_of(part: NormPart) -> tuple[int, float]:
    """How many columns a part has, and the norm of their entries in unit rows."""
    assert part.columns is not None
    number, reference, _ = part.columns
    return number, part.reference if reference is None else reference
