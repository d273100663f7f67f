"""Whether sums of rows still move from step to step, by more than noise explains.

VIPS averages noisy sums over the steps. Sums of the first steps belong to poor globals:
where few steps follow, too much of them stays in the average, and the posterior is
wrong without being wide. The last release then differs from the average before it.
All of this is made of released sums and of the public size of their noise.
"""

import math

import numpy as np
from jaxtyping import Float64
from scipy import special

from numpyro_vips.privacy.gaussian_mechanism import Block

# How likely noise alone is to be taken for drift, by statistic.
_FALSE_ALARM = 1e-4
# Of many numbers the mean shows movements that are small beside the noise of each.
# They count from here on, where they are two thirds of it.
_SMALLEST = 1.2


def drift_of(
    block: Block,
    difference: Float64[np.ndarray, "..."],
    stddev: Float64[np.ndarray, "..."],
) -> float:
    """Root mean square over the entries, in standard deviations of the noise.

    Args:
      block: What was released.
      difference: The last release less the average before it.
      stddev: That of the noise of both, in isometric coordinates.
    """
    squares = np.square(difference / stddev)
    if block.hollow:
        # The diagonal is put back from another statistic, with that one's noise.
        squares = np.where(np.eye(block.shape[-1], dtype=bool), 0.0, squares)
    return float(np.sqrt(np.mean(squares)))


def largest_drift(block: Block) -> float:
    """The drift up to which sums may be at rest.

    Under noise alone, the sum of the squares has a χ² distribution, with as many
    degrees of freedom as there are free numbers: a pair of entries of a symmetric
    matrix is one number, and counts as much as one.
    """
    free = block.num_coordinates
    at_rest = free / math.prod(block.shape)
    by_noise = special.chdtri(free, _FALSE_ALARM) / free
    return math.sqrt(at_rest * max(by_noise, _SMALLEST**2))
