"""What histograms have found of the norms of rows, and the steps that clip to it."""

import dataclasses
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from numpyro_vips.fitting.bounds.bounds import NormPart, bounded_blocks
from numpyro_vips.fitting.bounds.norm_histogram import (
    NEAR,
    Hidden,
    NoisyCounts,
    SeenNorms,
    middle_of_all,
    seen_norms,
)
from numpyro_vips.fitting.step import Step
from numpyro_vips.privacy.releases import SQUARES, Kept

# From parts of the joint vector whose rows noise hides, and their noisy counts, to the
# norms that priors say; see `prior_norms`.
NormsOfPriors = Callable[
    [Sequence[NormPart], Mapping[str, NoisyCounts]], Mapping[str, float]
]


class FoundNorms(NamedTuple):
    """What histograms of norms have said so far.

    Attributes:
      norms: By part; those that noise hides have that of rows of unit size, or of rows
        that the priors draw, whichever is larger.
      unseen: Parts of which no bin of the last histogram stood out of the noise: these
        keep the norm that they had.
      kept: By block whose next steps redraw rows, what its norm leaves of the scores.
    """

    norms: dict[str, float]
    unseen: tuple[str, ...]
    kept: Mapping[str, Kept] = types.MappingProxyType({})


def found_norms(
    steps: Sequence[Step],
    number: int,
    counts: Mapping[str, np.ndarray],
    norms: Mapping[str, float],
    *,
    parts: Sequence[NormPart],
    is_one_vector: bool,
    num_rows: int,
    expected_squares: Mapping[str, float],
    of_priors: NormsOfPriors,
) -> FoundNorms:
    """The norms after a histogram of norms.

    Args:
      steps: The schedule.
      number: Which of its steps has the histogram.
      counts: Its noisy counts, by part.
      norms: What histograms before it said, by part.
      parts: All parts of the joint vector.
      is_one_vector: See `bounded_blocks`.
      num_rows: Public number of rows.
      expected_squares: See `ClippingNorms.expected_squares`.
      of_priors: See `prior_norms`.
    """
    histogram, later = steps[number], steps[number + 1 :]
    found, unseen = dict(norms), []
    kept: dict[str, Kept] = {}
    known = {part.name: part.reference for part in parts if not part.is_late}
    known |= norms

    def noise_stddev(part: NormPart) -> float:
        return histogram.mechanism.block_noise_stddev(part.name)

    def shown(part: NormPart, reference: float | None) -> SeenNorms | None:
        return seen_norms(
            counts[part.name],
            part.grid,
            noise_stddev=noise_stddev(part),
            num_rows=num_rows,
            # About other points norms are others. A gradient's, in other coordinates,
            # is known up to a factor, see `Recentring.stretched`.
            is_known=part.name in norms and (is_one_vector or not histogram.recentres),
            reference=reference,
            hidden=_hidden(part, norms, expected_squares),
        )

    def chosen(part: NormPart, seen: SeenNorms | None) -> float | None:
        if seen is None:
            return None
        noise = _relative_noise(later, part, parts, is_one_vector)
        return _norm(seen, part, later, noise)

    def middle(part: NormPart) -> float | None:
        return middle_of_all(
            counts[part.name],
            part.grid,
            noise_stddev=noise_stddev(part),
            num_rows=num_rows,
        )

    def is_on_way(part: NormPart) -> bool:
        return part.is_balanced and any(step.redraws for step in later)

    surely = {part.name: shown(part, None) for part in histogram.counted}
    never = [
        part
        for part in histogram.counted
        if surely[part.name] is None and part.name not in norms and not part.is_late
    ]
    released = {
        part.name: NoisyCounts(counts[part.name], noise_stddev(part))
        for part in never
        # Of rows about another point those that priors draw say nothing.
        if not histogram.recentres
    }
    priors = of_priors(never, released)
    for part in histogram.counted:
        seen, of_prior = surely[part.name], priors.get(part.name, 0.0)
        norm = chosen(part, seen)
        if norm is None:
            seen = shown(part, part.reference)
            near = chosen(part, seen)
            # A weak finding that priors and counts together make unlikely is noise.
            norm = near if near and near * NEAR > of_prior else None
        if norm is None:
            seen, norm = None, middle(part) if is_on_way(part) else None
        if norm is None and part.is_late:
            continue
        if norm is None:
            unseen.append(part.name)
            norm = max(known[part.name], of_prior)
        if part.is_lasting:
            norm = max(norm, norms.get(part.name, 0.0))
        found[part.name] = norm
        if seen is not None and _redraw(later, part):
            kept |= dict.fromkeys(part.blocks, seen.kept(norm))
    return FoundNorms(found, tuple(unseen), kept)


# How many times the norm of the middle row differences may be clipped at. Far from the
# optimum norms may span ten orders of magnitude, and the longest say no more of the way
# there than others.
_MOST_OF_MIDDLE = 4.0


