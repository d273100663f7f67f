"""Posteriors of DPVI that know of the noise: what is released for them, and the result.

Near the end of a fit under noise the rows' information is released once, at the average
of the iterates. With the scores that the steps have released anyway it makes a joint
Normal posterior of all globals, see `score_likelihood.py`, in place of the guide.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int

from numpyro_vips.dpvi.gradients.coordinates import GradientCoordinates
from numpyro_vips.dpvi.gradients.silent_directions import SilentDirections
from numpyro_vips.dpvi.guides.posteriors import NoiseAwarePosterior
from numpyro_vips.dpvi.guides.unconstrained import UnconstrainedSpace
from numpyro_vips.dpvi.posterior.information_equality import SecondMoments
from numpyro_vips.dpvi.posterior.row_information import Point, RowInformation
from numpyro_vips.dpvi.posterior.score_likelihood import (
    NoiseAwareNormal,
    Score,
    before_clipping,
    normal_of,
)
from numpyro_vips.dpvi.posterior.unseen_globals import LinearGlobals
from numpyro_vips.dpvi.posterior.variational_newton import VectorNormal, in_batches
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized
from numpyro_vips.privacy.releases import SECOND_MOMENTS
from numpyro_vips.vips.m_step.noisy_information import Information

# A matrix of more globals than these is mostly noise, and slow to make.
MOST_INFORMED = 128
# Which part of the steps is on the way to where the others are. Their places are far
# from those of the others, where the score is not linear, and rows are clipped at other
# norms there: the last histogram of norms comes after this part, too.
APPROACH = 0.5
# Points at which the prior is looked at together.
_POINTS = 64


class RunningScore(NamedTuple):
    """`Score` as the program of a step carries it on.

    With the standard deviation of the noise: in single precision the variance overflows
    where gradients are as large as 1e19.
    """

    gradient: Float[Array, " read"]
    place: Float[Array, " size"]
    stddev: Float[Array, ""]

    def after(
        self,
        step: Int[Array, ""],
        gradient: Float[Array, " read"],
        place: Float[Array, " size"],
        stddev: Any,
        *,
        approach: int,
    ) -> "RunningScore":
        """The averages with step 1, 2, ... among them, of equal weights.

        Args:
          step: Number of the step.
          gradient: What it released.
          place: Where.
          stddev: Of the noise in an entry of `gradient`.
          approach: How many steps are on their way. The averages begin anew after them.
        """
        number = jnp.where(step > approach, step - approach, step)
        weight = 1.0 / number.astype(self.stddev.dtype)
        return RunningScore(
            self.gradient + weight * (gradient - self.gradient),
            self.place + weight * (place - self.place),
            jnp.hypot((1.0 - weight) * self.stddev, weight * stddev),
        )


class NoiseAware:
    """What DPVI releases for its posterior, and what this becomes.

    Attributes:
      num_read: Number of globals that rows depend on, which come first.
      silent, turning: What no row says anything of; see `silent_directions.py`.
      information: What is released near the end.
      second_moments: What pilots release, see `coordinates.py`.
    """

    def __init__(
        self,
        information: RowInformation,
        *,
        log_prior: Callable[[Point], Float[Array, ""]],
        space: UnconstrainedSpace,
        prior_stddev: Float64[np.ndarray, " size"],
        silent: SilentDirections,
        linear: LinearGlobals,
    ) -> None:
        """Traces nothing yet.

        Args:
          information: That of single rows, in the globals that they depend on.
          log_prior: Log density of the unconstrained globals.
          space: The globals, those that rows depend on first.
          prior_stddev: How wide the prior is, by coordinate.
          silent: What no row says anything of.
          linear: Which globals rows may say nothing of; see `unseen_globals.py`.
        """
        self.silent, self.turning = silent
        self.information = information
        self.second_moments = information.second_moments(SECOND_MOMENTS)
        self._space = space
        self._prior_stddev = prior_stddev
        self._linear = linear
        self.num_read, _ = information.block.shape
        self._jitted_prior = jit_unoptimized(jax.vmap(jax.value_and_grad(log_prior)))
        # Of the last releases that were asked for, as a posterior and what is known of
        # it both need it.
        self._last: (
            tuple[tuple[Any, ...], float | None, NoiseAwareNormal | None] | None
        ) = None

    def no_score(self, dtype: Any) -> RunningScore:
        """The running average of scores before the first step: zeros, of no weight."""
        shapes = (self.num_read,), (self._space.size,), ()
        return RunningScore(*(jax.device_put(np.zeros(s, dtype)) for s in shapes))

    def matrix(self, name: str) -> RowInformation:
        """What releases the block of this name."""
        by_name = {x.block.name: x for x in (self.information, self.second_moments)}
        return by_name[name]

    # --- what is public ---------------------------------------------------------------

    def normal(
        self,
        score: RunningScore,
        information: Information,
        variance_per_slope: float | None,
        start: VectorNormal,
        coordinates: GradientCoordinates | None,
        second: SecondMoments | None,
    ) -> NoiseAwareNormal | None:
        """The posterior on the unconstrained space; None if it, what was released, or
        the prior at the start is not finite.

        Args:
          score: Of all steps so far.
          information: The release.
          variance_per_slope: Where the information is the slope of clipped differences,
            see `before_clipping`; None where it is the rows' own.
          start: Where to look for it first.
          coordinates: Those of the gradients and of the information; None for the
            globals' own.
          second: What the last pilot has released; None if there was none.
        """
        last, asked = self._last, (score, information, coordinates, second)
        # Another fit may replace it meanwhile.
        if (
            last is not None
            and all(map(operator.is_, last[0], asked))
            and last[1] == variance_per_slope
        ):
            return last[2]
        averages = Score(
            gradient=np.asarray(score.gradient, np.float64),
            place=np.asarray(score.place, np.float64),
            variance=float(score.stddev) ** 2,
        )
        if not all(np.all(np.isfinite(value)) for value in averages):
            return None
        if variance_per_slope is not None:
            averages, information = before_clipping(
                averages, information, variance_per_slope
            )
        found = normal_of(
            averages,
            information,
            self._log_prior,
            start,
            self._prior_stddev,
            None if coordinates is None else coordinates.of_all(self._space.size),
            linear=self._linear,
            pilot=None
            if coordinates is None or second is None
            else second.turned(coordinates.units),
        )
        self._last = asked, variance_per_slope, found
        return found

    def widths_over_prior(self, normal: VectorNormal) -> Float64[np.ndarray, " read"]:
        """How wide the posterior is over the prior, by coordinate that rows read."""
        read = slice(self.num_read)
        return normal.stddev[read] / self._prior_stddev[read]

    def posterior(self, found: NoiseAwareNormal) -> NoiseAwarePosterior:
        """The Normal as a posterior."""
        dtype = jnp.result_type(float)
        return NoiseAwarePosterior(
            sites=self._space.sites,
            loc=jnp.asarray(found.normal.loc, dtype),
            factor=jnp.asarray(found.normal.tril, dtype),
            diagonal=None,
            data_stddev=jnp.asarray(found.data_stddev, dtype),
        )

    def _log_prior(
        self, points: Float64[np.ndarray, "points size"]
    ) -> tuple[Float64[np.ndarray, " points"], Float64[np.ndarray, "points size"]]:
        """The prior's log density at some points, and its gradient."""
        values, gradients = [], []
        with double_precision():
            for batch, number in in_batches(points, _POINTS):
                value, gradient = self._jitted_prior(jnp.asarray(batch))
                values.append(np.asarray(value)[:number])
                gradients.append(np.asarray(gradient)[:number])
        return np.concatenate(values), np.concatenate(gradients)
