"""Prices by privacy loss distributions, against other accountants and exact curves."""

import itertools
import math

import dp_accounting
import mpmath
import pytest
from _events import PAPERS, event, exact_gaussian_delta
from dp_accounting.pld import privacy_loss_distribution

from numpyro_vips import accounting
from numpyro_vips.accounting.dominating_pairs import single_step_pld
from numpyro_vips.accounting.events import StepGroup
from numpyro_vips.accounting.gaussian import gaussian_epsilon
from numpyro_vips.accounting.pld import composed_pld, reach_of

PLD = [0.129, 0.0051, 0.00083, 0.442, 0.692, 1.074, 1.614, 0.98]


@pytest.mark.parametrize(("run", "price"), list(zip(PAPERS, PLD, strict=True)))
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
    assert price <= 1.06 * max(reached)


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


def test_mixed_poisson_and_full_steps_are_priced_together():
    poisson, full = event(1.5, 0.05, 40), event(4.0, 1.0, 3, "full")
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(
        dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(1.5)),
        40,
    ).compose(dp_accounting.GaussianDpEvent(4.0), 3)
    got = accounting.epsilon_of_events([poisson, full], delta=1e-6)
    assert got == pytest.approx(accountant.get_epsilon(1e-6), rel=0.005)


@pytest.mark.parametrize("steps", [10**6, 10**7])
def test_many_steps_are_not_priced_below_their_cost(steps):
    """The errors of Fourier transforms grow with the number of steps.

    At a rate next to 1 the batches are full ones, whose price is known exactly.
    """
    events = [event(10 * math.sqrt(steps), 1 - 1e-9, steps)]
    assert accounting.epsilon_of_events(events, delta=1e-9) >= (
        gaussian_epsilon(0.1, 1e-9) * (1 - 1e-6)
    )


@pytest.mark.parametrize("noise", [1e-6, 1e-3, 0.03])
@pytest.mark.parametrize("sampling", accounting.SAMPLINGS)
def test_next_to_no_noise_has_a_finite_price(sampling, noise):
    rate = 1.0 if sampling == "full" else 0.3
    price = accounting.epsilon_of_events([event(noise, rate, 5, sampling)], delta=1e-6)
    exact = gaussian_epsilon(math.sqrt(5) / noise, 1e-6)
    assert 0.1 * exact < price <= exact
