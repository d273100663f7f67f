"""What fits of one ledger cost together: shares, calibration and the Rényi filter."""

import math
from typing import Any

import pytest
from _charges import charge, full, poisson

from numpyro_vips import accounting
from numpyro_vips.accounting import GaussianEvent
from numpyro_vips.errors import BudgetExceededError
from numpyro_vips.privacy.budget import PrivacyBudget


def test_split_shares_are_calibrated_by_the_accountant():
    budget = PrivacyBudget(1.0, 1e-6)
    events = [full(1.0, 10)]
    factor = budget.calibrate_events(events, epsilon=0.3, delta=1e-7)
    assert factor == accounting.calibrate_events(events, epsilon=0.3, delta=1e-7)
    charge(budget, 0.3, 1e-7, events=[accounting.scale_noise(events[0], factor)])
    rest = budget.calibrate_events(events)
    assert rest == accounting.calibrate_events(events, epsilon=0.7, delta=9e-7)
    charge(budget, *budget.remaining())
    with pytest.raises(BudgetExceededError, match="Nothing is left"):
        budget.calibrate_events(events)


@pytest.mark.quick_with("pld", "strong")
@pytest.mark.parametrize("accountant", ["pld", "moments", "strong"])
def test_the_ledgers_accountant_prices_everything(accountant):
    budget = PrivacyBudget(1.0, 1e-6, accountant=accountant)
    assert budget.accountant == accountant
    events = [poisson(20.0)]
    factor = budget.calibrate_events(events, epsilon=0.3, delta=1e-7)
    scaled = [accounting.scale_noise(events[0], factor)]
    price = accounting.epsilon_of_events(scaled, delta=1e-7, accountant=accountant)
    assert 0.29 < price <= 0.3
    assert charge(budget, 0.3, 1e-7, events=scaled).accountant == accountant
    too_low = price * 0.99
    with pytest.raises(ValueError, match=f"accountant='{accountant}'"):
        charge(budget, too_low, 1e-7, events=scaled)
    with pytest.raises(TypeError, match="accountant"):
        charge(budget, 0.3, 1e-7, events=scaled, accountant=accountant)


def test_a_file_keeps_its_accountant(tmp_path):
    path = tmp_path / "ledger.json"
    charge(PrivacyBudget(1.0, 1e-6, accountant="moments", path=path), 0.5, 1e-7)
    with pytest.raises(ValueError, match=r"accountant='pld'; it has .*'moments'"):
        PrivacyBudget(1.0, 1e-6, path=path)
    again = PrivacyBudget(1.0, 1e-6, accountant="moments", path=path)
    assert [entry.accountant for entry in again.charges] == ["moments"]


def test_a_fit_that_takes_all_of_delta_is_named_as_the_cause():
    budget = PrivacyBudget(1.0, 1e-6)
    charge(budget, 0.5, 1e-6, events=[full(30.0, 10)])
    with pytest.raises(BudgetExceededError, match=r"No delta is left.*epsilon= and"):
        budget.calibrate_events([full(1.0, 10)])


@pytest.mark.parametrize("composition", ["split", "rdp"])
def test_events_of_an_iterator_are_calibrated_as_those_of_a_list(composition):
    budget = PrivacyBudget(1.0, 1e-6, composition=composition)
    events = [full(1.0, 10), poisson(2.0, 0.05, 100)]
    once: Any = iter(events)
    factor = budget.calibrate_events(once, epsilon=0.5, delta=1e-7)
    assert factor == budget.calibrate_events(events, epsilon=0.5, delta=1e-7) > 0


def filter_reading(events, delta):
    """The best order alone, with all of delta: a lower bound on any filter."""
    orders = accounting.RENYI_ORDERS
    divergences = accounting.renyi_of_events(events, orders)
    return min(
        accounting.renyi_to_epsilon(order, float(d), delta)
        for order, d in zip(orders, divergences, strict=True)
    )


@pytest.mark.parametrize("event", [full(1.0, 10), poisson(2.0, 0.05, 100)])
def test_the_filter_is_sound_and_not_wasteful(event):
    budget = PrivacyBudget(1.0, 1e-6, composition="rdp")
    factor = budget.calibrate_events([event])
    scaled = accounting.scale_noise(event, factor)
    price = accounting.epsilon_of_events([scaled], delta=1e-6)
    charge(budget, price, 1e-6, events=[scaled])
    spent = budget.spent()
    assert spent.delta == 1e-6
    assert price <= filter_reading([scaled], 1e-6) <= spent.epsilon
    assert 0.998 <= spent.epsilon <= 1.0
    # The price of composing adaptively, and of Rényi bounds, is moderate.
    assert spent.epsilon <= 1.25 * price


def test_the_filter_admits_more_fits_than_splitting():
    def count_fits(composition):
        budget = PrivacyBudget(1.0, 1e-6, composition=composition)
        event = full(60.0)
        price = accounting.epsilon_of_events([event], delta=1e-8)
        for count in range(1000):
            try:
                charge(budget, price, 1e-8, events=[event])
            except BudgetExceededError:
                return count
        return math.inf

    assert count_fits("rdp") >= 3 * count_fits("split")


def test_the_filter_refuses_what_overruns_it():
    budget = PrivacyBudget(1.0, 1e-6, composition="rdp")
    event = full(4.0)
    price = accounting.epsilon_of_events([event], delta=1e-6)
    assert price > 1
    with pytest.raises(BudgetExceededError, match="Rényi filter"):
        charge(budget, price, 1e-6, events=[event])
    assert budget.charges == ()


def test_the_filter_calibrates_what_is_left():
    budget = PrivacyBudget(2.0, 1e-6, composition="rdp")
    for _ in range(2):
        factor = budget.calibrate_events([full(1.0, 5)], epsilon=0.5, delta=1e-7)
        scaled = [accounting.scale_noise(full(1.0, 5), factor)]
        charge(budget, 0.5, 1e-7, events=scaled)
    left = budget.remaining()
    assert 1.0 < left.epsilon < 2.0
    factor = budget.calibrate_events([poisson()])
    scaled = [accounting.scale_noise(poisson(), factor)]
    price = accounting.epsilon_of_events(scaled, delta=1e-6)
    charge(budget, price, 1e-6, events=scaled)
    assert 1.996 <= budget.spent().epsilon <= 2.0
    with pytest.raises(BudgetExceededError, match="Nothing is left"):
        budget.calibrate_events([poisson()])


def test_the_filter_takes_batches_without_replacement():
    event = GaussianEvent(
        noise_stddev=1.0,
        sensitivity=1.0,
        relation="replace_one",
        sampling="without_replacement",
        sampling_rate=0.05,
        num_steps=20,
    )
    budget = PrivacyBudget(1.0, 1e-6, composition="rdp")
    scaled = accounting.scale_noise(event, budget.calibrate_events([event]))
    price = accounting.epsilon_of_events([scaled], delta=1e-6)
    charge(budget, price, 1e-6, relation="replace_one", events=[scaled])
    assert price < budget.spent().epsilon <= 1.0
