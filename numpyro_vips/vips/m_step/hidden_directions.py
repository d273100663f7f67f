"""Directions that noise hides, and what they count in the sums of other factors.

Where noise hides what rows say of coordinates w in a direction, a posterior that knows
of the noise is about as wide as the prior there. The sum of squares that rows have in
that direction is unknown just as much, and it is small where the coordinate is large:
together they explain no more of a response than there is of it. A product of
independent factors does not know that. Its expected sum of squared residuals, which the
noise of a linear regression is read off, would grow without limit.
"""

import jax.numpy as jnp

from numpyro_vips.conjugacy.families.family import Moments, NewMoments
from numpyro_vips.conjugacy.families.positive_matrices import (
    eigh,
    noise_along,
    symmetric_part,
    times,
)


def weighing_rows(share: Moments, noise: Moments, moments: Moments) -> NewMoments:
    """Moments of Gaussian coordinates w, as other factors weigh the rows' sums by them.

    With precision A and linear statistic c from the rows, residuals are smaller by
    2 m c − a m² for a mean m along an eigenvector of A, and larger by a v for the
    variance v. The variance counts up to where these are equal, so that residuals are
    as large as they are without the direction.

    Args:
      share: What rows add to the natural parameters, before it is widened: c in "x",
        -A/2 in "xx".
      noise: Standard deviations of the noise in it, entry by entry.
      moments: Those of the posterior that knows of the noise.
    """
    mean, precision = moments["x"], -2.0 * symmetric_part(share["xx"])
    square = mean[..., :, None] * mean[..., None, :]
    sizes, directions = eigh(precision)
    to_directions = jnp.swapaxes(directions, -1, -2)
    along, linear = times(to_directions, mean), times(to_directions, share["x"])
    explained = jnp.maximum(along * (2.0 * linear - sizes * along), 0.0)
    covariance = to_directions @ (moments["xx"] - square) @ directions
    # Others weigh A as it was released, with its noise.
    deviation = 2.0 * symmetric_part(noise["xx"])
    added = jnp.diagonal(covariance, axis1=-2, axis2=-1)
    added = added * (sizes + noise_along(directions, deviation))
    is_more = added > explained
    part = jnp.sqrt(jnp.where(is_more, explained / jnp.where(is_more, added, 1.0), 1.0))
    covariance = part[..., :, None] * covariance * part[..., None, :]
    return {"x": mean, "xx": square + directions @ covariance @ to_directions}
