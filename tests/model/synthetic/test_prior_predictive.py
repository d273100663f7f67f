"""Rows drawn from a model: valid by NumPyro's own density, and made of shapes alone."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import UNIT, graph_of
from numpyro.infer.util import log_density

from numpyro_vips.model.synthetic.prior_predictive import NoValidRows, rows_from_model

Rows = tuple[np.ndarray, ...]
ROWS: dict[str, Rows] = {}
MODELS: dict[str, Callable[..., None]] = {}


def model(*rows: np.ndarray) -> Any:
    def register(fn: Callable[..., None]) -> Callable[..., None]:
        MODELS[fn.__name__], ROWS[fn.__name__] = fn, rows
        return fn

    return register


INTEGERS = np.full(6, 3, np.int32)
REALS = np.full(6, 0.5, np.float32)


@model(INTEGERS, INTEGERS)
def binomial_with_totals(totals: Any, y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate(UNIT, len(y)):
        numpyro.sample("y", dist.Binomial(totals, p), obs=y)


@model(REALS, REALS)
def binomial_with_real_totals(totals: Any, y: Any) -> None:
    binomial_with_totals(totals, y)


@model(INTEGERS, INTEGERS)
def beta_binomial(totals: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Gamma(1.0, 1.0))
    with numpyro.plate(UNIT, len(y)):
        numpyro.sample("y", dist.BetaBinomial(a, 2.0, totals), obs=y)


@model(INTEGERS, np.full((6, 4), 1, np.int32))
def multinomial_with_totals(totals: Any, counts: Any) -> None:
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate(UNIT, len(totals)):
        numpyro.sample("y", dist.Multinomial(totals, p), obs=counts)


@model(INTEGERS, INTEGERS)
def integer_standard_errors(errors: Any, y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    with numpyro.plate(UNIT, len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(theta, errors), obs=y)


@model(INTEGERS, INTEGERS)
def integer_exposures(exposure: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, len(y)):
        numpyro.sample("y", dist.Poisson(jnp.exp(w + jnp.log(exposure))), obs=y)


@model(INTEGERS, INTEGERS, INTEGERS)
def few_groups_and_totals(group: Any, totals: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, len(y)):
        numpyro.sample("y", dist.Binomial(totals - 1, logits=w[group]), obs=y)


@model(REALS, INTEGERS)
def censored(time: Any, is_censored: Any) -> None:
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    with (
        numpyro.plate(UNIT, len(time)),
        numpyro.handlers.mask(mask=is_censored == 0),
    ):
        numpyro.sample("time", dist.Pareto(2.0, shape), obs=time)


@model(np.full((6, 3), 2, np.uint8))
def a_column_at_a_time(marks: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate(UNIT, marks.shape[0]):
        for column in range(3):
            y = marks[:, 2 - column].astype(jnp.float32)
            numpyro.sample(f"y{column}", dist.Geometric(p), obs=y)


@model(np.full((6, 3), 0.5, np.float32), np.full((6, 2, 2), 0.5, np.float32))
def on_a_simplex(y: Any, covariance: Any) -> None:
    a = numpyro.sample("a", dist.Gamma(1.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample("y", dist.Dirichlet(a), obs=y)
        numpyro.sample("s", dist.Wishart(4.0, jnp.eye(2)), obs=covariance)


@model(INTEGERS)
def latent_of_the_row(y: Any) -> None:
    """A count above zero contradicts a state of zero."""
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate(UNIT, len(y)):
        z = numpyro.sample("z", dist.Bernoulli(p), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Binomial(4, probs=z * p), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_drawn_rows_are_valid(name: str) -> None:
    """By NumPyro's log density of the whole model, on each row by itself."""
    marked, graph = graph_of(MODELS[name], ROWS[name])
    rows, latents = rows_from_model(graph, 12, seed=0)
    names = list(graph.arguments.private)
    for number in range(12):
        mine = {
            key: value
            if graph.sites[key].row_axis is None
            else np.take(value, [number], graph.sites[key].row_axis)
            for key, value in latents.items()
        }
        row = tuple(jnp.asarray(rows[n][number : number + 1]) for n in names)
        assert np.isfinite(log_density(marked.fn, row, {}, mine)[0])
    for key, like in zip(names, ROWS[name], strict=True):
        assert rows[key].dtype == like.dtype
        assert rows[key].shape == (12, *like.shape[1:])


@pytest.mark.parametrize("name", ["binomial_with_totals", "few_groups_and_totals"])
def test_observations_and_indices_lie_in_range(name: str) -> None:
    _, graph = graph_of(MODELS[name], ROWS[name])
    rows, _ = rows_from_model(graph, 40, seed=1)
    assert (rows["y"] <= rows["totals"]).all()
    assert rows.get("group", np.zeros(1)).max() < 2
    assert len(np.unique(rows["y"])) > 1


def test_the_private_rows_are_not_read() -> None:
    fn = multinomial_with_totals
    rng = np.random.default_rng(0)
    found = [
        rows_from_model(graph_of(fn, rows)[1], 8, seed=0)
        for rows in (
            ROWS[fn.__name__],
            tuple(rng.integers(-9, 99, a.shape, a.dtype) for a in ROWS[fn.__name__]),
        )
    ]
    for one, other in zip(*found, strict=True):
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name])


def test_what_cannot_be_satisfied_is_named() -> None:
    def model(offset: Any, y: Any) -> None:
        low = numpyro.sample("low", dist.Gamma(1.0, 1.0))
        with numpyro.plate(UNIT, len(y)):
            numpyro.sample("x", dist.Normal(low, 1.0), obs=offset)
            numpyro.sample("y", dist.Uniform(100.0, 100 + low), obs=jnp.log(y))

    _, graph = graph_of(model, (REALS, INTEGERS))
    with pytest.raises(
        NoValidRows, match=r"'y' \(Uniform; .*arguments 'y'\)"
    ) as caught:
        rows_from_model(graph, 3, seed=0)
    assert "'x'" not in str(caught.value)
