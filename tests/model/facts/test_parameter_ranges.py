"""Chances that leave [0, 1] are found before anything is charged; no others are."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.facts.parameter_ranges import (
    chances_out_of_range,
    warning_of_chances,
)
from numpyro_vips.model.graph import build_graph

X = np.zeros((6, 3), np.float32)
Y = np.array([1, 0, 1, 1, 0, 1], np.float32)


UNIT: Any = dist.Normal(0.0, 1.0)


def weights(prior: Any = UNIT) -> Any:
    return numpyro.sample("w", prior.expand([3]).to_event(1))


def linear(x: Any, y: Any) -> None:
    w = weights()
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=x @ w), obs=y)


def about_a_half(x: Any, y: Any) -> None:
    w = weights()
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Binomial(1, probs=0.5 + x @ w), obs=y)


def no_zeros(x: Any, y: Any) -> None:
    w = weights()
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.ZeroInflatedPoisson(x @ w, 1.0), obs=y)


def logistic(x: Any, y: Any) -> None:
    w = weights()
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def sigmoid(x: Any, y: Any) -> None:
    w = weights()
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=jax.nn.sigmoid(x @ w)), obs=y)


def of_groups(x: Any, y: Any) -> None:
    """Rows are indicators."""
    w = weights(dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=x @ w), obs=y)


def of_shares(x: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=x @ w), obs=y)


def with_a_switch(x: Any, y: Any) -> None:
    """A discrete global, which has no unconstrained values to try."""
    z: Any = numpyro.sample("z", dist.Bernoulli(0.5))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=0.2 + 0.6 * z), obs=y)


def small_slopes(x: Any, y: Any) -> None:
    """A linear model of chances, within its range by its priors."""
    w = weights(dist.Normal(0.0, 0.05))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=0.5 + x @ w), obs=y)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (linear, {"y": "probs"}),
        (about_a_half, {"y": "probs"}),
        (no_zeros, {"y": "gate"}),
        (logistic, {}),
        (sigmoid, {}),
        (of_groups, {}),
        (of_shares, {}),
        (small_slopes, {}),
        (with_a_switch, {}),
    ],
)
def test_chances_leave_their_range_under_the_priors(
    model: Callable[..., None], found: dict[str, str]
) -> None:
    private = nv.private(model, unit="rows")
    graph = build_graph(private, bind_arguments(private, (X, Y), {}))
    assert chances_out_of_range(graph) == found
    text = warning_of_chances(found)
    assert (text is None) == (not found)
    for site, parameter in found.items():
        assert text is not None and f"{parameter!r} of {site!r}" in text


@pytest.mark.thorough
def test_it_is_said_before_the_fit_is_charged() -> None:
    budget = nv.PrivacyBudget(1.0, 1e-6)
    vi = vi_of(linear, budget=budget, num_steps=2)

    def stop(message: Any, *_: Any, **__: Any) -> None:
        if "below zero or above one" in str(message):
            raise RuntimeError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", stop)
        with pytest.raises(RuntimeError):
            vi.run(jax.random.key(0), np.ones((500, 3), np.float32), np.ones(500))
    assert not budget.charges
