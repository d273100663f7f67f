"""How many rows count as zero, of what was released about it.

A row counts as zero if it holds a number that is not finite, an observation outside its
support, or an index out of range. Histograms of norms count such rows beside their
bins, and steps that report count them, too.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import special

from numpyro_vips.fitting.step import FOR_INTERVALS, Step
from numpyro_vips.privacy.releases import VALID_ROWS, ValidRows
from numpyro_vips.privacy.statement import NoisyShare

# How probable it is beforehand that any row counts as zero. If so, each share is as
# probable as any other.
_ANY = 0.5


def shares_counted(
    step: Step, counts: Mapping[str, np.ndarray], num_rows: int
) -> tuple[NoisyShare, ...]:
    """The share of rows that count as zero, by every part that a histogram counted.

    Args:
      step: A histogram of norms.
      counts: What it released: by part, bins and at the end the rows that count as
        zero, see `abilities.ClippingNorms.norm_counts`.
      num_rows: Public number of rows.
    """
    return tuple(
        NoisyShare(
            share=float(counts[part.name][-1]) / num_rows,
            stddev=step.mechanism.block_noise_stddev(part.name) / num_rows,
        )
        for part in step.counted
        # Those have norms wherever the numbers are finite that they are made of.
        if FOR_INTERVALS.isdisjoint(part.blocks)
    )


def share_of_valid(step: Step, counts: np.ndarray, num_rows: int) -> NoisyShare:
    """The valid rows over the public number of rows, of a step that counted them."""
    stddev = step.mechanism.block_noise_stddev(VALID_ROWS)
    return NoisyShare(share=float(counts) / num_rows, stddev=stddev / num_rows)


def combined(shares: Sequence[NoisyShare]) -> NoisyShare:
    """One share from several releases of it, weighed by their precision.

    Args:
      shares: At least one. The first without noise is taken as it is.
    """
    for share in shares:
        if not share.stddev:
            return share
    precisions = np.array([share.stddev**-2.0 for share in shares])
    found = precisions @ [share.share for share in shares] / precisions.sum()
    return NoisyShare(share=float(found), stddev=1.0 / math.sqrt(precisions.sum()))


def valid_rows(zeros: NoisyShare, num_rows: int) -> ValidRows:
    """How many rows do not count as zero.

    Data are mostly complete, and noise is no reason to doubt it. So beforehand it is as
    probable that no row counts as zero as that some share of them does.

    Args:
      zeros: The share that counts as zero, as released.
      num_rows: Public number of rows.
    """
    share, stddev = zeros.share, zeros.stddev
    if not stddev:
        return ValidRows(num_rows * (1.0 - min(max(share, 0.0), 1.0)), 0.0)
    ends = np.array([0.0, 1.0])
    ends = (ends - share) / stddev
    log_densities = -0.5 * ends**2 - 0.5 * math.log(2.0 * math.pi)
    possible = float(np.diff(special.ndtr(ends))[0])
    if not possible > 0:  # Far below no row, or far above all of them.
        return ValidRows(float(num_rows) if share < 0 else 0.0, 0.0)
    between = float(-np.diff(np.exp(log_densities))[0])
    mean = share + stddev * between / possible
    log_odds = math.log(possible * stddev) - float(log_densities[0])
    log_odds += math.log(_ANY) - math.log1p(-_ANY)
    number = num_rows * (1.0 - float(special.expit(log_odds)) * mean)
    return ValidRows(number, num_rows * stddev if log_odds > 0 else 0.0)
