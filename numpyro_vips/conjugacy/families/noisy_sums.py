"""What noisy sums say about sums that cannot be negative, and how much."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from numpyro_vips.conjugacy.families.digamma import digamma

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


class GammaShape(NamedTuple):
    """Parameters of Gamma distributions."""

    concentration: Float[Array, "*batch"]
    rate: Float[Array, "*batch"]


# Points at which a density is looked at, and how often they close in on it.
_POINTS, _STAGES = 64, 5
# The first of them are so many powers of e below and above count / total.
_BELOW, _ABOVE = 8.0, 16.0
# What is so many nats below the mode counts for nothing.
_NEGLIGIBLE = 40.0


def rate_of_noisy_sums(
    prior: GammaShape,
    count: Float[Array, "*batch"],
    count_stddev: Float[Array, "*batch"],
    total: Float[Array, "*batch"],
    total_stddev: Float[Array, "*batch"],
) -> GammaShape:
    """The Gamma nearest to the posterior of a rate, given its noisy sums.

    Given the rate τ, rows make a total with mean count / τ and standard deviation
    sqrt(count) / τ, so that count − τ · total has the mean 0 and the variance
    count + count_stddev² + τ² total_stddev². Far above the noise that is a Gamma's
    density. Near the noise it has a long tail, which ends where the prior ends it: a
    total that may be zero bounds the rate from below alone.

    Args:
      prior: That of the rate, before the sums.
      count, total: What multiplies the logarithm and minus the number itself in a
        Gamma's log density, as they were released.
      count_stddev, total_stddev: Standard deviations of the noise in them.

    Returns:
      The Gamma with the posterior's means of τ and log τ, by quadrature.
    """
    tiny = jnp.finfo(total.dtype).tiny
    count = jnp.maximum(count, 0.0)

    def log_density(log_rate: Float[Array, "..."]) -> Float[Array, "..."]:
        rate = jnp.exp(log_rate)
        variance = count + count_stddev**2 + (rate * total_stddev) ** 2
        variance = jnp.maximum(variance, tiny)
        residual = count - rate * total
        return (
            prior.concentration * log_rate
            - prior.rate * rate
            + log_rate
            - 0.5 * jnp.log(variance)
            - 0.5 * residual**2 / variance
        )

    size = jnp.abs(total) + total_stddev + prior.rate
    about = jnp.log(jnp.maximum(count, 1.0)) - jnp.log(jnp.maximum(size, tiny))
    low, high = about - _BELOW, about + _ABOVE
    steps = jnp.linspace(0.0, 1.0, _POINTS).reshape(-1, *(1,) * count.ndim)

    def closer(
        _: int, found: tuple[Float[Array, "..."], ...]
    ) -> tuple[Float[Array, "..."], ...]:
        low, high = found[:2]
        points = low + (high - low) * steps
        logs = log_density(points)
        counts = logs > logs.max(0) - _NEGLIGIBLE
        width = (high - low) / (_POINTS - 1)
        return (
            jnp.where(counts, points, jnp.inf).min(0) - width,
            jnp.where(counts, points, -jnp.inf).max(0) + width,
            points,
            logs,
        )

    # Loops here and below: stages written out take as many times as long to compile.
    nothing = jnp.zeros((_POINTS, *low.shape), low.dtype)
    stages = jax.lax.fori_loop(0, _STAGES, closer, (low, high, nothing, nothing))
    points, logs = stages[2:]
    weights = jnp.exp(logs - logs.max(0))
    weights = weights / weights.sum(0)
    mean_log = (weights * points).sum(0)
    # Beside its own size, so that narrow densities keep their digits.
    ratio = (weights * jnp.expm1(points - mean_log)).sum(0)
    # Rounding leaves no more digits than these of what is certain.
    concentration = _concentration(jnp.maximum(jnp.log1p(ratio), 1e-13))
    return GammaShape(concentration, concentration / jnp.exp(mean_log) / (1.0 + ratio))


def _concentration(gap: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Where log a − ψ(a) is `gap`, by Newton's method in 1 / a (Minka, 2002)."""

    def nearer(_: int, found: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        slope = 1.0 / found - jax.scipy.special.polygamma(1, found)
        change = (jnp.log(found) - digamma(found) - gap) / (found**2 * slope)
        return 1.0 / (1.0 / found + change)

    start = (3.0 - gap + jnp.sqrt((gap - 3.0) ** 2 + 24.0 * gap)) / (12.0 * gap)
    return jax.lax.fori_loop(0, 4, nearer, start)
