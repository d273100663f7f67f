"""The schedule of steps that the accountant prices and the engine runs.

What a step is, `step.py` says.
"""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from numpyro_vips.fitting.advantages.curvature_noise import SHARES
from numpyro_vips.fitting.bounds.block_scales import bounded_blocks, given_blocks
from numpyro_vips.fitting.bounds.column_histogram import column_block
from numpyro_vips.fitting.bounds.norm_histogram import histogram_block
from numpyro_vips.fitting.bounds.norm_parts import NormPart, counted_of, joined
from numpyro_vips.fitting.engine import Engine
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.fitting.step import Step
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import COVARIATES, INFORMATION, VALID_ROWS
from numpyro_vips.privacy.sampling import FullBatch, RowSampling

# Shares are parts of Σ 1/σ², σ being noise multipliers, which full batches spend of the
# budget. That of a single release of "once" statistics beside "adaptive" ones.
ONCE_SHARE = 0.3
# Share of each pilot before "refreshed" statistics; see `Recentring.pilots`.
PILOT_OF_CURVATURE_SHARE = 0.03
# Share of the first histogram of norms, and of those after pilots.
BOUNDS_SHARE = 0.03
# Share of counting the rows, where their number is not public.
ROWS_SHARE = 0.03
# Share of the histogram of columns, where they are few, which comes before that.
COLUMNS_SHARE = 0.02
# The same for each four of them where they are counted again about the points of a
# pilot, up to a limit: one that is not seen gets the noise of the largest.
_COUNTED_TOGETHER, _MOST_SHARES = 4, 3
# Share of each other histogram of norms: where norms depend on the globals, and of what
# is released for intervals.
REFRESH_SHARE = 0.01
# Of the pilot of statistics that are released about its means. With a tenth of the
# budget its means are within three times the noise of those of the whole, and what they
# are wrong by adds to the rows' spread as a square.
PILOT_SHARE = 0.08
# Of each pilot where there are several, for each norm of what it releases beyond the
# first, up to the same limit: means have two norms, and regressions three. With half of
# it some regressions on raw columns of some thousand rows were left with a direction
# that noise hides, and intervals of 30 times the width. With half of the share for
# histograms, too, norms were too noisy with 1,000 rows.
SEVERAL_PILOTS_SHARE = 0.04
# Of a step that has no part in the result, to one that has. It finds where the others
# start, and with less noise it finds no better place.
FORGOTTEN_SHARE = 0.2
# Of each pilot of rows' gradients, by which coordinates are found.
COORDINATES_SHARE = 0.04
# When these are: after which part of the adaptive steps.
REFRESHED_AFTER = (0.2, 0.5)
# The same where rows may be redrawn from the first of them on: on the way to where the
# others start norms fall by orders of magnitude, and with a norm that is too large the
# noise hides the rest of the way.
REFRESHED_WHERE_REDRAWN = (0.2, 0.3, 0.5)
# Which of these, and which others, end a pilot that adaptive steps are; see
# `Step.recentres`.
RECENTRED_AFTER = (0.2,)
RECENTRED_TWICE_AFTER = (0.1, 0.2)
COORDINATES_AFTER = (0.5,)
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
    engine: Engine,
    parts: Sequence[NormPart],
    options: ScheduleOptions,
    *,
    curvature_share: float = SHARES[0],
    counts_rows: bool = False,
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
      curvature_share: Of each release of "refreshed" statistics.
      counts_rows: Whether to release how many rows there are.

    Returns:
      The steps. Their noise multipliers are in the right proportion to each other;
      `accounting.calibrate_events` finds the factor.
    """
    planner = _Planner(engine, parts, options)
    if counts_rows:
        planner.count_rows()
    planner.count_columns()
    planner.count_norms()
    share_of_pilots = planner.release_pilots()
    planner.release_once(share_of_pilots)
    curvature = planner.release_curvature(curvature_share)
    if planner.releases.adaptive:
        between = [planner.release_information(), planner.release_coordinates()]
        between += [curvature, planner.count_norms_again()]
        planner.release_adaptive(between)
    steps = planner.steps
    if options.private and options.noise_multiplier is not None and steps:
        steps = _with_fixed_noise(steps, options.noise_multiplier)
    return tuple(steps)


class _Releases(NamedTuple):
    """The blocks of a fit, by when they are released.

    Attributes:
      once: A single time, from all rows.
      curvature: At the start and once more, from all rows.
      adaptive: In every step.
      information: A single time, near the end, for the posterior's intervals.
    """

    once: tuple[Block, ...]
    curvature: tuple[Block, ...]
    adaptive: tuple[Block, ...]
    information: tuple[Block, ...]


def _releases_of(engine: Engine, *, is_private: bool) -> _Releases:
    """What an engine releases when.

    Without noise a step is free to ask for the curvature, too, and intervals ask the
    rows themselves; see `FitsWithoutNoise.informed`.
    """
    once, adaptive = engine.blocks("once"), engine.blocks("adaptive")
    curvature, information = engine.blocks("refreshed"), engine.blocks("information")
    if not is_private:
        return _Releases(once, (), (*curvature, *adaptive), ())
    return _Releases(once, curvature, adaptive, information)


def _names(blocks: Sequence[Block]) -> set[str]:
    """The names of some blocks."""
    return {block.name for block in blocks}


def _share_of_columns(parts: Sequence[NormPart]) -> float:
    """The share of a histogram of the columns of some parts."""
    again = sum(p.columns.number for p in parts if p.columns and p.columns.about_points)
    return COLUMNS_SHARE * min(max(again / _COUNTED_TOGETHER, 1.0), _MOST_SHARES)


def _num_steps(engine: Engine, options: ScheduleOptions) -> int:
    """How many adaptive steps there are, if anything is released in them."""
    if options.num_steps is not None:
        return options.num_steps
    return engine.default_num_steps(
        is_private=options.private, until_converged=options.until_converged
    )


class _Planner:
    """Plans one kind of release after the other, and keeps account of the budget.

    Each method adds its steps to those so far, and takes their share off what is left.
    Steps that come between adaptive ones wait for these: their share is taken, and they
    are returned, by the number of the adaptive step that they precede.

    Attributes:
      releases: What there is to release.
      steps: The steps so far.
      share: What is left of the budget, whose whole is 1; see `Step.share`.
    """

    def __init__(
        self, engine: Engine, parts: Sequence[NormPart], options: ScheduleOptions
    ) -> None:
        self.releases = _releases_of(engine, is_private=options.private)
        self.steps: list[Step] = []
        self.share = 1.0
        self._engine = engine
        self._parts = parts
        self._options = options
        self._num_steps = _num_steps(engine, options)
        # What a full batch with the whole budget would have for a noise multiplier.
        self._unit = 1.0 if options.private else 0.0
        self._full = FullBatch(relation=options.sampling.relation)
        self._reports = options.diagnostics
        self._unknown = [p for p in parts if not (p.is_fixed or p.is_late)]
        # Norms that depend on the globals, and those that depend on a point.
        self._refreshed = self._unknown_of(_names(self.releases.adaptive))
        self._moved = self._unknown_of(engine.recentred)
        # What is of one size about that point shares a norm from then on.
        self._recentred = joined(parts, engine.together) if self._moved else parts
        ends = RECENTRED_TWICE_AFTER if engine.pilots > 1 else RECENTRED_AFTER
        if engine.blocks("pilot"):
            ends = COORDINATES_AFTER
        self._recentrings = self._refreshes_after(ends) if self._moved else frozenset()
        redraws = engine.redrawn_after is not None
        after = REFRESHED_WHERE_REDRAWN if redraws else REFRESHED_AFTER
        if starts := self._start_of_average():
            self._recentrings |= starts
            after = after[:1]
        self._refreshes = self._refreshes_after(after) | self._recentrings

    def _unknown_of(self, names: Collection[str]) -> list[NormPart]:
        """The parts with some of these blocks whose norm a histogram is to find."""
        return [part for part in self._unknown if set(names) & set(part.blocks)]

    def _refreshes_after(self, fractions: Sequence[float]) -> frozenset[int]:
        """Before which adaptive steps norms are counted again, if any are."""
        numbers = {math.ceil(fraction * self._num_steps) for fraction in fractions}
        return frozenset(
            number
            for number in numbers
            if self._refreshed and 0 < number < self._num_steps
        )

    def _start_of_average(self) -> frozenset[int]:
        """Before which adaptive step the average starts about points; of one at most.

        Steps before it leave nothing in the average. In the first ones globals may
        still be far from where they end, and so may norms that were found then: a mean
        that rows have latents beside moves slowly, and clipping to the spread about a
        point far from it holds it there.
        """
        forgotten = self._weights()[2]
        is_about_points = bool(self._moved) and not self._engine.blocks("pilot")
        if not (is_about_points and self._refreshed):
            return frozenset()
        return frozenset({forgotten} if 0 < forgotten < self._num_steps else ())

    # --- one method for each kind of release ------------------------------------------

    def count_columns(self) -> None:
        """Before all, a histogram of each column, where they are few."""
        parts = [part for part in self._unknown if part.columns is not None]
        if parts:
            self.steps.append(self._columns(parts))
            self.share -= _share_of_columns(parts)

    def count_norms(self) -> None:
        """A histogram of the norms that nobody knows, before rows are clipped to them.

        The share of those that repeat it is taken, too; see `count_norms_again`.
        """
        if self._unknown:
            self.steps.append(self._norms(self._unknown, BOUNDS_SHARE))
            self.share -= BOUNDS_SHARE + REFRESH_SHARE * len(self._refreshes)
            self.share -= (BOUNDS_SHARE - REFRESH_SHARE) * len(self._recentrings)

    def count_norms_again(self) -> dict[int, list[Step]]:
        """Histograms of the norms that depend on the globals, between adaptive steps.

        Where statistics are recentred, the norms that this changes are new ones, and
        the histogram gets as much as the first. `count_norms` has taken the share.
        """
        found = {}
        for number in self._refreshes:
            parts = self._refreshed
            if self._is_recentred(number):
                others = [part for part in self._moved if part not in parts]
                parts = joined([*parts, *others], self._engine.together)
            anew = number in self._recentrings
            histogram = self._norms(parts, BOUNDS_SHARE if anew else REFRESH_SHARE)
            found[number] = [dataclasses.replace(histogram, recentres=anew)]
        return found

    def release_pilots(self) -> float:
        """Pilots of what is released a single time, about points that they find.

        After each a histogram finds the norms about its point.

        Returns:
          Their share without these histograms, 0.0 where there are none.
        """
        if not self._moved or self.releases.adaptive:
            return 0.0
        number = self._engine.pilots
        columns = [p for p in self._moved if p.columns and p.columns.about_points]
        moved = joined(self._moved, self._engine.together)
        share = PILOT_SHARE
        if number > 1:
            # The noise in each sum grows as the square root of their number.
            share = SEVERAL_PILOTS_SHARE * min(max(len(moved) - 1, 1), _MOST_SHARES)
        for index in range(number):
            parts = self._recentred if index else self._parts
            pilot = self._from_all_rows(self.releases.once, share, parts)
            again = self._norms(moved, BOUNDS_SHARE)
            # Of what is the same sum in all of them, the average has the least noise.
            self.steps.append(
                dataclasses.replace(pilot, is_pilot=True, step_size=1.0 / (index + 1))
            )
            counted = [self._columns(columns), again] if columns else [again]
            self.steps += [dataclasses.replace(of, recentres=True) for of in counted]
        self.share -= share * number + BOUNDS_SHARE * number
        self.share -= _share_of_columns(columns) * number if columns else 0.0
        return share * number

    def count_rows(self) -> None:
        """How many rows do not count as zero, before everything else."""
        block = Block(name=VALID_ROWS, shape=(), geometry="nonnegative", norm_bound=1.0)
        self.steps.append(self._histogram([], [block], 1.0, ROWS_SHARE))
        self.share -= ROWS_SHARE

    def release_once(self, share_of_pilots: float) -> None:
        """What does not depend on the globals, from all rows.

        Args:
          share_of_pilots: That of the pilots, with which it is averaged.
        """
        if not self.releases.once:
            return
        is_all = not self.releases.adaptive
        share = self.share if is_all else ONCE_SHARE * self.share
        step = self._from_all_rows(self.releases.once, share, self._recentred)
        self.steps.append(
            dataclasses.replace(
                step,
                step_size=share / (share_of_pilots + share),
                reports=self._reports and is_all,
            )
        )
        self.share -= share

    def release_curvature(self, share: float) -> dict[int, list[Step]]:
        """What only slows the fit if it is noisy, with its pilots before all steps.

        Args:
          share: Of each release that is no pilot.

        Returns:
          The releases between adaptive steps.
        """
        blocks = self.releases.curvature
        if not blocks:
            return {}
        numbers = {math.floor(f * self._num_steps) for f in CURVATURE_AFTER}
        # Norms of the structure are those of features as they are.
        open_parts = self._unknown_of(_names(blocks))
        num_pilots = self._engine.pilots if open_parts else 0
        if num_pilots:
            pilot = self._from_all_rows(blocks, PILOT_OF_CURVATURE_SHARE, self._parts)
            pilot = dataclasses.replace(pilot, is_pilot=True)
            # Squares of years about their mean are a ten thousandth of those about
            # zero: what is left of them shows only at a norm of their own.
            again = self._norms(open_parts, REFRESH_SHARE)
            self.steps += [pilot, again] * num_pilots
            self.share -= (PILOT_OF_CURVATURE_SHARE + REFRESH_SHARE) * num_pilots
        step = self._from_all_rows(blocks, share, self._parts)
        found = {number: [step] for number in numbers}
        self.share -= share * len(numbers)
        if open_parts:
            # Where logits are large, curvatures are much smaller than at the start.
            later = [number for number in numbers if number > 0]
            for number in later:
                found[number] = [self._norms(open_parts, REFRESH_SHARE), step]
            self.share -= REFRESH_SHARE * len(later)
        return found

    def release_information(self) -> dict[int, list[Step]]:
        """What intervals need, when the globals are near to where they end.

        Where nobody knows its norm, a histogram comes right before it.

        Returns:
          Both, between adaptive steps.
        """
        blocks = self.releases.information
        if not blocks:
            return {}
        share = sum(INFORMATION_SHARES[block.name] for block in blocks)
        steps = self._counted_and_released(blocks, share)
        return {math.floor(INFORMED_AFTER * self._num_steps): steps}

    def release_coordinates(self) -> dict[int, list[Step]]:
        """Pilots of what finds coordinates, right before norms are counted in them.

        Returns:
          The releases between adaptive steps.
        """
        blocks = self._engine.blocks("pilot")
        if not blocks:
            return {}
        found: dict[int, list[Step]] = {}
        for number in self._recentrings:
            found[number] = []
            for index in range(self._engine.pilots):
                *counted, pilot = self._counted_and_released(blocks, COORDINATES_SHARE)
                found[number] += [
                    *(dataclasses.replace(h, recentres=index > 0) for h in counted),
                    dataclasses.replace(pilot, is_pilot=True),
                ]
        return found

    def _counted_and_released(
        self, blocks: Sequence[Block], share: float
    ) -> list[Step]:
        """A release from all rows, after a histogram where nobody knows its norm."""
        late = [
            part
            for part in self._parts
            if part.is_late and _names(blocks) & set(part.blocks)
        ]
        steps = [self._norms(late, REFRESH_SHARE)] if late else []
        steps.append(self._from_all_rows(blocks, share, self._parts))
        self.share -= share + (REFRESH_SHARE if late else 0.0)
        return steps

    def release_adaptive(self, between: Sequence[Mapping[int, Sequence[Step]]]) -> None:
        """What depends on the globals, in steps that share all that is left.

        Args:
          between: Steps that come before an adaptive one, by its number; of one number,
            they are in this order.
        """
        blocks, sampling = self.releases.adaptive, self._options.sampling
        total, step_sizes, forgotten = self._weights()
        # What a step of the result has for one share, where it is as many in all.
        shares = total - forgotten + FORGOTTEN_SHARE * forgotten
        noise = self._unit * sampling.rate * math.sqrt(shares / self.share)
        first = self._bounded(blocks, self._parts, noise, sampling)
        recentred = self._shared_norms(blocks, self._recentred)
        silent = total - max(1, math.floor(REPORTING * total))
        if not self._options.private:
            silent = 0  # Reports cost nothing, and any step may be the last one.
        for number, size in enumerate(step_sizes):
            for steps in between:
                self.steps += steps.get(number, ())
            of_share = FORGOTTEN_SHARE if number < forgotten else 1.0
            self.steps.append(
                dataclasses.replace(
                    first,
                    step_size=size,
                    noise_multiplier=noise / math.sqrt(of_share),
                    reports=self._reports and number >= silent,
                    parts=recentred if self._is_recentred(number) else first.parts,
                )
            )
        self.share = 0.0

    # --- what these are made of -------------------------------------------------------

    def _weights(self) -> tuple[int, Sequence[float], int]:
        """How many adaptive steps there are, their sizes, and how many of them, the
        first ones, have no part in the result."""
        is_full = self._options.sampling.scheme == "full"
        total, is_private = self._num_steps, self._options.private
        return (
            total,
            self._engine.step_sizes(total, is_private=is_private, is_full=is_full),
            self._engine.forgotten_steps(total, is_private=is_private, is_full=is_full),
        )

    def _is_recentred(self, number: int) -> bool:
        """Whether an adaptive step is about points that steps before it have found."""
        return number >= min(self._recentrings, default=self._num_steps)

    def _norms(self, parts: Sequence[NormPart], share: float) -> Step:
        """A histogram of the norms of these parts: a row is in one bin of each.

        Of norms and their squares the former are counted alone.
        """
        parts = counted_of(parts)
        blocks = [histogram_block(part.name, part.grid) for part in parts]
        return self._histogram(parts, blocks, math.sqrt(len(parts)), share)

    def _columns(self, parts: Sequence[NormPart]) -> Step:
        """A histogram of each of their columns: a row is in one bin of each."""
        blocks = list(map(column_block, parts))
        number = sum(block.shape[0] for block in blocks)
        share = _share_of_columns(parts)
        step = self._histogram(parts, blocks, math.sqrt(number), share)
        return dataclasses.replace(step, is_by_column=True)

    def _histogram(
        self,
        parts: Sequence[NormPart],
        blocks: Sequence[Block],
        clipping_norm: float,
        share: float,
    ) -> Step:
        """A release of counts from all rows, which `clipping_norm` bounds."""
        return Step(
            blocks=tuple(blocks),
            clipping_norm=clipping_norm,
            noise_multiplier=self._unit / math.sqrt(share),
            sampling=self._full,
            counted=tuple(parts),
        )

    def _from_all_rows(
        self, blocks: Sequence[Block], share: float, parts: Sequence[NormPart]
    ) -> Step:
        """One release of blocks from all rows.

        Args:
          blocks: What is released.
          share: Its part of the budget.
          parts: What is known of norms then.
        """
        return self._bounded(blocks, parts, self._unit / math.sqrt(share), self._full)

    def _bounded(
        self,
        blocks: Sequence[Block],
        parts: Sequence[NormPart],
        noise_multiplier: float,
        sampling: RowSampling,
    ) -> Step:
        """A release of blocks, with its bounds as far as they are known."""
        bounded, norm = self._bounds(blocks, parts)
        return Step(
            blocks=bounded,
            clipping_norm=norm,
            noise_multiplier=noise_multiplier,
            sampling=sampling,
            parts=self._shared_norms(blocks, parts),
        )

    def _bounds(
        self, blocks: Sequence[Block], parts: Sequence[NormPart]
    ) -> tuple[tuple[Block, ...], float | None]:
        """Blocks with their scales, and their joint bound; None until it is found."""
        options = self._options
        if not options.private:
            return tuple(blocks), math.inf
        if options.clipping_norm is not None:
            return given_blocks(
                blocks, options.clipping_norm, relation=options.sampling.relation
            )
        concerned = [part for part in parts if _names(blocks) & set(part.blocks)]
        if not all(part.is_fixed for part in concerned):
            return tuple(blocks), None
        return bounded_blocks(
            blocks,
            {part.name: part.reference for part in parts},
            relation=options.sampling.relation,
            is_one_vector=self._engine.is_one_vector,
            parts=parts,
        )

    def _shared_norms(
        self, blocks: Sequence[Block], parts: Sequence[NormPart]
    ) -> tuple[NormPart, ...]:
        """The parts that are norms of several of these blocks together."""
        if self._engine.is_one_vector:
            return ()
        several = [part for part in parts if len(part.blocks) > 1]
        names = _names(blocks)
        return tuple(part for part in several if names.issuperset(part.blocks))


def _with_fixed_noise(steps: Sequence[Step], noise_multiplier: float) -> list[Step]:
    """The caller's noise for statistics; what else there is keeps its share."""
    last = steps[-1]
    planned = [
        step.share for step in steps if not step.is_aside and step.blocks == last.blocks
    ]
    given = len(planned) * (last.sampling.rate / noise_multiplier) ** 2
    factor = math.sqrt(sum(planned) / given)
    return [
        step.scaled(factor)
        if step.is_aside
        else dataclasses.replace(step, noise_multiplier=noise_multiplier)
        for step in steps
    ]
