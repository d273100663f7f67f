"""Lower bounds on privacy loss from outcomes of a test between neighbours.

An audit runs a fit with and without a canary row, guesses from each result which it
was, and turns the error rates into a statement about every mechanism that could have
behaved like this. Each bound fails with probability at most 1 − `confidence`.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy import stats


@dataclasses.dataclass(frozen=True)
class ErrorRates:
    """Bounds on a test's rates that hold together with the stated confidence.

    Attributes:
      true_positive: Lower bound on the probability of "present" where it is.
      false_positive: Upper bound on the probability of "present" where it is not.
    """

    true_positive: float
    false_positive: float


def clopper_pearson(
    count: int, trials: int, tail: float, *, upper: bool = False
) -> float:
    """One-sided exact confidence limit for a probability.

    Args:
      count: Successes among the trials.
      trials: Independent trials.
      tail: Probability that the limit is on the wrong side.
      upper: Whether the limit bounds the probability from above.
    """
    if upper:
        if count == trials:
            return 1.0
        return float(stats.beta.isf(tail, count + 1, trials - count))
    if count == 0:
        return 0.0
    return float(stats.beta.ppf(tail, count, trials - count + 1))


def error_rates(
    absent: np.ndarray, present: np.ndarray, threshold: float, confidence: float
) -> ErrorRates:
    """Rates of the test "present where the score exceeds the threshold".

    Args:
      absent, present: Scores of independent runs on either data set.
      threshold: Must not depend on these scores.
      confidence: That both limits hold.
    """
    tail = (1 - confidence) / 2
    hits, alarms = int(np.sum(present > threshold)), int(np.sum(absent > threshold))
    return ErrorRates(
        true_positive=clopper_pearson(hits, len(present), tail),
        false_positive=clopper_pearson(alarms, len(absent), tail, upper=True),
    )


def epsilon_bound(rates: ErrorRates, delta: float) -> float:
    """The least ε at which an (ε, δ)-private mechanism allows these rates.

    Of every event E: P[E | present] ≤ e^ε·P[E | absent] + δ, and with absent and
    present exchanged the same of its complement.
    """
    ways = (
        (rates.true_positive - delta, rates.false_positive),
        (1 - rates.false_positive - delta, 1 - rates.true_positive),
    )
    return max([0.0, *(math.log(top / low) for top, low in ways if top > 0 < low)])


def mu_bound(rates: ErrorRates, sampling_rate: float = 1.0) -> float:
    """The least μ at which the Gaussian pair allows these rates.

    The pair is N(0, 1) without the canary and (1 − q)·N(0, 1) + q·N(μ, 1) with it; by
    Neyman and Pearson no test of level α finds the canary more often than
    (1 − q)·α + q·Φ(μ − Φ⁻¹(1 − α)). For q = 1 this is Gaussian differential privacy.
    """
    level = rates.false_positive
    found = (rates.true_positive - (1 - sampling_rate) * level) / sampling_rate
    if not (found > 0 and level < 1):
        return 0.0
    if found >= 1 or level <= 0:
        return math.inf
    return max(0.0, float(stats.norm.ppf(found) + stats.norm.isf(level)))


def best_threshold(
    absent: np.ndarray, present: np.ndarray, bound: Callable[[ErrorRates], float]
) -> float:
    """The threshold with the highest bound on pilot runs, which none may use again."""
    scores = np.concatenate([absent, present])
    candidates = np.quantile(scores, np.linspace(0.02, 0.98, 49))

    def promise(threshold: float) -> float:
        # Confident enough not to fall for chance among the candidates.
        return bound(error_rates(absent, present, threshold, 0.99))

    return max(map(float, candidates), key=promise)


def bound_from_runs(
    absent: np.ndarray,
    present: np.ndarray,
    bound: Callable[[ErrorRates], float],
    confidence: float,
) -> float:
    """A bound from independent runs, the first of which only choose the threshold.

    Args:
      absent, present: Scores of the runs on either data set.
      bound: `mu_bound` or `epsilon_bound`, its other arguments filled in.
      confidence: That the truth is not below the bound.
    """
    pilot = [max(len(r) // 10, min(50, len(r) // 2)) for r in (absent, present)]
    threshold = best_threshold(absent[: pilot[0]], present[: pilot[1]], bound)
    rest = absent[pilot[0] :], present[pilot[1] :]
    return bound(error_rates(*rest, threshold, confidence))


def correct_guesses_tail(
    correct: int, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    """How likely an (ε, δ)-private fit lets so many guesses about canaries be right.

    Theorem 5.2 of Steinke, Nasr and Jagielski, *Privacy auditing with one (1) training
    run* (2023): with p = e^ε/(1 + e^ε) and W ~ Binomial(guesses, p),

        P[at least v right] ≤ P[W ≥ v] + 2·m·δ·max_{1≤i≤v} P[v − i ≤ W < v] / i.

    Args:
      correct: v, the right ones among the guesses.
      guesses: Canaries about which something was guessed.
      canaries: m, all that were included by independent fair coins.
    """
    p = 1 / (1 + math.exp(-epsilon))
    at_least = float(stats.binom.sf(correct - 1, guesses, p))
    if correct == 0 or delta == 0:
        return min(1.0, at_least)
    i = np.arange(1, correct + 1)
    more = stats.binom.sf(correct - i - 1, guesses, p) - at_least
    return min(1.0, at_least + 2 * canaries * delta * float(np.max(more / i)))


def one_run_epsilon_bound(
    correct: int, guesses: int, canaries: int, delta: float, confidence: float
) -> float:
    """The least ε at which so many right guesses are not too unlikely."""
    tail = 1 - confidence

    def is_refuted(epsilon: float) -> bool:
        found = correct_guesses_tail(correct, guesses, canaries, epsilon, delta)
        return found < tail

    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while is_refuted(high):
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low
