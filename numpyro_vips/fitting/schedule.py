"""Steps, and the schedule of them that the accountant prices and the engine runs."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from numpyro_vips import _validate
from numpyro_vips.accounting import GaussianEvent, Relation, Sampling
from numpyro_vips.privacy.gaussian_mechanism import (
    Block,
    GaussianMechanism,
    optimal_scales,
)


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
class ScheduleOptions:
    """The caller's choices about the schedule; None leaves a choice to the planner.

    Attributes:
      num_steps: Steps that release what depends on the globals.
      sampling_rate: Share of the rows in a minibatch.
      clipping_norm: Bound on the norm of one row's joint vector; or, by name, a typical
        norm of each statistic, which then is its unit.
      noise_multiplier: Fixed noise, in place of what the budget affords.
      step_size: Weight of adaptive step t = 0, 1, ... in the running average.
      release_once: Whether what does not depend on the globals has a release of its
        own, and not a part in every step.
    """

    relation: Relation
    sampling: Sampling
    num_steps: int | None = None
    sampling_rate: float | None = None
    clipping_norm: float | Mapping[str, float] | None = None
    noise_multiplier: float | None = None
    step_size: Callable[[int], float] | None = None
    release_once: bool = True
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
    options: ScheduleOptions,
) -> tuple[Step, ...]:
    """Plans the steps of a conjugate model, with noise up to a common factor.

    The statistics that do not depend on the globals are released a single time, from
    all rows: a second release could only repeat them. The others are released in every
    step, with averaging weights near 2/t, so that early ones, which belong to poor
    globals, fade while noise still averages out.

    Args:
      once, adaptive: The blocks, by release label.
      typical_norms: For each block, its norm in each of some synthetic rows.
      options: The caller's choices.

    Returns:
      The steps. Their noise multipliers are in the right proportion to each other;
      `accounting.calibrate_events` finds the factor.
    """
    steps = []
    if not options.release_once:
        once, adaptive = (), (*once, *adaptive)
    default = DEFAULT_STEPS if options.private else DEFAULT_STEPS_WITHOUT_NOISE
    num_steps = options.num_steps or default
    share = ONCE_SHARE if adaptive else 1.0
    if once:
        blocks, norm = bounded_blocks(once, typical_norms, options)
        steps.append(
            Step(
                blocks=blocks,
                clipping_norm=norm,
                noise_multiplier=_noise(options, 1.0 / math.sqrt(share)),
                relation=options.relation,
                sampling="full",
                sampling_rate=1.0,
            )
        )
    if adaptive:
        blocks, norm = bounded_blocks(adaptive, typical_norms, options)
        share = 1.0 - ONCE_SHARE if once else 1.0
        multiplier = options.rate * math.sqrt(num_steps / share)
        for number in range(num_steps):
            steps.append(
                Step(
                    blocks=blocks,
                    clipping_norm=norm,
                    noise_multiplier=_noise(options, multiplier),
                    relation=options.relation,
                    sampling=options.scheme,
                    sampling_rate=options.rate,
                    step_size=_step_size(number, options),
                )
            )
    return tuple(steps)


def _step_size(number: int, options: ScheduleOptions) -> float:
    """The weight of an adaptive step; the first one counts fully by default."""
    if options.step_size is not None:
        value = float(options.step_size(number))
        if not 0 < value <= 1:
            raise ValueError(
                f"Expected step_size({number}) to be in (0, 1], got {value!r}."
            )
        return value
    if not options.private and options.scheme == "full":
        return 1.0  # Full batches without noise need no averaging at all.
    return 2.0 / (number + 2.0)


def _noise(options: ScheduleOptions, relative: float) -> float:
    if not options.private:
        return 0.0
    if options.noise_multiplier is not None:
        return options.noise_multiplier
    return relative


def bounded_blocks(
    blocks: Sequence[Block],
    typical_norms: Mapping[str, np.ndarray],
    options: ScheduleOptions,
) -> tuple[tuple[Block, ...], float]:
    """Scales the blocks of one step against each other and bounds their joint norm.

    A clipping norm that the caller gave bounds the statistics as they are. Typical
    norms that the caller gave become the statistics' units, and the joint bound is that
    of a row in which each statistic has its typical norm. By default
    the blocks are scaled so that their relative errors are alike, and the bound is the
    largest joint norm among synthetic rows of unit size.
    """
    if not options.private:
        return tuple(blocks), math.inf
    given = options.clipping_norm
    if isinstance(given, Mapping):
        missing = [block.name for block in blocks if block.name not in given]
        if missing:
            raise ValueError(
                f"Expected clipping_norm= to have a norm for {missing} too; it has "
                f"{sorted(given)}."
            )
        in_units = [dataclasses.replace(b, scale=1.0 / given[b.name]) for b in blocks]
        return tuple(in_units), math.sqrt(len(blocks))
    if given is not None:
        return tuple(blocks), given
    bounds = {b.name: float(np.max(typical_norms[b.name])) for b in blocks}
    scales = optimal_scales(
        blocks,
        bounds,
        relation=options.relation,
        weights={name: bound**-2 for name, bound in bounds.items()},
    )
    if len(blocks) == 1:
        scales = {blocks[0].name: 1.0}
    joint = np.sqrt(sum((scales[b.name] * typical_norms[b.name]) ** 2 for b in blocks))
    for name, bound in bounds.items():
        _validate.moderate(**{f"the default clipping norm of {name}": bound})
    scaled = [dataclasses.replace(b, scale=scales[b.name]) for b in blocks]
    return tuple(scaled), _default_norm(joint)


def _default_norm(joint: np.ndarray) -> float:
    """The largest of some norms, held to what is asked of a norm that is given."""
    norm = float(np.max(joint))
    try:
        _validate.moderate(clipping_norm=norm)
    except ValueError as error:
        raise ValueError(
            f"No default clipping norm could be found for this model: {error} Pass "
            "clipping_norm=, a bound on the L2 norm of what one row contributes, "
            "chosen from public knowledge."
        ) from None
    return norm


DPVI_STEPS = 200
# Without noise a gradient step costs no budget, only time.
DPVI_STEPS_WITHOUT_NOISE = 500
# Fewer steps are longer ones, up to this factor, and more are shorter.
DPVI_LONGEST_STEP = 2.0


def dpvi_schedule(
    blocks: Sequence[Block],
    typical_norms: Mapping[str, np.ndarray],
    options: ScheduleOptions,
    *,
    has_own_optimizer: bool = False,
) -> tuple[Step, ...]:
    """Plans equal gradient steps.

    The default clipping norm is the largest joint norm of the gradient among synthetic
    rows of unit size, at the start. For a logistic model that is about 1/2.

    Under noise all steps together should go a fixed distance: the noise of a step grows
    like the root of the number of steps, so that with more steps each is shorter.

    Args:
      blocks: What a step releases.
      typical_norms: For each block, its norm in each of some synthetic rows.
      options: The caller's choices.
      has_own_optimizer: Whether the caller gave an optimiser, whose learning rate then
        is what it says.
    """
    default = DPVI_STEPS if options.private else DPVI_STEPS_WITHOUT_NOISE
    num_steps = options.num_steps or default
    clipping_norm = math.inf
    if options.private:
        given = options.clipping_norm
        assert not isinstance(given, Mapping)  # Refused by the caller.
        joint = np.sqrt(sum(norms**2 for norms in typical_norms.values()))
        clipping_norm = _default_norm(joint) if given is None else given
    step_size = 1.0
    if options.private and not has_own_optimizer:
        step_size = min(DPVI_LONGEST_STEP, DPVI_STEPS / num_steps)
    step = Step(
        blocks=tuple(blocks),
        clipping_norm=clipping_norm,
        noise_multiplier=_noise(options, 1.0),
        relation=options.relation,
        sampling=options.scheme,
        sampling_rate=options.rate,
        step_size=step_size,
    )
    return (step,) * num_steps
