"""The audit's statistics, on Gaussians of which everything is known."""

import math

import numpy as np
import pytest
from _lower_bounds import (
    ErrorRates,
    clopper_pearson,
    correct_guesses_tail,
    epsilon_bound,
    epsilon_bound_from_runs,
    error_rates,
    mu_bound,
    mu_bound_from_runs,
    mu_of_rates,
    one_run_epsilon_bound,
)
from scipy import stats

from numpyro_vips import accounting
from numpyro_vips.accounting import gaussian_delta


@pytest.mark.parametrize("count", [0, 1, 17, 49, 50])
@pytest.mark.parametrize("upper", [False, True])
def test_clopper_pearson_is_the_exact_test(count, upper):
    """At the limit, the count or one farther out has just the tail's probability."""
    tail = 0.003
    limit = clopper_pearson(count, 50, tail, upper=upper)
    if (count, upper) in ((0, False), (50, True)):
        assert limit == (1.0 if upper else 0.0)
        return
    farther = (
        stats.binom.cdf(count, 50, limit)
        if upper
        else stats.binom.sf(count - 1, 50, limit)
    )
    assert farther == pytest.approx(tail, rel=1e-6)
    reference = stats.binomtest(count, 50, alternative="less" if upper else "greater")
    interval = reference.proportion_ci(1 - tail)
    assert limit == pytest.approx(interval.high if upper else interval.low)


@pytest.mark.parametrize(("mu", "rate"), [(1.0, 1.0), (3.0, 1.0), (2.0, 0.4)])
def test_with_all_the_runs_in_the_world_the_bounds_are_the_truth(mu, rate):
    """At the best threshold the exact rates give back μ, and ε at its δ."""
    for threshold in (0.0, mu / 2, mu):
        level = float(stats.norm.sf(threshold))
        hits = (1 - rate) * level + rate * float(stats.norm.sf(threshold - mu))
        rates = ErrorRates(hits, level)
        assert mu_of_rates(rates, rate) == pytest.approx(mu)
        if rate < 1:
            continue
        # The ratio of densities at the threshold is e^ε.
        epsilon = mu * threshold - mu**2 / 2
        if epsilon > 0:
            found = epsilon_bound(rates, gaussian_delta(mu, epsilon))
            assert found == pytest.approx(epsilon)


@pytest.mark.thorough
@pytest.mark.parametrize(("mu", "rate"), [(2.5, 1.0), (2.5, 0.5)])
def test_bounds_hold_as_often_as_they_say_and_come_close(mu, rate):
    """On synthetic scores, many audits over."""
    rng = np.random.default_rng(0)
    confidence, repeats, count, delta = 0.9, 40, 3000, 0.05
    mus, epsilons = [], []
    for _ in range(repeats):
        absent, present = rng.normal(size=(2, count))
        present = present + mu * (rng.random(count) < rate)
        mus.append(mu_bound_from_runs(absent, present, confidence, rate))
        epsilons.append(epsilon_bound_from_runs(absent, present, delta, confidence))
    epsilon = accounting.epsilon(
        noise_multiplier=1 / mu,
        sampling_rate=rate,
        num_steps=1,
        delta=delta,
        sampling="poisson",
    )
    for bounds, truth, reached in ((mus, mu, 0.94), (epsilons, epsilon, 0.5)):
        wrong = np.sum(np.array(bounds) > truth)
        assert stats.binom.sf(wrong - 1, repeats, 1 - confidence) > 1e-3
        assert np.median(bounds) > reached * truth
    assert np.any(np.array(mus) > mu)  # It is not too cautious.


@pytest.mark.quick_with("1.9-2.0-0.3", "1.9-1.5-1.0")
@pytest.mark.parametrize(("mu", "rate"), [(1.5, 1.0), (2.0, 0.3)])
@pytest.mark.parametrize("threshold", [0.3, 1.0, 1.9])
def test_both_rates_together_hold_for_every_threshold(mu, rate, threshold):
    """The probability of a wrong bound, summed over all pairs of counts."""
    runs, confidence = 25, 0.8
    level = float(stats.norm.sf(threshold))
    found = (1 - rate) * level + rate * float(stats.norm.sf(threshold - mu))
    counts = np.arange(runs + 1)
    chance = stats.binom.pmf(counts, runs, level)[:, None]
    chance = chance * stats.binom.pmf(counts, runs, found)
    wrong = 0.0
    for alarms, hits in np.argwhere(chance > 1e-5):
        absent, present = (counts[1:] <= k for k in (alarms, hits))
        bound = mu_bound(absent, present, 0.5, confidence, rate)
        wrong += chance[alarms, hits] * (bound > mu)
    assert wrong <= 1 - confidence
    assert rate < 1 or wrong > 0.25 * (1 - confidence)


def test_steps_that_weigh_unequally_are_read_together():
    """A running average hides; all of its values together are as good as the sum."""
    rng = np.random.default_rng(3)
    mu, steps, count = 2.5, 4, 4000
    releases = rng.normal(size=(2, count, steps))
    releases[1] += mu / math.sqrt(steps)
    average, seen = np.zeros((2, count)), []
    for t in range(steps):
        average = average + 2 / (t + 2) * (releases[..., t] - average)
        seen.append(average)
    together = np.stack(seen, -1)
    last = mu_bound_from_runs(average[0], average[1], 0.99)
    all_of_them = mu_bound_from_runs(together[0], together[1], 0.99)
    assert last < 0.9 * mu < all_of_them < mu


def test_nothing_is_claimed_without_evidence():
    same = np.zeros(100)
    assert mu_bound(same, same, 0.5, 0.99) == 0
    assert mu_bound(same, same, -0.5, 0.99) == 0
    assert epsilon_bound(error_rates(same, same, 0.5, 0.99), 1e-5) == 0
    assert one_run_epsilon_bound(50, 100, 100, 1e-5, 0.99) == 0


def test_one_run_bound_against_randomized_response():
    """Each canary told rightly with probability e^ε/(1 + e^ε): all that ε allows."""
    rng = np.random.default_rng(1)
    epsilon, canaries, confidence, repeats = 1.5, 500, 0.9, 100
    correct = rng.binomial(canaries, 1 / (1 + math.exp(-epsilon)), repeats)
    bounds = np.array(
        [one_run_epsilon_bound(v, canaries, canaries, 0.0, confidence) for v in correct]
    )
    wrong = np.sum(bounds > epsilon)
    assert stats.binom.sf(wrong - 1, repeats, 1 - confidence) > 1e-3
    assert wrong > 0  # Exact but for the steps of the binomial: it is not too cautious.
    assert np.median(bounds) > 0.85 * epsilon


def test_one_run_bound_pays_for_delta():
    """A mechanism that fails with probability δ per canary is within the tail."""
    canaries, guesses, correct = 200, 150, 120
    tails = [
        correct_guesses_tail(correct, guesses, canaries, 1.0, delta)
        for delta in (0.0, 1e-6, 1e-4, 1e-2, 1.0)
    ]
    assert tails == sorted(tails)
    assert tails[0] == pytest.approx(
        stats.binom.sf(correct - 1, guesses, 1 / (1 + math.exp(-1)))
    )
    assert tails[-1] == 1.0
    # By hand for one canary and one guess: P[right] ≤ p + 2·δ·(1 − p).
    p = 1 / (1 + math.exp(-1))
    assert correct_guesses_tail(1, 1, 1, 1.0, 0.01) == pytest.approx(
        p + 2 * 0.01 * (1 - p)
    )
