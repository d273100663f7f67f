"""The search for the least noise, on prices in closed form."""

import math
from typing import Any

import numpy as np
import pytest
from _events import event
from scipy import optimize, stats

from numpyro_vips import accounting
from numpyro_vips.accounting import Accountant, Sampling
from numpyro_vips.accounting.calibration import (
    calibrate,
    calibrate_events,
    smallest_factor,
)
from numpyro_vips.accounting.events import GaussianEvent
from numpyro_vips.accounting.prices import epsilon_of_events


def full(noise: float, steps: int = 1) -> GaussianEvent:
    return GaussianEvent(
        noise_stddev=noise,
        sensitivity=2.0,
        relation="add_or_remove",
        sampling="full",
        sampling_rate=1.0,
        num_steps=steps,
    )


class Counted:
    """A price, and the factors that it was asked for."""

    def __init__(self, price) -> None:
        self.price = price
        self.asked: list[float] = []

    def __call__(self, factor: float) -> float:
        self.asked.append(factor)
        return self.price(factor)


@pytest.mark.parametrize("start", [1e-6, 0.5, 3.0, 1e5])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("target", [0.01, 1.0, 50.0])
def test_a_power_of_the_noise_is_inverted(
    start: float, power: float, target: float
) -> None:
    price = Counted(lambda factor: 3.0 * factor**-power)
    found = smallest_factor(price, target, start=start)
    exact = (3.0 / target) ** (1 / power)
    assert exact <= found <= exact * 1.001
    # What comes back was looked at itself; none is trusted unseen.
    assert found in price.asked and price.price(found) <= target
    assert len(price.asked) < 40


def test_a_price_with_steps_and_holes_never_exceeds_the_target() -> None:
    def price(factor: float) -> float:
        if factor < 2.0:
            return math.nan  # An accountant that has lost its way; it is too much.
        return math.ceil(40.0 / factor) / 4.0

    # The steps on either side cost 1 and 1.25.
    found = smallest_factor(price, 1.1, start=1.0)
    assert price(found) <= 1.1
    assert 10.0 <= found <= 10.01


@pytest.mark.parametrize("start", [1e-3, 1.0, 1e3])
def test_what_noise_cannot_buy_is_refused(start: float) -> None:
    with pytest.raises(ValueError, match="out of this accountant's reach"):
        smallest_factor(lambda factor: 1.0 + 1.0 / factor, 0.9, start=start)


def test_a_price_that_is_always_low_needs_next_to_no_noise() -> None:
    assert smallest_factor(lambda factor: 0.1, 1.0, start=1.0) <= 1e-11


def test_full_batches_take_the_noise_of_the_gaussian_mechanism() -> None:
    """Balle and Wang (2018), theorem 8; of several releases mu² adds up."""
    epsilon, delta = 0.7, 1e-5
    events = [full(3.0, 4), full(5.0)]
    mu = math.sqrt(4 * (2 / 3.0) ** 2 + (2 / 5.0) ** 2)

    def excess(factor: float) -> float:
        m = mu / factor
        found = stats.norm.cdf(m / 2 - epsilon / m)
        found -= math.exp(epsilon) * stats.norm.cdf(-m / 2 - epsilon / m)
        return float(found) - delta

    exact: Any = optimize.brentq(excess, 0.1, 100.0, xtol=1e-12)
    found = calibrate_events(events, epsilon=epsilon, delta=delta)
    np.testing.assert_allclose(found, exact, rtol=1e-6)
    assert excess(found * (1 + 1e-9)) <= 0.0


@pytest.mark.parametrize("accountant", ["pld", "moments", "strong"])
def test_the_answer_is_affordable_and_a_little_less_noise_is_not(accountant) -> None:
    noise = calibrate(
        epsilon=1.5,
        delta=1e-5,
        sampling_rate=0.05,
        num_steps=20,
        accountant=accountant,
    )

    def price(noise: float) -> float:
        one = GaussianEvent(
            noise_stddev=noise,
            sensitivity=1.0,
            relation="add_or_remove",
            sampling="poisson",
            sampling_rate=0.05,
            num_steps=20,
        )
        return epsilon_of_events([one], delta=1e-5, accountant=accountant)

    assert price(noise) <= 1.5 < price(0.995 * noise)


