"""What two noisy counts say about a probability.

Given how many of T rows have a label, its probability has a Beta density. Of that
number there is a noisy reading only, and the Beta densities are averaged over what it
may be: between 0 and T, and as probable beforehand as the prior of the probability
makes it. Of a label that is rare a count may read below zero. Then it is small, and
about how small the noise says as much as if the count read five: a share that counts
for less the smaller it is would make it ten times too large.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln, gammaln
from jaxtyping import Array, Float

# More than so many are not worth a quadrature each.
MOST_SHARES = 4096
# Points at which a density is looked at, and how often they close in on it.
_POINTS, _STAGES = 64, 6
# What is so many nats below the mode counts for nothing.
_NEGLIGIBLE = 30.0
# A count so many standard deviations outside its range is one of rows that were
# clipped, and says nothing more about how small it is.
_OUTSIDE = 4.0


class Counts(NamedTuple):
    """Two counts: of what has the probability, and of what has not.

    Without noise, the concentrations of Beta densities; then they may be any positive
    numbers.
    """

    of: Float[Array, "*batch"]
    others: Float[Array, "*batch"]


def share_of_noisy_counts(prior: Counts, noisy: Counts, stddev: Counts) -> Counts:
    """The Beta density with the mean and the variance of the posterior.

    Args:
      prior: Concentrations of the prior.
      noisy: What was released.
      stddev: Standard deviations of its noise, one of them positive at least.

    Returns:
      Concentrations.
    """
    tiny = jnp.finfo(noisy.of.dtype).tiny
    a, b = (jnp.maximum(own, 1e-6) for own in prior)
    total = jnp.maximum(noisy.of + noisy.others, 0.0)
    largest = jnp.maximum(stddev.of, stddev.others)
    read = jnp.clip(noisy.of, -_OUTSIDE * largest, total + _OUTSIDE * largest)

    def within(points: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.clip(points, 0.0, total)

    def log_weight(points: Float[Array, "..."]) -> Float[Array, "..."]:
        count = within(points)
        # The probability of a count under the prior, and of the reading given it: of
        # its share q the noise is (1 - q) times that of one count and q times that of
        # the other.
        share = count / jnp.maximum(total, tiny)
        variance = ((1.0 - share) * stddev.of) ** 2 + (share * stddev.others) ** 2
        variance = jnp.maximum(variance, tiny)
        ways = -gammaln(count + 1.0) - gammaln(total - count + 1.0)
        return (
            ways
            + betaln(a + count, b + total - count)
            - 0.5 * jnp.log(variance)
            - 0.5 * (read - count) ** 2 / variance
        )

    middles = jnp.asarray((np.arange(_POINTS) + 0.5) / _POINTS, total.dtype)
    middles = middles.reshape(-1, *(1,) * total.ndim)

    def closer(
        _: int, found: tuple[Float[Array, "..."], ...]
    ) -> tuple[Float[Array, "..."], ...]:
        low, high = found[:2]
        points = low + (high - low) * middles
        logs = log_weight(points)
        matters = logs > logs.max(0) - _NEGLIGIBLE
        width = (high - low) / _POINTS
        lowest = jnp.where(matters, points, jnp.inf).min(0) - width
        highest = jnp.where(matters, points, -jnp.inf).max(0) + width
        return jnp.maximum(lowest, low), jnp.minimum(highest, high), points, logs

    nothing = jnp.zeros((_POINTS, *total.shape), total.dtype)
    # Counts are whole, and the first and the last stand for half a unit outside, too.
    start = jnp.full_like(total, -0.5), total + 0.5, nothing, nothing
    points, logs = jax.lax.fori_loop(0, _STAGES, closer, start)[2:]
    counts = within(points)
    weights = jnp.exp(logs - logs.max(0))
    weights = weights / weights.sum(0)
    size = a + b + total
    count = (weights * counts).sum(0)
    spread = (weights * (counts - count) ** 2).sum(0)
    of, others = a + count, b + total - count
    # That of the Betas is E[(a + c)(b + T - c)], divided by size² (size + 1).
    mean = of / size
    own_variance = (of * others - spread) / (size + 1.0)
    variance = (spread + own_variance) / size**2
    concentration = mean * (1.0 - mean) / variance - 1.0
    return Counts(concentration * mean, concentration * (1.0 - mean))
