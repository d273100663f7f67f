"""What a fit costs: the noise that its share of the budget affords."""

import dataclasses
import math
from collections.abc import Sequence

from numpyro_vips import _validate, accounting
from numpyro_vips.errors import BudgetExceededError, quoted
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.fitting.step import Step, events_of
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.privacy.budget import PrivacyBudget


@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetShare:
    """What a fit may spend of its budget; None takes all that is left.

    Raises:
      TypeError, ValueError: A number is out of range.
    """

    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            _validate.positive(epsilon=self.epsilon)
            object.__setattr__(self, "epsilon", float(self.epsilon))
        if self.delta is not None:
            _validate.share_of_delta(delta=self.delta)
            object.__setattr__(self, "delta", float(self.delta))


def noise_of_one_release(budget: PrivacyBudget, share: BudgetShare) -> float | None:
    """The noise multiplier of a release from all rows that takes a fit's whole share.

    Where the share is left open it is the whole budget, not what is left of it: so a
    fit is planned alike whenever it is asked about.

    Returns:
      The multiplier; None if the fit has no finite epsilon.
    """
    epsilon = budget.epsilon if share.epsilon is None else share.epsilon
    delta = budget.delta if share.delta is None else share.delta
    if math.isinf(epsilon) or delta == 0:
        return None
    return accounting.calibrate(
        epsilon=epsilon,
        delta=delta,
        sampling_rate=1.0,
        num_steps=1,
        sampling="full",
        accountant=budget.accountant,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PricedSteps:
    """Steps at the noise at which they run, and what they cost together."""

    steps: tuple[Step, ...]
    epsilon: float
    delta: float


def warning_of_no_globals(graph: ModelGraph) -> str | None:
    """What is said of a model in which every latent is a row's own.

    Nothing is released then. It may be meant, to ask for the latents of single rows, or
    priors stand under the plate by mistake.
    """
    if graph.latents("global") or graph.params:
        return None
    message = (
        "The model has no latent that all rows share, so that nothing is fitted or "
        "released."
    )
    own = [site.name for site in graph.latents("local")]
    if own:
        message += (
            f" Under the plate {graph.unit!r} every row has latents of its own "
            f"({quoted(own)}): to share one among all, sample it outside the plate."
        )
    return message


def warning_of_delta(priced: PricedSteps, num_rows: int) -> str | None:
    """What is said, before anything is charged, of a delta that promises nothing.

    Args:
      priced: The steps and what they cost.
      num_rows: The public number of rows.

    Returns:
      The warning; None if the delta is below one over the number of rows.
    """
    if not priced.steps or math.isinf(priced.epsilon) or priced.delta * num_rows < 1:
        return None
    return (
        f"delta={priced.delta:.3g} is not below 1 / num_rows = {1 / num_rows:.3g}. "
        "Such a delta promises nothing: publishing each row as it is with this "
        "probability would satisfy it. Choose one well below, such as 1e-6: a small "
        "delta costs little accuracy."
    )


def price(
    steps: Sequence[Step],
    budget: PrivacyBudget,
    options: ScheduleOptions,
    share: BudgetShare,
    *,
    unit: str,
) -> PricedSteps:
    """Finds the noise that the share affords, and what the steps then cost.

    Args:
      steps: The schedule, with noise up to a common factor.
      budget: The ledger that is to pay. Nothing is charged yet.
      options: Whether there is noise at all, and whether the caller fixed it.
      share: What the fit may spend.
      unit: Name of the plate of private rows.

    Raises:
      BudgetExceededError: The ledger, or the share, does not afford the steps.
      ValueError: There is no delta, or the ledger is about other neighbours.
    """
    if not options.private:
        return PricedSteps(steps=tuple(steps), epsilon=math.inf, delta=budget.delta)
    left = budget.remaining()
    delta = left.delta if share.delta is None else share.delta
    if not budget.is_private and delta == 0:
        raise ValueError(
            "Expected delta= with epsilon= or noise_multiplier=: the budget has "
            "delta=0. Pass a delta well below 1 / num_rows."
        )
    if not steps:
        return PricedSteps(steps=(), epsilon=0.0, delta=0.0)
    events = events_of(steps)
    if options.noise_multiplier is None:
        factor = budget.calibrate_events(
            events, epsilon=share.epsilon, delta=share.delta
        )
        steps = [step.scaled(factor) for step in steps]
        events = events_of(steps)
    epsilon = accounting.epsilon_of_events(
        events, delta=delta, accountant=budget.accountant
    )
    affordable = left.epsilon if share.epsilon is None else share.epsilon
    # A Rényi filter says by itself what is left, but knows nothing of shares.
    has_share = budget.composition == "split" or share.epsilon is not None
    if options.noise_multiplier is not None and has_share and epsilon > affordable:
        raise BudgetExceededError(
            f"{len(steps)} steps at noise_multiplier={options.noise_multiplier:g} cost "
            f"epsilon={epsilon:.4g} at delta={delta:.3g}, and this fit may spend "
            f"{affordable:.4g}. Take fewer steps (num_steps=), a lower rate "
            "(sampling=) or more noise, or leave noise_multiplier out. Nothing was "
            "charged."
        )
    budget.check(
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        relation=options.sampling.relation,
        events=events,
    )
    return PricedSteps(steps=tuple(steps), epsilon=epsilon, delta=delta)
