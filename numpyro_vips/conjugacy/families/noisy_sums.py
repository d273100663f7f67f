"""What noisy sums say about sums that cannot be negative, and how much."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# A reading this many standard deviations below zero is not one of the noise alone, but
# of rows that were clipped, and says nothing more about how small the sum is.
_LOWEST = -4.0


def nonnegative(
    noisy: Float[Array, "*batch"], noise_stddev: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """The posterior mean of a nonnegative number, given it with Gaussian noise.

    Under a flat prior the number is a Gaussian about what was read, cut off at zero,
    with the mean noisy + noise_stddev · φ(z) / Φ(z), z = noisy / noise_stddev. It is
    positive wherever there is noise: a sum of squares that reads zero may be as large
    as the noise, and a variance of zero would be certainty about what nobody knows.
    Far above the noise, and without it, it is what was read.
    """
    tiny = jnp.finfo(noisy.dtype).tiny
    z = jnp.maximum(noisy / jnp.maximum(noise_stddev, tiny), _LOWEST)
    # What is far above the noise is not to be rounded.
    near = jnp.minimum(z, 10.0)
    ratio = jnp.exp(
        jax.scipy.stats.norm.logpdf(near) - jax.scipy.special.log_ndtr(near)
    )
    room = jnp.where(z < 10.0, noise_stddev * ratio, 0.0)
    read = jnp.maximum(noisy, _LOWEST * noise_stddev) + room
    return jnp.where(noise_stddev > 0, read, jnp.maximum(noisy, 0.0))


def information_kept(
    count: Float[Array, "*batch"],
    count_stddev: Float[Array, "*batch"],
    total: Float[Array, "*batch"],
    total_stddev: Float[Array, "*batch"],
) -> Float[Array, "*batch"]:
    """How much less a noisy count and total say of their ratio than exact ones.

    The logarithm of count / total has the variance 1 / count under a Gamma's density,
    and noise adds (count_stddev / count)² + (total_stddev / total)² (delta method). A
    count and a total that are both multiplied by the number that comes back have the
    variance of all three together, and the same ratio.

    Args:
      count, total: What multiplies the logarithm and minus the number itself in a
        Gamma's log density; not negative.
      count_stddev, total_stddev: Standard deviations of the noise in them.

    Returns:
      Numbers between 0 and 1; 1 where there is no noise.
    """
    exact = count * total**2
    noisy = (count_stddev * total) ** 2 + (count * total_stddev) ** 2
    return jnp.where(noisy > 0, exact / jnp.where(noisy > 0, exact + noisy, 1.0), 1.0)
