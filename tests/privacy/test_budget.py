"""The ledger: what it takes, what it refuses, and what it shows."""

import math
from typing import Any

import numpy as np
import pytest
from _charges import charge, entry, full

from numpyro_vips import accounting
from numpyro_vips.errors import BudgetExceededError
from numpyro_vips.privacy import budget as privacy_budget
from numpyro_vips.privacy.budget import PrivacyBudget


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1e-6), "epsilon"),
        ((-1.0, 1e-6), "epsilon"),
        ((math.nan, 1e-6), "epsilon"),
        ((1.0, 0.0), "delta.*positive"),
        ((1.0,), "delta.*positive"),
        ((1.0, 1.0), r"\[0, 1\)"),
        ((1.0, -1e-9), r"\[0, 1\)"),
    ],
)
def test_budgets_check_themselves(arguments, message):
    with pytest.raises(ValueError, match=message):
        PrivacyBudget(*arguments)
    unknown: Any = "pld"
    with pytest.raises(ValueError, match="composition"):
        PrivacyBudget(1.0, 1e-6, composition=unknown)
    unknown = "rdp"
    with pytest.raises(ValueError, match="accountant='rdp'"):
        PrivacyBudget(1.0, 1e-6, accountant=unknown)


def test_charges_add_up_and_cannot_be_taken_back():
    budget = PrivacyBudget(1.0, 1e-6)
    first = charge(budget, 0.25, 2e-7, label="first", events=[full(20.0)])
    assert budget.charges == (first,)
    assert first.events == (full(20.0),)
    assert (first.label, first.epsilon, first.delta) == ("first", 0.25, 2e-7)
    assert budget.spent() == (0.25, 2e-7)
    assert budget.remaining() == (0.75, 8e-7)
    for owner, name, value in ((budget, "charges", ()), (first, "epsilon", 0.0)):
        with pytest.raises(AttributeError):
            setattr(owner, name, value)
    assert not hasattr(budget, "refund")


def test_a_ledger_is_opened_once():
    """`__init__` forgot what was charged."""
    budget = PrivacyBudget(1.0, 1e-6)
    first = charge(budget, 0.25, 2e-7)
    for epsilon in (1.0, 10.0):
        with pytest.raises(TypeError, match="open already"):
            PrivacyBudget.__init__(budget, epsilon, 1e-6)
    assert budget.charges == (first,)
    assert budget.epsilon == 1.0


@pytest.mark.parametrize("count", [3, 7, 10, 30])
def test_equal_shares_fit_exactly(count):
    budget = PrivacyBudget(1.0, 1e-6)
    for _ in range(count):
        charge(budget, 1.0 / count, 1e-6 / count)
    assert budget.spent().epsilon == pytest.approx(1.0)
    with pytest.raises(BudgetExceededError):
        charge(budget, 1e-6, 0.0)


def test_what_remains_can_be_charged():
    budget = PrivacyBudget(1.0, 1e-6)
    for share in (0.1, 0.2, 1 / 3):
        charge(budget, share, share * 1e-6)
    charge(budget, *budget.remaining())
    assert budget.remaining().epsilon == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.6, 1e-8), (0.1, 9.5e-7)])
def test_an_overrun_is_refused_and_leaves_nothing(epsilon, delta):
    budget = PrivacyBudget(1.0, 1e-6)
    charge(budget, 0.5, 1e-7)
    before = budget.charges
    for attempt in (
        lambda: charge(budget, epsilon, delta),
        lambda: budget.check(**entry(epsilon, delta)),
    ):
        with pytest.raises(BudgetExceededError, match=r"Nothing was charged"):
            attempt()
    assert budget.charges == before


def test_checking_spends_nothing():
    budget = PrivacyBudget(1.0, 1e-6)
    budget.check(**entry(1.0, 1e-6, events=[full()]))
    assert budget.charges == ()
    assert budget.spent() == (0.0, 0.0)


def test_another_relation_is_refused():
    budget = PrivacyBudget(1.0, 1e-6)
    charge(budget, 0.1, relation="replace_one")
    assert budget.relation == "replace_one"
    with pytest.raises(ValueError, match="relation='replace_one'"):
        charge(budget, 0.1)
    with pytest.raises(ValueError, match="every event"):
        charge(budget, 0.1, relation="replace_one", events=[full()])
    assert len(budget.charges) == 1


def test_another_unit_is_refused(tmp_path):
    """A patient has many visits: one visit's epsilon says little about the patient."""
    for budget in (
        PrivacyBudget(1.0, 1e-6),
        PrivacyBudget(math.inf),
        PrivacyBudget(1.0, 1e-6, path=tmp_path / "ledger.json"),
    ):
        assert budget.unit is None
        charge(budget, 0.1, unit="patients")
        assert budget.unit == "patients"
        assert budget.charges[0].unit == "patients"
        for attempt in (budget.check, budget.charge):
            with pytest.raises(ValueError, match=r"unit='patients'.*the same name"):
                attempt(**entry(0.1, unit="visits"))
        assert len(budget.charges) == 1
        assert "patients" in str(budget)
    again = PrivacyBudget(1.0, 1e-6, path=tmp_path / "ledger.json")
    assert again.unit == "patients"
    with pytest.raises(ValueError, match="unit='patients'"):
        charge(again, 0.1, unit="visits")


