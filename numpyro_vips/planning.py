"""Steps, and the schedule of them that the accountant prices and the engine runs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from numpyro_vips.accounting import GaussianEvent, Relation, Sampling
from numpyro_vips.gaussian_mechanism import Block, GaussianMechanism, optimal_scales


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One pass over a minibatch: what it releases, at which noise, from which rows.

    Attributes:
      blocks: What is released, each with its scale in the joint vector.
      clipping_norm: L2 bound on one row's joint vector.
      noise_multiplier: Noise standard deviation over the joint sensitivity.
      relation, sampling, sampling_rate: As in `GaussianEvent`.
      step_size: Weight ρ of this step's statistics in the running average (VIPS), or
        a factor on the learning rate (DPVI).
    """

    blocks: tuple[Block, ...]
    clipping_norm: float
    noise_multiplier: float
    relation: Relation
    sampling: Sampling
    sampling_rate: float
    step_size: float = 1.0

    @property
    def mechanism(self) -> GaussianMechanism:
        return GaussianMechanism(
            blocks=self.blocks,
            clipping_norm=self.clipping_norm,
            noise_multiplier=self.noise_multiplier,
            relation=self.relation,
        )

    @property
    def event(self) -> GaussianEvent:
        mechanism = self.mechanism
        return GaussianEvent(
            noise_stddev=mechanism.noise_stddev,
            sensitivity=mechanism.sensitivity(self.relation),
            relation=self.relation,
            sampling=self.sampling,
            sampling_rate=self.sampling_rate,
            label=", ".join(block.name for block in self.blocks),
        )

    def scaled(self, factor: float) -> "Step":
        """The same step with `factor` times the noise."""
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
class Settings:
    """What the caller chose; None leaves a choice to the planner.

    Attributes:
      num_steps: Steps that release what depends on the globals.
      sampling_rate: Share of the rows in a minibatch.
      clipping_norm: Bound on the norm of one row's joint vector.
      noise_multiplier: Fixed noise, in place of what the budget affords.
    """

    relation: Relation
    sampling: Sampling
    num_steps: int | None = None
    sampling_rate: float | None = None
    clipping_norm: float | None = None
    noise_multiplier: float | None = None
    private: bool = True

    @property
    def scheme(self) -> Sampling:
        """A rate of 1 takes all rows, whichever way they are drawn."""
        return "full" if self.rate == 1.0 else self.sampling

    @property
    def rate(self) -> float:
        return 1.0 if self.sampling_rate is None else self.sampling_rate


# Full batches are the default: more rows per step beat more steps.
DEFAULT_STEPS = 10
# Without noise there is no price on a step, and coordinate ascent needs some.
DEFAULT_STEPS_WITHOUT_NOISE = 100
# The share of the (squared) budget that a single release of the "once" statistics gets
# where there are also "adaptive" ones.
ONCE_SHARE = 0.3


def vips_schedule(
    once: Sequence[Block],
    adaptive: Sequence[Block],
    typical_norms: Mapping[str, np.ndarray],
    settings: Settings,
) -> tuple[Step, ...]:
    """Plans the steps of a conjugate model, with noise up to a common factor.

    The statistics that do not depend on the globals are released a single time, from
    all rows: a second release could only repeat them. The others are released in every
    step, with averaging weights near 2/t, so that early ones, which belong to poor
    globals, fade while noise still averages out.

    Args:
      once, adaptive: The blocks, by release label.
      typical_norms: For each block, its norm in each of some made-up rows.
      settings: The caller's choices.

    Returns:
      The steps. Their noise multipliers are in the right proportion to each other;
      `accounting.calibrate_events` finds the factor.
    """
    steps = []
    default = DEFAULT_STEPS if settings.private else DEFAULT_STEPS_WITHOUT_NOISE
    num_steps = settings.num_steps or default
    share = ONCE_SHARE if adaptive else 1.0
    if once:
        blocks, norm = bounded_blocks(once, typical_norms, settings)
        steps.append(
            Step(
                blocks=blocks,
                clipping_norm=norm,
                noise_multiplier=_noise(settings, 1.0 / math.sqrt(share)),
                relation=settings.relation,
                sampling="full",
                sampling_rate=1.0,
            )
        )
    if adaptive:
        blocks, norm = bounded_blocks(adaptive, typical_norms, settings)
        share = 1.0 - ONCE_SHARE if once else 1.0
        multiplier = settings.rate * math.sqrt(num_steps / share)
        for number in range(num_steps):
            # Full batches without noise need no averaging at all.
            exact = not settings.private and settings.scheme == "full"
            steps.append(
                Step(
                    blocks=blocks,
                    clipping_norm=norm,
                    noise_multiplier=_noise(settings, multiplier),
                    relation=settings.relation,
                    sampling=settings.scheme,
                    sampling_rate=settings.rate,
                    step_size=1.0 if exact else 2.0 / (number + 2.0),
                )
            )
    return tuple(steps)


def _noise(settings: Settings, relative: float) -> float:
    if not settings.private:
        return 0.0
    if settings.noise_multiplier is not None:
        return settings.noise_multiplier
    return relative


def bounded_blocks(
    blocks: Sequence[Block], typical_norms: Mapping[str, np.ndarray], settings: Settings
) -> tuple[tuple[Block, ...], float]:
    """Scales the blocks of one step against each other and bounds their joint norm.

    A clipping norm that the caller gave bounds the statistics as they are. By default
    the blocks are scaled so that their relative errors are alike, and the bound is the
    largest joint norm among made-up rows of unit size.
    """
    if not settings.private:
        return tuple(blocks), math.inf
    if settings.clipping_norm is not None:
        return tuple(blocks), settings.clipping_norm
    bounds = {b.name: float(np.max(typical_norms[b.name])) for b in blocks}
    scales = optimal_scales(
        blocks,
        bounds,
        relation=settings.relation,
        weights={name: bound**-2 for name, bound in bounds.items()},
    )
    if len(blocks) == 1:
        scales = {blocks[0].name: 1.0}
    joint = np.sqrt(sum((scales[b.name] * typical_norms[b.name]) ** 2 for b in blocks))
    scaled = [dataclasses.replace(b, scale=scales[b.name]) for b in blocks]
    return tuple(scaled), float(np.max(joint))


# Without noise a gradient step is cheap and needs no large batch to drown noise in.
DPVI_STEPS = 200
DPVI_STEPS_WITHOUT_NOISE = 2000
DPVI_CLIPPING_NORM = 1.0


def dpvi_schedule(blocks: Sequence[Block], settings: Settings) -> tuple[Step, ...]:
    """Plans equal gradient steps.

    The default clipping norm of 1 suits rows whose features have L2 norm 1: the
    gradient of a logistic or probit log likelihood is then at most about 1.
    """
    default = DPVI_STEPS if settings.private else DPVI_STEPS_WITHOUT_NOISE
    clipping_norm = settings.clipping_norm or DPVI_CLIPPING_NORM
    step = Step(
        blocks=tuple(blocks),
        clipping_norm=clipping_norm if settings.private else math.inf,
        noise_multiplier=_noise(settings, 1.0),
        relation=settings.relation,
        sampling=settings.scheme,
        sampling_rate=settings.rate,
    )
    return (step,) * (settings.num_steps or default)
