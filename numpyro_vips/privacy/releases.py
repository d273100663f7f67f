"""When a fit releases what: the kinds of releases that a schedule is made of."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

# A single time, as it does not depend on the globals; rarely, as its noise only slows
# the fit; in every step; at half time, for the coordinates of what is released in later
# steps; or once near the end, for the posterior's intervals.
Release = Literal["once", "refreshed", "adaptive", "pilot", "information"]

# What blocks of the last kind are called: rows' information about the globals, and the
# second moments of their covariates.
INFORMATION = "information"
COVARIATES = "covariates' second moments"
# What the block of pilots is called: the second moments of rows' gradients.
SECOND_MOMENTS = "gradients' second moments"
# What the gradient of DPVI is called, whose parts have no norms one by one.
WHOLE_VECTOR = "gradient"
# How many rows do not count as zero, where their number is not public.
VALID_ROWS = "number of valid rows"
# Blocks that are the square of a row's gradient, about.
SQUARES = frozenset({INFORMATION, SECOND_MOMENTS})


class Columns(NamedTuple):
    """Columns of a block, whose sizes rows are asked for.

    Attributes:
      number: How many there are.
      reference: The norm of their entries together in rows of unit size; None where it
        is the block's.
      about_points: Whether their sizes are others about the points of a pilot, where
        they are asked for again.
    """

    number: int
    reference: float | None = None
    about_points: bool = False


class Together(NamedTuple):
    """Blocks of one step that share a norm, as their numbers are of one size.

    Attributes:
      name: What they are called together.
      blocks: Their names.
      directions: Of all of them; see `Block`.
      from_the_start: Whether they share it however many rows there are. Others have
        norms of their own at first, where rows are enough to count each.
    """

    name: str
    blocks: tuple[str, ...]
    directions: int | None
    from_the_start: bool = False


class Kept(NamedTuple):
    """What clipping leaves of differences to the scores of redrawn rows.

    Attributes:
      slope: The mean part of a difference.
      square: The mean square of this part.
      variance_per_slope: The variance that clipped differences add to their sum, over
        how much they move it with the globals; both in sums over all coordinates, and
        both 1 of rows that are not clipped.
    """

    slope: float
    square: float
    variance_per_slope: float


class ValidRows(NamedTuple):
    """How many rows do not count as zero, as far as what was released tells.

    Attributes:
      number: To expect. Where the public number of rows is the actual one, it is at
        most that.
      stddev: How far it may be off. Zero without noise, and where no row stands out
        that counts as zero: then nearly all of them are taken to be valid.
    """

    number: float
    stddev: float


# What clipped rows do to a global: its entries come out too small or too large, or are
# drawn towards zero, or rows that were clipped only weigh less than the others.
Pull = Literal["too small", "too large", "towards zero", "towards the other rows"]


class ClippingEffect(NamedTuple):
    """What clipping some statistics does to a posterior.

    Attributes:
      pulls: Which way each global is drawn that they inform.
      is_corrected: Whether what was cut off was estimated and added back, by rows that
        the model simulates.
      has_plain_norms: Whether the norms are those of what a caller's `clipping_norm=`
        would bound, too: not of statistics about means that were released before, or in
        units of their columns.
      expected: The share of rows that are clipped if the model is right; None where
        that is not known.
    """

    pulls: Mapping[str, Pull]
    is_corrected: bool = False
    has_plain_norms: bool = True
    expected: float | None = None
