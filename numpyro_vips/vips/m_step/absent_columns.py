"""Columns that may be zero in all rows, as noisy curvatures show them.

A schema has an indicator of values that it does not list, and mostly no row has one.
Rows say nothing of its coefficient then. Along the eigenvectors of a noisy curvature
that does not show: they mix such a coordinate with others, and noise that has led there
is taken for what rows say. In the coordinate itself it does. Its own entry of the
curvature is all that rows can say of it, whatever the others are.

Entries are compared in standard deviations of their noise: each is zero, or alike with
others; see `hidden_eigenvalues`. Rows are asked for their curvature at zero, and again
where the coefficients have come to. What was found at zero counts, too.

Rows may also say nothing of a sum, as of an intercept less the coefficients of
indicators for all categories. In which directions there may be nothing is seen in the
first release, and whether there is nothing in the last one: its noise is another, so
that a direction that noise has chosen shows as one of which rows say something.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from numpyro_vips.vips.m_step.hidden_eigenvalues import hidden_eigenvalues
from numpyro_vips.vips.m_step.noisy_information import (
    Information,
    known_precision,
    variance_with_the_interval_of,
)
from numpyro_vips.vips.steps.newton_steps import NewtonTarget
from numpyro_vips.vips.units.frames import Frame

# How probable it is beforehand that a column is zero in all rows: one of these.
_ABSENT = np.array([0.01, 0.1, 0.3])
# By how much the odds are larger for what a schema does not list.
_UNLISTED = 10.0
# What is more probable than this is taken for true.
LIKELY = 0.5
# From which probability on a column may be absent, so that it is no part of others.
_DOUBTFUL = 0.05
# Up to which probability nothing is made of it that rows may say nothing of a sum.
_UNLIKELY = 0.1
# Up to how many standard deviations of its noise an eigenvalue may be one of nothing.
_MOST_OF_NOTHING = 3.0
# The least mean of the entries that is thought of, in standard deviations of the noise.
_LEAST_MEAN = 0.05
# What is left of a direction that is another one, by rounding.
_ROUNDING = 1e-9
# The least that is left of a curvature on the way from zero: the release at zero is no
# evidence of what is not there at all.
_LEAST_LEFT = 0.01


class Release(NamedTuple):
    """A curvature as it was released, with the batch axes of its factor in front.

    Attributes:
      matrix: With noise.
      noise_stddev: Of the noise in its entries.
    """

    matrix: Float64[np.ndarray, "*batch size size"]
    noise_stddev: Float64[np.ndarray, "*batch size size"]

    def at(self, index: tuple[int, ...]) -> Information:
        """That of one vector of a batch."""
        return Information(self.matrix[index], self.noise_stddev[index])


class OwnInformation(NamedTuple):
    """What rows can say at most of each coordinate alone.

    Attributes:
      precision: What they add to the prior's, so that the coordinate gets the interval
        of the mixture of all that its own entry may be.
      absent: How probable it is that its own entry is zero.
    """

    precision: Float64[np.ndarray, " chosen"]
    absent: Float64[np.ndarray, " chosen"]


class _Entries(NamedTuple):
    """What was released of each coordinate's own entry, and the noise in it."""

    values: Float64[np.ndarray, " chosen"]
    stddev: Float64[np.ndarray, " chosen"]


def with_absent_columns(
    target: NewtonTarget,
    first: Release | None,
    frame: Frame | None,
    *,
    intercept: int | None,
    unlisted: Bool[np.ndarray, " size"] | None,
) -> NewtonTarget:
    """A target that knows what rows can say at most of each latent of the model.

    Args:
      target: What was released of a factor.
      first: The curvature at coefficients of zero; None where it is the target's.
      frame: The coordinates of both; None where they are the model's.
      intercept: A coordinate that every row has; None if there is none.
      unlisted: Which coordinates are of categories that a schema does not list, and
        mostly no row has; None if none is.
    """
    shape = target.curvature.shape
    inverse = None if frame is None else frame.inverse
    axes = np.eye(shape[-1]) if inverse is None else np.asarray(inverse)
    axes = np.broadcast_to(axes, shape)
    most, absent = np.full(shape[:-1], np.inf), np.zeros(shape[:-1])
    for index in np.ndindex(*shape[:-2]):
        one = target.at(index)
        read = np.flatnonzero(one.noise_stddev > 0)
        chosen = read[read != intercept]
        mine = axes[index][:, chosen]
        found = own_information(
            None if first is None else first.at(index),
            Information(one.curvature, one.curvature_noise),
            mine,
            prior=np.sum(mine * (one.prior_precision @ mine), axis=0),
            variance=one.noise_stddev**2 @ mine**2,
            unlisted=None if unlisted is None else unlisted[chosen],
        )
        most[index][chosen], absent[index][chosen] = found
    found = target._replace(axes=axes, most_known=most, absent=absent)
    if first is None:
        return found
    return found._replace(first=first.matrix, first_noise=first.noise_stddev)


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
    doubtful = axes[:, absent > _DOUBTFUL]
    if target.silent is not None:
        doubtful = np.hstack([target.silent, doubtful])
    others = directions_of_nothing(
        Information(target.first, target.first_noise),
        Information(target.curvature, target.curvature_noise),
        doubtful,
    )
    is_sure = others.chances > LIKELY
    found = np.hstack([found, others.directions[:, is_sure]])
    sure, chances = silenced(found), others.chances[~is_sure]
    if not len(chances):
        return WithoutNothing(sure)
    found = np.hstack([found, others.directions[:, ~is_sure]])
    return WithoutNothing(sure, silenced(found), float(np.mean(chances)))


