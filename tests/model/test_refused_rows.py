"""Why rows act on each other, in models that are refused."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.vips.compile.certificate import check_rows_are_separate

RNG = np.random.default_rng(0)
X, Y = np.ones((7, 3), np.float32), np.ones(7, np.float32)


def regression(mean):
    def model(X, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3, 1]).to_event(2))
        b = numpyro.param("b", 0.5)
        with numpyro.plate("rows", y.shape[0]):
            u = numpyro.sample("u", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(u + mean(X, w, b), 1.0), obs=y)

    return model


def cox(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        risk = X @ w
        sooner = y[:, None] <= y
        total = jnp.where(sooner, jnp.exp(risk), 0.0).sum(-1)
        numpyro.factor("partial", risk - jnp.log(total))


def own_draws(X, w, b):
    return (X @ w)[:, 0] + RNG.normal()


def refusal(model) -> str:
    marked = nv.private(model, unit="rows")
    graph = build_graph(marked, bind_arguments(marked, (X, Y), {}))
    with pytest.raises(nv.UnsafeModelError) as caught:
        check_rows_are_separate(graph)
    text = str(caught.value)
    assert text.startswith("The rows act on each other: ")
    return text


def test_a_partial_likelihood_is_refused_with_its_line_and_what_to_take() -> None:
    text = refusal(cox)
    assert "of test_refused_rows.py, `sooner = y[:, None] <= y`" in text
    assert "every row with every other" in text
    assert "Cox's partial likelihood" in text
    assert "constant between public times" in text


def test_a_column_of_parameters_is_refused_with_both_shapes() -> None:
    text = refusal(regression(lambda X, w, b: X @ w + b))
    assert "the value of 'y' has shape (N,) and its distribution (N, N)" in text
    text = refusal(lambda X, y: regression(lambda X, w, b: X[:, :1])(X, y))
    assert "every value meets the parameters of every row. Make both (N,)" in text


def test_a_mean_is_told_with_its_line() -> None:
    text = refusal(regression(lambda X, w, b: ((X - X.mean(0)) @ w)[:, 0]))
    assert "`text = refusal(regression(lambda X, w, b: ((X - X.mean(0)) @ w)" in text
    assert "Put a public number in the place" in text


def test_numbers_that_differ_from_run_to_run_are_told() -> None:
    text = refusal(regression(own_draws))
    assert "random numbers of NumPy" in text and "public=" in text
