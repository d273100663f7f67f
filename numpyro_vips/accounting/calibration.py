"""The least noise whose price stays within a target."""

import functools
import math
from collections.abc import Callable, Sequence

from numpyro_vips import _validate
from numpyro_vips.accounting.events import (
    GaussianEvent,
    Groups,
    Sampling,
    check_delta,
    groups_of,
    scale_noise,
    scaled_groups,
    total_mu,
    unit_event,
)
from numpyro_vips.accounting.gaussian import largest_mu, last_true
from numpyro_vips.accounting.pld import single_grid_price
from numpyro_vips.accounting.prices import ACCOUNTANTS, Accountant, epsilon_of_events

# The search ends when the price or the factor is this close, relatively.
_PRECISION = 5e-4


def calibrate(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    num_steps: int,
    sampling: Sampling = "poisson",
    accountant: Accountant = "pld",
) -> float:
    """The smallest noise multiplier whose price is at most `epsilon`.

    The price of the answer never exceeds the target. An infinite target needs no noise:
    0. The other arguments are those of the function `epsilon`.

        >>> noise = calibrate(
        ...     epsilon=1.0, delta=1e-6, sampling_rate=1.0, num_steps=1, sampling="full"
        ... )
        >>> round(noise, 3)
        4.225

    Args:
      epsilon: Target epsilon, positive.
      delta: Target delta; positive where epsilon is finite.
      sampling_rate: Probability of a row to be in a batch, or fraction of the rows.
      num_steps: Number of releases.
      sampling: `"poisson"`, `"without_replacement"` or `"full"`.
      accountant: `"pld"`, `"moments"` or `"strong"`.

    Returns:
      Standard deviation of the noise over the L2 sensitivity in the relation that
      belongs to `sampling`.

    Raises:
      ValueError: A number is out of range, or no noise meets the target.
    """
    event = unit_event(1.0, sampling_rate, num_steps, sampling)
    return calibrate_events(
        [event], epsilon=epsilon, delta=delta, accountant=accountant
    )


def calibrate_events(
    events: Sequence[GaussianEvent],
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant = "pld",
) -> float:
    """The smallest factor on every event's noise at which all cost at most `epsilon`.

    It scales a whole schedule of different steps: `noise_stddev` of each event times
    the factor. The relative sizes of the noises stay as given.

        >>> from numpyro_vips.accounting import GaussianEvent
        >>> kind = {"relation": "add_or_remove", "sampling": "full", "sampling_rate": 1}
        >>> norms = GaussianEvent(noise_stddev=9.0, sensitivity=1.0, **kind)
        >>> sums = GaussianEvent(noise_stddev=4.0, sensitivity=2.0, num_steps=5, **kind)
        >>> factor = calibrate_events([norms, sums], epsilon=1.0, delta=1e-6)
        >>> round(factor, 3)
        4.747
        >>> scaled = [scale_noise(event, factor) for event in (norms, sums)]
        >>> round(epsilon_of_events(scaled, delta=1e-6), 3)
        1.0

    Args:
      events: The schedule. They share one relation.
      epsilon: What all of them together may cost.
      delta: At which delta.
      accountant: `"pld"`, `"moments"` or `"strong"`.

    Returns:
      The factor, for `scale_noise`.

    Guarantees:
      `epsilon_of_events` of the scaled events never exceeds `epsilon`. An infinite
      target gives 0, and so do no events at all.

    Raises:
      ValueError: A finite target cannot be met, because `delta` is zero or because an
        event has no noise that could be scaled.
    """
    _validate.one_of(ACCOUNTANTS, accountant=accountant)
    _validate.positive(epsilon=epsilon)
    check_delta(delta)
    # In a narrower type a price would be compared with too few digits.
    epsilon, delta = float(epsilon), float(delta)
    events = tuple(events)  # More than once, whatever they come from.
    groups = groups_of(events)
    if math.isinf(epsilon) or not groups:
        return 0.0
    if delta == 0:
        raise ValueError(
            f"Expected delta={delta!r} to be positive with epsilon={epsilon!r}: "
            "Gaussian noise never gives pure differential privacy. Choose a delta "
            "well below 1 / num_rows."
        )
    if any(group.noise_multiplier == 0 for group in groups):
        raise ValueError(
            "Expected every event to have noise_stddev > 0: zero noise stays zero "
            "whatever it is multiplied by."
        )
    return _smallest_noise(events, epsilon, delta, accountant)


