"""What the scores of all steps say of the information of the rows, beside its release.

Where iterates wander, scores fall with the places that they are asked for at, by the
rows' information: g_t = I (θ − z_t) + noise. Along an axis this is a line in z_t, whose
slope is −I. With a Normal prior for θ the probability of all scores given I has a
closed form. That the places answer to earlier noise does not matter to it.

A release of the information costs a part of the budget, and one of many directions, or
of few rows, shows little. There the scores, which are released anyway, say how far rows
have led the iterates, and how far noise has.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from numpyro_vips.vips.noisy_information import (
    Information,
    Spectrum,
    known_precision,
)

# Values that the information along an axis is tried at, from this part of the prior's
# precision to so many standard deviations above what was released.
_TRIED, _LEAST, _MOST = 64, 1e-2, 4.0
# Scores are not linear: along the way the information was another one than where the
# iterates end, by a factor whose logarithm has this standard deviation.
_CHANGING = math.log(2.0)


class ScoreTrail(NamedTuple):
    """Moments of scores and places over the steps, weighed by the precision of scores.

    Attributes:
      weight: Precision of the noise in an entry of `gradient`; the sum over the steps.
      place, gradient: Means over the steps.
      place_square: Mean product of the places' deviations from their mean.
      cross: The same of the scores' deviations, along rows, and the places', along
        columns.
    """

    weight: Float[Any, ""]
    place: Float[Any, " read"]
    gradient: Float[Any, " read"]
    place_square: Float[Any, "read read"]
    cross: Float[Any, "read read"]

    @classmethod
    def empty(cls, num_read: int, dtype: Any) -> "ScoreTrail":
        """Before the first step."""
        vector, matrix = jnp.zeros(num_read, dtype), jnp.zeros((num_read,) * 2, dtype)
        return cls(jnp.zeros((), dtype), vector, vector, matrix, matrix)

    def after(
        self,
        gradient: Float[Array, " read"],
        place: Float[Array, " read"],
        variance: Any,
    ) -> "ScoreTrail":
        """The moments with one more step among them.

        Args:
          gradient: The score that it released.
          place: Where.
          variance: Of the noise in an entry of `gradient`; without noise all steps
            count alike.
        """
        precision = 1.0 / jnp.where(variance > 0, variance, 1.0)
        weight = self.weight + precision
        share = precision / weight
        away, changed = place - self.place, gradient - self.gradient
        kept = share * (1.0 - share)
        return ScoreTrail(
            weight,
            self.place + share * away,
            self.gradient + share * changed,
            (1.0 - share) * self.place_square + kept * jnp.outer(away, away),
            (1.0 - share) * self.cross + kept * jnp.outer(changed, away),
        )

    def log_likelihood(
        self,
        axes: Float64[np.ndarray, "read read"],
        tried: Float64[np.ndarray, "read tried"],
        prior_mean: Float64[np.ndarray, " read"],
        prior_precision: Float64[np.ndarray, " read"],
    ) -> Float64[np.ndarray, "read tried"]:
        """Log probability of the scores, up to a constant of each axis.

        Args:
          axes: Orthonormal, as columns. Each is taken by itself.
          tried: Values of the information along each axis.
          prior_mean, prior_precision: Of θ along the axes.
        """
        weight = float(self.weight)
        square = np.sum(axes * (self.place_square @ axes), axis=0)[:, None]
        cross = np.sum(axes * (self.cross @ axes), axis=0)[:, None]
        slope = -0.5 * weight * (tried**2 * square + 2.0 * tried * cross)
        away = axes.T @ self.place - prior_mean
        mean = (axes.T @ self.gradient)[:, None] + tried * away[:, None]
        variance = tried**2 / prior_precision[:, None] + tried + 1.0 / weight
        return slope - 0.5 * (mean**2 / variance + np.log(variance))


class Led(NamedTuple):
    """What iterates are worth along axes along which the release shows nothing.

    Attributes:
      share: Which part of their way from the prior's mean is due to rows.
      precision: What that says of θ, as a likelihood's precision.
    """

    share: Float64[np.ndarray, " read"]
    precision: Float64[np.ndarray, " read"]


def led_by_rows(
    trail: ScoreTrail,
    found: Spectrum,
    information: Information,
    *,
    variance: float,
    way: Float64[np.ndarray, " read"],
    prior_mean: Float64[np.ndarray, " read"],
    prior_precision: Float64[np.ndarray, " read"],
) -> Led:
    """How far rows have led the iterates along each axis.

    With information I, prior precision Λ and noise of variance V in the average score,
    iterates at rest have Iθ̂ + Λm = (I + Λ)z up to that noise, θ̂ being where rows alone
    would lead and m the prior's mean. So the posterior's mean is m + h (z − m) with
    h = I (I + Λ)/(I² + IΛ + VΛ), its precision Λ + I²/(I + V). Both are averaged over
    what I may be, given its release and the scores.

    Args:
      trail: The scores of all steps.
      found: Axes.
      information: What was released.
      variance: V.
      way: z − m along the axes.
      prior_mean, prior_precision: Of the globals along the axes.
    """
    released = np.sum(found.axes * (information.matrix @ found.axes), axis=0)
    stddev = np.sqrt(2.0 * np.diag(information.noise_between(found.axes)))
    most = np.maximum(released, 0.0) + _MOST * stddev + prior_precision
    tried = np.geomspace(_LEAST * prior_precision, most, _TRIED, axis=-1)
    prior = prior_precision[:, None]
    # Beforehand rows may say more or less than the prior by orders of magnitude; more
    # is less probable. Over log I the density is in proportion to I/(I + Λ)^1.5.
    log_density = np.log(tried / (tried + prior) ** 1.5)
    known = np.where(stddev > 0, stddev, np.finfo(np.float64).tiny ** 0.25)[:, None]
    log_density -= 0.5 * ((tried - released[:, None]) / known) ** 2
    on_the_way = _weights(
        trail.log_likelihood(found.axes, tried, prior_mean, prior_precision)
    )
    size = np.log(tried)
    apart = (size[:, :, None] - size[:, None, :]) / _CHANGING
    at_the_end = np.einsum("uts,us->ut", np.exp(-0.5 * apart**2), on_the_way)
    weights = _weights(log_density + np.log(at_the_end))
    share = tried * (tried + prior) / (tried * (tried + prior) + variance * prior)
    mean = np.sum(weights * share, axis=1)
    spread = np.sum(weights * (share - mean[:, None]) ** 2, axis=1)
    precision = known_precision(tried, variance)
    total = np.sum(weights / (prior + precision), axis=1) + spread * way**2
    return Led(mean, np.maximum(1.0 / total - prior_precision, 0.0))


def _weights(
    log_density: Float64[np.ndarray, "read tried"],
) -> Float64[np.ndarray, "read tried"]:
    """Probabilities, along the last axis, in proportion to a density."""
    density = np.exp(log_density - np.max(log_density, axis=1, keepdims=True))
    return density / np.sum(density, axis=1, keepdims=True)
