"""Steps, and the schedule of them that the accountant prices and the engine runs."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from numpyro_vips import _validate
from numpyro_vips._settings import frozen, keep_integer
from numpyro_vips.accounting import GaussianEvent
from numpyro_vips.fitting.bounds.bounds import (
    NormPart,
    bounded_blocks,
    given_blocks,
    joined,
)
from numpyro_vips.fitting.bounds.column_histogram import column_block
from numpyro_vips.fitting.bounds.norm_histogram import (
    NEAR,
    Hidden,
    NoisyCounts,
    histogram_block,
    norm_from_counts,
)
from numpyro_vips.fitting.engine import Engine
from numpyro_vips.jax_tools.row_sums import DIAGNOSTICS
from numpyro_vips.privacy.gaussian_mechanism import Block, GaussianMechanism
from numpyro_vips.privacy.releases import COVARIATES, INFORMATION
from numpyro_vips.privacy.sampling import FullBatch, RowSampling

# The square that diagnostics add to the joint vector's, relative to the statistics'.
DIAGNOSTICS_SHARE = 0.02


def _diagnostic_scale(clipping_norm: float) -> float:
    # Without clipping there is no noise either, and any scale will do.
    finite = clipping_norm if math.isfinite(clipping_norm) else 1.0
    return math.sqrt(DIAGNOSTICS_SHARE) * finite


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One pass over a minibatch: what it releases, at which noise, from which rows.

    Attributes:
      blocks: What is released, each with its scale in the joint vector.
      clipping_norm: L2 bound on one row's joint vector. None until a histogram of norms
        that runs before has been released.
      noise_multiplier: Noise standard deviation over the joint sensitivity. It is fixed
        in advance, whatever is released before.
      sampling: How the minibatch is drawn, and what neighbouring data sets are.
      step_size: Weight ρ of this step's statistics in the running average (VIPS), or
        a factor on the learning rate (DPVI).
      reports: Whether it also releases how many rows were clipped, and how many counted
        as zero; see `row_sums.DIAGNOSTICS`.
      counted: The parts whose norms are counted in histograms, one for each block. It
        is empty where the step releases statistics.
      is_by_column: Whether it counts the columns of these parts one by one.
      rounding: What rounding adds to the sensitivity, see `sum_rounding`.
      is_pilot: Whether it only says about which points, or of which features, the
        statistics of a later step are taken.
      recentres: Whether these points are taken before it; see `Engine.recentre`.
      parts: The parts of its blocks that share a norm.
      noise_excess: Standard deviation of the noise that is added over that which is
        priced, as where several parties add noise (`parties.py`).
    """

    blocks: tuple[Block, ...]
    clipping_norm: float | None
    noise_multiplier: float
    sampling: RowSampling
    step_size: float = 1.0
    reports: bool = False
    counted: tuple[NormPart, ...] = ()
    is_by_column: bool = False
    rounding: float = 0.0
    is_pilot: bool = False
    recentres: bool = False
    parts: tuple[NormPart, ...] = ()
    noise_excess: float = 1.0

    @property
    def released(self) -> tuple[Block, ...]:
        """The blocks, and the diagnostics if there are any, as the mechanism has them.

        A row that is clipped does not count as zero, so the two diagnostics add at most
        the larger one to the square of its norm.
        """
        if not self.reports or self.clipping_norm is None:
            return self.blocks
        scale = _diagnostic_scale(self.clipping_norm)
        return (
            *self.blocks,
            *(
                Block(
                    name=name, shape=(), geometry="box", lower=0, upper=1, scale=scale
                )
                for name in DIAGNOSTICS
            ),
        )

    @property
    def informs(self) -> bool:
        """Whether it releases what the posterior's intervals alone need.

        A histogram of its norms has blocks of the same names, and does not.
        """
        names = {block.name for block in self.blocks}
        return not self.counted and not names.isdisjoint(INFORMATION_SHARES)

    @property
    def is_aside(self) -> bool:
        """Whether it only prepares or completes others: it is no step of the fit."""
        return bool(self.counted) or self.informs or self.is_pilot

    @property
    def label(self) -> str:
        """What it releases, for people."""
        names = ", ".join(block.name for block in self.blocks)
        if self.counted:
            counted = "columns" if self.is_by_column else "norms"
            return f"histogram of the {counted} of {names}"
        return f"pilot of {names}" if self.is_pilot else names

    @property
    def counts_norms(self) -> bool:
        """Whether it is a histogram of norms."""
        return bool(self.counted) and not self.is_by_column

    @property
    def share(self) -> float:
        """What it spends of the budget, in any unit: 1/σ² of a full batch."""
        if not self.noise_multiplier:
            return 0.0
        return (self.sampling.rate / self.noise_multiplier) ** 2

    @property
    def share_of_reports(self) -> float:
        """The part of `share` that pays for what it reports on rows.

        The squares of norms add up, so at the same noise the statistics alone would
        spend as much less as the diagnostics add to the squared joint norm.
        """
        part = DIAGNOSTICS_SHARE / (1.0 + DIAGNOSTICS_SHARE)
        return part * self.share if self.reports else 0.0

    @property
    def mechanism(self) -> GaussianMechanism:
        """What adds the noise.

        Raises:
          ValueError: The clipping norm has not been released yet.
        """
        return self._mechanism(self.noise_multiplier * self.noise_excess)

    def _mechanism(self, noise_multiplier: float) -> GaussianMechanism:
        if self.clipping_norm is None:
            raise ValueError("Expected the clipping norm to have been released.")
        return GaussianMechanism(
            blocks=self.released,
            clipping_norm=math.hypot(
                self.clipping_norm,
                _diagnostic_scale(self.clipping_norm) if self.reports else 0.0,
            ),
            noise_multiplier=noise_multiplier,
            relation=self.sampling.relation,
            rounding=self.rounding,
        )

    @property
    def event(self) -> GaussianEvent:
        """What the accountant prices.

        Before the clipping norm is known, sensitivities are in units of themselves:
        the price is that of the noise multiplier alone.
        """
        stddev, sensitivity = self.noise_multiplier, 1.0
        if self.clipping_norm is not None:
            mechanism = self._mechanism(self.noise_multiplier)
            stddev, sensitivity = mechanism.noise_stddev, mechanism.sensitivity()
        return self.sampling.event(
            noise_stddev=stddev, sensitivity=sensitivity, label=self.label
        )

    def scaled(self, factor: float) -> "Step":
        """The step with `factor` times the noise, the rest as it is."""
        return dataclasses.replace(
            self, noise_multiplier=self.noise_multiplier * factor
        )


