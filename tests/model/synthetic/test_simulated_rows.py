"""Rows drawn from a model at given globals."""

import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import ModelGraph, build_graph
from numpyro_vips.model.synthetic.simulated_rows import (
    RowSimulator,
    with_possible_chances,
)


def graph_of(fn: Any, *arguments: Any) -> ModelGraph:
    model = nv.private(fn, unit="rows", public=("n",))
    return build_graph(model, bind_arguments(model, arguments, {}))


def gaussian(n: int, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def mixture(n: int, y: Any = None) -> None:
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", n):
        z = numpyro.sample("z", dist.Bernoulli(share))
        numpyro.sample("y", dist.Normal(10.0 * z, 0.1), obs=y)


def chain(n: int, Y: Any) -> None:
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", n):
        numpyro.sample("first", dist.Poisson(4.0), obs=Y[:, 0])
        numpyro.sample("second", dist.Normal(slope * Y[:, 0], 0.1), obs=Y[:, 1])


def regression(n: int, X: Any, y: Any = None) -> None:
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(slope * X, 1.0), obs=y)


def rows_of(fn: Any, latents: dict[str, float], *arguments: Any) -> dict[str, Any]:
    simulator = RowSimulator.of(graph_of(fn, *arguments))
    assert simulator is not None
    values = {name: jnp.asarray(value) for name, value in latents.items()}
    return {
        name: np.asarray(value)
        for name, value in simulator.rows(values, 4000, 0).items()
    }


def test_rows_are_distributed_as_the_model_says() -> None:
    y = rows_of(gaussian, {"mean": 3.0}, 5, np.zeros(5))["y"]
    assert y.shape == (4000,)
    assert y.mean() == pytest.approx(3.0, abs=0.04)
    assert y.std() == pytest.approx(0.5, abs=0.03)


def test_latents_of_rows_are_drawn_first() -> None:
    y = rows_of(mixture, {"share": 0.3}, 5, np.zeros(5))["y"]
    assert (y > 5.0).mean() == pytest.approx(0.3, abs=0.03)


def test_an_observation_may_depend_on_another() -> None:
    Y = rows_of(chain, {"slope": 2.0}, 5, np.zeros((5, 2)))["Y"]
    assert Y[:, 0].mean() == pytest.approx(4.0, abs=0.15)
    np.testing.assert_allclose(Y[:, 1], 2.0 * Y[:, 0], atol=0.6)


def hidden(n: int, Y: Any, *, reads: bool) -> None:
    """Two latents and three observations, whose means may read what is observed."""
    nothing = 0.0 * Y[:, 0] if reads else 0.0
    with numpyro.plate("rows", n):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        x = numpyro.sample("x", dist.Bernoulli(logits=z + nothing))
        numpyro.sample("a", dist.Poisson(jnp.exp(0.3 * z)), obs=Y[:, 0])
        numpyro.sample("b", dist.Normal(5.0 * x + nothing, 0.1), obs=Y[:, 1])
        numpyro.sample("c", dist.Normal(z, 0.1), obs=Y[:, 2])
    numpyro.sample("slope", dist.Normal(0.0, 1.0))


def test_one_run_of_the_model_draws_what_a_run_for_each_site_does() -> None:
    """A model in which nothing depends on what is observed is run once."""
    Y, found, runs = np.ones((4, 3), np.float32), [], []
    for reads in (False, True):
        calls = 0

        def model(n: int, Y: Any, reads: Any = reads) -> None:
            nonlocal calls
            calls += 1
            hidden(n, Y, reads=reads)

        graph = graph_of(model, 4, Y)
        simulator = RowSimulator.of(graph)
        assert simulator is not None
        calls = 0
        found.append(simulator.rows({"slope": jnp.zeros(())}, 500, 3)["Y"])
        runs.append(calls)
    assert runs == [1, 5]
    np.testing.assert_array_equal(*found)
    assert np.std(found[0], axis=0).min() > 0.5


