"""The entries of a ledger: what they may hold, and how they add up."""

import dataclasses
import json
import math
from fractions import Fraction

import pytest

from numpyro_vips.accounting import GaussianEvent
from numpyro_vips.privacy.charges import Charge, FitInSteps, exact, total


def charge(**changes) -> Charge:
    event = GaussianEvent(
        noise_stddev=2.0,
        sensitivity=1.0,
        sampling="full",
        sampling_rate=1.0,
        num_steps=1,
        relation=changes.get("relation", "add_or_remove"),
    )
    fields = {
        "label": "fit",
        "unit": "rows",
        "epsilon": 0.1,
        "delta": 1e-6,
        "relation": "add_or_remove",
        "accountant": "pld",
        "events": (event,),
        "time": "2026-01-02T03:04:05+00:00",
    }
    return Charge(**{**fields, **changes})


@pytest.mark.parametrize("epsilon", [0.1, 0.0, math.inf])
def test_a_charge_survives_a_file(epsilon: float) -> None:
    one = charge(epsilon=epsilon)
    text = json.dumps(one.to_dict(), allow_nan=False)
    assert Charge.from_dict(json.loads(text)) == one


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": -0.1},
        {"epsilon": math.nan},
        {"delta": 1.5},
        {"delta": math.nan},
        {"unit": ""},
        {"relation": "neighbours"},
        {"accountant": "guess"},
    ],
)
def test_a_charge_out_of_range_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        charge(**wrong)


def test_events_of_another_relation_are_refused() -> None:
    with pytest.raises(ValueError, match="relation='replace_one'"):
        dataclasses.replace(charge(), relation="replace_one")


def test_ten_tenths_are_one() -> None:
    """As floats they add up to less, and a last crumb would be left to spend."""
    charges = (charge(epsilon=0.1),) * 10
    assert total("epsilon", charges) == 1
    assert total("delta", charges) == Fraction(1, 10**5)
    assert total("epsilon", ()) == 0
    assert exact(0.1) == Fraction(1, 10) != Fraction(0.1)


def test_a_fit_in_steps_has_come_no_less_far_than_nowhere() -> None:
    assert FitInSteps(charge=0) == FitInSteps(charge=0, steps=0, key="")
    with pytest.raises(ValueError, match="charge"):
        FitInSteps(charge=-1)
    with pytest.raises(ValueError, match="steps"):
        FitInSteps(charge=0, steps=-1)