def events_of(steps: Sequence[Step]) -> tuple[GaussianEvent, ...]:
    """The privacy events of a schedule, equal neighbours merged."""
    merged: list[GaussianEvent] = []
    for step in steps:
        event = step.event
        if merged and dataclasses.replace(merged[-1], num_steps=1) == event:
            total = merged[-1].num_steps + 1
            merged[-1] = dataclasses.replace(merged[-1], num_steps=total)
        else:
            merged.append(event)
    return tuple(merged)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """The caller's choices about the schedule; None leaves a choice to the planner.

    Two equal ones plan the same steps, and they are hashable.

    Attributes:
      sampling: How adaptive steps draw their rows.
      num_steps: Steps that release what depends on the globals.
      clipping_norm: Bound on the norm of one row's joint vector; or, by name, a typical
        norm of each statistic, which then is its unit.
      noise_multiplier: Fixed noise, in place of what the budget affords.
      private: Whether there is noise and clipping at all.
      diagnostics: Whether the last steps report how many rows were clipped.
      max_batch_size: Most rows that are worked on at a time.

    Raises:
      TypeError, ValueError: A number is out of range.
    """

    sampling: RowSampling
    num_steps: int | None = None
    clipping_norm: float | Mapping[str, float] | None = None
    noise_multiplier: float | None = None
    private: bool = True
    diagnostics: bool = True
    max_batch_size: int | None = None

    def __post_init__(self) -> None:
        keep_integer(self, "num_steps")
        keep_integer(self, "max_batch_size")
        if self.noise_multiplier is not None:
            _validate.positive(noise_multiplier=self.noise_multiplier)
            object.__setattr__(self, "noise_multiplier", float(self.noise_multiplier))
        norms = self.clipping_norm
        if isinstance(norms, Mapping):
            for name, norm in norms.items():
                _validate.moderate(**{f"clipping_norm[{name!r}]": norm})
            norms = frozen({name: float(norm) for name, norm in norms.items()})
        elif norms is not None:
            _validate.moderate(clipping_norm=norms)
            norms = float(norms)
        object.__setattr__(self, "clipping_norm", norms)

    @property
    def until_converged(self) -> bool:
        """Whether a fit is free to end when it has converged: there is no noise, and
        the caller has said nothing on steps and minibatches."""
        is_open = self.num_steps is None and self.sampling.scheme == "full"
        return is_open and not self.private


