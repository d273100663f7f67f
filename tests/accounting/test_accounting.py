"""Prices against exact curves, enumeration, integration and other accountants."""

import ast
import itertools
import math
import pathlib
from typing import Any

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import rdp as google_rdp
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from scipy import integrate, stats

from numpyro_vips import accounting
from numpyro_vips.accounting import Accountant, GaussianEvent, Relation, Sampling
from numpyro_vips.accounting.dominating_pairs import single_step_pld
from numpyro_vips.accounting.events import StepGroup, groups_of
from numpyro_vips.accounting.gaussian import gaussian_epsilon
from numpyro_vips.accounting.pld import composed_pld, reach_of
from numpyro_vips.accounting.renyi import renyi_epsilon

ADULT = [(0.004, noise, 100, 1e-3) for noise in (1.0, 6.0, 12.0)]
SBN = [
    (size / 60_000, 1.0, steps, 1e-4)
    for size, steps in [(400, 150), (800, 75), (1600, 37), (3200, 18)]
]
LDA = [(0.05, 1.24, 20, 1e-4)]
# What autodp's accountant gives, with its improved bound and 500 orders.
MOMENTS = [0.816, 0.052, 0.0258, 1.345, 1.743, 2.448, 3.368, 2.3826]
PLD = [0.129, 0.0051, 0.00083, 0.442, 0.692, 1.074, 1.614, 0.98]


def event(
    noise: float = 1.0,
    rate: float = 0.01,
    steps: int = 1,
    sampling: Sampling = "poisson",
    relation: Relation = "add_or_remove",
    **other: Any,
) -> GaussianEvent:
    return GaussianEvent(
        noise_stddev=noise,
        sensitivity=1.0,
        relation="replace_one" if sampling == "without_replacement" else relation,
        sampling=sampling,
        sampling_rate=rate,
        num_steps=steps,
        **other,
    )


def exact_gaussian_delta(mu, epsilon):
    with mpmath.workdps(60):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        first = mpmath.ncdf(mu / 2 - epsilon / mu)
        return first - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


# ----------------------------------------------------------------------------------
# The papers' runs


@pytest.mark.parametrize(
    ("run", "price"), list(zip(ADULT + SBN + LDA, MOMENTS, strict=True))
)
def test_moments_gives_the_papers_prices(run, price):
    rate, noise, steps, delta = run
    got = accounting.epsilon(
        noise_multiplier=noise,
        sampling_rate=rate,
        num_steps=steps,
        delta=delta,
        sampling="without_replacement",
        accountant="moments",
    )
    assert got == pytest.approx(price, abs=6e-4)


@pytest.mark.parametrize(
    ("run", "price"), list(zip(ADULT + SBN + LDA, PLD, strict=True))
)
def test_pld_prices_the_papers_runs(run, price):
    rate, noise, steps, delta = run
    got = accounting.epsilon(
        noise_multiplier=noise,
        sampling_rate=rate,
        num_steps=steps,
        delta=delta,
        sampling="without_replacement",
    )
    assert got == pytest.approx(price, rel=5e-3)


# ----------------------------------------------------------------------------------
# Full batches: exact


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, 2.0])
def test_gaussian_delta_is_the_closed_form(mu, share):
    epsilon = share * (mu**2 / 2 + 6 * mu)
    assert accounting.gaussian_delta(mu, epsilon) == pytest.approx(
        float(exact_gaussian_delta(mu, epsilon)), rel=1e-9, abs=1e-300
    )


def test_gaussian_delta_is_a_hockey_stick():
    mu, epsilon = 1.3, 0.7

    def excess(x):
        return max(0.0, stats.norm.pdf(x - mu) - math.exp(epsilon) * stats.norm.pdf(x))

    start = epsilon / mu + mu / 2
    area, _ = integrate.quad(excess, start, 12, epsabs=1e-13)
    assert accounting.gaussian_delta(mu, epsilon) == pytest.approx(area, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12, 1e-40])
