"""Coordinates in which rows say about as much of the globals along every direction.

A row's gradient is clipped by its length, and gets noise of one size in every
direction. Where a covariate is far from zero, as an age in years is, a row says
thousands of times more of the sum of intercept and slope than of their difference: the
former decides about the clipping norm, and the noise at that norm hides the latter.

So a fit under noise asks for the second moments of rows' gradients at half time, in
pilots. From then on gradients are taken in coordinates u of the globals, z = U u, in
which rows say about as much of each direction, as far as these stand out of the pilots'
noise. Strong ones are shorter there, and weak ones longer: steps are longer, too, where
it is longer from where iterates are to where they may as well be. Nothing but released
matrices enters. Where a pilot is wrong the coordinates are less good, and
no less private: a row's gradient in u is clipped and priced as one in z is.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from numpyro_vips.vips.m_step.noisy_information import Information

# What the coordinates of the globals that rows depend on are multiplied with.
Units = Float[Array | np.ndarray, "read read"]


# By how much a pilot may shorten a direction, so that the matrix has an inverse.
_SHORTEST = 1e-5


class GradientCoordinates(NamedTuple):
    """z = U u, for the globals z that rows depend on; public.

    Attributes:
      units: U, symmetric.
      inverse: Its inverse.
      silent: Directions of which no row says anything, as orthonormal columns in u;
        see `silent_directions.py`.
      growth: By about how much rows' gradients are longer than in the coordinates
        before.
    """

    units: Units
    inverse: Units
    silent: Float[Array | np.ndarray, "read directions"]
    growth: float = 1.0

    @classmethod
    def of_globals(
        cls,
        units: Float64[np.ndarray, "read read"],
        silent: Float64[np.ndarray, "read directions"],
        dtype: Any,
    ) -> "GradientCoordinates":
        """Coordinates that the prior suggests, before anything is known of the rows.

        Args:
          units: See `prior_coordinates`.
          silent: Directions of the globals of which no row says anything, as columns.
          dtype: Of the arrays.
        """
        inverse = np.linalg.inv(units)
        silent = np.linalg.qr(inverse @ silent)[0]
        return cls(units.astype(dtype), inverse.astype(dtype), silent.astype(dtype))

    def grown(
        self,
        units: Float64[np.ndarray, "read read"],
        factors: Float64[np.ndarray, " read"],
    ) -> "GradientCoordinates":
        """Coordinates in which the units of globals are larger.

        Args:
          units: The units that the prior suggests, see `of_globals`.
          factors: What the unit of each global is multiplied by.
        """
        dtype = np.asarray(self.units).dtype
        silent = np.asarray(self.units, np.float64) @ np.asarray(self.silent)
        grown = _symmetric(factors[:, None] * units)
        growth = float(np.linalg.norm(grown) / np.linalg.norm(self.units))
        silent = np.asarray(silent, np.float64)
        found = GradientCoordinates.of_globals(grown, silent, dtype)
        return found._replace(growth=growth)

    def without_silent(self, gradient: Float[Array, " read"]) -> Float[Array, " read"]:
        """A noisy gradient in u without its part along silent directions.

        No row has a gradient there, so that part is noise for certain.
        """
        silent = jnp.asarray(self.silent)
        return gradient - silent @ (silent.T @ gradient)

    def of_rows(self, information: Information) -> Information:
        """A noisy matrix in u without what is noise for certain."""
        silent = np.asarray(self.silent, np.float64)
        if not silent.shape[1]:
            return information
        return information.with_silent(silent)

    def whitened(
        self, information: Information, num_rows: int
    ) -> "GradientCoordinates":
        """Coordinates in which rows have the same information about all directions.

        A direction is made longer the less information there is about it: to one unit
        for each row, or to that of the strongest direction if it has less, which then
        stays as it is. What the noise alone may make of a matrix bounds the lengths.

        Args:
          information: The pilot, in the coordinates before.
          num_rows: Public number of rows.
        """
        units = np.asarray(self.units, np.float64)
        values, axes = np.linalg.eigh(information.matrix)
        noise = float(np.max(np.asarray(information.noise_stddev), initial=0.0))
        # The largest eigenvalue of noise alone, of this size on the diagonal.
        hidden = noise * math.sqrt(2.0 * len(values))
        # What it leaves of the strongest direction in others, by turning it.
        leak = hidden**2 / max(hidden, float(np.max(values)))
        least = max(math.sqrt(hidden * leak), float(np.min(values)), 1.0)
        level = max(least, min(float(num_rows), float(np.max(values))))
        lengths = np.sqrt(level / np.maximum(values, least))
        longest = max(1.0, math.sqrt(level / max(hidden, least)))
        lengths = np.clip(lengths, _SHORTEST, longest)
        strong = np.maximum(values, least)
        root = _symmetric(units @ (axes * lengths) @ axes.T)
        growth = math.sqrt(float(np.sum(strong * lengths**2) / np.sum(strong)))
        dtype = np.asarray(self.units).dtype
        inverse = np.linalg.inv(root)
        in_globals = np.asarray(self.units, np.float64) @ self.silent
        silent = np.linalg.qr(inverse @ in_globals)[0]
        return GradientCoordinates(
            root.astype(dtype), inverse.astype(dtype), silent.astype(dtype), growth
        )

    def of_all(self, size: int) -> Float64[np.ndarray, "size size"]:
        """U with further globals, which no row depends on and which are as they were.

        Args:
          size: Number of all coordinates; the first ones are those of U.
        """
        found = np.eye(size)
        found[: len(self.units), : len(self.units)] = self.units
        return found


def _symmetric(root: Float64[np.ndarray, "n n"]) -> Float64[np.ndarray, "n n"]:
    """The symmetric positive matrix with the same product with its transpose.

    So a coordinate stays near the global that it had been.
    """
    axes, values, _ = np.linalg.svd(root)
    return (axes * values) @ axes.T