# The same fit, run again, costs the same.
@functools.lru_cache(maxsize=128)
def _smallest_noise(
    events: tuple[GaussianEvent, ...],
    epsilon: float,
    delta: float,
    accountant: Accountant,
) -> float:
    """The smallest factor on the noise that meets a finite target, which can be met.

    As `calibrate_events` finds it; see there.
    """
    groups = groups_of(events)

    def price(factor: float) -> float:
        return epsilon_of_events(
            [scale_noise(event, factor) for event in events],
            delta=delta,
            accountant=accountant,
        )

    if accountant == "pld" and all(group.sampling == "full" for group in groups):
        return _nudged(price, epsilon, total_mu(groups) / largest_mu(epsilon, delta))
    start = _first_guess(groups, epsilon, delta)
    if accountant == "pld":
        # Search on one grid; the price that refines its own has the last word.
        start = smallest_factor(
            single_grid_price(groups, delta, start), epsilon * (1 - 3e-4), start=start
        )
        return smallest_factor(price, epsilon, start=start, stride=1.003)
    return smallest_factor(price, epsilon, start=start)


def _first_guess(groups: Groups, epsilon: float, delta: float) -> float:
    """A factor from the central limit: the composed loss is about Gaussian."""
    allowed = largest_mu(epsilon, delta)

    def spread(factor: float) -> float:
        return math.sqrt(
            sum(g.num_steps * g.loss_stddev**2 for g in scaled_groups(groups, factor))
        )

    low = high = total_mu(groups) / allowed
    while low > 1e-9 * high and spread(low) < allowed:
        low /= 2
    return high / last_true(
        lambda ratio: spread(high / ratio) <= allowed, 1, high / low
    )


def smallest_factor(
    price: Callable[[float], float],
    target: float,
    *,
    start: float,
    stride: float = 1.3,
) -> float:
    """The smallest factor found at which a falling price is at most the target.

    Args:
      price: Falls with the factor, apart from small numerical steps.
      target: What the price may be.
      start: A first guess.
      stride: How far from the guess the first step goes.

    Returns:
      A factor whose price was computed and is at most the target.
    """
    (x_low, y_low), (x_high, y_high) = _bracket(price, target, start, stride)
    while x_high > x_low * (1 + _PRECISION) and y_high < target * (1 - _PRECISION):
        # Prices are close to powers of the noise: interpolate the logarithms, but
        # never too near an end, so that the bracket always shrinks.
        share = 0.5
        if y_high > 0 and y_low < math.inf:
            share = math.log(y_low / (target * (1 - _PRECISION / 2)))
            share = min(0.95, max(0.05, share / math.log(y_low / y_high)))
        x = x_low * (x_high / x_low) ** share
        y = price(x)
        if y <= target:
            x_high, y_high = x, y
        else:
            x_low, y_low = x, y
    return x_high


_Point = tuple[float, float]


def _bracket(
    price: Callable[[float], float],
    target: float,
    start: float,
    stride: float,
) -> tuple[_Point, _Point]:
    """A factor that costs too much, and one near it that does not."""
    x, y = start, price(start)
    if target * (1 - _PRECISION) <= y <= target:
        return (x, y), (x, y)
    # NaN is too much.
    too_much = not y <= target
    while 1e-12 < x < 1e12:
        following = x * stride if too_much else x / stride
        value = price(following)
        if (not value <= target) != too_much:
            pair = ((x, y), (following, value))
            return pair if too_much else (pair[1], pair[0])
        x, y, stride = following, value, stride**2
    if too_much:
        raise ValueError(
            f"Expected a target that noise can meet, and epsilon={target!r} is out of "
            "this accountant's reach. Ask for a larger epsilon or delta, or use "
            "accountant='pld'."
        )
    return (x, y), (x, y)


def _nudged(price: Callable[[float], float], target: float, factor: float) -> float:
    """The factor, raised by the rounding errors between it and the target."""
    nudge = 1e-15
    while not price(factor) <= target:
        factor *= 1 + nudge
        nudge *= 2
    return factor