def test_a_unit_has_a_name():
    budget = PrivacyBudget(1.0, 1e-6)
    for unit, error in ((None, TypeError), ("", ValueError), (" ", ValueError)):
        for attempt in (budget.check, budget.charge):
            with pytest.raises(error, match="unit"):
                attempt(**entry(0.1, unit=unit))
    assert budget.charges == ()


def test_a_charge_below_its_price_is_refused():
    budget = PrivacyBudget(1.0, 1e-6)
    price = accounting.epsilon_of_events([full()], delta=1e-7)
    for attempt in (budget.check, budget.charge):
        with pytest.raises(ValueError, match="at least what the events cost"):
            attempt(**entry(0.99 * price, 1e-7, events=[full()]))
    charge(budget, price, 1e-7, events=[full()])
    assert len(budget.charges) == 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"epsilon": math.nan}, ValueError),
        ({"epsilon": np.float64("nan")}, ValueError),
        ({"epsilon": -0.1}, ValueError),
        ({"epsilon": -math.inf}, ValueError),
        ({"epsilon": True}, TypeError),
        ({"epsilon": "0.1"}, TypeError),
        ({"delta": math.nan}, ValueError),
        ({"delta": -1e-9}, ValueError),
        ({"delta": True}, TypeError),
        ({"epsilon": 0.0, "events": [full()]}, ValueError),
    ],
)
@pytest.mark.parametrize("composition", ["split", "rdp"])
@pytest.mark.parametrize("total", [1.0, math.inf])
def test_no_number_makes_a_fit_cheap(change, error, composition, total):
    budget = PrivacyBudget(total, 1e-6, composition=composition)
    for attempt in (budget.check, budget.charge):
        with pytest.raises(error, match="Expected"):
            attempt(**{**entry(0.1), **change})
    assert budget.charges == ()


def test_a_reading_that_is_not_a_number_is_refused(monkeypatch):
    def not_a_number(*arguments, **options):
        return math.nan

    budget = PrivacyBudget(1.0, 1e-6, composition="rdp")
    with monkeypatch.context() as patch:
        patch.setattr(privacy_budget, "filter_epsilon", not_a_number)
        with pytest.raises(BudgetExceededError):
            charge(budget, 0.5, events=[full(100.0)])
    with monkeypatch.context() as patch:
        patch.setattr(accounting, "epsilon_of_events", not_a_number)
        with pytest.raises(ValueError, match="at least what the events cost"):
            charge(budget, 0.5, events=[full(100.0)])
    assert budget.charges == ()


def test_a_filter_does_not_take_what_it_cannot_read():
    """It adds up events: without any, a fit of every epsilon would be free."""
    budget = PrivacyBudget(1.0, 1e-6, composition="rdp")
    with pytest.raises(ValueError, match="composition='split'"):
        charge(budget, 100.0)
    # Nor what publishes every row with a probability of a half.
    with pytest.raises(ValueError, match="composition='split'"):
        charge(budget, 0.0, 0.5)
    assert budget.charges == ()
    charge(budget, 0.0, 0.0)  # Nothing was released.


def test_a_fit_without_noise_needs_an_infinite_budget():
    unprotected = [full(0.0)]
    with pytest.raises(BudgetExceededError, match=r"math\.inf"):
        charge(PrivacyBudget(1.0, 1e-6), math.inf, 0.0, events=unprotected)
    budget = PrivacyBudget(math.inf)
    assert not budget.is_private
    assert budget.calibrate_events([full()]) == 0.0
    charge(budget, math.inf, 0.0, events=unprotected)
    charge(budget, 0.5, 1e-6, events=[])
    assert budget.spent().epsilon == math.inf
    assert budget.remaining() == (math.inf, 0.0)
    assert "NOT PRIVATE" in str(budget)


def test_printing_tells_what_was_spent_on_what():
    budget = PrivacyBudget(2.0, 1e-6, accountant="moments")
    charge(budget, 0.5, 1e-7, label="income regression", events=[full(50.0, steps=12)])
    charge(budget, 0.25, 1e-7, label="topics")
    text = str(budget)
    assert "income regression" in text
    assert "moments" in text
    assert " 12 " in text
    assert "Spent: epsilon = 0.75, delta = 2e-07" in text
    assert "Left: epsilon = 1.25" in text
    assert "spent_epsilon=0.75" in repr(budget)


def test_a_ledger_that_is_spent_shows_no_crumbs():
    budget = PrivacyBudget(1.0, 1e-6)
    charge(budget, 1.0 - 3e-14, 1e-6)
    assert budget.remaining().epsilon > 0.0
    assert "Spent: epsilon = 1, delta = 1e-06. Left: epsilon = 0," in str(budget)
    budget = PrivacyBudget(1.0, 1e-6)
    charge(budget, 1.0 - 1e-5, 1e-6)
    assert "Left: epsilon = 1e-05," in str(budget)