@pytest.mark.parametrize("noise", [0.1, 1.0, 50.0])
def test_full_batches_compose_exactly(noise, delta):
    steps = 7
    price = accounting.epsilon(
        noise_multiplier=noise,
        sampling_rate=1.0,
        num_steps=steps,
        delta=delta,
        sampling="full",
    )
    mu = math.sqrt(steps) / noise
    assert exact_gaussian_delta(mu, price) <= delta * (1 + 1e-9)
    if price > 0:
        assert exact_gaussian_delta(mu, price * (1 - 1e-9)) > delta * (1 - 1e-6)


def test_rate_one_is_a_full_batch():
    prices = {
        sampling: accounting.epsilon(
            noise_multiplier=2.0,
            sampling_rate=1.0,
            num_steps=3,
            delta=1e-5,
            sampling=sampling,
        )
        for sampling in accounting.SAMPLINGS
    }
    assert len(set(prices.values())) == 1


# ----------------------------------------------------------------------------------
# Poisson batches


def google_epsilon(noise, rate, steps, delta):
    # Its usual grid of 1e-4 is too coarse for weak steps.
    weak = 0.05 * rate * math.sqrt(math.expm1(1 / noise**2))
    accountant = dp_accounting.pld.PLDAccountant(
        value_discretization_interval=min(1e-4, weak)
    )
    step = dp_accounting.PoissonSampledDpEvent(
        rate, dp_accounting.GaussianDpEvent(noise)
    )
    return accountant.compose(step, steps).get_epsilon(delta)


POISSON_GRID = list(
    itertools.product(
        [0.7, 1.0, 2.0, 5.0, 12.0], [0.002, 0.01, 0.05, 0.2], [1, 30, 400], [1e-3, 1e-6]
    )
)


@pytest.mark.quick_with("point4", "point5", "point6", "point7", "point8", "point9")
@pytest.mark.parametrize("point", POISSON_GRID[::13])
def test_poisson_agrees_with_dp_accounting(point):
    check_against_google(*point)


@pytest.mark.slow
@pytest.mark.parametrize("point", POISSON_GRID)
def test_poisson_agrees_with_dp_accounting_on_the_whole_grid(point):
    check_against_google(*point)


def check_against_google(noise, rate, steps, delta):
    got = accounting.epsilon(
        noise_multiplier=noise, sampling_rate=rate, num_steps=steps, delta=delta
    )
    reference = google_epsilon(noise, rate, steps, delta)
    assert got == pytest.approx(reference, rel=0.01, abs=1e-5)


