"""Lower bounds on privacy loss from outcomes of a test between neighbours.

An audit runs a fit with and without a canary row, guesses from each result which it
was, and turns the error rates into a statement about every mechanism that could have
behaved like this. Each bound fails with probability at most 1 − `confidence`.
"""

import dataclasses
import math

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


def mu_of_rates(rates: ErrorRates, sampling_rate: float = 1.0) -> float:
    """The least μ at which the Gaussian pair allows these rates.

    The pair is N(0, 1) without the canary and (1 − q)·N(0, 1) + q·N(μ, 1) with it; by
    Neyman and Pearson no test of level α finds the canary more often than `power` says.
    For q = 1 this is Gaussian differential privacy.
    """
    level = rates.false_positive
    found = (rates.true_positive - (1 - sampling_rate) * level) / sampling_rate
    if not (found > 0 and level < 1):
        return 0.0
    if found >= 1 or level <= 0:
        return math.inf
    return max(0.0, float(stats.norm.ppf(found) + stats.norm.isf(level)))


def power(level: np.ndarray, mu: float, sampling_rate: float) -> np.ndarray:
    """The most that a test finds: (1 − q)·α + q·Φ(μ − Φ⁻¹(1 − α)). It rises in both."""
    found = stats.norm.sf(stats.norm.isf(level) - mu)
    return (1 - sampling_rate) * level + sampling_rate * found


def mu_bound(
    absent: np.ndarray,
    present: np.ndarray,
    threshold: float,
    confidence: float,
    sampling_rate: float = 1.0,
) -> float:
    """A lower bound on μ from both error rates together.

    It inverts an exact test. Pairs of counts (alarms, hits) are ordered by the μ of
    their rates; under a given μ the observed pair, or one that tells more, has at most
    the probability

        max_α P[Binomial(present, power(α, μ)) ≥ hits needed with these alarms].

    The unknown level α is searched where its own limits leave it (Berger and Boos
    1994), for a twentieth of the error. Between two levels of the grid, alarms as at
    the lower one and hits as at the higher one are the most that can be.

    Two limits that hold each by itself, as in `error_rates`, need more than twice the
    runs: both rates are then taken at their worst at once.

    Args:
      absent, present: Scores of independent runs on either data set.
      threshold: Must not depend on these scores.
      confidence: That μ is not below the bound.
      sampling_rate: q of the pair.
    """
    runs = len(absent), len(present)
    alarms, hits = int(np.sum(absent > threshold)), int(np.sum(present > threshold))
    # Halves keep the estimates off 0 and 1; they only decide the order of the pairs.
    observed = mu_of_rates(
        ErrorRates((hits + 0.5) / (runs[1] + 1), (alarms + 0.5) / (runs[0] + 1)),
        sampling_rate,
    )
    if observed == 0:
        return 0.0
    tail = 1 - confidence
    spent = 0.05 * tail
    lowest = clopper_pearson(alarms, runs[0], spent / 2)
    highest = clopper_pearson(alarms, runs[0], spent / 2, upper=True)
    levels = np.linspace(lowest, highest, 61)
    # Counts beyond these are so rare that they are simply added to the probability.
    rare = 1e-8
    counts = np.arange(
        int(stats.binom.ppf(rare, runs[0], lowest)),
        int(stats.binom.isf(rare, runs[0], highest)) + 1,
    )
    chances = stats.binom.pmf(counts[:, None], runs[0], levels[:-1])
    rates = (counts + 0.5) / (runs[0] + 1)
    needed = power(rates, observed, sampling_rate) * (runs[1] + 1) - 0.5
    needed = np.ceil(needed - 1e-6)[:, None]

    def is_refuted(mu: float) -> bool:
        found = power(levels[1:], mu, sampling_rate)
        enough = stats.binom.sf(needed - 1, runs[1], found)
        return spent + 2 * rare + float(np.max((chances * enough).sum(0))) < tail

    if not is_refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while is_refuted(high):
        low, high = high, 2 * high
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


def discriminant(absent: np.ndarray, present: np.ndarray) -> np.ndarray:
    """Fisher's linear discriminant: the direction that tells Gaussian scores apart."""
    spread = np.cov(absent, rowvar=False) + np.cov(present, rowvar=False)
    return np.linalg.solve(spread, present.mean(0) - absent.mean(0))


def gaussian_threshold(
    absent: np.ndarray, present: np.ndarray, sampling_rate: float
) -> float:
    """Where to cut the scores if their law is the pair that pilot runs suggest.

    At the threshold t of N(0, 1), the variance of the estimate of μ is that of the two
    rates times their squared slopes; the least one is found on a grid.
    """
    shift = (np.mean(present) - np.mean(absent)) / sampling_rate
    mu = float(np.clip(shift / np.std(absent), 0.1, 8.0))
    t = np.linspace(0, mu + 1, 100)
    level = stats.norm.sf(t)
    found = power(level, mu, sampling_rate)
    slope = 1 / (sampling_rate * stats.norm.pdf(t - mu))
    slope_of_level = 1 / stats.norm.pdf(t) + (1 - sampling_rate) * slope
    variance = slope**2 * found * (1 - found) + slope_of_level**2 * level * (1 - level)
    return float(np.mean(absent) + np.std(absent) * t[np.argmin(variance)])


def mu_bound_from_runs(
    absent: np.ndarray,
    present: np.ndarray,
    confidence: float,
    sampling_rate: float = 1.0,
) -> float:
    """A bound from independent runs, the first of which only choose the test.

    Args:
      absent, present: One score of each run on either data set, or several: a row then.
      confidence: That μ is not below the bound.
      sampling_rate: q of the pair.
    """
    pilot = max(100, len(absent) // 20)
    if absent.ndim == 2:
        direction = discriminant(absent[:pilot], present[:pilot])
        absent, present = absent @ direction, present @ direction
    threshold = gaussian_threshold(absent[:pilot], present[:pilot], sampling_rate)
    return mu_bound(
        absent[pilot:], present[pilot:], threshold, confidence, sampling_rate
    )


def epsilon_bound_from_runs(
    absent: np.ndarray, present: np.ndarray, delta: float, confidence: float
) -> float:
    """The least ε that the error rates allow, whatever the law of the scores.

    The first tenth of the runs only chooses the threshold.
    """
    pilot = max(len(absent) // 10, min(50, len(absent) // 2))
    scores = np.concatenate([absent[:pilot], present[:pilot]])
    candidates = np.quantile(scores, np.linspace(0.02, 0.98, 49))

    def promise(threshold: float) -> float:
        # Confident enough not to fall for chance among the candidates.
        rates = error_rates(absent[:pilot], present[:pilot], threshold, 0.99)
        return epsilon_bound(rates, delta)

    threshold = max(map(float, candidates), key=promise)
    rates = error_rates(absent[pilot:], present[pilot:], threshold, confidence)
    return epsilon_bound(rates, delta)


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
