"""Which models draw what they observe, and which have only a density for it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to
from numpyro.handlers import mask

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.model.synthetic.simulated_rows import RowSimulator

T = np.linspace(0.5, 2.0, 6).astype(np.float32)
SEEN = np.array([1, 0, 1, 1, 0, 1], np.int32)


def level() -> Any:
    return numpyro.sample("level", dist.Normal(0.0, 1.0))


def rows(t: Any) -> Any:
    return numpyro.plate("rows", t.shape[0])


def plain(t: Any, seen: Any) -> None:
    rate = jnp.exp(level())
    with rows(t):
        numpyro.sample("t", dist.Exponential(rate + seen), obs=t)


def masked_at_random(t: Any, seen: Any) -> None:
    rate = jnp.exp(level())
    with rows(t), mask(mask=seen == 1):
        numpyro.sample("t", dist.Exponential(rate), obs=t)


def hurdle(t: Any, seen: Any) -> None:
    """Whether there is a number is drawn first."""
    rate = jnp.exp(level())
    with rows(t):
        numpyro.sample("seen", dist.Bernoulli(logits=rate), obs=seen)
        with mask(mask=seen == 1):
            numpyro.sample("t", dist.Exponential(rate), obs=t)


def one_after_the_other(t: Any, seen: Any) -> None:
    found = level()
    with rows(t):
        numpyro.sample("seen", dist.Poisson(jnp.exp(found)), obs=seen)
        numpyro.sample("t", dist.Normal(found * seen, 1.0), obs=t)


def in_other_units(t: Any, seen: Any) -> None:
    found = level()
    with rows(t):
        numpyro.sample("t", dist.Normal(found + seen, 1.0), obs=(t - 3.0) / 2.0)


def with_own_latent(t: Any, seen: Any) -> None:
    found = level()
    with rows(t):
        effect = numpyro.sample("effect", dist.Normal(found + seen, 1.0))
        numpyro.sample("t", dist.Normal(effect, 1.0), obs=t)


def censored_by_a_factor(t: Any, seen: Any) -> None:
    rate = jnp.exp(level())
    with rows(t):
        with mask(mask=seen == 1):
            numpyro.sample("t", dist.Exponential(rate), obs=t)
        with mask(mask=seen == 0):
            numpyro.factor("later", -rate * t)


def censored_by_ones(t: Any, seen: Any) -> None:
    rate = jnp.exp(level())
    with rows(t):
        with mask(mask=seen == 1):
            numpyro.sample("t", dist.Exponential(rate), obs=t)
        with mask(mask=seen == 0):
            later = dist.Bernoulli(jnp.exp(-rate * t))
            numpyro.sample("later", later, obs=jnp.ones_like(t))


def censored_by_the_indicator(t: Any, seen: Any) -> None:
    rate = jnp.exp(level())
    with rows(t):
        with mask(mask=seen == 1):
            numpyro.sample("t", dist.Exponential(rate), obs=t)
        with mask(mask=seen == 0):
            numpyro.sample("later", dist.Bernoulli(jnp.exp(-rate * t)), obs=1 - seen)


def masked_by_itself(t: Any, seen: Any) -> None:
    found = level()
    with rows(t), mask(mask=t > 100.0):
        numpyro.sample("t", dist.Normal(found + seen, 1.0), obs=t)


def weighted_by_itself(t: Any, seen: Any) -> None:
    found = level()
    with rows(t), numpyro.handlers.scale(scale=jnp.exp(-t)):
        numpyro.sample("t", dist.Normal(found + seen, 1.0), obs=t)


def twice_the_same(t: Any, seen: Any) -> None:
    found = level()
    with rows(t):
        numpyro.sample("first", dist.Normal(found + seen, 1.0), obs=t)
        numpyro.sample("second", dist.Normal(0.0, 3.0), obs=t)


def of_a_later_one(t: Any, seen: Any) -> None:
    found = level()
    with rows(t):
        numpyro.sample("t", dist.Normal(found * seen, 1.0), obs=t)
        numpyro.sample("seen", dist.Poisson(jnp.exp(found)), obs=seen)


def of_a_logarithm(t: Any, seen: Any) -> None:
    found = level()
    with rows(t):
        numpyro.sample("t", dist.Normal(found + seen, 1.0), obs=jnp.log(t))


def lagged(y: Any) -> None:
    """All of a row at once, each entry given the one before."""
    slope = level()
    with rows(y):
        step = dist.Normal(slope * y[:, :-1], 1.0).to_event(1)
        numpyro.sample("y", step, obs=y[:, 1:])


DRAWN = [
    plain,
    masked_at_random,
    hurdle,
    one_after_the_other,
    in_other_units,
    with_own_latent,
]
NOT_DRAWN = [
    censored_by_a_factor,
    censored_by_ones,
    censored_by_the_indicator,
    masked_by_itself,
    weighted_by_itself,
    twice_the_same,
    of_a_later_one,
    of_a_logarithm,
]


def draws(fn: Callable[..., None], *args: np.ndarray) -> bool:
    model = nv.private(fn, unit="rows")
    simulator = RowSimulator.of(build_graph(model, bind_arguments(model, args, {})))
    assert simulator is not None
    return simulator.draws_observations


@pytest.mark.parametrize("fn", DRAWN, ids=lambda fn: fn.__name__)
def test_rows_may_be_drawn(fn: Callable[..., None]) -> None:
    assert draws(fn, T, SEEN)


@pytest.mark.parametrize("fn", NOT_DRAWN, ids=lambda fn: fn.__name__)
def test_a_density_alone_draws_nothing(fn: Callable[..., None]) -> None:
    assert not draws(fn, T, SEEN)


def test_entries_given_others_of_the_same_array_are_not_drawn() -> None:
    assert not draws(lagged, np.ones((4, 3), np.float32))


@pytest.mark.parametrize("name", ["Left", "Right"])
def test_censored_distributions_draw_as_if_nothing_were_censored(name: str) -> None:
    kind = getattr(dist, f"{name}CensoredDistribution", None)
    if kind is None:
        pytest.skip("this NumPyro has none")

    def model(t: Any, seen: Any) -> None:
        base = dist.Exponential(jnp.exp(level()))
        with rows(t):
            numpyro.sample("t", kind(base, 1 - seen), obs=t)

    assert not draws(model, T, SEEN)


@pytest.mark.thorough
@pytest.mark.parametrize("fn", [censored_by_a_factor, of_a_logarithm])
def test_such_models_are_fitted_all_the_same(fn: Callable[..., None]) -> None:
    """Rows that are redrawn would put the rate of censored times off by a half."""
    rng = np.random.default_rng(0)
    times, ends = rng.exponential(2.0, 20_000), rng.uniform(0.5, 4.0, 20_000)
    seen = (times <= ends).astype(np.int32)
    t = np.minimum(times, ends).astype(np.float32)
    if fn is of_a_logarithm:
        t, seen = np.exp(0.5 + rng.normal(size=20_000)).astype(np.float32), 0 * seen
    result = fit_to(fn, t, seen, budget=10.0, engine="dpvi")
    found = result.sample_posterior(jax.random.key(1), sample_shape=(2000,))["level"]
    truth = 0.5 if fn is of_a_logarithm else -np.log(2.0)
    assert np.mean(found) == pytest.approx(truth, abs=0.05)
