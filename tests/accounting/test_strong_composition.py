"""Strong composition, against the theorem at every split of delta."""

import itertools
import math

import numpy as np
import pytest
from _events import event

from numpyro_vips import accounting
from numpyro_vips.accounting.events import groups_of
from numpyro_vips.accounting.gaussian import gaussian_delta, gaussian_epsilon
from numpyro_vips.accounting.strong_composition import strong_epsilon


def test_strong_composition_is_the_theorem_at_its_best_split():
    noise, rate, steps, delta = 60.0, 0.02, 100, 1e-5

    def theorem(slack):
        step_delta = (delta - slack) / (steps * rate)
        classical = math.sqrt(2 * math.log(1.25 / step_delta)) / noise
        assert classical <= 1
        step = math.log(1 + rate * (math.exp(classical) - 1))
        return math.sqrt(2 * steps * math.log(1 / slack)) * step + steps * step * (
            math.exp(step) - 1
        )

    best = min(theorem(slack) for slack in delta * np.linspace(0.001, 0.999, 20_000))
    got = accounting.epsilon(
        noise_multiplier=noise,
        sampling_rate=rate,
        num_steps=steps,
        delta=delta,
        accountant="strong",
    )
    assert got == pytest.approx(best, rel=1e-3)


def test_one_step_takes_all_of_delta_and_is_amplified():
    noise, rate, delta = 40.0, 0.1, 1e-6
    classical = math.sqrt(2 * math.log(1.25 * rate / delta)) / noise
    wanted = math.log(1 + rate * (math.exp(classical) - 1))
    groups = groups_of([event(noise, rate)])
    assert strong_epsilon(groups, delta) == pytest.approx(wanted, rel=1e-9)


def test_different_steps_add_their_squares():
    """Dwork, Rothblum and Vadhan (2010), for steps that do not cost the same."""
    delta, steps = 1e-5, [(50.0, 300), (120.0, 500)]
    total = sum(count for _, count in steps)

    def theorem(slack: float) -> float:
        each = [
            (math.sqrt(2 * math.log(1.25 * total / (delta - slack))) / noise, count)
            for noise, count in steps
        ]
        assert max(e for e, _ in each) <= 1
        root = math.sqrt(2 * math.log(1 / slack) * sum(n * e**2 for e, n in each))
        return root + sum(n * e * math.expm1(e) for e, n in each)

    best = min(theorem(slack) for slack in delta * np.linspace(0.001, 0.999, 5000))
    groups = groups_of([event(noise, 1.0, count, "full") for noise, count in steps])
    assert strong_epsilon(groups, delta) == pytest.approx(best, rel=1e-3)


def test_where_the_classical_bound_does_not_hold_a_step_costs_what_it_does():
    """sqrt(2 log(1.25/δ))/σ is below the exact curve from some noise down."""
    noise, delta = 0.05, 1e-2
    assert math.sqrt(2 * math.log(1.25 / delta)) / noise < gaussian_epsilon(20.0, delta)
    price = strong_epsilon(groups_of([event(noise, 1.0, 1, "full")]), delta)
    assert gaussian_delta(1 / noise, price) <= delta * (1 + 1e-9)


def test_the_price_falls_with_the_noise_past_the_end_of_the_classical_bound():
    edge = math.sqrt(2 * math.log(1.25 / 1e-5))
    prices = [
        strong_epsilon(groups_of([event(noise, 1.0, 1, "full")]), 1e-5)
        for noise in edge * np.linspace(0.5, 1.5, 41)
    ]
    assert all(b <= a for a, b in itertools.pairwise(prices))
