"""Observations that are sums, or scaled and shifted entries, of arguments."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import ModelGraph, build_graph
from numpyro_vips.model.synthetic.linear_observations import (
    SolvedEntries,
    linear_observations,
)
from numpyro_vips.model.synthetic.prior_predictive import (
    copied_entries,
    observed_in_random_rows,
)
from numpyro_vips.model.synthetic.simulated_rows import RowSimulator


def graph_of(fn: Callable[..., None], *arguments: Any) -> ModelGraph:
    model = nv.private(fn, unit="rows")
    return build_graph(model, bind_arguments(model, arguments, {}))


def linear_in(graph: ModelGraph) -> dict[str, list[SolvedEntries]]:
    tried = observed_in_random_rows(graph)
    return linear_observations(graph, tried, copied_entries(tried))


def caught(y: Any) -> None:
    chance = numpyro.sample("chance", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("caught", dist.Binomial(3, probs=chance), obs=y.sum(1))


def standardised(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("z", dist.Normal(mean, 0.1), obs=(y - 50.0) / 10.0)


def logarithms(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("log", dist.Normal(mean, 0.1), obs=jnp.log(y))


def halves(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("half", dist.Normal(mean, 0.1), obs=y / 2.0)


def sum_and_first(y: Any) -> None:
    """The sum is of entries of which one is a covariate."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("sum", dist.Normal(slope * y[:, 0], 1.0), obs=y.sum(1))


def as_it_is(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 0.1), obs=y)


def twice(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 0.1), obs=y)
        numpyro.sample("double", dist.Normal(mean, 0.1), obs=2.0 * y)


REALS, WHOLE = np.zeros(5, np.float32), np.zeros(5, np.int32)
CASES = {
    "sum": (caught, np.zeros((5, 3), np.int32)),
    "shifted": (standardised, REALS),
}
OTHERS = {
    "not linear": (logarithms, REALS),
    "no whole number": (halves, WHOLE),
    "a covariate": (sum_and_first, np.zeros((5, 3), np.float32)),
}


def test_a_sum_is_its_first_entry_and_zeros() -> None:
    graph = graph_of(*CASES["sum"])
    ((solved,),) = linear_in(graph).values()
    assert solved.argument == "y"
    assert solved.there.tolist() == [0] and solved.zeros.tolist() == [1, 2]
    np.testing.assert_allclose([*solved.slope, *solved.intercept], [1.0, 0.0])


def test_a_shifted_and_scaled_entry_is_solved_for() -> None:
    graph = graph_of(*CASES["shifted"])
    ((solved,),) = linear_in(graph).values()
    np.testing.assert_allclose(solved.slope, 0.1, rtol=1e-3)
    np.testing.assert_allclose(solved.intercept, -5.0, rtol=1e-3)
    assert solved.zeros.size == 0


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_else_is(name: str) -> None:
    graph = graph_of(*OTHERS[name])
    assert not linear_in(graph)


@pytest.mark.parametrize("fn", [as_it_is, twice])
def test_copies_stay_what_they_are(fn: Callable[..., None]) -> None:
    graph = graph_of(fn, REALS)
    assert copied_entries(observed_in_random_rows(graph)) and not linear_in(graph)


@pytest.mark.parametrize("name", CASES)
def test_simulated_rows_observe_what_was_drawn(name: str) -> None:
    fn, y = CASES[name]
    simulator = RowSimulator.of(graph_of(fn, y))
    assert simulator is not None and not simulator.covariates
    latent, value = ("chance", 0.7) if fn is caught else ("mean", 1.5)
    drawn = simulator.rows({latent: jnp.asarray(value)}, 4000, 0)["y"]
    assert drawn.dtype == y.dtype and drawn.shape[1:] == y.shape[1:]
    if fn is caught:
        sums = np.asarray(drawn).sum(1)
        shares = np.bincount(sums, minlength=4) / 4000
        np.testing.assert_allclose(shares, [0.027, 0.189, 0.441, 0.343], atol=0.03)
    else:
        np.testing.assert_allclose(np.mean(drawn), 50.0 + 10.0 * 1.5, atol=0.1)
        np.testing.assert_allclose(np.std(drawn), 10.0 * 0.1, rtol=0.1)
