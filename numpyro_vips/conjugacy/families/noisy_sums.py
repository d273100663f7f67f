"""What noisy sums say about sums that cannot be negative, and how much."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

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


class RateShape(NamedTuple):
    """Distributions of positive τ, with density ∝ τ^(c - 1) exp(-r τ - a / τ).

    Attributes:
      concentration, rate: c and r.
      inverse: a; None for Gamma distributions, where it is zero.
    """

    concentration: Float[Array, "*batch"]
    rate: Float[Array, "*batch"]
    inverse: Float[Array, "*batch"] | None = None


# More than so many are not worth a quadrature each.
MOST_RATES = 4096
# Points at which a density is looked at, and how often they close in on it.
_POINTS, _STAGES = 64, 5
# The first of them are so many powers of e below and above count / total.
_BELOW, _ABOVE = 8.0, 16.0
# What is so many nats below the mode counts for nothing.
_NEGLIGIBLE = 40.0


def rate_of_noisy_sums(
    prior: RateShape,
    count: Float[Array, "*batch"],
    count_stddev: Float[Array, "*batch"],
    total: Float[Array, "*batch"],
    total_stddev: Float[Array, "*batch"],
) -> RateShape:
    """The distribution nearest to the posterior of a rate, given its noisy sums.

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
      Where the prior has an `inverse`, the one with the posterior's means of log τ, τ
      and 1 / τ, by quadrature. Otherwise a Gamma with its mean of log τ, and with its
      mean of τ or its variance of log τ, whichever leaves the Gamma narrower: a vague
      prior leaves a long tail on one side, which has no part in what is likely, and the
      one or the other is a number of that tail alone.
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
            - (0.0 if prior.inverse is None else prior.inverse / rate)
            + log_rate
            - 0.5 * jnp.log(variance)
            - 0.5 * residual**2 / variance
        )

    size = jnp.abs(total) + total_stddev + prior.rate
    about = jnp.log(jnp.maximum(count, 1.0)) - jnp.log(jnp.maximum(size, tiny))
    low, high = about - _BELOW, about + _ABOVE
    if prior.inverse is not None:
        # Where the prior has its mass, if noise says less than that.
        own = jnp.log(jnp.maximum(prior.inverse, tiny))
        low = jnp.where(prior.inverse > 0, jnp.minimum(low, own - _BELOW), low)
        high = jnp.where(prior.inverse > 0, jnp.maximum(high, own + _ABOVE), high)
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
    return rate_on_grid(
        points, weights / weights.sum(0), has_inverse=prior.inverse is not None
    )


def rate_on_grid(
    logs: Float[Array, " points *batch"],
    weights: Float[Array, " points *batch"],
    *,
    has_inverse: bool,
) -> RateShape:
    """The distribution nearest to one on a grid.

    Args:
      logs: Values of log τ.
      weights: Their probabilities.
      has_inverse: Whether it is one with an `inverse`.

    Returns:
      See `rate_of_noisy_sums`.
    """
    mean_log = (weights * logs).sum(0)
    # Beside its own size, so that narrow densities keep their digits.
    ratio = (weights * jnp.expm1(logs - mean_log)).sum(0)
    # Rounding leaves no more digits than these of what is certain.
    gap = jnp.maximum(jnp.log1p(ratio), 1e-13)
    if has_inverse:
        # Nearly that of a Gamma, and good enough for where to start.
        concentration = 0.5 / gap
        rate = concentration / jnp.exp(mean_log) / (1.0 + ratio)
        start = RateShape(concentration, rate, jnp.zeros_like(rate))
        return _nearest(start, logs, weights)
    variance = (weights * (logs - mean_log) ** 2).sum(0)
    concentration = jnp.maximum(_of_gap(gap), _of_variance(variance))
    rate = jnp.exp(digamma(concentration) - mean_log)
    return RateShape(concentration, rate)


# Newton steps to the nearest distribution, how often one is halved, and what is added
# to the variances of statistics that are hardly different, as a share of each.
_NEWTON_STEPS, _HALVINGS, _RIDGE = 20, 8, 1e-10


