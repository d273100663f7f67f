"""What histograms have found of the norms of rows, and the steps that clip to it."""

import dataclasses
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from numpyro_vips.fitting.bounds.block_scales import bounded_blocks
from numpyro_vips.fitting.bounds.norm_histogram import NEAR, NoisyCounts
from numpyro_vips.fitting.bounds.norm_parts import NormPart, squares_of
from numpyro_vips.fitting.bounds.seen_norms import (
    DECAY,
    Hidden,
    SeenNorms,
    middle_of_all,
    seen_norms,
)
from numpyro_vips.fitting.step import Step
from numpyro_vips.privacy.releases import Kept

# From parts of the joint vector whose rows noise hides, and their noisy counts, to the
# norms that priors draw; see `prior_norms`.
NormsOfPriors = Callable[
    [Sequence[NormPart], Mapping[str, NoisyCounts]], Mapping[str, float]
]


class FoundNorms(NamedTuple):
    """What histograms of norms have found so far.

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormHistogram:
    """A step that counts norms, in its schedule.

    Attributes:
      steps: The schedule.
      number: Which of its steps it is.
      parts: All parts of the joint vector.
      is_one_vector: See `bounded_blocks`.
    """

    steps: Sequence[Step]
    number: int
    parts: Sequence[NormPart]
    is_one_vector: bool

    @property
    def step(self) -> Step:
        return self.steps[self.number]

    @property
    def parts_shown(self) -> list[NormPart]:
        """The parts that it shows the norms of: those it counts, and their squares."""
        counted = self.step.counted
        return [*counted, *squares_of(counted, self.parts)]

    @property
    def later(self) -> Sequence[Step]:
        """The steps after it."""
        return self.steps[self.number + 1 :]

    def known(self, norms: Mapping[str, float]) -> dict[str, float]:
        """Norms by part: those of rows of unit size, where histograms found none."""
        units = {part.name: part.reference for part in self.parts if not part.is_late}
        return units | dict(norms)

    def clipped(self, step: Step, norms: Mapping[str, float]) -> Step:
        """A step that clips to these norms."""
        blocks, norm = bounded_blocks(
            step.blocks,
            norms,
            relation=step.sampling.relation,
            is_one_vector=self.is_one_vector,
            parts=step.parts,
        )
        return dataclasses.replace(step, blocks=blocks, clipping_norm=norm)

    def relative_noise(self, part: NormPart) -> float:
        """L2 norm of the noise in the average of a part's releases, over its norm.

        Zero if there are none: in a fit of few steps nothing of it is released any
        more.
        """
        precision = 0.0
        for step in self.later:
            if step.counted or not _releases(step, part):
                continue
            unit = {p.name: 1.0 for p in (*self.parts, *step.parts)}
            mechanism = self.clipped(step, unit).mechanism
            square = sum(
                block.num_coordinates * mechanism.block_noise_stddev(block.name) ** 2
                for block in step.blocks
                if block.name in part.blocks
            )
            precision += step.sampling.rate**2 / square
        return 1.0 / math.sqrt(precision) if precision else 0.0


def found_norms(
    histogram: NormHistogram,
    counts: Mapping[str, np.ndarray],
    norms: Mapping[str, float],
    *,
    num_rows: int,
    expected_squares: Mapping[str, float],
    of_priors: NormsOfPriors,
) -> FoundNorms:
    """The norms after a histogram of norms.

    Args:
      histogram: The step.
      counts: Its noisy counts, by part.
      norms: What histograms before it have found, by part.
      num_rows: Public number of rows.
      expected_squares: See `ClippingNorms.expected_squares`.
      of_priors: See `prior_norms`.
    """
    step = histogram.step
    found, unseen = dict(norms), []
    kept: dict[str, Kept] = {}
    known = histogram.known(norms)
    counted = _Counted(histogram, counts, norms, num_rows, expected_squares)
    surely = {part.name: counted.seen(part, None) for part in step.counted}
    never = [
        part
        for part in step.counted
        if surely[part.name] is None and part.name not in norms and not part.is_late
    ]
    never += [p for p in squares_of(never, histogram.parts) if p.name not in norms]
    released = {
        part.name: NoisyCounts(counts[part.name], counted.noise_stddev(part))
        for part in never
        # Rows that priors draw show no norms about another point.
        if part.name in counts and not step.recentres
    }
    priors = of_priors(never, released)
    chosen = []
    for part in step.counted:
        of_prior = priors.get(part.name, 0.0)
        seen, norm = counted.chosen(part, surely[part.name], of_prior)
        chosen.append((part, seen, norm))
        chosen += [
            (square, *counted.of_square(square, part, norm, is_seen=seen is not None))
            for square in squares_of([part], histogram.parts)
        ]
    for part, seen, norm in chosen:
        if norm is None and part.is_late:
            continue
        if norm is None:
            unseen.append(part.name)
            norm = max(known[part.name], priors.get(part.name, 0.0))
        if part.is_lasting:
            norm = max(norm, norms.get(part.name, 0.0))
        found[part.name] = norm
        if seen is not None and _redraw(histogram.later, part):
            kept |= dict.fromkeys(part.blocks, seen.kept(norm))
    return FoundNorms(found, tuple(unseen), kept)


class _Counted(NamedTuple):
    """A histogram of norms as it was released, with the arguments of `found_norms`."""

    histogram: NormHistogram
    counts: Mapping[str, np.ndarray]
    norms: Mapping[str, float]
    num_rows: int
    expected_squares: Mapping[str, float]

    def noise_stddev(self, part: NormPart) -> float:
        return self.histogram.step.mechanism.block_noise_stddev(part.name)

    def seen(
        self, part: NormPart, reference: float | None, decay: float = DECAY
    ) -> SeenNorms | None:
        """What stands out of the noise; with a reference, also what is near to it."""
        histogram = self.histogram
        return seen_norms(
            self.counts[part.name],
            part.grid,
            noise_stddev=self.noise_stddev(part),
            num_rows=self.num_rows,
            # About other points norms are others. A gradient's, in other coordinates,
            # is known up to a factor, see `Recentring.stretched`.
            is_known=part.name in self.norms
            and (histogram.is_one_vector or not histogram.step.recentres),
            reference=reference,
            hidden=_hidden(part, self.norms, self.expected_squares),
            decay=decay,
        )

    def chosen(
        self, part: NormPart, surely: SeenNorms | None, of_prior: float
    ) -> tuple[SeenNorms | None, float | None]:
        """What is seen of a part, and the norm that it is clipped to; None for neither.

        Args:
          part: The part.
          surely: What stands out of the noise.
          of_prior: The norm of rows that the priors draw; 0 where it was not asked for.
        """
        if surely is not None:
            return surely, _norm(surely, part, self.histogram)
        near = self.seen(part, part.reference)
        norm = None if near is None else _norm(near, part, self.histogram)
        # A weak finding that priors and counts together make unlikely is noise.
        if norm and norm * NEAR > of_prior:
            return near, norm
        if not part.is_balanced or not any(s.redraws for s in self.histogram.later):
            return None, None
        return None, middle_of_all(
            self.counts[part.name],
            part.grid,
            noise_stddev=self.noise_stddev(part),
            num_rows=self.num_rows,
        )

    def of_square(
        self, part: NormPart, root: NormPart, norm: float | None, *, is_seen: bool
    ) -> tuple[SeenNorms | None, float | None]:
        """What is seen of a part, and its norm, by what it is the square of.

        Args:
          part: The part, see `NormPart.square_of`.
          root: The part that is counted.
          norm, is_seen: Its norm, and whether anything is seen of it; see `chosen`.
        """
        assert part.square_of is not None
        factor = part.square_of.factor
        # Of squares each half of a bin has the tail that a bin has of norms.
        seen = self.seen(root, root.reference, DECAY**2) if is_seen else None
        if seen is None:
            return None, None if norm is None else factor * norm**2
        squares = seen.of_squares(factor)
        return squares, _norm(squares, part, self.histogram)


# How many times the norm of the middle row differences may be clipped at. Far from the
# optimum norms may span ten orders of magnitude, and the longest say no more of the way
# there than others.
_MOST_OF_MIDDLE = 4.0


def _norm(seen: SeenNorms, part: NormPart, histogram: NormHistogram) -> float:
    """The norm to which a part is clipped, of which a histogram has shown something."""
    noise, later = histogram.relative_noise(part), histogram.later
    if part.is_information:
        number = _num_coordinates(later, part)
        return min(seen.least_harm(noise), seen.least_loss(noise, number))
    if not part.is_balanced:
        return seen.least_harm(noise)
    if _redraw(later, part):
        least_variance = seen.least_variance(noise, part.unbalanced)
        return min(least_variance, _MOST_OF_MIDDLE * seen.middle)
    alignment = _alignment(later, part)
    if any(step.redraws for step in later):
        # These steps only lead to where such steps start. What clipping takes off the
        # longest gradients biases no result, and noise grows with the norm.
        return min(seen.least_harm(noise, alignment), seen.middle)
    if histogram.is_one_vector:
        return seen.least_error(noise, alignment, _num_directions(later, part))
    return seen.least_harm(noise, alignment)


def _redraw(later: Sequence[Step], part: NormPart) -> bool:
    """Whether the next steps that release a part redraw rows."""
    release = (step for step in later if not step.counted and _releases(step, part))
    step = next(release, None)
    return step is not None and step.redraws


def _releases(step: Step, part: NormPart) -> bool:
    """Whether all blocks of a part are among a step's."""
    return set(part.blocks) <= {block.name for block in step.blocks}


