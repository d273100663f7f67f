"""Whether rows vary about the model as much as it says, from what was released anyway.

If the model is right, the second moments of the rows' scores add up to the rows'
information (White 1982). Both are released under noise: the former by the pilots that
find coordinates, the latter for the posterior. Where rows vary more than the model
says, as counts do that have a larger variance than a Poisson's, scores are longer than
the information lets them be. Intervals are then too narrow, and rows that surprise the
model are clipped, which draws the globals to the others.

Clipping shortens both matrices, and second moments more, as their rows' norms have
longer tails. So an excess that is found is smaller than the true one, and a small one
is not found. The pilots ask for the second moments on the way to where the rows are:
there scores have a mean ḡ, which adds ḡḡᵀ over the number of rows to them.

Along a direction in which noise hides the information nothing is said. Observed
information may have any sign, row by row: clipping shortens the few rows that have most
of it, and the many that have a little less than none stay. What is left of it there may
be a small part, as of the rate at which a Gompertz hazard grows.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from numpyro_vips.dpvi.gradients.coordinates import Units
from numpyro_vips.vips.m_step.noisy_information import Information

# How many standard deviations of its noise count against an excess.
_SURE = 3.0
_ROUNDING = 1e-6
# The least excess that is worth a warning, as a factor of variance. Right models had
# 0.36 to 0.78 with 5,000 rows at ε = 1, and up to 1.01 with 20,000 at ε = 3; a Poisson
# for counts of about 2, 4 and 10 times its variance had 1.07 to 1.23, 1.9 to 2.0 and
# 1.5 to 2.4 with 5,000 rows. See `python benchmarks/information_equality.py`.
WORTH_A_WARNING = 1.3


class SecondMoments(NamedTuple):
    """The second moments of the rows' gradients, as a pilot has released them.

    Attributes:
      moments: The matrix in coordinates u.
      units: U, where globals are U u.
      place: At which globals rows were asked.
    """

    moments: Information
    units: Units
    place: Float64[np.ndarray, " read"]

    def turn(self, units: Units) -> Float64[np.ndarray, "read read"]:
        """What takes other coordinates, with these units, to those of the moments."""
        return np.linalg.solve(
            np.asarray(self.units, np.float64), np.asarray(units, np.float64)
        )

    def turned(self, units: Units) -> Information:
        """The moments in other coordinates, with these units.

        Noise is known to have no part along silent directions in either.
        """
        turn = self.turn(units)
        return Information(
            turn.T @ self.moments.matrix @ turn,
            self.moments.noise_stddev,
            coordinates=turn,
        )


class Excess(NamedTuple):
    """How much more rows vary than the model says.

    Attributes:
      factor: Of variance, at least.
      direction: Of the globals along which it is so.
    """

    factor: float
    direction: Float64[np.ndarray, " read"]


def largest_excess(
    second: SecondMoments,
    information: Information,
    units: Units,
    mean: Float64[np.ndarray, " read"],
    num_rows: int,
) -> Excess:
    """The largest factor by which second moments surely exceed the information.

    Each eigenvector of the information is looked at along which this stands out of its
    noise. What noise may have added to the second moments, and taken off the
    information, is granted, and so is what the mean score adds at the place of the
    pilot.

    Args:
      second: What the last pilot has released.
      information: The release near the end, in its own coordinates.
      units: Those of the information, as `SecondMoments.units`.
      mean: That of the posterior, of the globals.
      num_rows: Public number of rows.
    """
    within = np.asarray(units, np.float64)
    turned = second.turn(within)
    values, axes = np.linalg.eigh(information.matrix)
    along = turned @ axes
    moments = np.sum(along * (second.moments.matrix @ along), axis=0)
    noise = _largest(second.moments) * np.sum(along**2, axis=0)
    scores = values * (axes.T @ np.linalg.solve(within, mean - second.place))
    most = np.maximum(values, 0.0) + _SURE * _largest(information)
    most = most + scores**2 / num_rows
    # Rounding makes zeros of a direction that rows say nothing of.
    known = most > _ROUNDING * np.max(most)
    known &= values > _SURE * _largest(information)
    least = np.where(known, moments - _SURE * noise, 0.0) / np.where(known, most, 1.0)
    place = int(np.argmax(least))
    return Excess(float(least[place]), within @ axes[:, place])


def _largest(information: Information) -> float:
    return float(np.max(np.asarray(information.noise_stddev), initial=0.0))
