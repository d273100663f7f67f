"""Where the rows of a fit were asked, with the weights of their sums in the average."""

from typing import NamedTuple

from numpyro_vips.vips.program.named_arrays import ByStatistic
from numpyro_vips.vips.steps.released_sums import Bound

# Places that are kept apart.
_MOST_PLACES = 12


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