def own_information(
    first: Information | None,
    last: Information,
    axes: Float64[np.ndarray, "size chosen"],
    *,
    prior: Float64[np.ndarray, " chosen"],
    variance: Float64[np.ndarray, " chosen"],
    unlisted: Bool[np.ndarray, " chosen"] | None = None,
) -> OwnInformation:
    """What rows can say at most of coordinates.

    Args:
      first: The curvature at coefficients of zero; None where that is the last one.
      last: That of the last release.
      axes: The directions in which each of the coordinates moves alone, as columns.
      prior: The prior's precision along each of these.
      variance: Of the noise in the score along each.
      unlisted: See `with_absent_columns`.
    """
    entries, number = _own(last, axes), axes.shape[1]
    if not number or not np.all(entries.stddev > 0):
        return OwnInformation(np.full(number, np.inf), np.zeros(number))
    if first is not None:
        entries = _together(_own(first, axes), entries)
    odds = np.ones(number)
    if unlisted is not None:
        odds[unlisted] = _UNLISTED
    odds = odds * (_ABSENT / (1.0 - _ABSENT))[:, None]
    hidden = hidden_eigenvalues(
        np.ascontiguousarray(entries.values / entries.stddev),
        np.ones(number),
        least=_LEAST_MEAN,
        chances=tuple(tuple(of_set) for of_set in (odds / (1.0 + odds)).tolist()),
    )
    known = known_precision(entries.stddev[:, None] * hidden.values, variance[:, None])
    known = np.hstack([np.zeros((number, 1)), known])
    weights = np.hstack([hidden.nothing[:, None], hidden.weights])
    mixed = variance_with_the_interval_of(1.0 / (prior[:, None] + known), weights)
    return OwnInformation(np.maximum(1.0 / mixed - prior, 0.0), hidden.nothing)


def _own(release: Information, axes: Float64[np.ndarray, "size chosen"]) -> _Entries:
    values = np.sum(axes * (release.matrix @ axes), axis=0)
    return _Entries(values, np.sqrt(2.0 * np.diag(release.noise_between(axes))))


def _together(first: _Entries, last: _Entries) -> _Entries:
    """Entries of the last release, of which the first says something as well.

    The first has more of each by a factor that is about the same for all.
    """
    precision = last.stddev**-2.0
    left = np.sum(first.values * last.values * precision)
    left /= max(float(np.sum(first.values**2 * precision)), np.finfo(float).tiny)
    left = float(np.clip(left, _LEAST_LEFT, 1.0))
    of_first = (left * first.stddev) ** -2.0
    total = of_first + precision
    mean = (of_first * left * first.values + precision * last.values) / total
    return _Entries(mean, total**-0.5)


class Nothing(NamedTuple):
    """Directions of which rows may say nothing.

    Attributes:
      directions: They, as columns.
      chances: How probable it is that rows say nothing of each.
    """

    directions: Float64[np.ndarray, "size directions"]
    chances: Float64[np.ndarray, " directions"]


def directions_of_nothing(
    first: Information,
    last: Information,
    known: Float64[np.ndarray, "size known"],
) -> Nothing:
    """Other directions of which rows may say nothing, by more than a small chance.

    Args:
      first: The curvature at coefficients of zero.
      last: That of another release.
      known: Directions that do not count, as it is known or doubtful whether rows say
        anything of them.
    """
    stddev = np.sqrt(np.diag(np.asarray(last.noise_stddev)))
    read = np.flatnonzero(stddev > 0)
    unit = stddev[read, None]
    # Orthonormal in units in which noise is alike along all coordinates.
    basis, sizes, _ = np.linalg.svd(unit * known[read])
    basis = basis[:, np.count_nonzero(sizes > _ROUNDING) :]
    if not basis.shape[1]:
        return Nothing(np.zeros((len(stddev), 0)), np.zeros(0))
    there = first.matrix[np.ix_(read, read)] / (unit * unit.T)
    _, axes = np.linalg.eigh(basis.T @ there @ basis)
    directions = np.zeros((len(stddev), basis.shape[1]))
    directions[read] = (basis @ axes) / unit
    at_first, at_last = _own(first, directions), _own(last, directions)
    if not np.all(at_last.stddev > 0):
        return Nothing(directions[:, :0], np.zeros(0))
    is_low = np.abs(at_first.values) < _MOST_OF_NOTHING * at_first.stddev
    hidden = hidden_eigenvalues(
        np.ascontiguousarray(at_last.values / at_last.stddev),
        np.ones(len(is_low)),
        least=_LEAST_MEAN,
        chances=tuple((chance,) for chance in _ABSENT.tolist()),
    )
    chosen = is_low & (hidden.nothing > _UNLIKELY)
    return Nothing(directions[:, chosen], hidden.nothing[chosen])
