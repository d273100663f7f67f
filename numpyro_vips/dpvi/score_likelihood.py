"""What DPVI's releases say of the globals: a Normal posterior that knows of the noise.

A step releases the rows' score at a place z_t, g_t = ∇ log p(rows | z_t) + noise. With
the rows' information I, known from a release of its own near the end, and averages over
the steps, ḡ and z̄, the score is about linear between these places:

    ḡ = I (θ − z̄) + N(0, I) + N(0, V).

N(0, I) is what the rows do not know of the truth θ, and V the variance of the noise in
ḡ. Read as a likelihood of θ, this is Gaussian with precision I (I + V)⁻¹ I. The way by
which the iterates came to z_t does not matter, though noise has led them. The posterior
is the Normal with the largest ELBO under this likelihood and the model's own prior.

A matrix that is known badly must not lead away from z̄: where I is taken for smaller
than it is, I⁻¹ḡ goes too far. The iterates, which a new score corrects at every step,
do not. So in directions in which noise hides the information the posterior's mean is
the average of the iterates, and its width alone is as above.

Nothing but released numbers and their noise levels enters.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy import special

from numpyro_vips.dpvi.variational_newton import Draws, Normal, Target, ascend

# Power of t with which the scores of steps count. The first places are far from the
# last, where the score is not linear.
POWER = 2.0
# An eigenvalue of the information may be as far from what was released as the noise is
# large. The posterior's variance is the mean over these quantiles, which leave out the
# outermost twentieth: a flat prior would make a mean of that alone.
_QUANTILES = 0.025 + 0.95 * (np.arange(20) + 0.5) / 20
# How far below zero an eigenvalue may be found, in standard deviations.
_MOST_STDDEVS = 30.0
_POINTS = 64
_CURVATURE_POINTS = 512
_MOST_STEPS = 40


class Score(NamedTuple):
    """Averages over the steps.

    Attributes:
      gradient: The released gradients in the globals that rows depend on.
      place: Where these were asked for.
      variance: Of the noise in an entry of `gradient`.
    """

    gradient: Float64[np.ndarray, " read"]
    place: Float64[np.ndarray, " size"]
    variance: float


class Information(NamedTuple):
    """The released information of all rows.

    Attributes:
      matrix: With noise, symmetric.
      noise_stddev: Of the noise in an entry of the diagonal; off it, it is smaller by
        √2.
    """

    matrix: Float64[np.ndarray, "read read"]
    noise_stddev: float


class NoiseAwareNormal(NamedTuple):
    """The posterior.

    Attributes:
      normal: On the unconstrained space.
      data_stddev: What its standard deviations would be without noise.
    """

    normal: Normal
    data_stddev: Float64[np.ndarray, " size"]


class Spectrum(NamedTuple):
    """A symmetric matrix by its eigenvectors, the columns of `axes`, and values."""

    axes: Float64[np.ndarray, "read read"]
    values: Float64[np.ndarray, " read"]

    def matrix(self, values: Float64[np.ndarray, " read"]) -> np.ndarray:
        """The matrix of these axes and other eigenvalues."""
        return (self.axes * values) @ self.axes.T


def known_precision(
    information: Float64[np.ndarray, "*shape"], variance: float
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
    Nadakuditi, 2011).

    Args:
      found: The rows' information.
      information: What was released of it.
    """
    edge = information.noise_stddev * math.sqrt(len(found.values) / 2.0)
    total = found.values**2 + edge**2
    return np.where(total > 0, found.values**2 / np.where(total > 0, total, 1.0), 0.0)


