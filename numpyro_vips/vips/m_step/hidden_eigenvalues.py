"""What eigenvalues of information may be that were found with noise.

They are alike, by how much is unknown: each is zero with a small probability, as of the
weight of a column of zeros, or has a Gamma distribution that it shares with the others.
The mean of that may be anything from next to nothing to the mean that was found less a
standard deviation, so that what is hidden counts for little where there is only noise.
Its shape may be anything from an exponential's to that of a narrow peak. All of these
are tried, and weighed by how probable they make what was found (a hierarchical model
with its hyperparameters on a grid, as in Gelman et al., Bayesian Data Analysis, section
5.3). So an eigenvalue that noise hides is known as well as the others are alike.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64
from scipy import special

# How probable it is beforehand that each eigenvalue is zero: sets of chances, each as
# probable as the others, and in each one for all eigenvalues or one for every.
Chances = tuple[tuple[float, ...], ...]
_NOTHING: Chances = ((0.1,),)
# The shapes of the Gamma distribution that are tried, and how many means.
_SHAPES = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
_MEANS = 13
# An eigenvalue is tried at these quantiles of what the noise alone leaves of it, and at
# so many values beside, from far below the noise to the largest.
_QUANTILES = (np.arange(60) + 0.5) / 60
_VALUES = 80
_FAR_BELOW = 0.01
# How far above what was found the largest is looked for, and how far below zero one may
# be found, in standard deviations of the noise.
_ABOVE, _BELOW = 4.0, 30.0
# The part of the largest noise that is rounding.
_ROUNDING = 1e-9
_TINY = np.finfo(np.float64).tiny
# Hyperparameters with less of the weight than that are left out.
_LEAST_WEIGHT = 1e-6


# By the shape of the Gamma distribution, and by eigenvalue.
OfShapes = Float64[np.ndarray, "shapes read ..."]


class HiddenEigenvalues(NamedTuple):
    """Posterior distributions of eigenvalues, one for each.

    Attributes:
      values: What they may be, growing.
      weights: The probability of each of these.
      nothing: The probability that an eigenvalue is zero. With it, weights add up to 1.
    """

    values: Float64[np.ndarray, "read values"]
    weights: Float64[np.ndarray, "read values"]
    nothing: Float64[np.ndarray, " read"]

    @property
    def mean(self) -> Float64[np.ndarray, " read"]:
        return np.sum(self.weights * self.values, axis=1)


def hidden_eigenvalues(
    found: Float64[np.ndarray, " read"],
    stddev: Float64[np.ndarray, " read"],
    *,
    least: float,
    most: float = math.inf,
    chances: Chances = _NOTHING,
) -> HiddenEigenvalues:
    """What eigenvalues may be, given what was found of them.

    Args:
      found: The eigenvalues with noise, moved together where it has driven them apart.
      stddev: Standard deviation of the noise in each.
      least, most: What their mean is at least, and at most.
      chances: How probable it is beforehand that they are zero; see `Chances`.
    """
    is_noisy = stddev > _ROUNDING * np.max(stddev)
    if not np.all(is_noisy):
        return _with_known(
            found, stddev, is_noisy, least=least, most=most, chances=chances
        )
    return _of_noisy(found.tobytes(), stddev.tobytes(), least, most, chances)


# A curvature is released twice, and read in every step.
@functools.lru_cache(maxsize=32)
def _of_noisy(
    found_bytes: bytes,
    stddev_bytes: bytes,
    least: float,
    most: float,
    chances: Chances,
) -> HiddenEigenvalues:
    """`hidden_eigenvalues` where all have noise; of doubles, which can be compared."""
    found, stddev = np.frombuffer(found_bytes), np.frombuffer(stddev_bytes)
    values = _tried(found, stddev, least)
    log_likelihood = _log_normal((values - found[:, None]) / stddev[:, None])
    log_likelihood -= np.log(stddev)[:, None]
    # By the trapezoidal rule.
    steps = np.diff(values, axis=1)
    widths = np.zeros_like(values)
    widths[:, :-1] += 0.5 * steps
    widths[:, 1:] += 0.5 * steps
    log_density = log_likelihood + np.log(np.maximum(widths, _TINY))
    at_zero = _log_normal(found / stddev) - np.log(stddev)

    largest = max(min(most, _surely(found, stddev)), 1.01 * least)
    means = np.geomspace(least, largest, _MEANS)
    logs = np.log(np.maximum(values, _TINY))
    shapes = _SHAPES[:, None, None]

    def of_values_at(mean: float) -> OfShapes:
        """Log probabilities of all values, and what was found, if none is zero."""
        rates = shapes / mean
        of_values = (shapes - 1.0) * logs - rates * values + shapes * np.log(rates)
        return of_values + log_density - special.gammaln(shapes)

    # By chance, mean, shape and eigenvalue.
    of_some = np.array([special.logsumexp(of_values_at(m), axis=2) for m in means])
    chance = np.array(chances)[:, None, None, :]
    is_zero, is_some = np.log(chance) + at_zero, np.log1p(-chance) + of_some
    of_all = np.logaddexp(is_zero, is_some)
    shares = special.softmax(np.sum(of_all, axis=3))
    nothing = np.sum(shares[..., None] * np.exp(is_zero - of_all), axis=(0, 1, 2))
    given = np.sum(shares[..., None] * np.exp(is_some - of_all), axis=0)
    weights = np.zeros_like(values)
    for mean, of_mean, share in zip(means, of_some, given, strict=True):
        if np.max(share) >= _LEAST_WEIGHT:
            of_values = of_values_at(mean) - of_mean[..., None]
            weights += np.sum(share[..., None] * np.exp(of_values), axis=0)
    total = np.sum(weights, axis=1) + nothing
    return HiddenEigenvalues(values, weights / total[:, None], nothing / total)


def _with_known(
    found: Float64[np.ndarray, " read"],
    stddev: Float64[np.ndarray, " read"],
    is_noisy: Bool[np.ndarray, " read"],
    *,
    least: float,
    most: float,
    chances: Chances,
) -> HiddenEigenvalues:
    """The same where some eigenvalues have no noise; these are as they were found."""
    values, weights = np.maximum(found, 0.0)[:, None], np.ones((len(found), 1))
    nothing = np.zeros(len(found))
    if not np.any(is_noisy):
        return HiddenEigenvalues(values, weights, nothing)
    hidden = hidden_eigenvalues(
        found[is_noisy],
        stddev[is_noisy],
        least=least,
        most=most,
        chances=chances,
    )
    number = hidden.values.shape[1]
    values = np.repeat(values, number, axis=1)
    weights = np.repeat(weights / number, number, axis=1)
    values[is_noisy], weights[is_noisy] = hidden.values, hidden.weights
    nothing[is_noisy] = hidden.nothing
    return HiddenEigenvalues(values, weights, nothing)


def _surely(
    found: Float64[np.ndarray, " read"], stddev: Float64[np.ndarray, " read"]
) -> float:
    """The mean of the eigenvalues, less a standard deviation of the noise in it."""
    precision = stddev**-2.0
    mean = np.sum(precision * found) / np.sum(precision)
    return float(mean - 1.0 / np.sqrt(np.sum(precision)))


def moved_together(
    found: Float64[np.ndarray, " read"],
    between: Float64[np.ndarray, "read read"],
) -> Float64[np.ndarray, " read"]:
    """Eigenvalues of a noisy matrix, without what noise drives them apart on average.

    Args:
      found: Of the noisy matrix.
      between: The variance of the noise between its eigenvectors; half of that along
        them on the diagonal.
    """
    gaps = found[:, None] - found
    near = gaps**2 + 2.0 * between
    push = between * gaps / np.where(near > 0, near, 1.0)
    return found - 2.0 * np.sum(push, axis=1)


def _log_normal(of: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """The log density of a standard Normal."""
    return -0.5 * of**2 - 0.5 * math.log(2.0 * math.pi)


def _tried(
    found: Float64[np.ndarray, " read"],
    stddev: Float64[np.ndarray, " read"],
    least: float,
) -> Float64[np.ndarray, "read values"]:
    """Values that an eigenvalue is tried at, close to each other where it may be."""
    positive = special.ndtr(np.maximum(found / stddev, -_BELOW))
    # Quantiles of a Normal that is cut off at zero, by its upper tail.
    tails = np.outer(positive, 1.0 - _QUANTILES)
    near = np.maximum(found[:, None] - stddev[:, None] * special.ndtri(tails), 0.0)
    smallest = _FAR_BELOW * min(least, float(np.min(stddev)))
    largest = max(float(np.max(found + _ABOVE * stddev)), 10.0 * least)
    others = np.geomspace(smallest, largest, _VALUES)
    others = np.broadcast_to(others, (len(found), _VALUES))
    return np.sort(np.hstack([np.zeros((len(found), 1)), others, near]), axis=1)