@pytest.mark.parametrize("delta", [1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("noise", [0.5, 2.0])
@pytest.mark.parametrize("sampling", ["poisson", "without_replacement"])
def test_one_step_is_never_below_the_amplified_curve(sampling, noise, delta):
    rate = 0.05
    price = accounting.epsilon(
        noise_multiplier=noise,
        sampling_rate=rate,
        num_steps=1,
        delta=delta,
        sampling=sampling,
    )

    def exact_delta(epsilon):
        inner = mpmath.log(1 + (mpmath.exp(epsilon) - 1) / rate)
        return rate * exact_gaussian_delta(1 / noise, inner)

    assert exact_delta(price) <= delta
    slack = 0.995 if delta >= 1e-10 else 0.6
    assert exact_delta(price * slack) > delta


# ----------------------------------------------------------------------------------
# Batches without replacement


def mixture_delta(centres_p, centres_q, noise, epsilon):
    """Hockey-stick divergence of two equally weighted mixtures, by quadrature."""
    grid = np.linspace(-12 * noise, 12 * noise + 6, 40_001)

    def density(centres):
        return stats.norm.pdf((grid[:, None] - centres) / noise).mean(1) / noise

    excess = density(np.array(centres_p)) - math.exp(epsilon) * density(
        np.array(centres_q)
    )
    return integrate.trapezoid(np.maximum(excess, 0), grid)


def test_one_step_without_replacement_against_all_subsets():
    """Enumerates every batch of small neighbouring data sets with values in [0, 1]."""
    num_rows, size, noise, epsilon = 4, 2, 0.8, 0.4
    batches = list(itertools.combinations(range(num_rows), size))
    events = [event(noise, size / num_rows, sampling="without_replacement")]
    stated = accounting.delta_of_events(events, epsilon=epsilon)

    worst = 0.0
    values = [0.0, 0.5, 1.0]
    for others in itertools.combinations_with_replacement(values, num_rows - 1):
        for old, new in itertools.permutations(values, 2):
            before, after = (
                [sum((row, *others)[i] for i in batch) for batch in batches]
                for row in (old, new)
            )
            worst = max(worst, mixture_delta(before, after, noise, epsilon))
    assert worst <= stated
    assert worst >= 0.99 * stated


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "delta"),
    [(0.1, 1.0, 20, 1e-5), (0.02, 0.8, 50, 1e-5), (0.3, 3.0, 40, 1e-6)],
)
def test_composed_without_replacement_is_above_every_direction(
    rate, noise, steps, delta
):
    """Realisable pairs: P against Q in some steps, Q against P in the others."""
    price = accounting.epsilon(
        noise_multiplier=noise,
        sampling_rate=rate,
        num_steps=steps,
        delta=delta,
        sampling="without_replacement",
    )
    # Optimistic rounding: lower bounds on what an adversary reaches.
    one = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-3,
    )
    reached = []
    for forward in {0, 1, steps // 2, steps - 1, steps}:
        parts = []
        if forward:
            parts.append(one._pmf_remove.to_dense_pmf().self_compose(forward))
        if forward < steps:
            parts.append(one._pmf_add.to_dense_pmf().self_compose(steps - forward))
        whole = parts[0] if len(parts) == 1 else parts[0].compose(parts[1])
        reached.append(whole.get_epsilon_for_delta(delta))
    assert max(reached) <= price
    # The pair that dominates both directions at once is not much dearer.
    assert price <= 1.3 * max(reached) + 0.02


def test_without_replacement_mass_function_is_the_connected_curve():
    """dp-accounting connects the dots of the same curve, from its deltas."""
    noise, rate, spacing = 1.1, 0.07, 0.01
    group = StepGroup("without_replacement", noise, rate, 1)
    ours = single_step_pld(group, spacing)._pmf_remove
    half = (ours.size - 1) // 2

    def delta(epsilon):
        if epsilon < 0:
            return 1 - math.exp(epsilon) + math.exp(epsilon) * delta(-epsilon)
        inner = math.log1p(math.expm1(epsilon) / rate)
        return rate * accounting.gaussian_delta(1 / noise, inner)

    reference = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        spacing,
        -half,
        half,
        np.array([delta(spacing * k) for k in range(-half, half + 1)]),
    )
    for epsilon in [0.0, 0.013, 0.2, 1.0]:
        assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(
            reference.get_delta_for_epsilon(epsilon), rel=1e-8
        )
    assert ours._probs.sum() + ours._infinity_mass == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("noise", "rate"), [(0.7, 0.01), (3.0, 0.4), (0.3, 1.0)])
@pytest.mark.parametrize("spacing", [0.02, 0.001])
def test_a_step_is_dp_accountings_step(noise, rate, spacing):
    group = StepGroup("full" if rate == 1 else "poisson", noise, rate, 1)
    ours = single_step_pld(group, spacing)
    reference = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=spacing
    )
    for direction in ("_pmf_remove", "_pmf_add"):
        own, theirs = getattr(ours, direction), getattr(reference, direction)
        theirs = theirs.to_dense_pmf()
        assert own._probs.sum() + own._infinity_mass == pytest.approx(1, abs=1e-12)
        first = max(own._lower_loss, theirs._lower_loss)
        last = min(own._lower_loss + own.size, theirs._lower_loss + theirs.size)
        cuts = [
            slice(first - d._lower_loss, last - d._lower_loss) for d in (own, theirs)
        ]
        assert own._probs[cuts[0]].sum() == pytest.approx(1, abs=1e-12)
        np.testing.assert_allclose(
            own._probs[cuts[0]], theirs._probs[cuts[1]], rtol=1e-5, atol=1e-12
        )