# Shares of Σ 1/σ², σ being noise multipliers, which full batches spend of the budget:
# of a single release of the "once" statistics where there are also "adaptive" ones,
ONCE_SHARE = 0.3
# of each release of the "refreshed" statistics,
CURVATURE_SHARE = 0.04
# of each pilot before these (see `Engine.pilots`),
PILOT_OF_CURVATURE_SHARE = 0.03
# of the first histogram of norms, before anything else,
BOUNDS_SHARE = 0.03
# of that of columns, where they are few, which comes before it,
COLUMNS_SHARE = 0.02
# and of each further one of norms, where norms depend on the globals, or of those of
# what is released for intervals.
REFRESH_SHARE = 0.01
# Of the pilot of statistics that are released about its means. With a tenth of the
# budget its means are within three times the noise of those of the whole, and what they
# are wrong by adds to the rows' spread as a square.
PILOT_SHARE = 0.08
# Of each pilot where there are several. With half of the share for histograms, too,
# norms were too noisy with 1,000 rows.
SEVERAL_PILOTS_SHARE = 0.04
# Of a step that has no part in the result, to one that has. It finds where the others
# start, and with less noise it finds no better place.
FORGOTTEN_SHARE = 0.2
# When these are: after which part of the adaptive steps.
REFRESHED_AFTER = (0.2, 0.5)
# Which of these, and which others, end a pilot that adaptive steps are; see
# `Step.recentres`.
RECENTRED_AFTER = (0.2,)
RECENTRED_TWICE_AFTER = (0.1, 0.2)
# Of the release for the posterior's intervals, by what it is of, after this part of the
# adaptive steps, when the globals are near to where they end.
INFORMATION_SHARES = {INFORMATION: 0.06, COVARIATES: 0.03}
INFORMED_AFTER = 0.9
# When statistics are refreshed that are not released in every step: at the start, where
# nothing is known, and at half time, where the globals are near to where they end.
CURVATURE_AFTER = (0.0, 0.5)
# Which part of the adaptive steps, the last ones, also release diagnostics.
REPORTING = 0.25


