"""What DPVI's releases say of the globals: a Normal posterior that knows of the noise.

A step releases the rows' score at a place z_t, g_t = ∇ log p(rows | z_t) + noise. With
the rows' information I, known from a release of its own near the end, and averages over
the steps, ḡ and z̄, the score is about linear between these places:

    ḡ = I (θ − z̄) + N(0, I) + N(0, V).

N(0, I) is what the rows do not know of the truth θ, and V the variance of the noise in
ḡ. Read as a likelihood of θ, this is Gaussian with precision I (I + V)⁻¹ I. The way by
which the iterates came to z_t does not matter, though noise has led them. The posterior
is the Normal with the largest ELBO under this likelihood and the model's own prior, or
the one with the intervals that draws of the two have; see `sampled_normal.py`.

A matrix that is known badly must not lead away from z̄: where I is taken for smaller
than it is, I⁻¹ḡ goes too far. The iterates, which a new score corrects at every step,
do not. So in directions in which noise hides the information the posterior's mean is
the average of the iterates, and its width alone is as above. But iterates that follow
nothing but noise say nothing: where as much information as so few rows can have would
make no difference beside the prior, the mean is as above too, which is the prior's.

Nothing but released numbers and their noise levels enters.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from numpyro_vips.dpvi.posterior.sampled_normal import with_its_intervals
from numpyro_vips.dpvi.posterior.unseen_globals import (
    LinearGlobals,
    UnseenGlobals,
    without_noise_along,
)
from numpyro_vips.dpvi.posterior.variational_newton import (
    Draws,
    Target,
    VectorNormal,
    ascend,
)
from numpyro_vips.vips.m_step.noisy_information import (
    Information,
    Spectrum,
    known_precision,
    rows_information,
    share_from_rows,
    share_known,
)

_POINTS = 64
_CURVATURE_POINTS = 512
_MOST_STEPS = 40


class Score(NamedTuple):
    """The released gradients, averaged over the steps.

    Attributes:
      gradient: The released gradients in the globals that rows depend on.
      place: Where these were asked for.
      variance: Of the noise in an entry of `gradient`.
    """

    gradient: Float64[np.ndarray, " read"]
    place: Float64[np.ndarray, " size"]
    variance: float


class NoiseAwareNormal(NamedTuple):
    """A Normal posterior that allows for the noise.

    Attributes:
      normal: On the unconstrained space.
      data_stddev: What its standard deviations would be without noise.
      unseen: Directions of which rows may say nothing, as columns: iterates may have
        followed nothing but noise there.
    """

    normal: VectorNormal
    data_stddev: Float64[np.ndarray, " size"]
    unseen: Float64[np.ndarray, "size directions"]


def before_clipping(
    score: Score, slope: Information, variance_per_slope: float
) -> tuple[Score, Information]:
    """A score and an information that the likelihood has the form above with.

    Of clipped scores it is the slope S that was released, and they vary by about κ S:

        ḡ = S (θ − z̄) + N(0, κ S) + N(0, V).

    That is the form above for ḡ/κ, S/κ and V/κ². Without noise the variance of θ is
    S⁻¹ (κ S) S⁻¹, that of an estimate by any scores (Huber 1967).

    Args:
      score: What was released.
      slope: Likewise; see `clipped_slope.py`.
      variance_per_slope: κ.
    """
    by = 1.0 / variance_per_slope
    return (
        score._replace(gradient=by * score.gradient, variance=by**2 * score.variance),
        slope.times(by),
    )


def normal_of(
    score: Score,
    information: Information,
    log_prior: Target,
    start: VectorNormal,
    prior_stddev: Float64[np.ndarray, " size"],
    units: Float64[np.ndarray, "size size"] | None = None,
    *,
    linear: LinearGlobals | None = None,
    pilot: Information | None = None,
) -> NoiseAwareNormal | None:
    """The posterior of all globals.

    Args:
      score, information: What was released.
      log_prior: Log density of the prior at points of the unconstrained space, with its
        gradient.
      start: The average of the iterates, where the posterior is looked for first.
      prior_stddev: How wide the prior is, by coordinate.
      units: U, where the score's gradient and the information are in coordinates u with
        globals U u; None where they are in the globals themselves.
      linear: Which globals rows may say nothing of; none if nothing is said.
      pilot: Another release of the information, or of what is about as large; None if
        there is none.

    Returns:
      The Normal with the largest ELBO, or with the density's own intervals where that
      is far from a Normal; None if it, or the prior at the start, is not finite.
    """
    size, num_read = len(score.place), len(score.gradient)
    units = np.eye(size) if units is None else units
    to_coordinates = np.linalg.inv(units)
    score = score._replace(place=to_coordinates @ score.place)
    start = start.moved(to_coordinates)
    within = units[:num_read, :num_read]
    prior_precision = (within.T * prior_stddev[:num_read] ** -2.0) @ within
    unseen = UnseenGlobals.of_release(
        information,
        within,
        prior_stddev=prior_stddev[:num_read],
        score_variance=score.variance,
        linear=linear,
        pilot=pilot,
    )
    score, information = _without(score, information, unseen.likely)
    bases = int(np.clip(_CURVATURE_POINTS // (2 * size), 2, _POINTS))
    # The same draws in every fit: the posterior is a function of what was released.
    draws = Draws.of(np.random.default_rng(0), size, points=_POINTS, bases=bases)

    def best(score: Score, information: Information) -> _Best:
        found = rows_information(information, prior_precision, score.variance)
        joint = _log_joint(score, found, log_prior, units)
        return _Best(found, joint, _largest_elbo(joint, start, draws))

    found, log_joint, normal = best(score, information)
    if normal is None:
        return None
    normal = with_its_intervals(log_joint, normal, draws)
    # Afterwards, as hyperparameters must not answer to how hidden means are held.
    hidden = 1.0 - share_known(found, information)
    from_rows = share_from_rows(found, information, prior_precision, score.variance)
    loc = normal.loc.copy()
    loc[:num_read] += found.matrix(hidden * from_rows) @ (start.loc - loc)[:num_read]
    normal = normal._replace(loc=loc)
    mixed = unseen.mixed(
        normal,
        lambda directions: best(*_without(score, information, directions)).normal,
    )
    if mixed is None:
        return None
    normal = mixed
    root = np.linalg.inv(normal.tril)
    without_noise = root.T @ root
    known = found.matrix(known_precision(found.values, score.variance))
    without_noise[:num_read, :num_read] += found.matrix(found.values) - known
    covariance = units @ np.linalg.inv(without_noise) @ units.T
    data_stddev = np.sqrt(np.diag(covariance))
    normal = normal.moved(units)
    if not np.isfinite(normal.loc).all() or not np.isfinite(data_stddev).all():
        return None
    return NoiseAwareNormal(
        normal,
        np.minimum(data_stddev, normal.stddev),
        np.pad(unseen.directions, ((0, size - num_read), (0, 0))),
    )


def _without(
    score: Score,
    information: Information,
    directions: Float64[np.ndarray, "read directions"],
) -> tuple[Score, Information]:
    """What was released, without what noise says along some directions."""
    gradient, known = without_noise_along(directions, score.gradient, information)
    return score._replace(gradient=gradient), known


class _Best(NamedTuple):
    """The Normal with the largest ELBO, None if it is not finite, and what it is of."""

    found: Spectrum
    log_joint: Target
    normal: VectorNormal | None


def _log_joint(
    score: Score,
    found: Spectrum,
    log_prior: Target,
    units: Float64[np.ndarray, "size size"],
) -> Target:
    """The likelihood of a score times the prior, in coordinates.

    Args:
      score: What was released.
      found: The rows' information.
      log_prior, units: See `normal_of`.
    """
    num_read = len(score.gradient)
    total = np.where(found.values > 0, found.values + score.variance, 1.0)
    slope = found.matrix(found.values / total) @ score.gradient
    precision = found.matrix(known_precision(found.values, score.variance))

    def log_joint(
        points: Float64[np.ndarray, "points size"],
    ) -> tuple[Float64[np.ndarray, " points"], Float64[np.ndarray, "points size"]]:
        values, gradients = log_prior(points @ units.T)
        gradients = gradients @ units
        away = (points - score.place)[:, :num_read]
        pulled = away @ precision
        values = values + away @ slope - 0.5 * np.sum(away * pulled, axis=1)
        gradients[:, :num_read] += slope - pulled
        return values, gradients

    return log_joint


def _largest_elbo(
    log_joint: Target, start: VectorNormal, draws: Draws
) -> VectorNormal | None:
    """The Normal with the largest ELBO, or None if it is not finite."""
    normal = None
    for number, iterate in enumerate(ascend(log_joint, start, draws)):
        normal = iterate.normal
        if number + 1 == _MOST_STEPS:
            break
    return normal