def clipped_to(
    histogram: NormHistogram, norms: Mapping[str, float]
) -> tuple[Step, ...]:
    """The schedule in which the steps after a histogram clip to the norms it found.

    Args:
      histogram: The step.
      norms: By part, of those of which a histogram has found one.
    """
    known = histogram.known(norms)
    for part in (part for step in histogram.later for part in step.parts):
        norm = math.hypot(*(known.get(name, 0.0) for name in part.blocks))
        known.setdefault(part.name, norm or part.reference)
    shown = {block for part in histogram.parts_shown for block in part.blocks}
    resolved = list(histogram.steps[: histogram.number + 1])
    for step in histogram.later:
        names = {block.name for block in step.blocks}
        if step.informs or (not step.counted and names & shown):
            step = histogram.clipped(step, known)
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
    """The share of their norms that what is clipped off gradients adds up to; reasoned.

    Counts all point one way. Gradients point in as many directions as they have
    coordinates, and near the optimum against each other: they add up to zero there. But
    those that are clipped are no random sample: of few coefficients the surprising rows
    lose most, and what is left makes them too large. The power is between that of
    random directions, 1/2, and 1, and was tried with 3 to 109 coordinates.
    """
    return _num_directions(steps, part) ** -0.75


def _num_coordinates(steps: Sequence[Step], part: NormPart) -> int:
    """Of how many coordinates a part has the squares and products."""
    shapes = {b.name: b.shape for step in steps for b in step.blocks}
    return sum(shapes[name][-1] for name in part.blocks if len(shapes[name]) > 1)


def _num_directions(steps: Sequence[Step], part: NormPart) -> int:
    """How many coordinates a part has whose contributions may be independent."""
    sizes = {b.name: b.num_directions for step in steps for b in step.blocks}
    return sum(sizes[name] for name in part.blocks)