def plan_steps(
    engine: Engine, parts: Sequence[NormPart], options: ScheduleOptions
) -> tuple[Step, ...]:
    """Plans the steps of a fit, with noise up to a common factor.

    What does not depend on the globals is released a single time, from all rows: a
    second release could only repeat it. What only slows the fit if it is noisy is
    released at the start and once more. The rest is released in every step. Where
    neither the caller nor the structure says how large a row's contribution is, a
    histogram of norms comes first.

    Args:
      engine: What there is to release, and how steps are weighed.
      parts: What is known of norms; empty if the caller gave them, or nothing is
        clipped.
      options: The caller's choices.

    Returns:
      The steps. Their noise multipliers are in the right proportion to each other;
      `accounting.calibrate_events` finds the factor.
    """
    once, adaptive = engine.blocks("once"), engine.blocks("adaptive")
    curvature, information = engine.blocks("refreshed"), engine.blocks("information")
    if not options.private:
        once, adaptive, curvature = once, (*curvature, *adaptive), ()
        information = ()
    num_steps = options.num_steps
    if num_steps is None:
        num_steps = engine.default_num_steps(
            is_private=options.private, until_converged=options.until_converged
        )
    unknown = [part for part in parts if not (part.is_fixed or part.is_late)]
    late = [part for part in parts if part.is_late] if information else []
    names = {block.name for block in adaptive}
    refreshed = [part for part in unknown if names & set(part.blocks)]
    moved = [part for part in unknown if engine.recentred & set(part.blocks)]
    ends = RECENTRED_TWICE_AFTER if engine.pilots > 1 else RECENTRED_AFTER
    ends_of_pilots = {math.ceil(f * num_steps) for f in ends} if moved else set[int]()
    refreshes = {math.ceil(f * num_steps) for f in REFRESHED_AFTER} | ends_of_pilots
    refreshes = {t for t in refreshes if refreshed and 0 < t < num_steps}
    share = 1.0
    steps: list[Step] = []
    full = FullBatch(relation=options.sampling.relation)
    # What a full batch with the whole budget would have for a noise multiplier.
    unit = 1.0 if options.private else 0.0
    reports = options.private and options.diagnostics

    def histogram(parts: Sequence[NormPart], share: float) -> Step:
        return Step(
            blocks=tuple(histogram_block(part.name, part.grid) for part in parts),
            clipping_norm=math.sqrt(len(parts)),
            noise_multiplier=unit / math.sqrt(share),
            sampling=full,
            counted=tuple(parts),
        )

    def shared_norms(
        blocks: Sequence[Block], parts: Sequence[NormPart]
    ) -> tuple[NormPart, ...]:
        names = {block.name for block in blocks}
        several = [part for part in parts if len(part.blocks) > 1]
        if engine.is_one_vector:
            return ()
        return tuple(part for part in several if names.issuperset(part.blocks))

    def from_all_rows(
        blocks: Sequence[Block],
        share: float,
        *,
        reports: bool = False,
        parts: Sequence[NormPart] = parts,
    ) -> Step:
        bounded, norm = _bounded(blocks, parts, options, engine)
        return Step(
            parts=shared_norms(blocks, parts),
            blocks=bounded,
            clipping_norm=norm,
            noise_multiplier=unit / math.sqrt(share),
            sampling=full,
            reports=reports,
        )

    with_columns = tuple(part for part in unknown if part.columns is not None)
    if with_columns:
        share -= COLUMNS_SHARE
        blocks = tuple(map(column_block, with_columns))
        steps.append(
            Step(
                blocks=blocks,
                clipping_norm=math.sqrt(sum(block.shape[0] for block in blocks)),
                noise_multiplier=unit / math.sqrt(COLUMNS_SHARE),
                sampling=full,
                counted=with_columns,
                is_by_column=True,
            )
        )
    if unknown:
        share -= BOUNDS_SHARE + REFRESH_SHARE * len(refreshes)
        steps.append(histogram(unknown, BOUNDS_SHARE))
    # What is of one size from then on shares a norm.
    recentred = joined(parts, engine.together) if moved else parts
    has_pilot = bool(moved) and not adaptive
    share -= (BOUNDS_SHARE - REFRESH_SHARE) * len(ends_of_pilots & refreshes)
    share_of_pilots = 0.0
    if has_pilot:
        of_pilot = SEVERAL_PILOTS_SHARE if engine.pilots > 1 else PILOT_SHARE
        for number in range(engine.pilots):
            sizes = recentred if number else parts
            pilot = from_all_rows(once, of_pilot, parts=sizes)
            again = histogram(joined(moved, engine.together), BOUNDS_SHARE)
            # Of what is the same sum in all of them, the average has the least noise.
            steps += [
                dataclasses.replace(pilot, is_pilot=True, step_size=1.0 / (number + 1)),
                dataclasses.replace(again, recentres=True),
            ]
        share_of_pilots = of_pilot * engine.pilots
        share -= share_of_pilots + BOUNDS_SHARE * engine.pilots
    if once:
        share_once = ONCE_SHARE * share if adaptive else share
        reporting = reports and not adaptive
        step = from_all_rows(once, share_once, reports=reporting, parts=recentred)
        if has_pilot:
            weight = share_once / (share_of_pilots + share_once)
            step = dataclasses.replace(step, step_size=weight)
        steps.append(step)
        share -= share_once
    curvatures = set()
    if curvature:
        curvatures = {math.floor(f * num_steps) for f in CURVATURE_AFTER}
        share -= CURVATURE_SHARE * len(curvatures)
        of_curvature = {block.name for block in curvature}
        # Norms of the structure are those of features as they are.
        are_open = any(of_curvature & set(part.blocks) for part in unknown)
        num_pilots = engine.pilots if are_open else 0
        share -= PILOT_OF_CURVATURE_SHARE * num_pilots
        pilot = dataclasses.replace(
            from_all_rows(curvature, PILOT_OF_CURVATURE_SHARE), is_pilot=True
        )
        steps.extend([pilot] * num_pilots)
    share_of_information = sum(INFORMATION_SHARES[b.name] for b in information)
    share -= share_of_information + (REFRESH_SHARE if late else 0.0)
    if adaptive:
        step_sizes = engine.step_sizes(
            num_steps,
            is_private=options.private,
            is_full=options.sampling.scheme == "full",
        )
        forgotten = engine.forgotten_steps(
            num_steps,
            is_private=options.private,
            is_full=options.sampling.scheme == "full",
        )
        # What a step of the result has for one share, where it is as many in all.
        shares = num_steps - forgotten + FORGOTTEN_SHARE * forgotten
        blocks, norm = _bounded(adaptive, parts, options, engine)
        first = Step(
            parts=shared_norms(adaptive, parts),
            blocks=blocks,
            clipping_norm=norm,
            noise_multiplier=unit * options.sampling.rate * math.sqrt(shares / share),
            sampling=options.sampling,
        )
        silent = num_steps - max(1, math.floor(REPORTING * num_steps))
        informed = math.floor(INFORMED_AFTER * num_steps)
        for number, size in enumerate(step_sizes):
            if information and number == informed:
                if late:
                    steps.append(histogram(late, REFRESH_SHARE))
                steps.append(from_all_rows(information, share_of_information))
            if number in curvatures:
                steps.append(from_all_rows(curvature, CURVATURE_SHARE))
            if number in refreshes:
                anew = number in ends_of_pilots
                if number == min(ends_of_pilots, default=None):
                    others = [part for part in moved if part not in refreshed]
                    refreshed = joined([*refreshed, *others], engine.together)
                    first = dataclasses.replace(
                        first, parts=shared_norms(adaptive, recentred)
                    )
                again = histogram(refreshed, BOUNDS_SHARE if anew else REFRESH_SHARE)
                steps.append(dataclasses.replace(again, recentres=anew))
            steps.append(
                dataclasses.replace(
                    first,
                    step_size=size,
                    noise_multiplier=first.noise_multiplier
                    / math.sqrt(FORGOTTEN_SHARE if number < forgotten else 1.0),
                    reports=reports and number >= silent,
                )
            )
    if options.private and options.noise_multiplier is not None and steps:
        steps = _with_fixed_noise(steps, options.noise_multiplier)
    return tuple(steps)