@pytest.mark.parametrize("sampling", ["poisson", "without_replacement"])
@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [
        (0.5, 2e-4, 201, 3e-3),
        (1.1, 0.05, 30, 1e-5),
        (40.0, 0.3, 500, 1e-7),
        (2.0, 0.9, 1, 0.3),
    ],
)
def test_a_shorter_grid_costs_next_to_nothing(sampling, noise, rate, steps, delta):
    """Losses beyond the grid's reach count as infinite: dearer, but hardly."""
    groups = (StepGroup(sampling, noise, rate, steps),)
    reach = reach_of(groups, delta)
    assert reach < 10
    spacing = max(0.05 * groups[0].loss_stddev, 20 / noise / 20_000)
    one = single_step_pld(groups[0], spacing, reach)._pmf_remove
    assert 0 < steps * one._infinity_mass <= 1e-4 * delta
    short, long = (
        composed_pld(groups, spacing, r).get_epsilon_for_delta(delta)
        for r in (reach, 10.0)
    )
    # Transforms of different lengths round differently.
    assert long * (1 - 1e-7) <= short <= long * (1 + 5e-4)


# ----------------------------------------------------------------------------------
# Rényi divergences


def integrated_divergence(ratio, order, lower=-30):
    with mpmath.workdps(30):
        moment = mpmath.quad(
            lambda x: mpmath.npdf(x) * ratio(x) ** order,
            [lower, -4, 0, 2, 4, 8, 16, 40],
        )
        return float(mpmath.log(moment) / (order - 1))


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_poisson_renyi_is_the_integral(order):
    noise, rate = 1.2, 0.03
    got = accounting.renyi_of_events([event(noise, rate, 3)], [order])[0]

    def ratio(x):
        return 1 - rate + rate * mpmath.exp(x / noise - 1 / (2 * noise**2))

    assert got == pytest.approx(3 * integrated_divergence(ratio, order), rel=1e-9)


def test_poisson_renyi_agrees_with_dp_accounting():
    orders = [1.5, 2, 5.5, 16, 64]
    got = accounting.renyi_of_events([event(0.9, 0.02, 10)], orders)
    accountant = google_rdp.RdpAccountant(orders)
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(0.9)),
        10,
    )
    whole = np.array([float(order).is_integer() for order in orders])
    np.testing.assert_allclose(got[whole], accountant._rdp[whole], rtol=1e-6)
    # Between integers its series adds absolute values: a bound on the integral.
    assert np.all(got[~whole] <= accountant._rdp[~whole] * (1 + 1e-9))


