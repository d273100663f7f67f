"""The search for the least noise, on prices in closed form."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

from numpyro_vips.accounting.calibration import (
    calibrate,
    calibrate_events,
    smallest_factor,
)
from numpyro_vips.accounting.events import GaussianEvent
from numpyro_vips.accounting.prices import epsilon_of_events


def event(noise: float, steps: int = 1) -> GaussianEvent:
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
    events = [event(3.0, 4), event(5.0)]
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
        ([event(1.0)], {"epsilon": 1.0, "delta": 0.0}, "pure differential privacy"),
        ([event(1.0), event(0.0)], {"epsilon": 1.0, "delta": 1e-6}, "zero noise stays"),
        ([event(1.0)], {"epsilon": 0.0, "delta": 1e-6}, "epsilon"),
        ([event(1.0)], {"epsilon": 1.0, "delta": 1.1}, "delta"),
    ],
)
def test_a_target_that_cannot_be_met_is_refused(events, arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        calibrate_events(events, **arguments)


def test_nothing_released_and_no_bound_need_no_noise() -> None:
    assert calibrate_events([], epsilon=1.0, delta=0.0) == 0.0
    assert calibrate_events([event(1.0)], epsilon=math.inf, delta=1e-6) == 0.0