def _with_fixed_noise(steps: Sequence[Step], noise_multiplier: float) -> list[Step]:
    """The caller's noise for statistics; what else there is keeps its share."""
    factor = noise_multiplier / steps[-1].noise_multiplier
    return [
        step.scaled(factor)
        if step.is_aside
        else dataclasses.replace(step, noise_multiplier=noise_multiplier)
        for step in steps
    ]


def _bounded(
    blocks: Sequence[Block],
    parts: Sequence[NormPart],
    options: ScheduleOptions,
    engine: Engine,
) -> tuple[tuple[Block, ...], float | None]:
    """Blocks with their scales and their joint bound, as far as they are known."""
    if not options.private:
        return tuple(blocks), math.inf
    if options.clipping_norm is not None:
        return given_blocks(
            blocks, options.clipping_norm, relation=options.sampling.relation
        )
    names = {block.name for block in blocks}
    is_unknown = [not part.is_fixed for part in parts if names & set(part.blocks)]
    if any(is_unknown):
        return tuple(blocks), None
    return bounded_blocks(
        blocks,
        {part.name: part.reference for part in parts},
        relation=options.sampling.relation,
        is_one_vector=engine.is_one_vector,
        parts=parts,
    )


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
    """

    norms: dict[str, float]
    unseen: tuple[str, ...]


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
      expected_squares: See `Engine.expected_squares`.
      of_priors: See `prior_norms`.
    """
    histogram, later = steps[number], steps[number + 1 :]
    found, unseen = dict(norms), []
    known = {part.name: part.reference for part in parts if not part.is_late}
    known |= norms

    def shown(part: NormPart, reference: float | None) -> float | None:
        return norm_from_counts(
            counts[part.name],
            part.grid,
            noise_stddev=histogram.mechanism.block_noise_stddev(part.name),
            relative_noise=_relative_noise(later, part, parts, is_one_vector),
            num_rows=num_rows,
            alignment=_alignment(later, part) if part.is_balanced else 1.0,
            # About other points norms are others.
            is_known=part.name in norms and not histogram.recentres,
            reference=reference,
            hidden=_hidden(part, norms, expected_squares),
        )

    surely = {part.name: shown(part, None) for part in histogram.counted}
    never = [
        part
        for part in histogram.counted
        if surely[part.name] is None and part.name not in norms and not part.is_late
    ]
    released = {
        part.name: NoisyCounts(
            counts[part.name], histogram.mechanism.block_noise_stddev(part.name)
        )
        for part in never
        # Of rows about another point those that priors draw say nothing.
        if not histogram.recentres
    }
    priors = of_priors(never, released)
    for part in histogram.counted:
        norm, of_prior = surely[part.name], priors.get(part.name, 0.0)
        if norm is None:
            near = shown(part, part.reference)
            # A weak finding that priors and counts together make unlikely is noise.
            norm = near if near and near * NEAR > of_prior else None
        if norm is None and part.is_late:
            continue
        if norm is None:
            unseen.append(part.name)
            norm = max(known[part.name], of_prior)
        if part.is_lasting:
            norm = max(norm, norms.get(part.name, 0.0))
        found[part.name] = norm
    return FoundNorms(found, tuple(unseen))


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
    """L2 norm of the noise in the average of a part's releases, over its norm."""
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
    return math.sqrt(1.0 / sum(1.0 / square for square in squares))
