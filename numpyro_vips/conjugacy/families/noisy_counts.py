"""What many noisy counts say together about each of them.

Counts of words in topics are mostly small, and noise of a known size hides them. Read
one by one, half of the empty cells are as large as the noise. Together they show how
counts are spread about what the totals of rows and columns let expect, and each is read
by its posterior mean under that spread: empirical Bayes, with a prior found by
deconvolution (Robbins 1956; Efron 2014, "Two modeling strategies for empirical Bayes
estimation").

Only noisy counts and the size of their noise enter, so it costs no privacy.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

from numpyro_vips.conjugacy.families.noisy_sums import nonnegative

# The ratio of a count to its background is nothing at all, or near a point of a
# geometric grid: a Gaussian as wide as this share of the point. Neighbours overlap, so
# that what is far above the noise is not drawn to a point, and next to nothing of them
# is below zero.
_LEAST_RATIO, _LARGEST_RATIO, _POINTS, _WIDTH = 0.03, 100.0, 28, 0.2
# Cells with backgrounds of about one size share a distribution of ratios. There are so
# many sizes, if each has enough cells.
_MOST_GROUPS, _LEAST_IN_GROUP = 24, 400
# A group's distribution is estimated from at most so many of its cells.
_MOST_TO_LEARN_FROM = 2048
# So many cells are read at once, for which there is memory.
_AT_ONCE = 16_384
# Rounds of expectation maximisation. More of them fit the noise.
_ROUNDS = 30
# A reading this many standard deviations below zero is not one of the noise alone, but
# of rows that were clipped, and says nothing more about how small the count is.
_LOWEST = -4.0
# A count of so many standard deviations of its noise is read as it is. Beneath,
# densities are far from where single precision ends.
_EXACT = 1e6


def expected_counts(
    noisy: Float[Array, "*batch cells"], noise_stddev: Float[Array, "*batch cells"]
) -> Float[Array, "*batch cells"]:
    """Posterior means of nonnegative counts, given all of them with Gaussian noise.

    The prior of a count is its background times a ratio. The background of a cell is
    its row's total times its column's, over that of all cells; or the mean count, where
    there is one row. The ratio has a distribution that all cells with a background of
    about the same size share, found from the noisy counts by expectation maximisation.
    (A prior common to all cells would read rare words in small topics as if they were
    frequent ones.)

    Args:
      noisy: Counts with noise, which may be negative. The axes of the batch are rows.
      noise_stddev: The standard deviation of the noise in each, which may differ.

    Returns:
      Counts that are not negative, and positive where there is noise that could hide
      one. Those far above their noise, or without any, are what was read.
    """

    def read() -> Float[Array, "*batch cells"]:
        cells = noisy.shape[-1]
        counts, stddev = noisy.reshape(-1, cells), noise_stddev.reshape(-1, cells)
        found = _of_columns(counts.sum(0), _stddev_of_sum(stddev, 0))
        if len(counts) > 1:
            rows = nonnegative(counts.sum(1), _stddev_of_sum(stddev, 1))
            total = found.sum()
            shares = found / jnp.where(total > 0, total, 1.0)
            background = rows[:, None] * shares
            groups = max(1, min(_MOST_GROUPS, counts.size // _LEAST_IN_GROUP))
            found = _read(counts.ravel(), stddev.ravel(), background.ravel(), groups)
        return found.reshape(noisy.shape)

    as_it_is = jnp.maximum(noisy, 0.0)
    # Fits without noise have as many steps as one with it, and shall not pay for this.
    found = jax.lax.cond(jnp.any(noise_stddev > 0), read, lambda: as_it_is)
    return jnp.where(noisy < _EXACT * noise_stddev, found, as_it_is)


def _stddev_of_sum(
    noise_stddev: Float[Array, "rows cells"], axis: int
) -> Float[Array, " sums"]:
    """The standard deviation of sums of independent noises along an axis.

    It is the root of the sum of their variances, which are scaled so that none
    underflows.
    """
    largest = jnp.max(noise_stddev)
    scale = jnp.where(largest > 0, largest, 1.0)
    return scale * jnp.sqrt(((noise_stddev / scale) ** 2).sum(axis))


def _of_columns(
    noisy: Float[Array, " cells"], noise_stddev: Float[Array, " cells"]
) -> Float[Array, " cells"]:
    """Posterior means of a single row of counts, which all have one background."""
    of_total = _stddev_of_sum(noise_stddev[None], 1)[0]
    mean = nonnegative(noisy.sum(), of_total) / noisy.size
    return _read(noisy, noise_stddev, jnp.full(noisy.shape, mean), groups=1)


def _read(
    noisy: Float[Array, " cells"],
    noise_stddev: Float[Array, " cells"],
    background: Float[Array, " cells"],
    groups: int,
) -> Float[Array, " cells"]:
    """Posterior means of counts with these backgrounds, in so many groups of cells."""
    # All is in units of the noise. What has none is read by `expected_counts`.
    unit = jnp.where(noise_stddev > 0, noise_stddev, 1.0)
    level = jnp.clip(noisy / unit, _LOWEST, _EXACT)
    place = jnp.minimum(background / unit, _EXACT).astype(jnp.float32)
    nearly, widest = level.astype(jnp.float32), jnp.maximum(jnp.max(level), 1.0)
    widest = widest.astype(jnp.float32)
    members = _grouped(place, groups)

    def learnt(cells: Int[Array, " learnt"]) -> Float32[Array, " components"]:
        density, _ = _components(nearly[cells], place[cells], widest)
        return _mixture(density)

    weights = jax.lax.map(learnt, members)
    group = jnp.searchsorted(place[members[1:, 0]], place, side="right")

    def shrinkage(cells: Int[Array, " part"]) -> Float32[Array, " part"]:
        density, towards = _components(nearly[cells], place[cells], widest)
        joint = density * weights[group[cells]]
        return (joint * towards).sum(-1) / joint.sum(-1)

    parts = math.ceil(noisy.size / _AT_ONCE)
    size = math.ceil(noisy.size / parts)
    # The last part is filled up with the last cell.
    cells = jnp.minimum(jnp.arange(parts * size), noisy.size - 1)
    found = jax.lax.map(shrinkage, cells.reshape(parts, size)).ravel()
    return jnp.maximum(level - found[: noisy.size].astype(level.dtype), 0.0) * unit


def _grouped(
    place: Float32[Array, " cells"], groups: int
) -> Int[Array, "groups learnt"]:
    """Some cells to learn from, in groups of about the same background, in order."""
    number = min(place.size, groups * _MOST_TO_LEARN_FROM)
    # Spread over all, as columns may be sorted by frequency; in 64 bits, lest products
    # overflow.
    spread = np.arange(number, dtype=np.int64) * place.size // number
    some = jnp.asarray(spread.astype(np.int32))
    some = some[jnp.argsort(place[some])]
    size = math.ceil(number / groups)
    # The last group is filled up with the last cell.
    filled = jnp.minimum(jnp.arange(groups * size), number - 1)
    return some[filled].reshape(groups, size)


def _components(
    level: Float32[Array, " cells"],
    background: Float32[Array, " cells"],
    widest: Float32[Array, ""],
) -> tuple[Float32[Array, "cells components"], Float32[Array, "cells components"]]:
    """What each component of the prior says of cells, in units of their noise.

    The last component is as wide as the largest count, for those that no ratio
    explains.

    Args:
      level: Noisy counts.
      background: What a ratio multiplies.
      widest: The largest of all counts.

    Returns:
      The density of what was read, up to a factor, and by how much it is above the mean
      of the count.
    """
    ratios = jnp.geomspace(_LEAST_RATIO, _LARGEST_RATIO, _POINTS, dtype=level.dtype)
    none = jnp.zeros((len(level), 1), level.dtype)
    about = background[:, None] * ratios
    centres = jnp.concatenate([none, about, none], 1)
    widths = jnp.concatenate([none, _WIDTH * about, none + widest], 1)
    precision = 1.0 / (1.0 + widths**2)
    away = level[:, None] - centres
    towards = away * precision
    return jnp.exp(-0.5 * away * towards) * jnp.sqrt(precision), towards


def _mixture(
    density: Float32[Array, "cells components"],
) -> Float32[Array, " components"]:
    """The weights of the components under which cells are likeliest.

    One cell is added that is of every component alike, so that none is ruled out by
    the cells that happen to be looked at.
    """
    cells, components = density.shape

    def next_weights(
        _: Int[Array, ""], weights: Float32[Array, " components"]
    ) -> Float32[Array, " components"]:
        shares = weights * ((1.0 / (density @ weights)) @ density)
        return (shares + 1.0 / components) / (cells + 1.0)

    start = jnp.full(components, 1.0 / components, density.dtype)
    return jax.lax.fori_loop(0, _ROUNDS, next_weights, start)
