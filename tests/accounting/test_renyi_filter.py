"""The filter over Rényi orders, against its formula and exact prices."""

import math

import numpy as np
import pytest
from _events import event

from numpyro_vips import accounting
from numpyro_vips.accounting import renyi_filter
from numpyro_vips.accounting.renyi_filter import filter_epsilon

BUDGETS = [(1.0, 1e-5), (0.1, 1e-9), (8.0, 1e-3)]


def reading(divergence_per_order: float, epsilon: float, delta: float) -> float:
    """What full batches read, by Canonne, Kamath and Steinke's proposition 12."""
    orders, shares = renyi_filter._filter_orders(epsilon, delta)
    return min(
        max(
            0.0,
            order * divergence_per_order
            + math.log((order - 1) / order)
            - (math.log(share) + math.log(order)) / (order - 1),
        )
        for order, share in zip(orders, shares, strict=True)
    )


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_orders_share_delta_and_nothing_is_left_over(epsilon, delta):
    orders, shares = renyi_filter._filter_orders(epsilon, delta)
    assert min(orders) > 1 and len(set(orders)) == len(orders)
    assert sum(shares) == pytest.approx(delta, rel=1e-12)
    assert shares[0] == delta / 2


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_full_batches_read_the_closed_form(epsilon, delta):
    for mu in (0.01, 0.2, 1.0):
        events = [event(2 / mu, 1.0, 3, "full"), event(2 / mu, 1.0, 1, "full")]
        found = filter_epsilon(events, epsilon, delta)
        assert found == pytest.approx(reading(mu**2 / 2, epsilon, delta), rel=1e-9)


@pytest.mark.parametrize("sampling", ["poisson", "full"])
def test_the_filter_costs_more_than_a_schedule_that_is_fixed_but_not_twice(sampling):
    """The price of choosing later fits by the results of earlier ones."""
    rate = 1.0 if sampling == "full" else 0.02
    noise = accounting.calibrate(
        epsilon=1.0, delta=1e-6, sampling_rate=rate, num_steps=50, sampling=sampling
    )
    found = filter_epsilon([event(noise, rate, 50, sampling)], 1.0, 1e-6)
    assert 1.0 < found < 2.0


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_a_full_ledger_of_full_batches_uses_the_order_that_suits_it(epsilon, delta):
    """Nearly as much fits in as with any single order and half of delta."""
    mus = np.geomspace(1e-3, 10.0, 400)
    fits = [reading(mu**2 / 2, epsilon, delta) <= epsilon for mu in mus]
    alone = [
        min(
            order * mu**2 / 2 + accounting.renyi_to_epsilon(order, 0.0, delta / 2)
            for order in 1 + np.geomspace(1e-2, 1e3, 200)
        )
        <= epsilon
        for mu in mus
    ]
    assert 0.97 <= mus[fits].max() / mus[alone].max() <= 1.0 + 1e-9


def test_no_noise_is_more_than_any_budget():
    assert filter_epsilon([event(0.0, 0.1)], 1.0, 1e-5) == math.inf
