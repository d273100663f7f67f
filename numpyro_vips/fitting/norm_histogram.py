"""Clipping norms from a private histogram of the norms of the rows' contributions.

Nobody knows from public facts how large "one row's joint statistics" are, so a small
part of the budget is spent on it. Every row counts once for each part of the joint
vector, in the bin of a public logarithmic grid that its norm falls into. The counts get
noise like any other release; what is read off them is post-processing.
"""

import math

import numpy as np
from jaxtyping import Float64

from numpyro_vips.privacy.gaussian_mechanism import Block

# Edges grow by this factor: what a norm is rounded up by at most.
GRID_FACTOR = math.sqrt(2.0)
# Norms beyond these, in the caller's own units, are in the first and in the last bin.
# Squares of incomes of 1e7 are beyond 1e14.
SMALLEST_NORM, LARGEST_NORM = 1e-9, 1e20
# A norm that is known but for rounding falls into the bin below its edge.
_ROUNDING = 1e-5

# A bin counts if it stands out of the noise by so many standard deviations: of the
# hundreds of empty bins of a fit one in ten thousand fits does by chance.
THRESHOLD = 5.0
# Bins that are looked at together where none stands out alone.
_MERGED = (1, 2, 4, 8)
# The same where an earlier histogram has found a norm: one that is rounded up by more
# than this is worse than the earlier one.
_MERGED_AGAIN = (1, 2)
# How much worse clipped mass is than noise of the same size: noise shows in the
# intervals, and bias does not.
BIAS_WEIGHT = 3.0
# Bins above the last one that stands out, whose counts enter as they are.
_MARGIN = 2


def norm_grid(reference: float) -> Float64[np.ndarray, " edges"]:
    """The edges of the grid's bins, growing; public.

    Args:
      reference: A norm that rows have if they are scaled as the documentation advises.
        It is one of the edges, so that rounding up costs such rows nothing.
    """
    lowest = math.ceil(math.log(SMALLEST_NORM / reference, GRID_FACTOR))
    highest = math.floor(math.log(LARGEST_NORM / reference, GRID_FACTOR))
    powers = np.arange(lowest, highest + 1)
    return reference * GRID_FACTOR**powers * (1.0 + _ROUNDING)


def histogram_block(part: str, edges: Float64[np.ndarray, " edges"]) -> Block:
    """The counts as one block: a row counts once in it, or not at all."""
    return Block(
        name=part,
        shape=(len(edges) + 1,),
        geometry="nonnegative",
        norm_bound=1.0,
    )


def norm_from_counts(
    counts: Float64[np.ndarray, " bins"],
    edges: Float64[np.ndarray, " edges"],
    *,
    noise_stddev: float,
    relative_noise: float,
    num_rows: int,
    alignment: float = 1.0,
    is_known: bool = False,
) -> float | None:
    """The norm at which clipping and noise together do least harm.

    Clipping at c takes Σ (norm − c)₊ off the sum of the rows at worst, and noise adds
    `relative_noise` times c. Only bins that stand out of the noise are summed over:
    in empty ones there is nothing but noise, and there are many of them.

    Args:
      counts: Noisy number of rows in each bin (edges[i − 1], edges[i]].
      edges: From `norm_grid`.
      noise_stddev: Standard deviation of the noise in each count.
      relative_noise: L2 norm of the noise that the released sums will have once they
        are averaged, over the clipping norm.
      num_rows: Public number of rows.
      alignment: By how much of their norms what is clipped off the rows adds up.
      is_known: Whether an earlier histogram has found a norm, which may stay.

    Returns:
      One of the edges; None if no bin stands out of the noise.
    """
    # The first bin has rows that add nothing, whatever the norm is.
    counts, uppers = counts[1:], np.append(edges[1:], edges[-1] * GRID_FACTOR)
    for width in _MERGED_AGAIN if is_known else _MERGED:
        spare = len(counts) % width
        merged = counts[spare:].reshape(-1, width).sum(1)
        edge_of = uppers[spare:].reshape(-1, width)[:, -1]
        threshold = THRESHOLD * math.sqrt(width) * noise_stddev
        if threshold >= num_rows:
            break  # What stands out then is noise: all rows together would not.
        standing = np.flatnonzero((merged > threshold) & (merged >= 1.0))
        if len(standing):
            # A bin above counts with what it has beyond the noise.
            beyond = np.maximum(merged - math.sqrt(width) * noise_stddev, 0.0)
            return _best_norm(
                beyond, edge_of, standing, relative_noise / (BIAS_WEIGHT * alignment)
            )
    return None


def _best_norm(
    counts: Float64[np.ndarray, " bins"],
    uppers: Float64[np.ndarray, " bins"],
    standing: np.ndarray,
    relative_noise: float,
) -> float:
    last = standing[-1]
    above = np.arange(last + 1, min(last + 1 + _MARGIN, len(counts)))
    mass = np.zeros(len(counts))
    mass[standing] = counts[standing]
    mass[above] = counts[above]
    candidates = uppers[: last + 1 + len(above)]
    clipped = mass @ np.maximum(uppers[:, None] - candidates, 0.0)
    harm = clipped**2 + (relative_noise * candidates) ** 2
    return float(candidates[np.argmin(harm)])
