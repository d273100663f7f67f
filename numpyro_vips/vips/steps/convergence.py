"""Whether steps without noise have come to rest.

Coordinate ascent may creep: where components overlap, or a bound is loose, a step moves
the globals by a small share of what is left to go. So what counts is not how far a step
leads but how much further all the others would. Stretches of steps are compared, each
half as long again as the one before; where each leads a share of the way of the one
before it, what is left is at most the rest of a geometric series.

Only for steps without noise: when to stop must not depend on rows otherwise.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor

ByFactor = Mapping[str, Mapping[str, Float64[np.ndarray, "..."]]]

# How far a posterior that counts as found may be from where steps would lead.
TOLERANCE = 2e-3
# Moves that are no sign of anything: rows are summed in single precision.
_ROUNDING = 1e-6
_FIRST_STRETCH = 8
_LONGER = 1.5


class Trail(NamedTuple):
    """Where the globals were when the last stretch ended, and how far stretches led.

    Attributes:
      natural, moments: Those of the factors then.
      ends: After which step the running stretch ends.
      length: How long that stretch is.
      moved: How far the last two stretches led, the last one first, in standard
        deviations of the posterior; infinite where there was none.
    """

    natural: ByFactor
    moments: ByFactor
    ends: int
    length: int
    moved: tuple[float, float] = (math.inf, math.inf)

    @classmethod
    def starting(cls, natural: ByFactor, moments: ByFactor, number: int) -> "Trail":
        """The trail of a fit whose first stretch begins after step `number`."""
        return cls(natural, moments, number + _FIRST_STRETCH, _FIRST_STRETCH)

    def after(
        self,
        natural: ByFactor,
        moments: ByFactor,
        number: int,
        factors: Mapping[str, PosteriorFactor],
    ) -> "Trail":
        """The trail after step `number`, in which a stretch may have ended."""
        if number < self.ends:
            return self
        last = max(
            distance(
                factors[name],
                (self.natural[name], natural[name]),
                (self.moments[name], moments[name]),
            )
            for name in natural
        )
        length = math.ceil(_LONGER * self.length)
        return Trail(natural, moments, number + length, length, (last, self.moved[0]))

    @property
    def is_long(self) -> bool:
        """Whether there were two stretches to compare."""
        return math.isfinite(self.moved[1])

    @property
    def remaining(self) -> float:
        """A bound on how far the globals still have to go; infinite if none is known.

        Stretches grow, so where steps lead nowhere in particular, or on and on, a
        stretch is no shorter than the one before it.
        """
        last, before = self.moved
        if max(last, before) <= _ROUNDING:
            return last
        if not last < before:
            return math.inf
        if not self.is_long:
            return math.inf
        share = last / before
        return last * share / (1.0 - share)


def distance(factor: PosteriorFactor, natural: Any, moments: Any) -> float:
    """How far apart two members of a family are: the root of Jeffreys' divergence.

    The divergence is KL(p ‖ q) + KL(q ‖ p) = ⟨η_p − η_q, m_p − m_q⟩. That of two
    Normals with one covariance is the square of their distance in standard deviations.
    Of independent elements the farthest counts.
    """
    batch = len(factor.shape) - factor.family.event_dim
    total: Any = 0.0
    for name in natural[0]:
        product = (natural[1][name] - natural[0][name]) * (
            moments[1][name] - moments[0][name]
        )
        total = total + product.sum(axis=tuple(range(batch, product.ndim)))
    largest = float(np.max(total, initial=0.0))
    return math.sqrt(largest) if math.isfinite(largest) else math.inf