@pytest.mark.parametrize(
    ("events", "arguments", "message"),
    [
        ([full(1.0)], {"epsilon": 1.0, "delta": 0.0}, "pure differential privacy"),
        ([full(1.0), full(0.0)], {"epsilon": 1.0, "delta": 1e-6}, "zero noise stays"),
        ([full(1.0)], {"epsilon": 0.0, "delta": 1e-6}, "epsilon"),
        ([full(1.0)], {"epsilon": 1.0, "delta": 1.1}, "delta"),
    ],
)
def test_a_target_that_cannot_be_met_is_refused(events, arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        calibrate_events(events, **arguments)


def test_nothing_released_and_no_bound_need_no_noise() -> None:
    assert calibrate_events([], epsilon=1.0, delta=0.0) == 0.0
    assert calibrate_events([full(1.0)], epsilon=math.inf, delta=1e-6) == 0.0


@pytest.mark.quick_with(
    "poisson+full-pld",
    "two rates-pld",
    "without replacement+full-pld",
    "two rates-strong",
    "without replacement+full-strong",
    "poisson+full-strong",
)
@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
@pytest.mark.parametrize(
    "events",
    [
        [event(1.0, 0.05, 40), event(4.0, 1.0, 3, "full")],
        [event(1.0, 0.05, 20), event(2.0, 0.02, 30)],
        [
            event(1.0, 0.05, 20, "without_replacement"),
            event(3.0, 1.0, 2, "full", "replace_one"),
        ],
    ],
    ids=["poisson+full", "two rates", "without replacement+full"],
)
def test_calibrating_a_schedule_meets_the_target(events, accountant):
    factor = accounting.calibrate_events(
        events, epsilon=1.0, delta=1e-6, accountant=accountant
    )
    scaled = [accounting.scale_noise(event, factor) for event in events]
    price = accounting.epsilon_of_events(scaled, delta=1e-6, accountant=accountant)
    assert 0.998 <= price <= 1.0


CORNERS = [
    (target, rate, steps)
    for target in (0.01, 1.0, 20.0)
    for rate in (1e-4, 0.01, 1.0)
    for steps in (1, 1000, 100_000)
]


# A small rate needs a fine grid over a long range.
SLOW_CORNERS = [(0.01, 1e-4, 1), (0.01, 1e-4, 1000), (1.0, 1e-4, 100_000)]


def check_calibration(
    corner: tuple[float, float, int], sampling: Sampling, accountant: Accountant
) -> None:
    target, rate, steps = corner
    noise = accounting.calibrate(
        epsilon=target,
        delta=1e-5,
        sampling_rate=rate,
        num_steps=steps,
        sampling=sampling,
        accountant=accountant,
    )
    price = accounting.epsilon(
        noise_multiplier=noise,
        delta=1e-5,
        sampling_rate=rate,
        num_steps=steps,
        sampling=sampling,
        accountant=accountant,
    )
    assert price <= target
    cheaper = accounting.epsilon(
        noise_multiplier=0.998 * noise,
        delta=1e-5,
        sampling_rate=rate,
        num_steps=steps,
        sampling=sampling,
        accountant=accountant,
    )
    assert price >= 0.998 * target or cheaper > target


@pytest.mark.quick_with(
    "corner0-strong",
    "corner9-strong",
    "corner18-strong",
    "corner9-pld",
    "corner16-pld",
    "corner18-pld",
    "corner21-pld",
    "corner12-moments",
    "corner19-moments",
    "corner21-moments",
)
@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
@pytest.mark.parametrize("corner", [c for c in CORNERS if c not in SLOW_CORNERS])
def test_calibration_meets_the_target_at_the_corners(corner, accountant):
    check_calibration(corner, "poisson", accountant)


@pytest.mark.slow
@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
@pytest.mark.parametrize("corner", CORNERS)
def test_calibration_without_replacement_at_the_corners(corner, accountant):
    check_calibration(corner, "without_replacement", accountant)


@pytest.mark.slow
@pytest.mark.parametrize("corner", SLOW_CORNERS)
def test_calibration_at_the_slow_corners(corner):
    check_calibration(corner, "poisson", "pld")


@pytest.mark.quick_with("pld", "strong")
@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
def test_calibration_without_replacement(accountant):
    check_calibration((1.0, 0.05, 20), "without_replacement", accountant)


@pytest.mark.parametrize("delta", [1e-3, 1e-14])
def test_calibration_reaches_small_and_large_deltas(delta):
    noise = accounting.calibrate(
        epsilon=0.5, delta=delta, sampling_rate=0.01, num_steps=100
    )
    price = accounting.epsilon(
        noise_multiplier=noise, delta=delta, sampling_rate=0.01, num_steps=100
    )
    assert 0.49 <= price <= 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.5}, "delta"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": 1.2}, "sampling_rate"),
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": 2.5}, "num_steps"),
        ({"sampling": "shuffle"}, "sampling"),
        ({"sampling": "full"}, "sampling_rate"),
        ({"accountant": "rdp"}, "accountant"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "num_steps": 10}
    with pytest.raises(ValueError, match=message):
        accounting.calibrate(**{**arguments, **change})
