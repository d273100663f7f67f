"""Prices of events: exact ones, their order, and what costs nothing or everything."""

import math
from typing import Any

import jax.numpy as jnp
import pytest
from _events import event, exact_gaussian_delta

from numpyro_vips import accounting
from numpyro_vips.accounting.events import GaussianEvent


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


def test_order_and_splitting_of_steps_do_not_matter():
    together = [event(1.0, 0.05, 30), event(2.0, 0.01, 10)]
    apart = [event(2.0, 0.01, 10), event(1.0, 0.05, 10), event(1.0, 0.05, 20)]
    for accountant in accounting.ACCOUNTANTS:
        prices = [
            accounting.epsilon_of_events(events, delta=1e-5, accountant=accountant)
            for events in (together, apart)
        ]
        assert prices[0] == prices[1]


@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
@pytest.mark.parametrize(
    "function",
    [
        lambda events, who: accounting.epsilon_of_events(
            events, delta=1e-5, accountant=who
        ),
        lambda events, who: accounting.delta_of_events(
            events, epsilon=1.0, accountant=who
        ),
        lambda events, who: accounting.calibrate_events(
            events, epsilon=1.0, delta=1e-5, accountant=who
        ),
        lambda events, _: accounting.gaussian_dp_mu(events),
        lambda events, _: accounting.renyi_of_events(events).tolist(),
    ],
)
def test_events_of_an_iterator_are_not_free(function, accountant):
    """Of which nothing is left once it has been looked at."""
    events = [event(2.0, 1.0, 3, "full"), event(3.0, 0.1, 5, "poisson")]
    assert function(iter(events), accountant) == function(events, accountant) != 0


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


def test_gaussian_dp_mu():
    full = [event(2.0, 1.0, 3, "full"), event(1.0, 1.0, 1, "full")]
    assert accounting.gaussian_dp_mu(full) == pytest.approx(math.sqrt(3 / 4 + 1))
    assert accounting.gaussian_dp_mu([]) == 0
    assert accounting.gaussian_dp_mu([event(0.0)]) is None
    # Many weak steps: the central limit of subsampled Gaussians.
    limit = 0.01 * math.sqrt(2000 * math.expm1(1 / 25))
    many = accounting.gaussian_dp_mu([event(5.0, 0.01, 2000)])
    assert many == pytest.approx(limit, rel=0.05)


@pytest.mark.parametrize("accountant", accounting.ACCOUNTANTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_narrow_numbers_are_priced_in_all_digits(dtype: Any, accountant: Any):
    # jax brings the types that NumPy lacks, and arrays of no dimension.
    events = [event(1.3, 1.0, 7, "full"), event(1.3, 0.1, 7, "poisson")]
    kinds: list[Any] = [jnp.dtype(dtype).type, lambda x: jnp.asarray(x, dtype)]
    for whole in kinds:
        delta, epsilon = whole(1e-3), whole(1.1)
        exactly = {"accountant": accountant, "delta": float(delta)}
        found = accounting.epsilon_of_events(events, delta=delta, accountant=accountant)
        assert found == accounting.epsilon_of_events(events, **exactly)
        assert accounting.delta_of_events(
            events, epsilon=epsilon, accountant=accountant
        ) == accounting.delta_of_events(
            events, epsilon=float(epsilon), accountant=accountant
        )
        factor = accounting.calibrate_events(
            events[:1], epsilon=epsilon, delta=delta, accountant=accountant
        )
        scaled = [accounting.scale_noise(event, factor) for event in events[:1]]
        assert accounting.epsilon_of_events(scaled, **exactly) <= float(epsilon)
