"""Parameters that leave their ranges are found before a charge; no others are."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from numpyro.distributions.transforms import OrderedTransform

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.facts.parameter_ranges import (
    parameters_out_of_range,
    warnings_of_ranges,
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


def rates(x: Any, y: Any) -> None:
    w = weights()
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(x @ w), obs=y)


def log_rates(x: Any, y: Any) -> None:
    w, shape = weights(), numpyro.sample("shape", dist.Exponential(1.0))
    with numpyro.plate("rows", y.shape[0]):
        # Exposures, which are zero in rows of integers.
        mean = y * jnp.exp(x @ w)
        numpyro.sample("y", dist.NegativeBinomial2(mean, shape), obs=y)


def rates_of_groups(x: Any, y: Any) -> None:
    w = weights(dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(x @ w), obs=y)


def scale(x: Any, y: Any) -> None:
    w, s = weights(), numpyro.sample("s", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, s).mask(y > 0), obs=y)


def scale_of_a_prior(x: Any, y: Any) -> None:
    s: Any = numpyro.sample("s", dist.Normal(0.0, 1.0))
    w = weights(dist.Normal(0.0, s))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def half_normal(x: Any, y: Any) -> None:
    s: Any = numpyro.sample("s", dist.HalfNormal(1.0))
    w = weights(dist.Normal(0.0, s))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.StudentT(2.0 + s, x @ w, s), obs=y)


CUTS: Any = dist.Normal(0.0, 1.0).expand([2])


def grades(prior: Any) -> Callable[..., None]:
    def model(x: Any, y: Any) -> None:
        w, cuts = weights(), numpyro.sample("cuts", prior)
        with numpyro.plate("rows", y.shape[0]):
            grade = dist.OrderedLogistic(x @ w, cuts)
            numpyro.sample("y", grade, obs=y.astype(int))

    return model


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
        (rates, {"y": "rate"}),
        (log_rates, {}),
        (rates_of_groups, {}),
        (scale, {"y": "scale"}),
        (scale_of_a_prior, {"w": "scale"}),
        (half_normal, {}),
        (grades(CUTS.to_event(1)), {"y": "cutpoints"}),
        (
            grades(dist.TransformedDistribution(CUTS, OrderedTransform())),
            {},
        ),
    ],
)
def test_parameters_leave_their_range_under_the_priors(
    model: Callable[..., None], found: dict[str, str]
) -> None:
    private = nv.private(model, unit="rows")
    graph = build_graph(private, bind_arguments(private, (X, Y), {}))
    outside = parameters_out_of_range(graph)
    assert {each.site: each.parameter for each in outside} == found
    texts = tuple(warnings_of_ranges(outside))
    assert len(texts) == len(found)
    for site, parameter in found.items():
        assert f"{parameter!r} of {site!r}" in texts[0]


def test_of_many_globals_chances_alone_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = "numpyro_vips.model.facts.parameter_ranges._MOST_GLOBALS"
    for most, found in ((3, ["linear", "rates"]), (2, ["linear"])):
        monkeypatch.setattr(where, most)
        outside = []
        for model in (linear, rates):
            private = nv.private(model, unit="rows")
            graph = build_graph(private, bind_arguments(private, (X, Y), {}))
            outside += [model.__name__] * len(parameters_out_of_range(graph))
        assert outside == found


def test_each_range_has_a_warning_of_its_own() -> None:
    def model(x: Any, y: Any) -> None:
        w, s = weights(), numpyro.sample("s", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("z", dist.Bernoulli(probs=x @ w), obs=y)
            numpyro.sample("y", dist.NegativeBinomial2(x @ w, s), obs=y)

    private = nv.private(model, unit="rows")
    graph = build_graph(private, bind_arguments(private, (X, Y), {}))
    chances, positive = warnings_of_ranges(parameters_out_of_range(graph))
    assert "'probs' of 'z'" in chances and "'y'" not in chances
    assert "'mean' of 'y' and 'concentration' of 'y'" in positive


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_explain_says_it_for_free(epsilon: float) -> None:
    vi = vi_of(rates, budget=nv.PrivacyBudget(epsilon, 1e-6))
    notes = vi.explain(X, Y.astype(int)).notes
    assert any("'rate' of 'y'" in note for note in notes)


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