def _nearest(
    start: RateShape,
    logs: Float[Array, " points *batch"],
    weights: Float[Array, " points *batch"],
) -> RateShape:
    """The distribution with the same means of log τ, τ and 1 / τ as one on a grid.

    The mean of its log density is concave in the parameters, and largest there.

    Args:
      start: Where to begin.
      logs: Values of log τ.
      weights: Their probabilities.
    """
    assert start.inverse is not None
    mean, mean_inverse = ((weights * jnp.exp(x)).sum(0) for x in (logs, -logs))
    # About 1 each, so that no digits are lost to units.
    statistics = jnp.stack(
        [logs - jnp.log(mean), -jnp.exp(logs) / mean, -jnp.exp(-logs) / mean_inverse],
        axis=-1,
    )
    means = (weights[..., None] * statistics).sum(0)
    least = jnp.array([-jnp.inf, 0.0, 0.0], logs.dtype)
    unit = jnp.eye(3, dtype=logs.dtype)
    free = jnp.array([[1, 1, 1], [1, 1, 0], [1, 0, 1], [1, 0, 0]], logs.dtype)
    free = free.reshape(4, *(1,) * (logs.ndim - 1), 3)

    def at(
        found: Float[Array, "*batch 3"],
    ) -> tuple[Float[Array, "*batch"], Float[Array, "4 ..."]]:
        """The mean of the log density, and the probabilities of the points."""
        log_density = (statistics * found).sum(-1)
        total = jax.scipy.special.logsumexp(log_density, axis=0)
        return (means * found).sum(-1) - total, jnp.exp(log_density - total)

    def newton(_: int, found: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3"]:
        value, probability = at(found)
        own = (probability[..., None] * statistics).sum(0)
        rest = statistics - own
        weighted = probability[..., None] * rest
        covariance = jnp.einsum("p...i,p...j->...ij", weighted, rest)
        variances = jnp.diagonal(covariance, axis1=-2, axis2=-1)
        ridge = _RIDGE * variances + jnp.finfo(value.dtype).tiny
        covariance = covariance + ridge[..., None] * unit
        # With all parameters, and with those that may be at their limit left alone.
        moved = covariance * free[..., :, None] * free[..., None, :]
        moved = moved + (1.0 - free)[..., None, :] * unit
        steps = jnp.linalg.solve(moved, (free * (means - own))[..., None])[..., 0]

        def shorter(
            number: Int[Array, ""],
            best: tuple[Float[Array, "*batch"], Float[Array, "*batch 3"]],
        ) -> tuple[Float[Array, "*batch"], Float[Array, "*batch 3"]]:
            step = 0.5 ** (number // len(free)) * steps[number % len(free)]
            end = jnp.maximum(found + step, least)
            tried, _ = at(end)
            is_better = tried > best[0]
            end = jnp.where(is_better[..., None], end, best[1])
            return jnp.where(is_better, tried, best[0]), end

        tries = len(free) * _HALVINGS
        return jax.lax.fori_loop(0, tries, shorter, (value, found))[1]

    parameters = jnp.stack(
        [start.concentration, start.rate * mean, start.inverse * mean_inverse], axis=-1
    )
    found = jax.lax.fori_loop(0, _NEWTON_STEPS, newton, parameters)
    c, r, a = (found[..., i] for i in range(3))
    return RateShape(c, r / mean, a / mean_inverse)


def _of_variance(variance: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The concentration a of a Gamma whose logarithm has this variance, ψ'(a).

    By Newton's method in 1 / ψ', which is nearly linear: between a - 1/2 and a².
    """
    reciprocal = 1.0 / variance

    def nearer(_: int, found: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        own = jax.scipy.special.polygamma(1, found)
        slope = -jax.scipy.special.polygamma(2, found) / own**2
        return jnp.maximum(found + (reciprocal - 1.0 / own) / slope, 0.1 * found)

    start = jnp.maximum(jnp.sqrt(reciprocal), reciprocal)
    return jax.lax.fori_loop(0, 6, nearer, start)


def _of_gap(gap: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The concentration a of a Gamma with log a − ψ(a) equal to a number.

    By Newton's method in 1 / a (Minka, 2002).
    """

    def nearer(_: int, found: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        slope = 1.0 / found - jax.scipy.special.polygamma(1, found)
        change = (jnp.log(found) - digamma(found) - gap) / (found**2 * slope)
        return 1.0 / (1.0 / found + change)

    start = (3.0 - gap + jnp.sqrt((gap - 3.0) ** 2 + 24.0 * gap)) / (12.0 * gap)
    return jax.lax.fori_loop(0, 4, nearer, start)