@pytest.mark.parametrize("order", [2.0, 6.0, 20.0])
def test_without_replacement_renyi_lies_between_truth_and_theorem(order):
    noise, rate = 1.5, 0.1
    got = accounting.renyi_of_events(
        [event(noise, rate, sampling="without_replacement")], [order]
    )[0]
    accountant = google_rdp.RdpAccountant(
        [order], dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(
        dp_accounting.SampledWithoutReplacementDpEvent(
            1000, 100, dp_accounting.GaussianDpEvent(noise)
        )
    )

    def ratio(x):
        return 1 - rate + rate * mpmath.exp(x / noise - 1 / (2 * noise**2))

    truth = integrated_divergence(ratio, order)
    assert truth * (1 - 1e-9) <= got <= accountant._rdp[0]


@pytest.mark.parametrize("sampling", accounting.SAMPLINGS)
def test_renyi_prices_are_above_the_pld_ones(sampling):
    rate = 1.0 if sampling == "full" else 0.02
    events = [event(1.5, rate, 200, sampling)]
    groups = groups_of(events)
    pld = accounting.epsilon_of_events(events, delta=1e-6)
    renyi = renyi_epsilon(groups, 1e-6)
    assert pld <= renyi <= 1.25 * pld


# ----------------------------------------------------------------------------------
# The papers' accountants


@pytest.mark.parametrize(
    ("sampling", "noise", "rate", "steps", "delta"),
    [("without_replacement", 1.5, 0.03, 60, 1e-5), ("poisson", 1.1, 0.01, 200, 1e-5)],
)
def test_moments_agrees_with_autodp(sampling, noise, rate, steps, delta):
    from autodp import rdp_acct, rdp_bank

    accountant = rdp_acct.anaRDPacct(m=100, m_max=100)

    def divergence(order):
        return rdp_bank.RDP_gaussian({"sigma": noise}, order)

    if sampling == "poisson":
        accountant.compose_poisson_subsampled_mechanisms(divergence, rate, steps)
    else:
        accountant.compose_subsampled_mechanism(
            divergence, rate, steps, improved_bound_flag=True
        )
    got = accounting.epsilon(
        noise_multiplier=noise,
        sampling_rate=rate,
        num_steps=steps,
        delta=delta,
        sampling=sampling,
        accountant="moments",
    )
    assert got == pytest.approx(accountant.get_eps(delta), rel=1e-6)


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


@pytest.mark.parametrize("sampling", accounting.SAMPLINGS)
@pytest.mark.parametrize("noise", [0.8, 2.0, 10.0])
def test_the_three_prices_are_in_order(sampling, noise):
    rate = 1.0 if sampling == "full" else 0.02
    events = [event(noise, rate, 50, sampling)]
    pld, moments, strong = (
        accounting.epsilon_of_events(events, delta=1e-5, accountant=accountant)
        for accountant in accounting.ACCOUNTANTS
    )
    assert 0 < pld < moments < strong


# ----------------------------------------------------------------------------------
# Schedules of different steps


def test_mixed_poisson_and_full_steps_are_priced_together():
    poisson, full = event(1.5, 0.05, 40), event(4.0, 1.0, 3, "full")
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.5)),
        40,
    ).compose(dp_accounting.GaussianDpEvent(4.0), 3)
    got = accounting.epsilon_of_events([poisson, full], delta=1e-6)
    assert got == pytest.approx(accountant.get_epsilon(1e-6), rel=0.005)


@pytest.mark.quick_with(
    "poisson+full-pld",
    "two rates-pld",
    "without replacement+full-pld",
    "two rates-strong",
    "without replacement+full-strong",
    "poisson+full-strong",
)
@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
@pytest.mark.parametrize(
    "events",
    [
        [event(1.0, 0.05, 40), event(4.0, 1.0, 3, "full")],
        [event(1.0, 0.05, 20), event(2.0, 0.02, 30)],
        [
            event(1.0, 0.05, 20, "without_replacement"),
            event(3.0, 1.0, 2, "full", "replace_one"),
        ],
    ],
    ids=["poisson+full", "two rates", "without replacement+full"],
)
def test_calibrating_a_schedule_meets_the_target(events, accountant):
    factor = accounting.calibrate_events(
        events, epsilon=1.0, delta=1e-6, accountant=accountant
    )
    scaled = [accounting.scale_noise(event, factor) for event in events]
    price = accounting.epsilon_of_events(scaled, delta=1e-6, accountant=accountant)
    assert 0.998 <= price <= 1.0


def test_order_and_splitting_of_steps_do_not_matter():
    together = [event(1.0, 0.05, 30), event(2.0, 0.01, 10)]
    apart = [event(2.0, 0.01, 10), event(1.0, 0.05, 10), event(1.0, 0.05, 20)]
    for accountant in accounting.ACCOUNTANTS:
        prices = [
            accounting.epsilon_of_events(events, delta=1e-5, accountant=accountant)
            for events in (together, apart)
        ]
        assert prices[0] == prices[1]


def test_different_relations_are_not_added_up():
    events = [event(), event(sampling="without_replacement")]
    with pytest.raises(ValueError, match="same relation"):
        accounting.epsilon_of_events(events, delta=1e-5)


@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
@pytest.mark.parametrize("sampling", accounting.SAMPLINGS)
def test_delta_and_epsilon_are_inverse(sampling, accountant):
    rate = 1.0 if sampling == "full" else 0.03
    events = [event(1.4, rate, 30, sampling)]
    price = accounting.epsilon_of_events(events, delta=1e-5, accountant=accountant)
    delta = accounting.delta_of_events(events, epsilon=price, accountant=accountant)
    assert delta == pytest.approx(1e-5, rel=0.02)


# ----------------------------------------------------------------------------------
# Calibration

