"""Steps, and the schedule of them that the accountant prices and the engine runs."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from numpyro_vips import _validate
from numpyro_vips._settings import frozen, keep_integer
from numpyro_vips.accounting import GaussianEvent
from numpyro_vips.fitting.engine import Engine
from numpyro_vips.privacy.gaussian_mechanism import (
    Block,
    GaussianMechanism,
    optimal_scales,
)
from numpyro_vips.privacy.sampling import FullBatch, RowSampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One pass over a minibatch: what it releases, at which noise, from which rows.

    Attributes:
      blocks: What is released, each with its scale in the joint vector.
      clipping_norm: L2 bound on one row's joint vector.
      noise_multiplier: Noise standard deviation over the joint sensitivity.
      sampling: How the minibatch is drawn, and what neighbouring data sets are.
      step_size: Weight ρ of this step's statistics in the running average (VIPS), or
        a factor on the learning rate (DPVI).
    """

    blocks: tuple[Block, ...]
    clipping_norm: float
    noise_multiplier: float
    sampling: RowSampling
    step_size: float = 1.0

    @property
    def mechanism(self) -> GaussianMechanism:
        return GaussianMechanism(
            blocks=self.blocks,
            clipping_norm=self.clipping_norm,
            noise_multiplier=self.noise_multiplier,
            relation=self.sampling.relation,
        )

    @property
    def event(self) -> GaussianEvent:
        mechanism = self.mechanism
        return self.sampling.event(
            noise_stddev=mechanism.noise_stddev,
            sensitivity=mechanism.sensitivity(self.sampling.relation),
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

    Two equal ones plan the same steps, and they are hashable.

    Attributes:
      sampling: How adaptive steps draw their rows.
      num_steps: Steps that release what depends on the globals.
      clipping_norm: Bound on the norm of one row's joint vector; or, by name, a typical
        norm of each statistic, which then is its unit.
      noise_multiplier: Fixed noise, in place of what the budget affords.
      private: Whether there is noise and clipping at all.

    Raises:
      TypeError, ValueError: A number is out of range.
    """

    sampling: RowSampling
    num_steps: int | None = None
    clipping_norm: float | Mapping[str, float] | None = None
    noise_multiplier: float | None = None
    private: bool = True

    def __post_init__(self) -> None:
        keep_integer(self, "num_steps")
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


# The share of the (squared) budget that a single release of the "once" statistics gets
# where there are also "adaptive" ones.
ONCE_SHARE = 0.3


def plan_steps(
    engine: Engine, typical_norms: Mapping[str, np.ndarray], options: ScheduleOptions
) -> tuple[Step, ...]:
    """Plans the steps of a fit, with noise up to a common factor.

    What does not depend on the globals is released a single time, from all rows: a
    second release could only repeat it. The rest is released in every step.

    Args:
      engine: What there is to release, and how steps are weighed.
      typical_norms: For each block, its norm in each of some synthetic rows.
      options: The caller's choices.

    Returns:
      The steps. Their noise multipliers are in the right proportion to each other;
      `accounting.calibrate_events` finds the factor.
    """
    once, adaptive = engine.blocks("once"), engine.blocks("adaptive")
    steps: list[Step] = []
    if once:
        share = ONCE_SHARE if adaptive else 1.0
        blocks, norm = bounded_blocks(once, typical_norms, options, engine=engine)
        steps.append(
            Step(
                blocks=blocks,
                clipping_norm=norm,
                noise_multiplier=_noise(options, 1.0 / math.sqrt(share)),
                sampling=FullBatch(relation=options.sampling.relation),
            )
        )
    if adaptive:
        num_steps = options.num_steps
        if num_steps is None:
            num_steps = engine.default_num_steps(is_private=options.private)
        step_sizes = engine.step_sizes(
            num_steps,
            is_private=options.private,
            is_full=options.sampling.scheme == "full",
        )
        share = 1.0 - ONCE_SHARE if once else 1.0
        multiplier = options.sampling.rate * math.sqrt(num_steps / share)
        blocks, norm = bounded_blocks(adaptive, typical_norms, options, engine=engine)
        first = Step(
            blocks=blocks,
            clipping_norm=norm,
            noise_multiplier=_noise(options, multiplier),
            sampling=options.sampling,
        )
        steps += [dataclasses.replace(first, step_size=size) for size in step_sizes]
    return tuple(steps)


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
    *,
    engine: Engine,
) -> tuple[tuple[Block, ...], float]:
    """Scales the blocks of one step against each other and bounds their joint norm.

    A clipping norm that the caller gave bounds the statistics as they are. Typical
    norms that the caller gave become the statistics' units, and the joint bound is that
    of a row in which each statistic has its typical norm. By default the blocks are
    scaled so that their relative errors are alike, unless they are parts of one vector,
    and the bound is the largest joint norm among synthetic rows of unit size.
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
    if engine.is_one_vector:
        joint = np.sqrt(sum(typical_norms[block.name] ** 2 for block in blocks))
        return tuple(blocks), _default_norm(joint)
    bounds = {b.name: float(np.max(typical_norms[b.name])) for b in blocks}
    scales = optimal_scales(
        blocks,
        bounds,
        relation=options.sampling.relation,
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
