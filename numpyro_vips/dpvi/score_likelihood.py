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
do not. So in directions in which noise hides the information the posterior goes by the
iterates, as far as the scores of all steps say that rows have led them, see
`score_trail.py`; and as far as noise has, it stays with the prior.

Nothing but released numbers and their noise levels enters.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from numpyro_vips.dpvi.score_trail import ScoreTrail, led_by_rows
from numpyro_vips.dpvi.variational_newton import Draws, Target, VectorNormal, ascend
from numpyro_vips.vips.noisy_information import (
    Information,
    Spectrum,
    known_precision,
    rows_information,
    share_known,
)

# Power of t with which the scores of steps count. The first places are far from the
# last, where the score is not linear.
POWER = 2.0
_POINTS = 64
_CURVATURE_POINTS = 512
_MOST_STEPS = 40


class Score(NamedTuple):
    """Averages over the steps.

    Attributes:
      gradient: The released gradients in the globals that rows depend on.
      place: Where these were asked for.
      variance: Of the noise in an entry of `gradient`.
      trail: The scores of all steps, the first ones included.
    """

    gradient: Float64[np.ndarray, " read"]
    place: Float64[np.ndarray, " size"]
    variance: float
    trail: ScoreTrail


class NoiseAwareNormal(NamedTuple):
    """The posterior.

    Attributes:
      normal: On the unconstrained space.
      data_stddev: What its standard deviations would be without noise.
    """

    normal: VectorNormal
    data_stddev: Float64[np.ndarray, " size"]


def normal_of(
    score: Score,
    information: Information,
    log_prior: Target,
    start: VectorNormal,
    prior_mean: Float64[np.ndarray, " size"],
    prior_stddev: Float64[np.ndarray, " size"],
) -> NoiseAwareNormal | None:
    """The posterior of all globals.

    Args:
      score, information: What was released.
      log_prior: Log density of the prior at points of the unconstrained space, with its
        gradient.
      start: The average of the iterates, where the posterior is looked for first.
      prior_mean, prior_stddev: Where the prior is, and how wide, by coordinate.

    Returns:
      The Normal with the largest ELBO; None if it, or the prior at the start, is not
      finite.
    """
    size, num_read = len(score.place), len(score.gradient)
    known = rows_information(
        information, prior_stddev[:num_read] ** -2.0, score.variance
    )
    values, pull = _along_axes(
        score, known, information, start.loc, prior_mean, prior_stddev
    )
    precision = known.matrix(known_precision(values, score.variance))
    slope = known.axes @ pull

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
    without_noise[:num_read, :num_read] += known.matrix(values) - precision
    data_stddev = np.sqrt(np.diag(np.linalg.inv(without_noise)))
    if not np.isfinite(normal.loc).all() or not np.isfinite(data_stddev).all():
        return None
    return NoiseAwareNormal(normal, np.minimum(data_stddev, normal.stddev))


def _along_axes(
    score: Score,
    found: Spectrum,
    information: Information,
    iterate: Float64[np.ndarray, " size"],
    prior_mean: Float64[np.ndarray, " size"],
    prior_stddev: Float64[np.ndarray, " size"],
) -> tuple[Float64[np.ndarray, " read"], Float64[np.ndarray, " read"]]:
    """The information along each axis, and the likelihood's slope at the score's place.

    Args:
      found: What the release says.
      iterate: The average of the iterates.
      score, information, prior_mean, prior_stddev: See `normal_of`.
    """
    read = slice(len(score.gradient))
    prior = found.along(prior_stddev[read] ** -2.0)
    way = found.axes.T @ (iterate - prior_mean)[read]
    led = led_by_rows(
        score.trail,
        found,
        information,
        variance=score.variance,
        way=way,
        prior_mean=found.axes.T @ prior_mean[read],
        prior_precision=prior,
    )
    is_known = share_known(found, information)
    total = np.where(found.values > 0, found.values + score.variance, 1.0)
    solved = found.values / total * (found.axes.T @ score.gradient)
    # With this slope a prior that is Normal gives the mean that `led` means.
    place = found.axes.T @ (score.place - prior_mean)[read]
    held = (prior + led.precision) * led.share * way - led.precision * place
    precision = known_precision(found.values, score.variance)
    precision = is_known * precision + (1.0 - is_known) * led.precision
    values = 0.5 * (
        precision + np.sqrt(precision**2 + 4.0 * precision * score.variance)
    )
    return values, is_known * solved + (1.0 - is_known) * held