CORNERS = [
    (target, rate, steps)
    for target in (0.01, 1.0, 20.0)
    for rate in (1e-4, 0.01, 1.0)
    for steps in (1, 1000, 100_000)
]
# A small rate needs a fine grid over a long range.
SLOW_CORNERS = [(0.01, 1e-4, 1), (0.01, 1e-4, 1000), (1.0, 1e-4, 100_000)]


def check_calibration(
    corner: tuple[float, float, int], sampling: Sampling, accountant: Accountant
) -> None:
    target, rate, steps = corner
    noise = accounting.calibrate(
        epsilon=target,
        delta=1e-5,
        sampling_rate=rate,
        num_steps=steps,
        sampling=sampling,
        accountant=accountant,
    )
    price = accounting.epsilon(
        noise_multiplier=noise,
        delta=1e-5,
        sampling_rate=rate,
        num_steps=steps,
        sampling=sampling,
        accountant=accountant,
    )
    assert price <= target
    cheaper = accounting.epsilon(
        noise_multiplier=0.998 * noise,
        delta=1e-5,
        sampling_rate=rate,
        num_steps=steps,
        sampling=sampling,
        accountant=accountant,
    )
    assert price >= 0.998 * target or cheaper > target


@pytest.mark.quick_with(
    "corner0-strong",
    "corner9-strong",
    "corner18-strong",
    "corner9-pld",
    "corner16-pld",
    "corner18-pld",
    "corner21-pld",
    "corner12-moments",
    "corner19-moments",
    "corner21-moments",
)
@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
@pytest.mark.parametrize("corner", [c for c in CORNERS if c not in SLOW_CORNERS])
def test_calibration_meets_the_target_at_the_corners(corner, accountant):
    check_calibration(corner, "poisson", accountant)


@pytest.mark.slow
@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
@pytest.mark.parametrize("corner", CORNERS)
def test_calibration_without_replacement_at_the_corners(corner, accountant):
    check_calibration(corner, "without_replacement", accountant)


@pytest.mark.slow
@pytest.mark.parametrize("corner", SLOW_CORNERS)
def test_calibration_at_the_slow_corners(corner):
    check_calibration(corner, "poisson", "pld")


@pytest.mark.quick_with("pld", "strong")
@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
def test_calibration_without_replacement(accountant):
    check_calibration((1.0, 0.05, 20), "without_replacement", accountant)


@pytest.mark.parametrize("delta", [1e-3, 1e-14])
def test_calibration_reaches_small_and_large_deltas(delta):
    noise = accounting.calibrate(
        epsilon=0.5, delta=delta, sampling_rate=0.01, num_steps=100
    )
    price = accounting.epsilon(
        noise_multiplier=noise, delta=delta, sampling_rate=0.01, num_steps=100
    )
    assert 0.49 <= price <= 0.5


@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
def test_no_noise_and_no_target(accountant):
    assert (
        accounting.epsilon(
            noise_multiplier=0.0,
            sampling_rate=0.1,
            num_steps=1,
            delta=1e-5,
            accountant=accountant,
        )
        == math.inf
    )
    assert (
        accounting.calibrate(
            epsilon=math.inf,
            delta=0.0,
            sampling_rate=0.1,
            num_steps=1,
            accountant=accountant,
        )
        == 0.0
    )
    unclipped = GaussianEvent(
        noise_stddev=0.0,
        sensitivity=math.inf,
        relation="add_or_remove",
        sampling="full",
        sampling_rate=1.0,
    )
    assert accounting.epsilon_of_events([unclipped], delta=1e-5) == math.inf
    assert accounting.delta_of_events([unclipped], epsilon=3.0) == 1.0
    assert accounting.calibrate_events([unclipped], epsilon=math.inf, delta=0.0) == 0
    assert accounting.epsilon_of_events([], delta=1e-5) == 0.0
    assert accounting.epsilon_of_events([event()], delta=0.0) == math.inf


