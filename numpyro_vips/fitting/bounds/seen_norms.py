"""What a histogram shows of the norms of rows, and which norm is best to clip to."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import special

from numpyro_vips.fitting.bounds.norm_histogram import GRID_FACTOR, NEAR, standing_bins
from numpyro_vips.privacy.releases import Kept

# The part of all rows that has to stand out of a later histogram, which has more noise,
# for it to replace the norm that an earlier one has found.
ENOUGH_TO_REPLACE = 0.7
# How much worse clipped mass is than noise of the same size: noise shows in the
# intervals, and bias does not.
BIAS_WEIGHT = 3.0
# How much worse noise in sums of squares is than a loss of the same size, as directions
# are given up where noise may be all that is seen. Chosen on six regressions.
HIDING_WEIGHT = 8.0
# With fewer coordinates than these noise turns directions less. What is far below 1 in
# this measure then costs less, down to a part of it; chosen on two more regressions.
MANY_COORDINATES = 14
# How many times the norm of the middle row they are clipped to at least.
LEAST_OF_MIDDLE = 2.0
# By how many standard deviations half of the rows have to stand out of the noise in a
# sum over half of the bins.
MIDDLE_STANDS_OUT = 3.0
# Which part of what is clipped off differences to redrawn rows adds up, as the model is
# not quite right. Reasoned, not tuned: the larger it is, the less is clipped, and the
# wider intervals of few rows become.
UNBALANCED = 0.05
# The same where a Poisson rate is proportional to an argument. That may be a time which
# ended with the event that is counted, and the program does not tell it from an
# exposure that was known before. Rows with the time of another are unlike the data, and
# what is clipped off them all points one way.
UNBALANCED_EXPOSED = 1.0
# Variances of estimates that are so much larger than the least count as equal to it.
NEARLY = 1.05
# The same where clipping may bias a result, as nothing balances it: intervals are wider
# by the root of this at most. Where noise is far below what the rows leave open, less
# of it is worth no bias: the globals may yet move to where gradients are longer.
NEARLY_BIASED = 1.25
# By how much the longest of these gradients are longer than the middle one, over the
# square root of the number of coordinates: they have about one size in each, and those
# of scales long tails. Noise hides the few that are longest. Chosen on eight models
# with 600 and 1,000 rows, where scales came out too small without. Intervals are wider
# for it by the root of the second number at most.
LONGEST_OF_SCORES, NEARLY_LONGEST = 4.0, 4.0
# How many times as long as when they are counted these gradients may become.
LONGER_LATER = 2.0
# Bins above the last one that stands out which may have rows under their noise, and
# what share of the rows of the bin below each is expected to have: about that of a
# Gaussian tail.
_MARGIN = 8
DECAY = 0.2
# Where a normal distribution is cut off so far in its tail, the rest is exponential.
_FAR_OFF = 30.0


class Hidden(NamedTuple):
    """What is known from elsewhere of rows that a histogram's noise may hide.

    Attributes:
      squares: About what the squared norms of all rows add up to. What the rows that
        are seen lack of it is that of rows that are not.
      norm: The norm that those have.
    """

    squares: float
    norm: float


class SeenNorms(NamedTuple):
    """How many rows have which norm, as far as a histogram shows it.

    Attributes:
      uppers: The upper edge of each bin, growing.
      rows: About how many rows are in it; zero where nothing stands out of the noise.
    """

    uppers: Float64[np.ndarray, " bins"]
    rows: Float64[np.ndarray, " bins"]

    def of_squares(self, factor: float) -> "SeenNorms":
        """What it shows of norms that are these squared, times a factor.

        Bins would be twice as wide, and norms rounded up by up to two. So each is cut
        in two, and rows go to its halves as if how many are larger than a norm were a
        power of the norm within it.
        """
        rows = np.maximum(self.rows, 0.0)
        larger = np.cumsum(rows[::-1])[::-1]
        at_ends = (larger - rows) / np.maximum(larger, np.finfo(float).tiny)
        roots = np.sqrt(np.clip(at_ends, DECAY**2, 1.0))
        of_upper = roots / (1.0 + roots)
        halves = np.stack([rows * (1.0 - of_upper), rows * of_upper], axis=1)
        uppers = np.stack([self.uppers / math.sqrt(GRID_FACTOR), self.uppers], axis=1)
        return SeenNorms(factor * uppers.ravel() ** 2, halves.ravel())

    def least_harm(self, relative_noise: float, alignment: float = 1.0) -> float:
        """The norm at which clipping and noise together do least harm.

        Clipping at c takes Σ (norm − c)₊ off the sum of the rows at worst, and noise
        adds `relative_noise` times c.

        Args:
          relative_noise: L2 norm of the noise that the released sums will have once
            they are averaged, over the clipping norm.
          alignment: By how much of their norms what is clipped off the rows adds up.
        """
        harm = self._harm(relative_noise, alignment)
        return float(self.uppers[np.argmin(harm)])

    def least_error(
        self, relative_noise: float, alignment: float, num_directions: int
    ) -> float:
        """The norm at which clipped gradients say most, near the optimum.

        Gradients of rows add up to zero there, and the sum varies by what their squares
        add up to, which no norm changes. Of norms whose harm is small beside that the
        largest is taken, up to a few times the one of least harm. Few gradients are to
        be longer than it, whether they are seen or not, as far as the noise allows.

        Args:
          relative_noise, alignment: See `least_harm`.
          num_directions: Of a gradient.
        """
        harm = self._harm(relative_noise, alignment)
        longest = self.middle * (1.0 + LONGEST_OF_SCORES / math.sqrt(num_directions))
        errors = harm + float(np.maximum(self.rows, 0.0) @ self._middles**2)
        nearly = errors <= NEARLY_BIASED * errors.min()
        # Its edges are a grid's, and rounded.
        nearly &= self.uppers <= 1.1 * LONGER_LATER * self.uppers[np.argmin(harm)]
        is_affordable = errors <= NEARLY_LONGEST * errors.min()
        nearly |= is_affordable & (self.uppers <= longest)
        return float(self.uppers[np.flatnonzero(nearly)[-1]])

    def _harm(
        self, relative_noise: float, alignment: float
    ) -> Float64[np.ndarray, " bins"]:
        """What clipping and noise do together, squared, by norm; see `least_harm`."""
        longer = np.maximum(self.uppers[:, None] - self.uppers, 0.0)
        clipped = BIAS_WEIGHT * alignment * (self.rows @ longer)
        return clipped**2 + (relative_noise * self.uppers) ** 2

    @property
    def middle(self) -> float:
        """The norm that half of the rows do not exceed."""
        below = np.cumsum(np.maximum(self.rows, 0.0))
        return float(self.uppers[np.searchsorted(below, 0.5 * below[-1])])

    def least_variance(
        self, relative_noise: float, unbalanced: float = UNBALANCED
    ) -> float:
        """The norm at which differences between scores say most of the globals.

        The norms are those of differences g − g* to the scores of rows that the model
        redraws. If the model is right, clipping does not bias these. It makes the sum
        move less with the globals, by `Kept.slope`, and the variance of an estimate is
        that of the noise and the rows together over the slope's square. No model is
        quite right: a part of what is clipped off does not add up to zero, which counts
        the more the more rows there are. Of norms that are nearly as good the largest
        is taken.

        Args:
          relative_noise: See `least_harm`.
          unbalanced: Which part of what is clipped off does not.
        """
        kept = [self.kept(float(norm)) for norm in self.uppers]
        slopes = np.array([of.slope for of in kept])
        squares = np.array([of.square for of in kept])
        size = float(np.maximum(self.rows, 0.0) @ self._middles**2)
        # Half of a difference's square is the row's own.
        longer = np.maximum(self._middles[:, None] - self.uppers, 0.0)
        bias = unbalanced * (np.maximum(self.rows, 0.0) @ longer)
        variances = (relative_noise * self.uppers) ** 2 + 0.5 * size * squares
        variances = (variances + bias**2) / slopes**2
        nearly = variances <= NEARLY * variances.min()
        return float(self.uppers[np.flatnonzero(nearly)[-1]])

    def least_loss(self, relative_noise: float, num_coordinates: int) -> float:
        """The norm at which sums of squares say most of all coordinates.

        A few rows may have most of such a sum, in coordinates that they are sure of.
        What is clipped off them is lost there, as a part of the sum. Noise at their
        norm hides what all rows say of other coordinates, which is about the number of
        rows times the norm of the middle one. It is not below a few times the latter:
        sums that are much too small mislead more than noise does.

        Args:
          relative_noise: See `least_harm`.
          num_coordinates: Of which the sums are squares and products.
        """
        rows = np.maximum(self.rows, 0.0)
        longer = np.maximum(self._middles[:, None] - self.uppers, 0.0)
        clipped = rows @ longer / float(rows @ self._middles)
        hidden = relative_noise * self.uppers / (rows.sum() * self.middle)
        noise = HIDING_WEIGHT * hidden
        part = np.maximum(noise, num_coordinates / MANY_COORDINATES)
        loss = clipped + noise * np.minimum(part, 1.0)
        loss = np.where(self.uppers < LEAST_OF_MIDDLE * self.middle, np.inf, loss)
        return float(self.uppers[np.argmin(loss)])

    def kept(self, norm: float) -> Kept:
        """What clipping at a norm leaves of differences to the scores of redrawn rows.

        The mean of what a difference is shortened to, and that of its square: as if how
        long a difference is said nothing of how its length is spread over the
        coordinates. In a trace over all coordinates, ½ E[clip(g − g*) (g − g*)ᵀ], long
        differences would count most, though many of them are long in one coordinate.

        The variance is that of E[clip(g − g*) | g], as rows are redrawn in each step.
        It is at most ½ E[clip(g − g*) clip(g − g*)ᵀ], which is taken for it. This and
        the slope are traces: the slope is released as one, see `clipped_slope.py`.
        """
        factors = np.minimum(1.0, norm / self._middles)
        rows = np.maximum(self.rows, 0.0)
        slopes = rows * factors * self._middles**2
        return Kept(
            slope=float(rows @ factors / rows.sum()),
            square=float(rows @ factors**2 / rows.sum()),
            variance_per_slope=float(slopes @ factors / slopes.sum()),
        )

    @property
    def _middles(self) -> Float64[np.ndarray, " bins"]:
        """The geometric middle of each bin."""
        return self.uppers / math.sqrt(GRID_FACTOR)


def seen_norms(
    counts: Float64[np.ndarray, " bins"],
    edges: Float64[np.ndarray, " edges"],
    *,
    noise_stddev: float,
    num_rows: int,
    is_known: bool = False,
    reference: float | None = None,
    hidden: Hidden | None = None,
    decay: float = DECAY,
) -> SeenNorms | None:
    """What noisy counts show of the norms of rows.

    Only bins that stand out of the noise count, by themselves or with their neighbours:
    in empty ones there is nothing but noise, and there are many of them.

    Args:
      counts: Noisy number of rows in each bin (edges[i − 1], edges[i]].
      edges: From `norm_grid`.
      noise_stddev: Standard deviation of the noise in each count.
      num_rows: Public number of rows.
      is_known: Whether an earlier histogram has found a norm. It stays unless most of
        the rows are seen here.
      reference: The norm of rows of unit size, near which less has to stand out where
        nothing does otherwise; None for what is sure alone.
      hidden: What is known of rows that the noise may hide.
      decay: What share of the rows of the bin below each one in the tail is expected to
        have.

    Returns:
      None if too little stands out of the noise.
    """
    # The first bin has rows that add nothing, whatever the norm is.
    idle, counts = counts[0], counts[1:]
    uppers = _uppers(edges)
    near = None
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
    tail = _tail(min(float(counts[last]), unseen), above, noise_stddev, decay)
    rows = np.where(standing, counts, 0.0)
    rows[last + 1 : last + 1 + len(tail)] = tail
    if hidden is not None:
        missing = hidden.squares - float(rows @ uppers**2)
        if missing > 0:
            place = min(int(np.searchsorted(uppers, hidden.norm)), len(uppers) - 1)
            rows[place] += missing / hidden.norm**2
    return SeenNorms(uppers, rows)


def _uppers(edges: Float64[np.ndarray, " edges"]) -> Float64[np.ndarray, " bins"]:
    """The upper edges of all bins but the first; the last bin has one, too."""
    return np.append(edges[1:], edges[-1] * GRID_FACTOR)


def middle_of_all(
    counts: Float64[np.ndarray, " bins"],
    edges: Float64[np.ndarray, " edges"],
    *,
    noise_stddev: float,
    num_rows: int,
) -> float | None:
    """The norm that half of the rows do not exceed, by sums over all bins.

    Where norms are spread over so many bins that none stands out of the noise, sums
    over half of the bins may.

    Args:
      counts, edges, noise_stddev, num_rows: See `seen_norms`.

    Returns:
      None if the noise hides the half of the rows, too.
    """
    idle, counts = counts[0], counts[1:]
    noise = noise_stddev * math.sqrt(0.5 * len(counts))
    num_longer = num_rows - idle
    if MIDDLE_STANDS_OUT * noise > 0.5 * num_longer:
        return None
    is_half = np.cumsum(counts) >= 0.5 * num_longer
    if not is_half.any():
        return None  # Most rows count as zero.
    return float(_uppers(edges)[np.argmax(is_half)])


def _tail(
    last: float,
    counts: Float64[np.ndarray, " above"],
    noise_stddev: float,
    decay: float,
) -> Float64[np.ndarray, " above"]:
    """How many rows may be in the bins above the last one that stands out.

    Norms have tails, and the few rows in them are hidden by the noise. Before the
    counts are looked at, they are taken to become fewer by `decay` from bin to bin:
    numbers with an exponential distribution of this mean. What is returned is their
    mean given the noisy counts.

    Args:
      last: Rows in the bin that stands out, or as many as have not been seen.
      counts: Noisy numbers of rows in the bins above it.
      noise_stddev: Standard deviation of the noise in each.
      decay: See `seen_norms`.
    """
    expected = last * decay ** np.arange(1, len(counts) + 1)
    if noise_stddev == 0 or last < 1:
        return np.zeros(len(counts))
    # A normal distribution, cut off at zero.
    centre = counts / noise_stddev - noise_stddev / np.maximum(expected, 1e-9)
    near = np.maximum(centre, -_FAR_OFF)
    log_density = -0.5 * near**2 - 0.5 * math.log(2.0 * math.pi)
    mean = near + np.exp(log_density - special.log_ndtr(near))
    return noise_stddev * np.where(centre > -_FAR_OFF, mean, -1.0 / centre)
