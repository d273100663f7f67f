"""Released sums: how rows were clipped, where they were asked, what is hidden by it."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from numpyro_vips.vips.program.named_arrays import ByStatistic, NewSums

# Places that are kept apart.
_MOST_PLACES = 12


class Bound(NamedTuple):
    """How the rows of a release were clipped.

    Attributes:
      scales: Scale of each block of the joint vector that was clipped.
      clipping_norm: Bound on its norm.
      sampling_rate: Expected share of the rows that were in it.
      release: Number of the release. Of the bounds that a state holds, those with one
        number are those of one release.
    """

    scales: Mapping[str, float]
    clipping_norm: float
    sampling_rate: float = 1.0
    release: int = 0


class Unclipped(NamedTuple):
    """Sums as they would have been without clipping, as far as it is known.

    Attributes:
      statistics: The corrected sums.
      noise_stddev: Standard deviation of what the noise has become in them, and of what
        clipping has hidden of the rows.
    """

    statistics: NewSums
    noise_stddev: Mapping[str, Float[np.ndarray, "..."] | float]

    @property
    def noise_for_programs(self) -> NewSums:
        """`noise_stddev` as arrays: of Python's numbers JAX makes other programs."""
        return {name: np.asarray(of) for name, of in self.noise_stddev.items()}


class AskedPlace(NamedTuple):
    """A point in the space of the globals.

    Attributes:
      weight: That of the sums from there in the average.
      place: n̄ of the statistics that depend on it.
      bound: How rows were clipped; None if they were not.
    """

    weight: float
    place: ByStatistic
    bound: Bound | None


def asked_also(
    asked: tuple[AskedPlace, ...],
    weight: float,
    place: ByStatistic,
    bound: Bound | None,
) -> tuple[AskedPlace, ...]:
    """The places of an average that takes in one more with some weight.

    The sums that an average starts from are those of the first place. The places of the
    first steps are far apart; later ones are kept as their average.
    """
    before = asked or (AskedPlace(1.0, place, bound),)
    kept = [each._replace(weight=(1.0 - weight) * each.weight) for each in before]
    found = [each for each in (*kept, AskedPlace(weight, place, bound)) if each.weight]
    if len(found) <= _MOST_PLACES:
        return tuple(found)
    *found, one, last = found
    both = one.weight + last.weight
    merged = {
        name: (one.weight * one.place[name] + last.weight * last.place[name]) / both
        for name in last.place
    }
    return *found, AskedPlace(both, merged, last.bound)
