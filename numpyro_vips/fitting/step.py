"""Steps: what each releases, at which noise, from which rows, and what that costs."""

import dataclasses
import math
from collections.abc import Sequence

from numpyro_vips.accounting import GaussianEvent
from numpyro_vips.fitting.bounds.norm_parts import NormPart
from numpyro_vips.jax_tools.row_sums import DIAGNOSTICS
from numpyro_vips.privacy.gaussian_mechanism import Block, GaussianMechanism
from numpyro_vips.privacy.releases import COVARIATES, INFORMATION, VALID_ROWS
from numpyro_vips.privacy.sampling import RowSampling

# The square that diagnostics add to the joint vector's, relative to the statistics'.
DIAGNOSTICS_SHARE = 0.02
# Blocks that the posterior's intervals alone need.
FOR_INTERVALS = frozenset({INFORMATION, COVARIATES})


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
      recentres: Whether these points are taken before it; see `Recentring.recentre`.
      parts: The parts of its blocks that share a norm.
      redraws: Whether rows get keys, by which the model draws others in their places;
        see `Engine.bounded_sum`.
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
    redraws: bool = False
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
        return not self.counted and not names.isdisjoint(FOR_INTERVALS)

    @property
    def counts_rows(self) -> bool:
        """Whether it counts the rows that do not count as zero, and nothing else."""
        return [block.name for block in self.blocks] == [VALID_ROWS]

    @property
    def only_counts(self) -> bool:
        """Whether it releases counts of rows alone: sums of ones."""
        return bool(self.counted) or self.counts_rows

    @property
    def is_aside(self) -> bool:
        """Whether it only prepares or completes others: it is no step of the fit."""
        return self.only_counts or self.informs or self.is_pilot

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
