"""The prices of events under the accountant of one's choice."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal

from numpyro_vips import _validate
from numpyro_vips.accounting.events import (
    GaussianEvent,
    Groups,
    Sampling,
    check_delta,
    groups_of,
    total_mu,
    unit_event,
)
from numpyro_vips.accounting.gaussian import largest_mu, last_true
from numpyro_vips.accounting.moments import moments_epsilon
from numpyro_vips.accounting.pld import pld_delta, pld_epsilon
from numpyro_vips.accounting.strong_composition import strong_epsilon

Accountant = Literal["pld", "moments", "strong"]

ACCOUNTANTS = ("pld", "moments", "strong")
_EPSILON: dict[str, Callable[[Groups, float], float]] = {
    "pld": pld_epsilon,
    "moments": moments_epsilon,
    "strong": strong_epsilon,
}


def epsilon(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    num_steps: int,
    delta: float,
    sampling: Sampling = "poisson",
    accountant: Accountant = "pld",
) -> float:
    """The epsilon of `num_steps` Gaussian releases from sampled batches.

        >>> batches = {"sampling_rate": 0.01, "num_steps": 1000, "delta": 1e-5}
        >>> round(epsilon(noise_multiplier=1.0, **batches, accountant="moments"), 2)
        2.54

    Args:
      noise_multiplier: Standard deviation over L2 sensitivity in the relation that
        belongs to `sampling`. Zero costs infinitely much.
      sampling_rate: Probability of a row to be in a batch, or fraction of the rows.
      num_steps: Number of releases.
      delta: Target delta. At zero every Gaussian release costs infinitely much.
      sampling: `"poisson"` (add or remove one row), `"without_replacement"` (replace
        one row) or `"full"` (either; `sampling_rate` must be 1).
      accountant: `"pld"`, `"moments"` or `"strong"`.

    Returns:
      The smallest epsilon that the accountant can prove.

    Raises:
      TypeError, ValueError: A number is out of range, or a name is not one of those
        above.
    """
    event = unit_event(noise_multiplier, sampling_rate, num_steps, sampling)
    return epsilon_of_events([event], delta=delta, accountant=accountant)


def epsilon_of_events(
    events: Sequence[GaussianEvent], *, delta: float, accountant: Accountant = "pld"
) -> float:
    """The epsilon of all the events together.

    What cannot be computed counts as no privacy: infinity, never NaN.

        >>> from numpyro_vips.accounting import GaussianEvent
        >>> step = GaussianEvent(
        ...     noise_stddev=8.0,
        ...     sensitivity=2.0,
        ...     relation="add_or_remove",
        ...     sampling="full",
        ...     sampling_rate=1.0,
        ...     num_steps=4,
        ... )
        >>> round(epsilon_of_events([step], delta=1e-5), 3)
        1.993
        >>> round(epsilon_of_events([step, step], delta=1e-5), 3)
        2.943

    Args:
      events: Noisy releases from the same rows, with one relation.
      delta: Target delta.
      accountant: `"pld"`, `"moments"` or `"strong"`.

    Raises:
      ValueError: The events have several relations, or `delta` is out of range.
    """
    _validate.one_of(ACCOUNTANTS, accountant=accountant)
    check_delta(delta)
    delta = float(delta)  # No narrower type, in which it would lose digits on the way.
    groups = groups_of(events)
    if not groups or delta >= 1:
        return 0.0
    if delta == 0 or any(group.noise_multiplier == 0 for group in groups):
        return math.inf
    return _finite_or_no_privacy(groups, delta, accountant)


# The same fit, run again, costs the same.
@functools.lru_cache(maxsize=256)
def _finite_or_no_privacy(
    groups: Groups, delta: float, accountant: Accountant
) -> float:
    try:
        price = _EPSILON[accountant](groups, delta)
    except ArithmeticError:  # An overflow, far from any price that is of use.
        return math.inf
    return math.inf if math.isnan(price) else price


def delta_of_events(
    events: Sequence[GaussianEvent], *, epsilon: float, accountant: Accountant = "pld"
) -> float:
    """The delta of all the events together at `epsilon`.

        >>> from numpyro_vips.accounting import GaussianEvent
        >>> release = GaussianEvent(
        ...     noise_stddev=2.0,
        ...     sensitivity=1.0,
        ...     relation="add_or_remove",
        ...     sampling="full",
        ...     sampling_rate=1.0,
        ... )
        >>> round(delta_of_events([release], epsilon=1.0), 4)
        0.0068

    Args:
      events: Noisy releases from the same rows, with one relation.
      epsilon: Target epsilon.
      accountant: `"pld"`, `"moments"` or `"strong"`.

    Returns:
      The smallest delta that the accountant can prove; 1 for no privacy.

    Raises:
      ValueError: The events have several relations, or `epsilon` is out of range.
    """
    _validate.one_of(ACCOUNTANTS, accountant=accountant)
    _validate.nonnegative(epsilon=epsilon)
    epsilon = float(epsilon)
    events = tuple(events)  # More than once, whatever they come from.
    groups = groups_of(events)
    if not groups or epsilon == math.inf:
        return 0.0
    if any(group.noise_multiplier == 0 for group in groups):
        return 1.0
    if accountant == "pld":
        try:
            delta = pld_delta(groups, epsilon)
        except ArithmeticError:
            return 1.0
        return 1.0 if math.isnan(delta) else delta
    # The two bounds are cheap in the other direction, and fall with delta.
    log_delta = last_true(
        lambda u: (
            epsilon_of_events(events, delta=math.exp(-u), accountant=accountant)
            <= epsilon
        ),
        0.0,
        700.0,
    )
    return math.exp(-log_delta)


def gaussian_dp_mu(events: Sequence[GaussianEvent]) -> float | None:
    """The mu of Gaussian differential privacy that describes the events.

    Full-batch events compose exactly: mu² is the sum of 1 / noise_multiplier². With
    sampled batches the trade-off curve is only nearly Gaussian; then this is the
    largest mu among those that match epsilon at delta = 1e-9, 1e-8, ..., 1e-3: a
    summary for people and not a bound. None where there is no noise.

        >>> from numpyro_vips.accounting import GaussianEvent
        >>> step = GaussianEvent(
        ...     noise_stddev=8.0,
        ...     sensitivity=2.0,
        ...     relation="add_or_remove",
        ...     sampling="full",
        ...     sampling_rate=1.0,
        ...     num_steps=4,
        ... )
        >>> gaussian_dp_mu([step])
        0.5

    Args:
      events: Noisy releases from the same rows, with one relation.

    Raises:
      ValueError: The events have several relations.
    """
    groups = groups_of(events)
    if not groups:
        return 0.0
    if any(group.noise_multiplier == 0 for group in groups):
        return None
    if all(group.sampling == "full" for group in groups):
        return total_mu(groups)
    matches: list[float] = []
    for exponent in range(3, 10):
        delta = 10.0**-exponent
        price = pld_epsilon(groups, delta)
        if 0 < price < math.inf:
            matches.append(largest_mu(price, delta))
    return max(matches) if matches else None
