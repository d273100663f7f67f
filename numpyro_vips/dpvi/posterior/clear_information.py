"""Whether the rows' information about scales and shapes stands out of its noise.

A real global, such as a coefficient, mostly has a log density that is about a parabola:
where noise hides the information about it, its interval is wide, and is right. What
rows say of a scale, a shape or a share depends on where these are. A thousand rows of a
Student t tell 4 degrees of freedom from 6, and do not tell 20 from 40. So the fit may
stay where rows say little, and the globals that go with such a one, as the scale goes
with the degrees of freedom, are off by many of their standard deviations.

Released numbers tell this: along the direction in which the posterior moves with such
a global, the released information is no more than noise alone may make.
"""

import numpy as np
from jaxtyping import Float64

from numpyro_vips.dpvi.gradients.coordinates import GradientCoordinates
from numpyro_vips.dpvi.posterior.variational_newton import VectorNormal
from numpyro_vips.vips.m_step.noisy_information import Information

# From how many standard deviations of its noise on information counts as seen. Of 60
# fits at ε = 1, five for each of 12 models (six of `benchmarks/hard_models.py`, Student
# t, count, Gamma, Weibull and Beta regressions), eight were off by more than 3.5 of the
# posterior's standard deviations. All of these had 1.4 or less, and so did 14 others.
SEEN = 2.0


def clarity(
    information: Information,
    coordinates: GradientCoordinates | None,
    normal: VectorNormal,
) -> Float64[np.ndarray, " read"]:
    """How far the information about each global stands out of its noise.

    It is taken along the direction in which the posterior's mean of all globals moves
    with this one, so that what is known of it only together with others does not count.

    Args:
      information: The release, in coordinates u.
      coordinates: The u, where globals are U u; None for the globals' own.
      normal: The posterior of the unconstrained globals, those that rows read first.

    Returns:
      By unconstrained coordinate, in standard deviations of the noise; infinite without
      noise, and zero where rows cannot say anything.
    """
    read = slice(len(information.matrix))
    along = (normal.tril @ normal.tril.T)[read, read]
    if coordinates is not None:
        along = np.linalg.solve(np.asarray(coordinates.units, np.float64), along)
        silent = np.asarray(coordinates.silent, np.float64)
        along = along - silent @ (silent.T @ along)
    seen = np.sum(along * (information.matrix @ along), axis=0)
    squares = np.sum(along**2, axis=0)
    noise = float(np.max(np.asarray(information.noise_stddev), initial=0.0)) * squares
    is_noisy = noise > 0
    found = np.where(is_noisy, seen / np.where(is_noisy, noise, 1.0), np.inf)
    return np.where(squares > 0, found, 0.0)