@pytest.mark.parametrize("noise", [1e-6, 1e-3, 0.03])
@pytest.mark.parametrize("sampling", accounting.SAMPLINGS)
def test_next_to_no_noise_has_a_finite_price(sampling, noise):
    rate = 1.0 if sampling == "full" else 0.3
    price = accounting.epsilon_of_events([event(noise, rate, 5, sampling)], delta=1e-6)
    exact = gaussian_epsilon(math.sqrt(5) / noise, 1e-6)
    assert 0.1 * exact < price <= exact


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.5}, "delta"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": 1.2}, "sampling_rate"),
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": 2.5}, "num_steps"),
        ({"sampling": "shuffle"}, "sampling"),
        ({"sampling": "full"}, "sampling_rate"),
        ({"accountant": "rdp"}, "accountant"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "num_steps": 10}
    with pytest.raises(ValueError, match=message):
        accounting.calibrate(**{**arguments, **change})


# ----------------------------------------------------------------------------------
# Events


def test_noise_multiplier_is_stddev_over_sensitivity():
    doubled = GaussianEvent(
        noise_stddev=6.0,
        sensitivity=2.0,
        relation="replace_one",
        sampling="full",
        sampling_rate=1.0,
    )
    assert doubled.noise_multiplier == 3.0
    assert accounting.epsilon_of_events([doubled], delta=1e-5) == accounting.epsilon(
        noise_multiplier=3.0,
        sampling_rate=1.0,
        num_steps=1,
        delta=1e-5,
        sampling="full",
    )


@pytest.mark.parametrize(
    "change",
    [
        {"relation": "replace_one"},
        {"sampling": "without_replacement"},
        {"sampling": "full"},
        {"noise_stddev": -1.0},
        {"noise_stddev": math.nan},
        {"noise_stddev": np.float32("nan")},
        {"noise_stddev": 1e300, "sensitivity": 1e-300},
        {"noise_stddev": 1e-300, "sensitivity": 1e300},
        {"noise_stddev": 1.0, "sensitivity": 5e-324},
        {"sensitivity": 0.0},
        {"sensitivity": math.nan},
        {"sensitivity": math.inf},
        {"noise_stddev": math.inf, "sensitivity": math.inf},
        {"sampling_rate": math.nan},
        {"num_steps": 0},
        {"num_steps": True},
        {"num_steps": math.inf},
        {"num_steps": math.nan},
        {"num_steps": 10**400},
    ],
)
def test_events_check_themselves(change):
    fields = {
        "noise_stddev": 1.0,
        "sensitivity": 1.0,
        "relation": "add_or_remove",
        "sampling": "poisson",
        "sampling_rate": 0.5,
    }
    GaussianEvent(**fields)
    with pytest.raises(ValueError, match="Expected"):
        GaussianEvent(**{**fields, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"noise_stddev": True},
        {"noise_stddev": np.True_},
        {"noise_stddev": "inf"},
        {"sensitivity": np.array("1.0")},
        {"sampling_rate": 0.5j},
    ],
)
def test_only_numbers_are_numbers(change):
    fields = event(rate=0.5).to_dict()
    with pytest.raises(TypeError, match="to be a number"):
        GaussianEvent(**{**fields, **change})


def test_numbers_of_narrow_types_do_not_overflow():
    """In single precision the ratio would be infinite, and so the release free."""
    fields: dict[str, Any] = {
        "noise_stddev": np.float32(1e20),
        "sensitivity": np.float32(1e-20),
        "sampling_rate": np.float32(1.0),
        "num_steps": np.int8(100),
    }
    narrow = GaussianEvent(relation="add_or_remove", sampling="full", **fields)
    assert narrow.noise_multiplier == pytest.approx(1e40)
    (group,) = groups_of([narrow, narrow])
    assert group.num_steps == 200
    assert [type(value) for value in (narrow.noise_stddev, narrow.num_steps)] == [
        float,
        int,
    ]
    # An array could be changed after the check.
    stddev = np.array(1.0)
    kept = GaussianEvent(**{**event(rate=0.5).to_dict(), "noise_stddev": stddev})
    stddev[...] = math.nan
    assert kept.noise_stddev == 1.0


