"""What a noisy matrix says of the information that rows have about coordinates.

Both engines release the rows' information I once or twice, with noise, and scores with
noise of their own, V. As a likelihood of the coordinates a score has the precision
I (I + V)⁻¹ I. Here is what I may be, given what was released of it, how much of it may
be believed, and what precision that makes.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import special

from numpyro_vips.vips.m_step.hidden_eigenvalues import (
    HiddenEigenvalues,
    hidden_eigenvalues,
    moved_together,
)

# How much larger than it was taken for an eigenvalue may be, in standard deviations of
# the noise in it.
_MOST_HIDDEN = 2.0
# The central interval that the Normal which is handed out has in common with the
# mixture. A mean of its variances would be that of its far tail: a hundredth of a prior
# a hundred times as wide makes a Normal ten times too wide.
_LEVEL = 0.9
# Steps of Newton's method to its end at most, and the part of it that does not count.
_MOST_STEPS, _EXACT = 60, 1e-13

# What is left of an axis that rows say nothing of, by rounding.
_ROUNDING = 1e-6


class Information(NamedTuple):
    """The released information of all rows.

    Attributes:
      matrix: With noise, symmetric.
      noise_stddev: Of the noise in each entry. One number is that of the diagonal, and
        off it the noise is smaller by √2.
      limit: What each of its eigenvalues is at most, and its trace too if each row
        informs of one direction: the number of rows times the norm that each was
        clipped to. Infinite where nothing is made of it. With `coordinates`, in
        standard deviations of the noise on the diagonal.
      silent: Directions of which rows say nothing whatever they hold, as orthonormal
        columns; the matrix has none of its noise there. None if there are none.
      coordinates: The directions that noise is given in, as columns B of those of the
        matrix, which is B⁻¹ R B⁻ᵀ of the released R. None if they are the same.
    """

    matrix: Float64[np.ndarray, "read read"]
    noise_stddev: Float64[np.ndarray, "read read"] | float
    limit: float = math.inf
    silent: Float64[np.ndarray, "read directions"] | None = None
    coordinates: Float64[np.ndarray, "read read"] | None = None

    @property
    def is_noisy(self) -> bool:
        return bool(np.any(self.noise_stddev))

    @property
    def spectrum(self) -> "Spectrum":
        """Eigenvectors and eigenvalues of the matrix with its noise."""
        values, axes = np.linalg.eigh(self.matrix)
        return Spectrum(axes, values)

    def most_along(
        self, axes: Float64[np.ndarray, "read read"]
    ) -> Float64[np.ndarray, " read"]:
        """What `limit` is along each axis, in the units of the matrix.

        Args:
          axes: Orthonormal, as columns.
        """
        if self.coordinates is None or not math.isfinite(self.limit):
            return np.full(len(self.matrix), self.limit)
        return self.limit * np.sqrt(2.0 * np.diag(self.noise_between(axes)))

    def with_silent(
        self, silent: Float64[np.ndarray, "read directions"]
    ) -> "Information":
        """The information without its noise along directions of which rows say nothing.

        Args:
          silent: They, as orthonormal columns.
        """
        projection = np.eye(len(silent)) - silent @ silent.T
        matrix = projection @ self.matrix @ projection
        return self._replace(matrix=matrix, silent=silent)

    def times(self, factor: float) -> "Information":
        """The information of rows that say this many times as much."""
        return self._replace(
            matrix=factor * self.matrix,
            noise_stddev=factor * self.noise_stddev,
            limit=self.limit if self.coordinates is not None else factor * self.limit,
        )

    def noise_between(
        self, axes: Float64[np.ndarray, "read axes"]
    ) -> Float64[np.ndarray, "axes axes"]:
        """The variance of the noise E in ⟨u, E v⟩, for axes u and v; about.

        It is exact for equal axes, with half the variance in the place of ⟨u, E u⟩'s,
        and for noise of one size along orthogonal ones: entries between axes of which
        no product is released, as of groups that share no row, have none.

        Args:
          axes: As columns; orthonormal where there are silent directions.
        """
        stddev = np.asarray(self.noise_stddev)
        own = axes if self.coordinates is None else self.coordinates @ axes
        if stddev.ndim == 0:
            sizes = np.sum(own**2, axis=0)
            found = 0.5 * float(stddev) ** 2 * np.outer(sizes, sizes)
        else:
            variance = stddev**2
            variance[np.diag_indices(len(variance))] *= 0.5
            found = (own**2).T @ variance @ own**2
        if self.silent is None:
            return found
        outside = 1.0 - np.clip(np.sum((self.silent.T @ axes) ** 2, axis=0), 0.0, 1.0)
        outside[outside < _ROUNDING] = 0.0
        return found * np.outer(outside, outside)


class Spectrum(NamedTuple):
    """A symmetric matrix by its eigenvectors, the columns of `axes`, and values."""

    axes: Float64[np.ndarray, "read read"]
    values: Float64[np.ndarray, " read"]

    def matrix(
        self, values: Float64[np.ndarray, " read"]
    ) -> Float64[np.ndarray, "read read"]:
        """The matrix of these axes and other eigenvalues."""
        return (self.axes * values) @ self.axes.T

    def along(
        self, matrix: Float64[np.ndarray, "..."] | float
    ) -> Float64[np.ndarray, " read"]:
        """The quadratic form of a matrix along each axis, (read,).

        Args:
          matrix: It, or its diagonal where the rest is zero; one number for all of
            this.
        """
        if np.ndim(matrix) == 2:
            return np.sum(self.axes * (matrix @ self.axes), axis=0)
        return self.axes.T**2 @ np.broadcast_to(matrix, self.values.shape)


def known_precision(
    information: Float64[np.ndarray, "*shape"],
    variance: Float64[np.ndarray, "..."] | float,
) -> Float64[np.ndarray, "*shape"]:
    """λ²/(λ + v): what a score with noise of variance v says along an eigenvector."""
    total = information + variance
    return information**2 / np.where(total > 0, total, 1.0)


def share_known(
    found: Spectrum, information: Information
) -> Float64[np.ndarray, " read"]:
    """How far each eigenvector may be believed, from 0 to 1.

    Noise with standard deviation σ off the diagonal turns the eigenvectors of a matrix
    of d rows into any others unless their eigenvalues exceed σ √d (Benaych-Georges and
    Nadakuditi, 2011); here σ² d is the sum over what turns an axis into each other one.

    Args:
      found: The rows' information.
      information: What was released of it.
    """
    total = found.values**2 + np.sum(information.noise_between(found.axes), axis=1)
    return np.where(total > 0, found.values**2 / np.where(total > 0, total, 1.0), 0.0)


def share_from_rows(
    found: Spectrum,
    information: Information,
    prior_precision: Float64[np.ndarray, "..."],
    variance: Float64[np.ndarray, "..."] | float,
) -> Float64[np.ndarray, " read"]:
    """How far rows can have led iterates along each eigenvector, from 0 to 1.

    It is the part of the posterior's precision that is due to scores if the rows have
    as much information as its release leaves possible, and as clipped rows can have.
    Where that is next to nothing beside the prior's, iterates have followed noise.

    Args:
      found: The rows' information.
      information: What was released of it.
      prior_precision: Of each coordinate, or of all as a matrix.
      variance: Of the noise in the score: one number, a diagonal or a matrix.
    """
    stddev = np.sqrt(2.0 * np.diag(information.noise_between(found.axes)))
    most = found.values + _MOST_HIDDEN * stddev
    # What rows can say is spread over the axes.
    evenly = information.most_along(found.axes) / len(most)
    most = np.maximum(np.minimum(most, evenly), found.values)
    known = known_precision(most, found.along(variance))
    return known / (known + found.along(prior_precision))


def hidden_along(
    found: Spectrum, information: Information, *, least: float, most: float = math.inf
) -> HiddenEigenvalues:
    """What the eigenvalue of each eigenvector may be, given the noise in it.

    Args:
      found: The eigenvectors and eigenvalues of what was released.
      information: What was released.
      least, most: See `hidden_eigenvalues`.
    """
    between = information.noise_between(found.axes)
    values = moved_together(found.values, between)
    stddev = np.sqrt(2.0 * np.diag(between))
    return hidden_eigenvalues(values, stddev, least=least, most=most)


def rows_information(
    information: Information,
    prior_precision: Float64[np.ndarray, "..."],
    variance: Float64[np.ndarray, "..."] | float,
    *,
    keeps_squares: bool = False,
) -> Spectrum:
    """The information that the rows have, given what was released of it.

    Noise drives eigenvalues apart. They are moved together by what it does on average
    (Bun, Allez, Bouchaud and Potters, 2016, for matrices with additive noise). What is
    left is uncertain; see `hidden_eigenvalues`. Their mean is no more than what clipped
    rows can add up to. The eigenvalue that is returned gives the posterior the interval
    that a mixture over all that it may be has.

    Args:
      information: The release.
      prior_precision: Of each coordinate, or of all as a matrix.
      variance: Of the noise in the score: one number, a diagonal or a matrix.
      keeps_squares: Whether the posterior gets the mixture's variance and not its
        interval, as its expected squares are what is asked for.
    """
    found = information.spectrum
    axes, values = found
    if information.is_noisy:
        prior = found.along(prior_precision)
        noise = found.along(variance)
        # The d eigenvalues of a row add up to √d times its norm at most.
        most = float(np.mean(information.most_along(axes))) / math.sqrt(len(values))
        least = float(np.mean(prior))
        hidden = hidden_along(found, information, least=least, most=most)
        known = known_precision(hidden.values, noise[:, None])
        parts = np.hstack([1.0 / prior[:, None], 1.0 / (prior[:, None] + known)])
        weights = np.hstack([hidden.nothing[:, None], hidden.weights])
        if keeps_squares:
            variances = np.sum(weights * parts, axis=1)
        else:
            variances = variance_with_the_interval_of(parts, weights)
        known = np.maximum(1.0 / variances - prior, 0.0)
        values = 0.5 * (known + np.sqrt(known**2 + 4.0 * known * noise))
    return Spectrum(axes, np.maximum(values, 0.0))


def variance_with_the_interval_of(
    variances: Float64[np.ndarray, "read parts"],
    weights: Float64[np.ndarray, "read parts"],
) -> Float64[np.ndarray, " read"]:
    """The variance of the Normal with the central interval of a mixture of Normals.

    Args:
      variances, weights: Of the parts, which all have mean zero; weights add up to 1.
    """
    stddevs = np.sqrt(variances)
    widest = special.ndtri(0.5 + 0.5 * _LEVEL)
    end, highest = widest * stddevs.min(axis=1), widest * stddevs.max(axis=1)
    # What is outside of the interval is convex in its end, so that Newton's method goes
    # there from below.
    for _ in range(_MOST_STEPS):
        places = end[:, None] / stddevs
        outside = np.sum(weights * 2.0 * special.ndtr(-places), axis=1)
        density = np.exp(-0.5 * places**2) / stddevs
        slope = math.sqrt(2.0 / math.pi) * np.sum(weights * density, axis=1)
        step = (outside - (1.0 - _LEVEL)) / slope
        end = np.minimum(end + step, highest)
        if np.all(step <= _EXACT * end):
            break
    return (end / widest) ** 2