def test_covariates_are_given() -> None:
    simulator = RowSimulator.of(graph_of(regression, 5, np.zeros(5), np.zeros(5)))
    assert simulator is not None
    assert {name: list(places) for name, places in simulator.covariates.items()} == {
        "X": [0]
    }
    X = np.linspace(-1.0, 1.0, 4000)[:, None]
    rows = simulator.rows({"slope": jnp.asarray(2.0)}, 4000, 0, X)
    np.testing.assert_allclose(rows["X"], X[:, 0], rtol=1e-6)
    noise = np.asarray(rows["y"]) - 2.0 * X[:, 0]
    assert noise.mean() == pytest.approx(0.0, abs=0.06)
    assert noise.std() == pytest.approx(1.0, abs=0.05)


def test_whole_numbers_and_truths_are_covariates_too() -> None:
    arguments = 5, np.zeros(5, np.int32), np.zeros(5)
    simulator = RowSimulator.of(graph_of(regression, *arguments))
    assert simulator is not None
    given = np.array([[0.4], [0.6], [-1.2]])
    found = simulator.rows({"slope": jnp.asarray(0.0)}, 3, 0, given)["X"]
    np.testing.assert_array_equal(found, [0, 1, -1])


def test_the_private_rows_do_not_matter() -> None:
    rows = (np.zeros(5), np.full(5, np.nan))
    one, other = (rows_of(gaussian, {"mean": 1.0}, 5, y)["y"] for y in rows)
    np.testing.assert_array_equal(one, other)


def test_each_row_is_drawn_at_globals_of_its_own() -> None:
    simulator = RowSimulator.of(graph_of(gaussian, 5, np.zeros(5)))
    assert simulator is not None
    means = np.linspace(-100.0, 100.0, 400)
    rows = {"y": np.zeros(400, np.float32)}
    y = np.asarray(simulator.rows_at(rows, {"mean": means})["y"])
    np.testing.assert_allclose(y, means, atol=0.5 * 5)
    assert (y - means).std() == pytest.approx(0.5, rel=0.2)


def test_covariates_of_such_rows_stay_as_they_are() -> None:
    graph = graph_of(regression, 5, np.zeros(5), np.zeros(5))
    simulator = RowSimulator.of(graph)
    assert simulator is not None
    x = np.linspace(-1.0, 1.0, 200, dtype=np.float32)
    rows = {"X": x, "y": np.zeros(200, np.float32)}
    drawn = simulator.rows_at(rows, {"slope": np.full(200, 50.0)})
    np.testing.assert_array_equal(np.asarray(drawn["X"]), x)
    np.testing.assert_allclose(np.asarray(drawn["y"]), 50.0 * x, atol=5.0)


@pytest.mark.parametrize("masked", [False, True])
def test_an_event_axis_that_is_broadcast_is_drawn_number_by_number(
    masked: bool,
) -> None:
    def repeated(n: int, Y: Any) -> None:
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", n):
            u = numpyro.sample("u", dist.Gamma(100.0, 100.0))
            fn: Any = dist.Exponential((rate * u)[:, None]).to_event(1)
            numpyro.sample("Y", fn.mask(Y[:, 0] > -1.0) if masked else fn, obs=Y)

    rows = rows_of(repeated, {"rate": 2.0}, 5, np.ones((5, 3), np.float32))["Y"]
    np.testing.assert_allclose(rows.mean(0), 0.5, rtol=0.1)
    # The rates of rows differ by a tenth, so that their numbers are nearly independent.
    assert np.all(np.abs(np.corrcoef(rows.T)[np.triu_indices(3, 1)]) < 0.1)


