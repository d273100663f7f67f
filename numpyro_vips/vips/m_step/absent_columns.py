"""Columns that may be zero in all rows, as noisy curvatures show them.

A schema has an indicator of values that it does not list, and mostly no row has one.
Rows say nothing of its coefficient then. Along the eigenvectors of a noisy curvature
that does not show: they mix such a coordinate with others, and noise that has led there
is taken for what rows say. In the coordinate itself it does. Its own entry of the
curvature is all that rows can say of it, whatever the others are.

Entries are compared in standard deviations of their noise: each is zero, or alike with
others; see `hidden_eigenvalues`. Rows are asked for their curvature at zero, and again
where the coefficients have come to. What was found at zero counts, too.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from numpyro_vips.vips.m_step.hidden_eigenvalues import (
    HiddenEigenvalues,
    hidden_eigenvalues,
)
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
# The least mean of the entries that is thought of, in standard deviations of the noise.
_LEAST_MEAN = 0.05
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


class OwnEntries(NamedTuple):
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
    entries, number = own_entries(last, axes), axes.shape[1]
    if not number or not np.all(entries.stddev > 0):
        return OwnInformation(np.full(number, np.inf), np.zeros(number))
    if first is not None:
        entries = _together(own_entries(first, axes), entries)
    odds = np.ones(number)
    if unlisted is not None:
        odds[unlisted] = _UNLISTED
    hidden = hidden_entries(entries, odds)
    known = known_precision(entries.stddev[:, None] * hidden.values, variance[:, None])
    known = np.hstack([np.zeros((number, 1)), known])
    weights = np.hstack([hidden.nothing[:, None], hidden.weights])
    mixed = variance_with_the_interval_of(1.0 / (prior[:, None] + known), weights)
    return OwnInformation(np.maximum(1.0 / mixed - prior, 0.0), hidden.nothing)


def own_entries(
    release: Information, axes: Float64[np.ndarray, "size chosen"]
) -> OwnEntries:
    """The quadratic forms of a release along axes, and their noise."""
    values = np.sum(axes * (release.matrix @ axes), axis=0)
    return OwnEntries(values, np.sqrt(2.0 * np.diag(release.noise_between(axes))))


def hidden_entries(
    entries: OwnEntries, odds: Float64[np.ndarray, " chosen"] | float = 1.0
) -> HiddenEigenvalues:
    """What entries may be, in standard deviations of their noise.

    Args:
      entries: What was released of them.
      odds: By how much the odds that one is zero are larger than those of others.
    """
    size = len(entries.values)
    odds = np.broadcast_to(odds, size) * (_ABSENT / (1.0 - _ABSENT))[:, None]
    return hidden_eigenvalues(
        np.ascontiguousarray(entries.values / entries.stddev),
        np.ones(size),
        least=_LEAST_MEAN,
        chances=tuple(tuple(of_set) for of_set in (odds / (1.0 + odds)).tolist()),
    )


def _together(first: OwnEntries, last: OwnEntries) -> OwnEntries:
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
    return OwnEntries(mean, total**-0.5)
