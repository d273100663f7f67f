"""A private histogram of the norms of the rows' contributions.

Nobody knows from public facts how large "one row's joint statistics" are, so a small
part of the budget is spent on it. Every row counts once for each part of the joint
vector, in the bin of a public logarithmic grid that its norm falls into. The counts get
noise like any other release; what is read off them (`seen_norms`) is post-processing.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from numpyro_vips.privacy.gaussian_mechanism import Block

# Edges grow by this factor: what a norm is rounded up by at most.
GRID_FACTOR = math.sqrt(2.0)
# Norms beyond these, in the caller's own units, are in the first and in the last bin.
# Squares of incomes of 1e7 are beyond 1e14.
SMALLEST_NORM, LARGEST_NORM = 1e-9, 1e20
# A norm that is known but for rounding falls into the bin below its edge.
_ROUNDING = 1e-5

# Bins count if they stand out of the noise by so many standard deviations: of the
# hundreds of empty bins of a fit one in ten thousand fits does by chance.
THRESHOLD = 5.0
# Where others stand out already, those that are more than so many bins from all of
# these need more: a norm that noise makes up there would be a thousand times as large.
THRESHOLD_FAR, FAR = 7.0, 20
# The same next to bins that stand out, where there are few to be deceived by,
THRESHOLD_BESIDE = 3.0
# Where nothing stands out at all, wide windows near the norm of synthetic rows need no
# more than this: within this factor of it there are few, and that norm, which would be
# taken otherwise, is no better than one that is wrong by as much.
THRESHOLD_NEAR, NEAR = 3.0, 100.0
_WINDOWS_NEAR = (8, 16)
# The widest window anywhere, of which there are few, needs this; and so much more than
# one that is near. Without that, noise a billion times as large as the rows would win
# over rows that stand out almost as far.
THRESHOLD_WIDEST, MORE_THAN_NEAR = 4.0, 1.0
# Neighbouring bins that are looked at together: norms are spread over many. Next to
# what stands out only narrow ones are: a row in a wide one may be far from all others.
_WINDOWS = (1, 2, 4, 8)
_WINDOWS_BESIDE = (1, 2)


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
    """The counts as one block: a row counts once in it.

    At the end are the rows that count as zero, see `row_sums.counts_of_norms`.
    """
    return Block(
        name=part,
        shape=(len(edges) + 2,),
        geometry="nonnegative",
        norm_bound=1.0,
    )


class NoisyCounts(NamedTuple):
    """What a histogram of norms has released of one part.

    Attributes:
      counts: Noisy number of rows in each bin, see `seen_norms`.
      stddev: Standard deviation of the noise in each.
    """

    counts: Float64[np.ndarray, " bins"]
    stddev: float


def _far_or_near(
    standing: Bool[np.ndarray, " bins"], width: int, threshold: float
) -> Float64[np.ndarray, " windows"]:
    """The standard deviations by which each window of this width has to stand out."""
    windows = len(standing) - width + 1
    if not standing.any():
        return np.full(windows, threshold)
    places, first = np.flatnonzero(standing), np.arange(windows)[:, None]
    distance = np.maximum(places - (first + width - 1), first - places).min(1)
    return np.where(distance > FAR, max(threshold, THRESHOLD_FAR), threshold)


def standing_bins(
    counts: Float64[np.ndarray, " bins"],
    noise_stddev: float,
    num_rows: int,
    near: Bool[np.ndarray, " bins"] | None,
    *,
    is_known: bool,
    threshold: float = THRESHOLD,
) -> Bool[np.ndarray, " bins"]:
    """The bins that stand out of the noise, alone or with their neighbours.

    Windows of few bins come first, so that a high bin does not take empty ones along.
    Windows next to what stands out already need less to join it.

    Args:
      counts, noise_stddev, num_rows: See `seen_norms`.
      near: The bins near the norm of synthetic rows, where less has to stand out; None
        for what is sure alone.
      is_known: Whether a chance finding far away is worse than nothing, as where a norm
        is known already. A wide window would make that 10⁹ times as large.
      threshold: Standard deviations by which the first window has to stand out.
    """
    standing = np.zeros(len(counts), bool)

    def add(
        width: int, threshold: float, beside: bool = False, inside: Any = None
    ) -> bool:
        """Adds the highest window of this width, if there is one; says whether."""
        totals = _totals(counts, width, inside)
        taken = np.convolve(standing, np.ones(width), "valid") > 0.5
        limit = _far_or_near(standing, width, threshold)
        limit = limit * math.sqrt(width) * noise_stddev
        # Together all rows do not reach such a limit, so what does is noise.
        eligible = ~taken & (totals > limit) & (totals >= 1.0) & (limit < num_rows)
        if beside:
            below = np.append(False, standing)[: len(totals)]
            above = np.append(standing, False)[width:]
            eligible &= below | above
        if not eligible.any():
            return False
        first = np.argmax(np.where(eligible, totals, -np.inf))
        standing[first : first + width] = True
        return True

    def extend() -> None:
        # More rows than there are would be noise.
        while counts[standing].sum() < num_rows and any(
            add(width, THRESHOLD_BESIDE, beside=True) for width in _WINDOWS_BESIDE
        ):
            pass

    for width in _WINDOWS:
        while add(width, threshold):
            extend()
    if near is None or standing.any():
        return standing
    highest = max(
        np.max(_totals(counts, width, near)) / math.sqrt(width)
        for width in _WINDOWS_NEAR
    )
    in_stddevs = float(highest / noise_stddev) if noise_stddev else 0.0
    needed = max(THRESHOLD_WIDEST, in_stddevs + MORE_THAN_NEAR)
    if not is_known and add(_WINDOWS[-1], needed):
        extend()
    for width in _WINDOWS_NEAR:
        if not standing.any() and add(width, THRESHOLD_NEAR, inside=near):
            extend()
    return standing


def _totals(
    counts: Float64[np.ndarray, " bins"],
    width: int,
    inside: Bool[np.ndarray, " bins"] | None,
) -> Float64[np.ndarray, " windows"]:
    """The sum of every window of bins; minus infinity of those not all inside."""
    ones = np.ones(width)
    totals = np.convolve(counts, ones, "valid")
    if inside is None:
        return totals
    return np.where(np.convolve(inside, ones, "valid") > width - 0.5, totals, -np.inf)