def rows_information(
    information: Information,
    prior_precision: Float64[np.ndarray, " read"],
    variance: float,
) -> Spectrum:
    """The information that the rows have, given what was released of it.

    Noise drives eigenvalues apart. They are moved together by what it does on average
    (Bun, Allez, Bouchaud and Potters, 2016, for matrices with additive noise). What is
    left is uncertain: an eigenvalue is positive, was found with normal noise, and is
    exponentially distributed otherwise. The mean of that is the trace's, less a
    standard deviation of its noise, so that what is hidden by noise counts for little.
    The eigenvalue that is returned gives the posterior the variance that it has on
    average over these.

    Args:
      information: The release.
      prior_precision: Of each coordinate.
      variance: Of the noise in an entry of the score.
    """
    values, axes = np.linalg.eigh(information.matrix)
    stddev = information.noise_stddev
    if stddev > 0:
        gaps = values[:, None] - values
        off_diagonal = stddev / math.sqrt(2.0)
        pushed = np.sum(gaps / (gaps**2 + stddev**2), axis=1)
        values = values - 2.0 * off_diagonal**2 * pushed
        prior = axes.T**2 @ prior_precision
        trace_stddev = stddev / math.sqrt(len(values))
        typical = max(float(np.mean(values)) - trace_stddev, float(np.mean(prior)))
        values = values - stddev**2 / typical
        positive = special.ndtr(np.maximum(values / stddev, -_MOST_STDDEVS))
        # Quantiles of a Normal that is cut off at zero, by its upper tail.
        tails = np.outer(positive, 1.0 - _QUANTILES)
        tried = np.maximum(values[:, None] - stddev * special.ndtri(tails), 0.0)
        variances = 1.0 / (prior[:, None] + known_precision(tried, variance))
        known = np.maximum(1.0 / np.mean(variances, axis=1) - prior, 0.0)
        values = 0.5 * (known + np.sqrt(known**2 + 4.0 * known * variance))
    return Spectrum(axes, np.maximum(values, 0.0))


def normal_of(
    score: Score,
    information: Information,
    log_prior: Target,
    start: Normal,
    prior_stddev: Float64[np.ndarray, " size"],
) -> NoiseAwareNormal | None:
    """The posterior of all globals.

    Args:
      score, information: What was released.
      log_prior: Log density of the prior at points of the unconstrained space, with its
        gradient.
      start: The average of the iterates, where the posterior is looked for first.
      prior_stddev: How wide the prior is, by coordinate.

    Returns:
      The Normal with the largest ELBO; None if it, or the prior at the start, is not
      finite.
    """
    size, num_read = len(score.place), len(score.gradient)
    found = rows_information(
        information, prior_stddev[:num_read] ** -2.0, score.variance
    )
    total = np.where(found.values > 0, found.values + score.variance, 1.0)
    slope = found.matrix(found.values / total) @ score.gradient
    precision = found.matrix(known_precision(found.values, score.variance))
    # With this slope the average of the iterates would be the mode.
    prior_gradient = log_prior(start.loc[None])[1][0]
    away = (start.loc - score.place)[:num_read]
    slope_that_stays = precision @ away - prior_gradient[:num_read]
    is_hidden = found.matrix(1.0 - share_known(found, information))
    slope = slope + is_hidden @ (slope_that_stays - slope)

    def log_joint(
        points: Float64[np.ndarray, "points size"],
    ) -> tuple[Float64[np.ndarray, " points"], Float64[np.ndarray, "points size"]]:
        values, gradients = log_prior(points)
        away = (points - score.place)[:, :num_read]
        pulled = away @ precision
        values = values + away @ slope - 0.5 * np.sum(away * pulled, axis=1)
        gradients = gradients.copy()
        gradients[:, :num_read] += slope - pulled
        return values, gradients

    bases = int(np.clip(_CURVATURE_POINTS // (2 * size), 2, _POINTS))
    # The same draws in every fit: the posterior is a function of what was released.
    draws = Draws.of(np.random.default_rng(0), size, points=_POINTS, bases=bases)
    normal = None
    for number, iterate in enumerate(ascend(log_joint, start, draws)):
        normal = iterate.normal
        if number + 1 == _MOST_STEPS:
            break
    if normal is None:
        return None
    root = np.linalg.inv(normal.tril)
    without_noise = root.T @ root
    without_noise[:num_read, :num_read] += found.matrix(found.values) - precision
    data_stddev = np.sqrt(np.diag(np.linalg.inv(without_noise)))
    if not np.isfinite(normal.loc).all() or not np.isfinite(data_stddev).all():
        return None
    return NoiseAwareNormal(normal, np.minimum(data_stddev, normal.stddev))
