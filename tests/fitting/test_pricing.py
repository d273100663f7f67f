"""What a fit costs is what its budget, its share and its steps say together."""

import math
from typing import Any

import pytest
from _plain_engine import step_of

import numpyro_vips as nv
from numpyro_vips import accounting
from numpyro_vips.fitting.pricing import (
    BudgetShare,
    PricedSteps,
    noise_of_one_release,
    price,
    warning_of_delta,
)
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.fitting.step import events_of

FULL = ScheduleOptions(sampling=nv.FullBatch())
STEPS = [step_of(nv.FullBatch(), 1.0), step_of(nv.FullBatch(), 2.0)]


def priced(
    budget: nv.PrivacyBudget,
    options: ScheduleOptions = FULL,
    share: BudgetShare | None = None,
    steps: Any = STEPS,
) -> PricedSteps:
    return price(steps, budget, options, share or BudgetShare(), unit="rows")


def test_the_noise_is_the_least_that_the_budget_affords() -> None:
    """Of full batches mu² adds up: here 1/σ² · (1 + 1/4)."""
    found = priced(nv.PrivacyBudget(1.0, 1e-5))
    first, second = (step.noise_multiplier for step in found.steps)
    assert second == pytest.approx(2 * first)
    mu = math.sqrt(1.25) / first
    assert accounting.gaussian_delta(mu, 1.0) == pytest.approx(1e-5, rel=0.02)
    assert found.epsilon <= 1.0 and found.delta == 1e-5


def test_a_share_is_all_that_a_fit_spends() -> None:
    budget = nv.PrivacyBudget(5.0, 1e-4)
    found = priced(budget, share=BudgetShare(epsilon=0.5, delta=1e-6))
    assert 0.499 < found.epsilon <= 0.5 and found.delta == 1e-6
    whole = priced(nv.PrivacyBudget(0.5, 1e-6))
    assert found.steps == whole.steps
    # Nothing is charged by asking.
    assert budget.charges == ()


def test_fixed_noise_has_its_price_and_stays_as_it_is() -> None:
    options = ScheduleOptions(sampling=nv.FullBatch(), noise_multiplier=4.0)
    steps = [step_of(nv.FullBatch(), 4.0)] * 3
    found = priced(nv.PrivacyBudget(5.0, 1e-5), options, steps=steps)
    assert found.steps == tuple(steps)
    assert found.epsilon == pytest.approx(
        accounting.epsilon_of_events(events_of(steps), delta=1e-5)
    )
    with pytest.raises(nv.BudgetExceededError, match="3 steps at noise_multiplier=4"):
        priced(nv.PrivacyBudget(0.5, 1e-5), options, steps=steps)


def test_what_is_free_is_priced_as_nothing_and_what_has_no_noise_as_everything() -> (
    None
):
    free = priced(nv.PrivacyBudget(1.0, 1e-5), steps=[])
    assert (free.epsilon, free.delta) == (0.0, 0.0)
    options = ScheduleOptions(sampling=nv.FullBatch(), private=False)
    found = priced(nv.PrivacyBudget(math.inf), options)
    assert found.epsilon == math.inf and found.steps == tuple(STEPS)


def test_a_budget_without_delta_cannot_price_gaussian_noise() -> None:
    options = ScheduleOptions(sampling=nv.FullBatch(), noise_multiplier=1.0)
    with pytest.raises(ValueError, match="Expected delta="):
        priced(nv.PrivacyBudget(math.inf), options)
    found = priced(nv.PrivacyBudget(math.inf), options, BudgetShare(delta=1e-6))
    assert 0.0 < found.epsilon < math.inf


def test_one_release_with_the_whole_share_has_the_gaussian_mechanisms_noise() -> None:
    budget = nv.PrivacyBudget(2.0, 1e-5)
    noise = noise_of_one_release(budget, BudgetShare(epsilon=0.7))
    assert noise is not None
    delta = accounting.gaussian_delta(1 / noise, 0.7)
    assert delta == pytest.approx(1e-5, rel=0.02)
    assert noise_of_one_release(nv.PrivacyBudget(math.inf), BudgetShare()) is None


@pytest.mark.parametrize(
    "share", [{"epsilon": 0.0}, {"epsilon": -1.0}, {"delta": 1.0}, {"delta": -1e-6}]
)
def test_a_share_is_checked(share: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(share))):
        BudgetShare(**share)


def test_a_delta_that_would_allow_rows_to_be_published_is_warned_of() -> None:
    found = priced(nv.PrivacyBudget(1.0, 0.01))
    told = warning_of_delta(found, 100)
    assert told is not None and "delta=0.01 is not below 1 / num_rows = 0.01" in told
    assert warning_of_delta(found, 99) is None
    without_noise = PricedSteps(steps=found.steps, epsilon=math.inf, delta=0.5)
    assert warning_of_delta(without_noise, 100) is None
    assert warning_of_delta(PricedSteps(steps=(), epsilon=0.0, delta=0.5), 100) is None
