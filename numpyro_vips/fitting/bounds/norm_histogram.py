"""Clipping norms from a private histogram of the norms of the rows' contributions.

Nobody knows from public facts how large "one row's joint statistics" are, so a small
part of the budget is spent on it. Every row counts once for each part of the joint
vector, in the bin of a public logarithmic grid that its norm falls into. The counts get
noise like any other release; what is read off them is post-processing.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64
from scipy import special

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
# and of the widest window, of which there are few, where nothing stands out otherwise.
THRESHOLD_WIDEST = 4.0
# Where nothing stands out at all, wide windows near the norm of synthetic rows need no
# more than this: within this factor of it there are few, and that norm, which would be
# taken otherwise, is no better than one that is wrong by as much.
THRESHOLD_NEAR, NEAR = 3.0, 100.0
_WINDOWS_NEAR = (8, 16)
# Neighbouring bins that are looked at together: norms are spread over many. Next to
# what stands out only narrow ones are: a row in a wide one may be far from all others.
_WINDOWS = (1, 2, 4, 8)
_WINDOWS_BESIDE = (1, 2)
# The part of all rows that has to stand out of a later histogram, which has more noise,
# for it to replace the norm that an earlier one has found.
ENOUGH_TO_REPLACE = 0.7
# How much worse clipped mass is than noise of the same size: noise shows in the
# intervals, and bias does not.
BIAS_WEIGHT = 3.0
# Bins above the last one that stands out which may have rows under their noise, and
# what share of the rows of the bin below each is expected to have: about that of a
# Gaussian tail.
_MARGIN, _DECAY = 8, 0.2
# Where a normal distribution is cut off so far in its tail, the rest is exponential.
_FAR_OFF = 30.0


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


class NoisyCounts(NamedTuple):
    """What a histogram of norms has released of one part.

    Attributes:
      counts: Noisy number of rows in each bin, see `norm_from_counts`.
      stddev: Standard deviation of the noise in each.
    """

    counts: Float64[np.ndarray, " bins"]
    stddev: float


class Hidden(NamedTuple):
    """What is known from elsewhere of rows that a histogram's noise may hide.

    Attributes:
      squares: About what the squared norms of all rows add up to. What the rows that
        are seen lack of it is that of rows that are not.
      norm: The norm that those have.
    """

    squares: float
    norm: float


def norm_from_counts(
    counts: Float64[np.ndarray, " bins"],
    edges: Float64[np.ndarray, " edges"],
    *,
    noise_stddev: float,
    relative_noise: float,
    num_rows: int,
    alignment: float = 1.0,
    is_known: bool = False,
    reference: float | None = None,
    hidden: Hidden | None = None,
) -> float | None:
    """The norm at which clipping and noise together do least harm.

    Clipping at c takes Σ (norm − c)₊ off the sum of the rows at worst, and noise adds
    `relative_noise` times c. Only bins that stand out of the noise are summed over, by
    themselves or with their neighbours: in empty ones there is nothing but noise, and
    there are many of them.

    Args:
      counts: Noisy number of rows in each bin (edges[i − 1], edges[i]].
      edges: From `norm_grid`.
      noise_stddev: Standard deviation of the noise in each count.
      relative_noise: L2 norm of the noise that the released sums will have once they
        are averaged, over the clipping norm.
      num_rows: Public number of rows.
      alignment: By how much of their norms what is clipped off the rows adds up.
      is_known: Whether an earlier histogram has found a norm. It stays unless most of
        the rows are seen here.
      reference: The norm of rows of unit size, near which less has to stand out where
        nothing does otherwise; None for no such place.
      hidden: What is known of rows that the noise may hide.

    Returns:
      One of the edges; None if too little stands out of the noise.
    """
    # The first bin has rows that add nothing, whatever the norm is.
    idle, counts = counts[0], counts[1:]
    uppers = np.append(edges[1:], edges[-1] * GRID_FACTOR)
    near = np.zeros(len(counts), bool)
    if reference is not None:
        near = (uppers < NEAR * reference) & (uppers > reference / NEAR)
    standing = standing_bins(counts, noise_stddev, num_rows, near, is_known=is_known)
    if not standing.any():
        return None
    seen = idle + counts[standing].sum()
    if is_known and seen < ENOUGH_TO_REPLACE * num_rows:
        return None
    last = np.flatnonzero(standing)[-1]
    unseen = max(num_rows - seen, 0.0)
    above = counts[last + 1 : last + 1 + _MARGIN]
    tail = _tail(min(float(counts[last]), unseen), above, noise_stddev)
    mass = np.where(standing, counts, 0.0)
    mass[last + 1 : last + 1 + len(tail)] = tail
    end = last + 1 + len(tail)
    if hidden is not None:
        missing = hidden.squares - float(mass @ uppers**2)
        if missing > 0:
            place = min(int(np.searchsorted(uppers, hidden.norm)), len(uppers) - 1)
            mass[place] += missing / hidden.norm**2
            end = max(end, place + 1)
    candidates = uppers[:end]
    beyond = mass @ np.maximum(uppers[:, None] - candidates, 0.0)
    clipped = BIAS_WEIGHT * alignment * np.maximum(beyond, 0.0)
    harm = clipped**2 + (relative_noise * candidates) ** 2
    return float(candidates[np.argmin(harm)])


def _tail(
    last: float, counts: Float64[np.ndarray, " above"], noise_stddev: float
) -> Float64[np.ndarray, " above"]:
    """How many rows may be in the bins above the last one that stands out.

    Norms have tails, and the few rows in them are hidden by the noise. Before the
    counts are looked at, they are taken to become fewer by `_DECAY` from bin to bin:
    numbers with an exponential distribution of this mean. What is returned is their
    mean given the noisy counts.

    Args:
      last: Rows in the bin that stands out, or as many as have not been seen.
      counts: Noisy numbers of rows in the bins above it.
      noise_stddev: Standard deviation of the noise in each.
    """
    expected = last * _DECAY ** np.arange(1, len(counts) + 1)
    if noise_stddev == 0 or last < 1:
        return np.zeros(len(counts))
    # A normal distribution, cut off at zero.
    centre = counts / noise_stddev - noise_stddev / np.maximum(expected, 1e-9)
    near = np.maximum(centre, -_FAR_OFF)
    log_density = -0.5 * near**2 - 0.5 * math.log(2.0 * math.pi)
    mean = near + np.exp(log_density - special.log_ndtr(near))
    return noise_stddev * np.where(centre > -_FAR_OFF, mean, -1.0 / centre)


def _far_or_near(
    standing: Bool[np.ndarray, " bins"], width: int, threshold: float
) -> Float64[np.ndarray, " windows"]:
    """By how many standard deviations each window of this width has to stand out."""
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
    near: Bool[np.ndarray, " bins"],
    *,
    is_known: bool,
    threshold: float = THRESHOLD,
) -> Bool[np.ndarray, " bins"]:
    """The bins that stand out of the noise, alone or with their neighbours.

    Windows of few bins come first, so that a high bin does not take empty ones along.
    Windows next to what stands out already need less to join it.

    Args:
      counts, noise_stddev, num_rows: See `norm_from_counts`.
      near: The bins near the norm of synthetic rows.
      is_known: Whether a chance finding far away is worse than nothing, as where a norm
        is known already. A wide window would make that 10⁹ times as large.
      threshold: Standard deviations by which the first window has to stand out.
    """
    standing = np.zeros(len(counts), bool)

    def add(
        width: int, threshold: float, beside: bool = False, inside: Any = None
    ) -> bool:
        """Adds the highest window of this width, if there is one; says whether."""
        totals = np.convolve(counts, np.ones(width), "valid")
        taken = np.convolve(standing, np.ones(width), "valid") > 0.5
        limit = _far_or_near(standing, width, threshold)
        limit = limit * math.sqrt(width) * noise_stddev
        # Together all rows do not reach such a limit, so what does is noise.
        eligible = ~taken & (totals > limit) & (totals >= 1.0) & (limit < num_rows)
        if inside is not None:
            eligible &= np.convolve(inside, np.ones(width), "valid") > width - 0.5
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
    if not (is_known or standing.any()) and add(_WINDOWS[-1], THRESHOLD_WIDEST):
        extend()
    for width in _WINDOWS_NEAR:
        if not standing.any() and add(width, THRESHOLD_NEAR, inside=near):
            extend()
    return standing
