"""What clipping takes off released sums, estimated from simulated rows.

Rows that are simulated at the released posterior, through the same clipped sum, show by
how much less than all of it is released. What is added back moves the posterior, and so
the rows: the correction is where this comes to an end (indirect inference, Gourieroux,
Monfort and Renault, 1993). It is made of released numbers alone.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from numpyro_vips.vips.program.named_arrays import NewSums, Sums
from numpyro_vips.vips.steps.released_sums import Unclipped

Vector = Float64[np.ndarray, " coordinates"]
# What is missing for a correction; None where that is not known.
Correction = Callable[[Vector], Vector | None]

# Most rounds, and how near to its end a correction is good enough, in standard
# deviations of the noise.
_MOST_ROUNDS = 24
_TOLERANCE = 0.05
# Rounds that the next one is extrapolated from.
_MEMORY = 4
# How much larger noise may become at most, by what is added back to the sums.
_MOST_AMPLIFIED = 30.0


class Lost(NamedTuple):
    """What else makes a corrected sum uncertain, as a variance of each coordinate.

    Attributes:
      of_rows: By how much the variance over samples of rows, of what clipped sums say,
        is larger than that of whole sums. With ρ their correlation, it is 1/ρ² − 1
        times the variance of whole sums.
      of_simulation: That of what is missing, over simulations.
    """

    of_rows: float
    of_simulation: float


def without_clipping(
    statistics: Sums,
    noise_stddev: Mapping[str, float],
    missing: Callable[[Sums], NewSums | None],
    lost: Callable[[Sums], Mapping[str, Lost]],
) -> Unclipped | None:
    """Adds what clipping has taken off to sums.

    Args:
      statistics: The sums, as they were released.
      noise_stddev: Standard deviation of the noise in them.
      missing: By how much the clipped sums of rows fall short, by statistic, where the
        posterior is that of some sums. None where that is not known.
      lost: What clipping hides, by statistic, where the posterior is that of some sums.

    Returns:
      The corrected sums; None if that is not known, or nothing is missing.
    """
    first = missing(statistics)
    if first is None:
        return None
    names = sorted(name for name in first if noise_stddev[name] > 0)
    sizes = [noise_stddev[name] for name in names]
    if not names or all(
        np.all(np.abs(first[name]) <= _TOLERANCE * size)
        for name, size in zip(names, sizes, strict=True)
    ):
        return None

    def flat(sums: Sums) -> Vector:
        parts = [np.ravel(sums[n]) / s for n, s in zip(names, sizes, strict=True)]
        return np.concatenate(parts)

    def added(correction: Vector) -> NewSums:
        found, start = {k: np.asarray(v) for k, v in statistics.items()}, 0
        for name, size in zip(names, sizes, strict=True):
            end = start + found[name].size
            part = correction[start:end].reshape(found[name].shape)
            found[name] = np.asarray(found[name] + size * part)
            start = end
        return found

    def falls_short(correction: Vector) -> Vector | None:
        found = missing(added(correction))
        return None if found is None else flat(found)

    correction = _end_of(falls_short, flat(first))
    if correction is None:
        return None
    widths = [np.size(statistics[name]) for name in names]
    amplified = _amplification(falls_short, correction, widths, sizes)
    if amplified is None:
        return None
    corrected, deviations = added(correction), dict(noise_stddev)
    hidden = lost(corrected)
    variances = [noise_stddev[name] ** 2 + hidden[name].of_simulation for name in names]
    for name, total in zip(names, amplified**2 @ np.array(variances), strict=True):
        deviations[name] = float(np.sqrt(total + hidden[name].of_rows))
    return Unclipped(corrected, deviations)


def _end_of(function: Correction, start: Vector) -> Vector | None:
    """Where a function gives back what it is given (Anderson, 1965)."""
    points: list[Vector] = []
    residuals: list[Vector] = []
    point = start
    for _ in range(_MOST_ROUNDS):
        value = function(point)
        if value is None:
            return None
        points.append(point)
        residuals.append(value - point)
        if np.max(np.abs(residuals[-1])) <= _TOLERANCE:
            return value
        steps = np.diff(points[-_MEMORY:], axis=0)
        changes = np.diff(residuals[-_MEMORY:], axis=0)
        point = value
        if len(steps):
            weights = np.linalg.lstsq(changes.T, residuals[-1], rcond=1e-6)[0]
            point = value - weights @ (steps + changes)
    return point


def _amplification(
    function: Correction,
    correction: Vector,
    widths: list[int],
    sizes: list[float],
) -> Float64[np.ndarray, "blocks blocks"] | None:
    """How noise in each block becomes noise in each corrected block.

    The mean over their coordinates: a correction that grows with the sums makes noise
    grow, too.

    Args:
      function: What is missing for a correction, both in standard deviations of the
        noise of each block.
      correction: Where.
      widths: The number of coordinates of each block.
      sizes: The standard deviation of its noise.
    """
    ends = np.cumsum(widths)
    at = function(correction)
    if at is None:
        return None
    slopes = np.zeros((len(widths), len(widths)))
    for column, (end, width) in enumerate(zip(ends, widths, strict=True)):
        direction = np.zeros_like(correction)
        signs = np.random.default_rng(0).choice([-1.0, 1.0], width)
        direction[end - width : end] = signs if width > 1 else 1.0
        moved = function(correction + direction)
        if moved is None:
            return None
        change = moved - at
        for row, (last, size) in enumerate(zip(ends, widths, strict=True)):
            part = change[last - size : last]
            own = direction[last - size : last]
            slopes[row, column] = (
                part @ own / size if row == column else np.sqrt(np.mean(part**2))
            )
    values = np.linalg.eigvals(slopes)
    largest = np.max(np.abs(values), initial=0.0)
    slopes *= min(1.0, (1.0 - 1.0 / _MOST_AMPLIFIED) / max(largest, 1e-12))
    found = np.linalg.inv(np.eye(len(widths)) - slopes)
    return found * np.array(sizes)[:, None] / np.array(sizes)