def _norm(
    seen: SeenNorms, part: NormPart, later: Sequence[Step], noise: float
) -> float:
    """The norm to which a part is clipped, of which a histogram has shown something.

    Args:
      seen: The histogram.
      part: The part.
      later: The steps after the histogram.
      noise: See `_relative_noise`.
    """
    if SQUARES & set(part.blocks):
        return min(seen.least_harm(noise), seen.least_loss(noise))
    if not part.is_balanced:
        return seen.least_harm(noise)
    if _redraw(later, part):
        return min(seen.least_variance(noise), _MOST_OF_MIDDLE * seen.middle)
    least_harm = seen.least_harm(noise, _alignment(later, part))
    if any(step.redraws for step in later):
        # These steps only lead to where such steps start. What clipping takes off the
        # longest gradients biases no result, and noise grows with the norm.
        return min(least_harm, seen.middle)
    return least_harm


def _redraw(later: Sequence[Step], part: NormPart) -> bool:
    """Whether the next steps that release a part redraw rows."""
    blocks = set(part.blocks)
    release = (
        step
        for step in later
        if not step.counted and blocks <= {block.name for block in step.blocks}
    )
    step = next(release, None)
    return step is not None and step.redraws


def clipped_to(
    steps: Sequence[Step],
    number: int,
    norms: Mapping[str, float],
    *,
    parts: Sequence[NormPart],
    is_one_vector: bool,
) -> tuple[Step, ...]:
    """The schedule in which the steps after a histogram clip to the norms it found.

    Args:
      steps: The schedule.
      number: Which of its steps has the histogram.
      norms: By part, of those of which a histogram has said something.
      parts: All parts of the joint vector.
      is_one_vector: See `bounded_blocks`.
    """
    histogram, later = steps[number], steps[number + 1 :]
    known = {part.name: part.reference for part in parts if not part.is_late}
    known |= norms
    for part in (part for step in later for part in step.parts):
        norm = math.hypot(*(known.get(name, 0.0) for name in part.blocks))
        known.setdefault(part.name, norm or part.reference)
    counted = {block for part in histogram.counted for block in part.blocks}
    resolved = list(steps[: number + 1])
    for step in later:
        names = {block.name for block in step.blocks}
        if step.informs or (not step.counted and names & counted):
            step = _clipped(step, known, is_one_vector)
        resolved.append(step)
    return tuple(resolved)


def _hidden(
    part: NormPart, norms: Mapping[str, float], expected_squares: Mapping[str, float]
) -> Hidden | None:
    """Rows as large as an earlier histogram has found them, if there must be some."""
    if part.name not in norms or not expected_squares.keys() & set(part.blocks):
        return None
    squares = sum(expected_squares.get(name, 0.0) for name in part.blocks)
    return Hidden(squares, norms[part.name])


def _alignment(steps: Sequence[Step], part: NormPart) -> float:
    """By how much of their norms what is clipped off gradients adds up; reasoned.

    Counts all point one way. Gradients point in as many directions as they have
    coordinates, and near the optimum against each other: they add up to zero there. But
    those that are clipped are no random sample: of few coefficients the surprising rows
    lose most, and what is left makes them too large. The power is between that of
    random directions, 1/2, and 1, and was tried with 3 to 109 coordinates.
    """
    sizes = {b.name: b.num_directions for step in steps for b in step.blocks}
    return sum(sizes[name] for name in part.blocks) ** -0.75


def _clipped(
    step: Step,
    norms: Mapping[str, float],
    is_one_vector: bool,
) -> Step:
    blocks, norm = bounded_blocks(
        step.blocks,
        norms,
        relation=step.sampling.relation,
        is_one_vector=is_one_vector,
        parts=step.parts,
    )
    return dataclasses.replace(step, blocks=blocks, clipping_norm=norm)


def _relative_noise(
    steps: Sequence[Step],
    part: NormPart,
    parts: Sequence[NormPart],
    is_one_vector: bool,
) -> float:
    """L2 norm of the noise in the average of a part's releases, over its norm.

    Zero if there are none.
    """
    squares = []
    for step in steps:
        unit = {p.name: 1.0 for p in (*parts, *step.parts)}
        names = {block.name for block in step.blocks}
        if step.counted or not set(part.blocks) <= names:
            continue
        mechanism = _clipped(step, unit, is_one_vector).mechanism
        square = sum(
            block.num_coordinates * mechanism.block_noise_stddev(block.name) ** 2
            for block in step.blocks
            if block.name in part.blocks
        )
        squares.append(square / step.sampling.rate**2)
    if not squares:
        return 0.0  # In a fit of few steps nothing of the part is released any more.
    return math.sqrt(1.0 / sum(1.0 / square for square in squares))
