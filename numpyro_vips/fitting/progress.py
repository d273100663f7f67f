"""The public side of a running fit: its state, its schedule, and what was reported."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from numpyro_vips.fitting.bounds.column_histogram import sizes_from_counts
from numpyro_vips.fitting.bounds.norm_parts import NormPart
from numpyro_vips.fitting.bounds.prior_norms import prior_norms
from numpyro_vips.fitting.engine import Engine
from numpyro_vips.fitting.found_norms import (
    FoundNorms,
    NormHistogram,
    clipped_to,
    found_norms,
)
from numpyro_vips.fitting.private_step import update
from numpyro_vips.fitting.step import Step
from numpyro_vips.fitting.zero_rows import (
    combined,
    share_of_valid,
    shares_counted,
    valid_rows,
)
from numpyro_vips.jax_tools.row_sums import DIAGNOSTICS, ZERO_ROWS
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.privacy.releases import VALID_ROWS, ValidRows
from numpyro_vips.privacy.statement import NoisyShare


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """What has been released besides the engine's state. All of it is public.

    Attributes:
      steps: The schedule; later steps clip to the norms that were released.
      norms: The norms that histograms have found, by part.
      unseen: Parts of which no bin of any histogram stood out of the noise so far.
      balanced: Whether what steps report on are contributions that add up to about zero
        at the optimum; see `NormPart`.
      reports: The shares of rows that were clipped, and that counted as zero, by step.
      zeros: The share that counted as zero, by the histograms of norms.
      present: How many rows there are, over the public number of rows that the caller
        declared; under noise those that do not count as zero, if they were counted.
    """

    steps: tuple[Step, ...]
    norms: Mapping[str, float] = dataclasses.field(default_factory=dict)
    unseen: tuple[str, ...] = ()
    balanced: bool = False
    reports: tuple[Mapping[str, NoisyShare], ...] = ()
    zeros: tuple[NoisyShare, ...] = ()
    present: NoisyShare | None = None

    def after_histogram(
        self, histogram: NormHistogram, found: FoundNorms
    ) -> "Progress":
        """Progress after a step whose histogram has found these norms."""
        steps = clipped_to(histogram, found.norms)
        counted = {part.name for part in histogram.parts_shown}
        # A norm that was found before stays, where a later histogram shows nothing.
        never = [name for name in found.unseen if name not in self.norms]
        still = [n for n in self.unseen if n in found.unseen or n not in counted]
        return dataclasses.replace(
            self,
            steps=steps,
            norms=found.norms,
            unseen=(*still, *never),
            balanced=_are_balanced(steps[-1], histogram.parts),
        )

    def with_stretched(
        self, by: Mapping[str, float], parts: tuple[NormPart, ...]
    ) -> "Progress":
        """Progress with the norms of before, in the units of what comes after.

        Args:
          by: See `Recentring.stretched`.
          parts: What has a norm.
        """
        return dataclasses.replace(self, norms=_in_units(self.norms, by, parts))

    def after_statistics(
        self, step: Step, released: Mapping[str, np.ndarray], num_rows: int
    ) -> "Progress":
        """Progress after a step that has released statistics.

        Args:
          step: The step.
          released: Noisy estimates of sums over all rows.
          num_rows: Public number of rows.
        """
        if not step.reports:
            return self
        report = {}
        for name in DIAGNOSTICS:
            share = float(released[name]) / num_rows
            noise = step.mechanism.block_noise_stddev(name)
            noise /= step.sampling.rate * num_rows
            possible = min(1.0, max(0.0, share))
            drawn = step.sampling.stddev_of_share(possible, num_rows)
            report[name] = NoisyShare(share=share, stddev=math.hypot(noise, drawn))
        # Without noise, and of all rows, the last one says it all.
        is_exact = all(share.stddev == 0 for share in report.values())
        earlier = () if is_exact else self.reports
        return dataclasses.replace(self, reports=(*earlier, report))

    @property
    def shares(self) -> dict[str, NoisyShare]:
        """The mean over the steps that reported, by `row_sums.CLIPPED_ROWS` or so.

        Of rows that counted as zero, histograms of norms have said more.
        """
        count = len(self.reports)
        found = {
            name: NoisyShare(
                share=sum(report[name].share for report in self.reports) / count,
                stddev=math.hypot(*(r[name].stddev for r in self.reports)) / count,
            )
            for name in (self.reports[0] if count else ())
        }
        zeros = [*([found[ZERO_ROWS]] if ZERO_ROWS in found else []), *self.zeros]
        return {**found, ZERO_ROWS: combined(zeros)} if zeros else found

    def valid_rows(self, num_rows: int) -> ValidRows:
        """How many rows do not count as zero.

        Args:
          num_rows: Public number of rows.
        """
        present = NoisyShare(share=1.0, stddev=0.0)
        if self.present is not None:
            present = self.present
        number = num_rows * present.share
        if present.stddev:
            return ValidRows(max(number, 0.0), num_rows * present.stddev)
        zeros = self.shares.get(ZERO_ROWS)
        if zeros is None:
            return ValidRows(number, 0.0)
        found = valid_rows(zeros, num_rows)
        return found._replace(number=max(number - num_rows + found.number, 0.0))


def _in_units(
    norms: Mapping[str, float], by: Mapping[str, float], parts: Sequence[NormPart]
) -> dict[str, float]:
    """Norms by part, times what they grow by in other units, by block."""
    of = {p.name: max(by.get(name, 1.0) for name in p.blocks) for p in parts}
    return {name: norm * of.get(name, 1.0) for name, norm in norms.items()}


def _are_balanced(step: Step, parts: Sequence[NormPart]) -> bool:
    names = {name for part in parts if part.is_balanced for name in part.blocks}
    return names.issuperset(block.name for block in step.blocks)


def _ratios(histogram: NormHistogram, found: FoundNorms) -> dict[str, float]:
    """By part, how large rows were seen to be, over what rows of unit size are."""
    return {
        part.name: found.norms[part.name] / part.reference
        for part in histogram.parts_shown
        if part.name in found.norms and part.name not in found.unseen
    }


def _average_starts_anew(steps: Sequence[Step], number: int) -> bool:
    """Whether sums about points leave nothing in the average, from this step on.

    That is so where a step before has recentred them, and the next one that releases
    the same sums has all of the weight.

    Args:
      steps: The schedule.
      number: Which of them has just been taken.
    """
    if not any(step.recentres for step in steps[:number]):
        return False
    names = {block.name for block in steps[number].blocks}
    alike = (
        step
        for step in steps[number + 1 :]
        if not step.counted and {block.name for block in step.blocks} == names
    )
    following = next(alike, None)
    return following is not None and following.step_size == 1.0


def advanced(
    engine: Engine,
    progress: Progress,
    number: int,
    state: object,
    released: Mapping[str, np.ndarray],
    *,
    parts: tuple[NormPart, ...],
    graph: ModelGraph,
) -> tuple[object, Progress]:
    """The engine's state and the progress after a step; public.

    Args:
      engine: What runs the fit.
      progress, state: Those before the step.
      number: Which step of the schedule it was.
      released: What it released.
      parts: What has a norm.
      graph: The model, without rows.
    """
    step = progress.steps[number]
    num_rows = graph.arguments.public_num_rows
    if step.counts_rows:
        present = share_of_valid(step, released[VALID_ROWS], num_rows)
        return state, dataclasses.replace(progress, present=present)
    if step.is_by_column:
        sizes = {
            part.name: sizes_from_counts(
                released[part.name],
                part,
                noise_stddev=step.mechanism.block_noise_stddev(part.name),
                num_rows=num_rows,
            )
            for part in step.counted
        }
        return engine.with_column_sizes(state, sizes), progress
    if step.counted:
        histogram = NormHistogram(
            steps=progress.steps,
            number=number,
            parts=parts,
            is_one_vector=engine.is_one_vector,
        )
        zeros = shares_counted(step, released, num_rows)
        progress = dataclasses.replace(progress, zeros=(*progress.zeros, *zeros))
        found = found_norms(
            histogram,
            {name: counts[:-1] for name, counts in released.items()},
            progress.norms,
            num_rows=num_rows,
            expected_squares=engine.expected_squares(state),
            of_priors=functools.partial(prior_norms, engine, graph),
        )
        state, by = engine.suited_to_norms(state, _ratios(histogram, found))
        state = engine.with_kept(state, found.kept)
        found = found._replace(norms=_in_units(found.norms, by, step.counted))
        return state, progress.after_histogram(histogram, found)
    progress = progress.after_statistics(step, released, num_rows)
    state = engine.with_valid_rows(state, progress.valid_rows(num_rows))
    state = update(engine, step, state, released)
    if _average_starts_anew(progress.steps, number):
        state = engine.recentre_again(state)
    for following in progress.steps[number + 1 : number + 2]:
        if following.recentres:
            state = engine.recentre(state)
            progress = progress.with_stretched(engine.stretched(state), parts)
        elif following.counted:
            names = {name for part in following.counted for name in part.blocks}
            before, state = state, engine.before_norms(state, names)
            if state is not before:
                progress = progress.with_stretched(engine.stretched(state), parts)
    return state, progress
