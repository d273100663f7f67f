"""Globals, and sums of them, of which rows may say nothing.

Such as the coefficient of a column that no row has, or an intercept less those of
indicators for all categories. Iterates follow nothing but noise there. Which these are
is seen in what was released of the rows' information; see `absent_columns` and
`unseen_sums`, which VIPS reads its curvatures by. Only globals that linear predictors
add are looked at: what rows say of scales and shapes is not alike.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64

from numpyro_vips.dpvi.posterior.variational_newton import VectorNormal
from numpyro_vips.vips.m_step.absent_columns import LIKELY, own_information
from numpyro_vips.vips.m_step.noisy_information import (
    Information,
    variance_with_the_interval_of,
)
from numpyro_vips.vips.m_step.unseen_sums import DOUBTFUL, UnseenSums, unseen_sums

# Up to which probability nothing is made of it that rows may say nothing of a global.
_UNLIKELY = 0.02
# From which on iterates may have followed nothing but noise. Where noise hides all
# information it is .14 for all.
_FOLLOWED = 0.2

# The posterior that gives nothing for what was released along some directions, or None.
Without = Callable[[Float64[np.ndarray, "read directions"]], VectorNormal | None]


class LinearGlobals(NamedTuple):
    """What synthetic rows show of the globals that rows depend on.

    Attributes:
      of_columns: Coefficients of columns, of which rows may have nothing.
      of_predictors: All that linear predictors add.
    """

    of_columns: Bool[np.ndarray, " read"]
    of_predictors: Bool[np.ndarray, " read"]


class UnseenGlobals(NamedTuple):
    """What rows may say nothing of, in coordinates u of the globals U u.

    Attributes:
      units: U.
      axes: Its inverse: the directions in which each global moves alone, as columns.
      absent: How probable it is that rows say nothing of a global.
      sums: Directions of which they may say nothing.
    """

    units: Float64[np.ndarray, "read read"]
    axes: Float64[np.ndarray, "read read"]
    absent: Float64[np.ndarray, " read"]
    sums: UnseenSums

    @classmethod
    def of_release(
        cls,
        information: Information,
        units: Float64[np.ndarray, "read read"],
        *,
        prior_stddev: Float64[np.ndarray, " read"],
        score_variance: float,
        linear: LinearGlobals | None,
        pilot: Information | None,
    ) -> "UnseenGlobals":
        """What a release shows.

        Args:
          information: The release.
          units: U.
          prior_stddev: How wide the prior is, by global.
          score_variance: Of the noise in an entry of the score.
          linear: The globals that are looked at; None for none.
          pilot: Another release of the information, or of what is about as large.
        """
        axes, absent = np.linalg.inv(units), np.zeros(len(units))
        sums = UnseenSums.none(len(units))
        if linear is None:
            return cls(units, axes, absent, sums)
        mine = axes[:, linear.of_columns]
        absent[linear.of_columns] = own_information(
            None,
            information,
            mine,
            prior=prior_stddev[linear.of_columns] ** -2.0,
            variance=score_variance * np.sum(mine**2, axis=0),
        ).absent
        if pilot is not None:
            known = axes[:, ~linear.of_predictors | (absent > DOUBTFUL)]
            if information.silent is not None:
                known = np.hstack([known, information.silent])
            sums = unseen_sums(pilot, information, known)
        return cls(units, axes, absent, sums)

    @property
    def likely(self) -> Float64[np.ndarray, "read directions"]:
        """Directions of which rows probably say nothing, as columns."""
        return np.hstack([self.axes[:, self.absent > LIKELY], self.sums.likely])

    @property
    def directions(self) -> Float64[np.ndarray, "read directions"]:
        """Those in which iterates may have followed noise, as columns of globals."""
        absent = self.axes[:, self.absent > _FOLLOWED]
        found = np.hstack([absent, self.sums.likely, self.sums.doubtful])
        return self.units @ found

    def mixed(self, normal: VectorNormal, without: Without) -> VectorNormal | None:
        """The posterior of what is doubtful; None if it is not finite.

        Args:
          normal: The posterior if rows say something of it.
          without: That if they do not, by direction.
        """
        doubtful = (self.absent > _UNLIKELY) & (self.absent <= LIKELY)
        if np.any(doubtful):
            other = without(self.axes[:, doubtful])
            if other is None:
                return None
            chances = np.where(doubtful, self.absent, 0.0)
            normal = self._mixed_by_global(normal, other, chances)
        if self.sums.doubtful.shape[1]:
            other = without(self.sums.doubtful)
            if other is None:
                return None
            normal = normal.mixed(other, self.sums.chance)
        return normal

    def _mixed_by_global(
        self,
        normal: VectorNormal,
        other: VectorNormal,
        chances: Float64[np.ndarray, " read"],
    ) -> VectorNormal:
        """The posterior of globals of which rows may say nothing.

        Each has the mean of both cases, and no less than the variance that gives the
        mixture's interval. Others are left as they are.

        Args:
          normal, other: With what was released of them, and without.
          chances: How probable it is that rows say nothing of a global.
        """
        units, axes = self.units, self.axes
        read = len(units)

        def of_globals(
            of: VectorNormal,
        ) -> tuple[Float64[np.ndarray, " read"], Float64[np.ndarray, " read"]]:
            return units @ of.loc[:read], np.sum((units @ of.tril[:read]) ** 2, axis=1)

        (mean, variance), (other_mean, other_variance) = map(
            of_globals, (normal, other)
        )
        away = other_mean - mean
        mixed = variance_with_the_interval_of(
            np.stack([other_variance, variance], axis=1),
            np.stack([chances, 1.0 - chances], axis=1),
        )
        added = np.maximum(mixed + chances * (1.0 - chances) * away**2 - variance, 0.0)
        covariance = normal.tril @ normal.tril.T
        covariance[:read, :read] += (axes * np.where(chances > 0, added, 0.0)) @ axes.T
        loc = normal.loc.copy()
        loc[:read] += axes @ (chances * away)
        return VectorNormal(loc, np.linalg.cholesky(covariance))


def without_noise_along(
    directions: Float64[np.ndarray, "read directions"],
    gradient: Float64[np.ndarray, " read"],
    information: Information,
) -> tuple[Float64[np.ndarray, " read"], Information]:
    """What was released, without what noise says along directions."""
    if not directions.shape[1]:
        return gradient, information
    if information.silent is not None:
        directions = np.hstack([information.silent, directions])
    silent = np.linalg.qr(directions)[0]
    kept = np.eye(len(silent)) - silent @ silent.T
    return kept @ gradient, information.with_silent(silent)
