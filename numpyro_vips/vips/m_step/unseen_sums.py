"""Sums of coefficients of which rows say nothing, as noisy curvatures show them.

Indicators of all categories add up to one, as an intercept does: rows say nothing of
the intercept less their coefficients. In which directions there may be nothing is seen
in the first release of the curvature, and whether there is nothing in the last one. Its
noise is another, so that a direction that noise has chosen shows as one of which rows
say something. Columns that no row has are looked for before; see `absent_columns`.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from numpyro_vips.vips.m_step.absent_columns import (
    LIKELY,
    hidden_entries,
    own_entries,
)
from numpyro_vips.vips.m_step.noisy_information import Information
from numpyro_vips.vips.steps.newton_steps import NewtonTarget

# From which probability on a column may be absent, so that it is no part of others.
DOUBTFUL = 0.05
# Up to which probability nothing is made of it that rows may say nothing of a sum.
_UNLIKELY = 0.1
# Up to how many standard deviations of its noise an eigenvalue may be one of nothing.
_MOST_OF_NOTHING = 3.0
# What is left of a direction that is another one, by rounding.
_ROUNDING = 1e-9


class WithoutNothing(NamedTuple):
    """The target of one vector, without what noise says along some directions.

    Attributes:
      sure: Without those of which rows probably say nothing.
      all: Without those of which it is doubtful, too; None if there are none.
      chance: How probable it is that rows say nothing of these.
    """

    sure: NewtonTarget
    all: NewtonTarget | None = None
    chance: float = 0.0


def without_nothing(
    target: NewtonTarget, centre: Float64[np.ndarray, " size"]
) -> WithoutNothing:
    """The target of one vector, without what noise says of absent columns, and of
    directions of which rows say nothing.

    Args:
      target: See `with_absent_columns`.
      centre: See `NewtonTarget.with_silent`.
    """
    axes, absent = target.axes, target.absent
    if axes is None or absent is None:
        return WithoutNothing(target)

    def silenced(
        directions: Float64[np.ndarray, "size directions"],
    ) -> NewtonTarget:
        if not directions.shape[1]:
            return target
        if target.silent is not None:
            directions = np.hstack([target.silent, directions])
        return target.with_silent(centre, np.linalg.qr(directions)[0])

    found = axes[:, absent > LIKELY]
    if target.first is None or target.first_noise is None:
        return WithoutNothing(silenced(found))
    doubtful = axes[:, absent > DOUBTFUL]
    if target.silent is not None:
        doubtful = np.hstack([target.silent, doubtful])
    sums = unseen_sums(
        Information(target.first, target.first_noise),
        Information(target.curvature, target.curvature_noise),
        doubtful,
    )
    found = np.hstack([found, sums.likely])
    if not sums.doubtful.shape[1]:
        return WithoutNothing(silenced(found))
    every = np.hstack([found, sums.doubtful])
    return WithoutNothing(silenced(found), silenced(every), sums.chance)


class UnseenSums(NamedTuple):
    """Directions of which rows may say nothing, as columns.

    Attributes:
      likely: Those of which they probably say nothing.
      doubtful: Those of which they may say something.
      chance: How probable it is that they say nothing of the latter, on average.
    """

    likely: Float64[np.ndarray, "size likely"]
    doubtful: Float64[np.ndarray, "size doubtful"]
    chance: float

    @classmethod
    def none(cls, size: int) -> "UnseenSums":
        nothing = np.zeros((size, 0))
        return cls(nothing, nothing, 0.0)


def unseen_sums(
    first: Information,
    last: Information,
    known: Float64[np.ndarray, "size known"],
) -> UnseenSums:
    """Directions of which rows say nothing by more than a small chance.

    Args:
      first: The curvature at coefficients of zero.
      last: That of another release.
      known: Directions that do not count, as it is known or doubtful whether rows say
        anything of them.
    """
    size = len(last.matrix)
    stddev = np.sqrt(own_entries(last, np.eye(size)).stddev)
    read = np.flatnonzero(stddev > 0)
    unit = stddev[read, None]
    # Orthonormal in units in which noise is alike along all coordinates.
    basis, sizes, _ = np.linalg.svd(unit * known[read])
    basis = basis[:, np.count_nonzero(sizes > _ROUNDING) :]
    if not basis.shape[1]:
        return UnseenSums.none(size)
    there = first.matrix[np.ix_(read, read)] / (unit * unit.T)
    _, axes = np.linalg.eigh(basis.T @ there @ basis)
    directions = np.zeros((size, basis.shape[1]))
    directions[read] = (basis @ axes) / unit
    at_first, at_last = own_entries(first, directions), own_entries(last, directions)
    if not np.all(at_last.stddev > 0):
        return UnseenSums.none(size)
    is_low = np.abs(at_first.values) < _MOST_OF_NOTHING * at_first.stddev
    nothing = np.where(is_low, hidden_entries(at_last).nothing, 0.0)
    doubtful = (nothing > _UNLIKELY) & (nothing <= LIKELY)
    return UnseenSums(
        directions[:, nothing > LIKELY],
        directions[:, doubtful],
        float(np.mean(nothing[doubtful])) if np.any(doubtful) else 0.0,
    )