def test_dictionaries_cannot_make_events_free():
    fields = event(rate=0.5).to_dict()
    for change in (
        {"noise_stddev": "nan"},
        {"sensitivity": "inf"},
        {"noise_stddev": "inf", "sensitivity": "inf"},
        {"sensitivity": "nan"},
    ):
        with pytest.raises(ValueError, match="Expected"):
            GaussianEvent.from_dict({**fields, **change})


@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
def test_infinite_noise_is_free_and_nothing_else(accountant):
    hidden = [event(math.inf, 0.5)]
    assert accounting.epsilon_of_events(hidden, delta=0.0, accountant=accountant) == 0
    exposed = [event(0.0, 0.5)]
    for events in (exposed, [*hidden, *exposed]):
        price = accounting.epsilon_of_events(events, delta=1e-5, accountant=accountant)
        assert price == math.inf


@pytest.mark.parametrize("sampling", accounting.SAMPLINGS)
@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
def test_what_cannot_be_computed_is_no_privacy(accountant, sampling):
    rate = 1.0 if sampling == "full" else 0.5
    for noise, delta in ((1e-99, 1e-5), (1e-99, 5e-324)):
        events = [event(noise, rate, 10**15, sampling)]
        price = accounting.epsilon_of_events(events, delta=delta, accountant=accountant)
        assert price > 1e100
        assert (
            accounting.delta_of_events(events, epsilon=1.0, accountant=accountant) == 1
        )


def test_not_a_number_is_no_divergence_of_zero():
    assert accounting.renyi_to_epsilon(2.0, math.nan, 1e-5) == math.inf
    assert accounting.renyi_to_epsilon(2.0, 1.0, math.nan) == math.inf


def test_a_price_that_is_not_a_number_is_too_much():
    def price(factor: float) -> float:
        return math.nan if factor < 3 else 1 / factor

    assert accounting.smallest_factor(price, 1.0, start=1.0) >= 3


@pytest.mark.parametrize("steps", [10**6, 10**7])
def test_many_steps_are_not_priced_below_their_cost(steps):
    """The errors of Fourier transforms grow with the number of steps.

    At a rate next to 1 the batches are full ones, whose price is known exactly.
    """
    events = [event(10 * math.sqrt(steps), 1 - 1e-9, steps)]
    assert accounting.epsilon_of_events(events, delta=1e-9) >= (
        gaussian_epsilon(0.1, 1e-9) * (1 - 1e-6)
    )


def test_events_survive_dictionaries():
    for stddev, sensitivity in [(1.5, 2.0), (0.0, math.inf)]:
        before = GaussianEvent(
            noise_stddev=stddev,
            sensitivity=sensitivity,
            relation="replace_one",
            sampling="without_replacement",
            sampling_rate=0.25,
            num_steps=4,
            label="counts",
        )
        assert GaussianEvent.from_dict(before.to_dict()) == before


def test_gaussian_dp_mu():
    full = [event(2.0, 1.0, 3, "full"), event(1.0, 1.0, 1, "full")]
    assert accounting.gaussian_dp_mu(full) == pytest.approx(math.sqrt(3 / 4 + 1))
    assert accounting.gaussian_dp_mu([]) == 0
    assert accounting.gaussian_dp_mu([event(0.0)]) is None
    # Many weak steps: the central limit of subsampled Gaussians.
    limit = 0.01 * math.sqrt(2000 * math.expm1(1 / 25))
    many = accounting.gaussian_dp_mu([event(5.0, 0.01, 2000)])
    assert many == pytest.approx(limit, rel=0.05)


PACKAGE = pathlib.Path(accounting.__file__).parents[1]


@pytest.mark.parametrize(
    "name",
    [
        *(
            f"accounting/{path.stem}"
            for path in sorted(PACKAGE.glob("accounting/*.py"))
        ),
        *(f"privacy/{path.stem}" for path in sorted(PACKAGE.glob("privacy/*.py"))),
    ],
)
def test_the_privacy_core_needs_no_jax(name):
    tree = ast.parse((PACKAGE / f"{name}.py").read_text())
    imported = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        (node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert imported.isdisjoint({"jax", "jaxlib", "numpyro", "optax"})