def test_a_vector_in_the_place_of_several_is_not_drawn() -> None:
    def vectors(n: int, Y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", n):
            one = dist.MultivariateNormal(mean * jnp.ones(2), jnp.eye(2))
            fn = one.expand([Y.shape[0], 1]).to_event(1)
            numpyro.sample("Y", fn, obs=Y)

    assert RowSimulator.of(graph_of(vectors, 5, np.ones((5, 3, 2), np.float32))) is None


def test_chances_are_moved_into_their_range_wherever_they_stand() -> None:
    chances = jnp.array([-1e3, 0.0, 0.25, 1.0, 7.0, np.inf, np.nan])
    moved = [0.0, 0.0, 0.25, 1.0, 1.0, 1.0, np.nan]
    with numpyro.validation_enabled(False):
        counts: Any = dist.Binomial(jnp.arange(7), probs=chances)
        inflated: Any = dist.ZeroInflatedDistribution(counts, gate=jnp.full(7, 2.0))
        wrapped: Any = with_possible_chances(inflated.mask(chances > 0).to_event(1))
        normal: Any = with_possible_chances(dist.Normal(chances, -1.0))
    found = wrapped.base_dist.base_dist
    np.testing.assert_array_equal(found.base_dist.probs, moved)
    np.testing.assert_array_equal(found.base_dist.total_count, np.arange(7))
    np.testing.assert_array_equal(found.gate, np.ones(7))
    np.testing.assert_array_equal(counts.probs, chances)
    np.testing.assert_array_equal(normal.loc, chances)


ENDLESS = """
import sys
import jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.model.synthetic.simulated_rows import RowSimulator

class Own(dist.Distribution):
    support = dist.constraints.nonnegative_integer
    arg_constraints = {"chance": dist.constraints.real}

    def __init__(self, chance, *, validate_args=None):
        self.chance = chance
        super().__init__(jnp.shape(chance), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        return dist.Binomial(9, probs=self.chance).sample(key, sample_shape)

    def log_prob(self, value):
        return dist.Binomial(9, probs=jax.nn.sigmoid(self.chance)).log_prob(value)

KINDS = {
    "Binomial": lambda chance: dist.Binomial(9, probs=chance),
    "Own": Own,
    "Hurdle": lambda chance: dist.HurdleProbs(dist.Poisson(jnp.exp(chance)), 0.3),
}

def counts(x, y):
    w = numpyro.sample("w", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", KINDS[sys.argv[1]](w * x), obs=y)

x, y = np.array([0.5, -1e3, 7.0, np.inf, np.nan], np.float32), np.ones(5, np.int32)
model = nv.private(counts, unit="rows")
simulator = RowSimulator.of(build_graph(model, bind_arguments(model, (x, y), {})))
simulator.rows_at({"x": x, "y": y}, {"w": jnp.full(5, 0.5)})
"""


@pytest.mark.parametrize("kind", ["Binomial", "Own", "Hurdle"])
def test_a_row_is_redrawn_in_the_end_whatever_it_holds(kind: str) -> None:
    """NumPyro's samplers do not come to an end by themselves: of Binomials at a
    negative chance, which a distribution of the caller's own may hand to one, and of
    hurdles where no count is positive."""
    if kind == "Hurdle" and not hasattr(dist, "HurdleProbs"):
        pytest.skip("NumPyro has it since version 0.22.")
    command = [sys.executable, "-c", ENDLESS, kind]
    subprocess.run(command, check=True, timeout=120)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "uint64", "int64", "f2"])
def test_covariates_are_the_nearest_numbers_of_their_type(dtype: str) -> None:
    """A small negative number is not the largest one of an unsigned type."""

    def model(x: Any, y: Any = None) -> None:
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    arguments = (np.zeros(5, dtype), np.zeros(5, np.float32))
    marked = nv.private(model, unit="rows")
    graph = build_graph(marked, bind_arguments(marked, arguments, {}))
    simulator = RowSimulator.of(graph)
    assert simulator is not None
    given = np.array([[-0.7], [0.4], [0.6], [300.0], [-1e6]])
    rows = simulator.rows({"slope": np.zeros(())}, 5, 0, given)
    found = np.asarray(rows["x"]).astype(np.float64)
    if dtype == "bool":
        expected = [0.0, 0.0, 1.0, 1.0, 0.0]
    elif dtype == "f2":
        np.testing.assert_allclose(found[:4], given[:4, 0], rtol=1e-3)
        return
    else:
        limits = np.iinfo(dtype)
        wanted = np.clip(np.rint(given[:, 0]), float(limits.min), float(limits.max))
        expected = wanted.tolist()
    np.testing.assert_array_equal(found, expected)
