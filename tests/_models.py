"""Small models that several test files share.

Each entry of `MODELS` is a plain NumPyro model with the unit plate "rows", and a
function that makes a few of its rows; tests of the conjugacy layer try all of them.
Those after the table are for tests of single questions, which bring their own rows.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _rows import (
    Rows,
    clusters,
    counts,
    documents,
    letters,
    logistic_labels,
    numbers,
    rare_coins,
    regression,
    short_waits,
)

from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import ModelGraph, build_graph
from numpyro_vips.vips.compile.compiler import compile_model, interpreted
from numpyro_vips.vips.m_step.starts import start
from numpyro_vips.vips.program.expectations import expected_natural_of
from numpyro_vips.vips.program.program import ConjugateProgram

UNIT = "rows"


@dataclasses.dataclass(frozen=True)
class Model:
    """A NumPyro model and a source of rows for it."""

    fn: Callable[..., None]
    make_rows: Callable[[np.random.Generator, int], Rows]

    def rows(self, count: int = 12, seed: int = 0) -> Rows:
        return self.make_rows(np.random.default_rng(seed), count)


MODELS: dict[str, Model] = {}


def model(make_rows: Callable[[np.random.Generator, int], Rows]) -> Any:
    """Adds a model to the table under its own name."""

    def register(fn: Callable[..., None]) -> Callable[..., None]:
        MODELS[fn.__name__] = Model(fn, make_rows)
        return fn

    return register


def graph_of(fn: Callable[..., None], rows: Rows) -> tuple[private, ModelGraph]:
    marked = private(fn, unit=UNIT)
    return marked, build_graph(marked, bind_arguments(marked, rows, {}))


def compiled(fn: Callable[..., None], rows: Rows, **options: Any) -> ConjugateProgram:
    """The certified program of a model."""
    marked, graph = graph_of(fn, rows)
    return compile_model(marked, graph, **options)


def uncertified(fn: Callable[..., None], rows: Rows) -> ConjugateProgram:
    """The program without its certificate, for tests that check it themselves."""
    _, graph = graph_of(fn, rows)
    return interpreted(graph)


# --- the models -------------------------------------------------------------------


@model(rare_coins)
def beta_bernoulli(y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.5, 2.0))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


@model(letters)
def dirichlet_categorical(y: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.array([0.5, 1.0, 2.0, 0.7])))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample("y", dist.Categorical(theta), obs=y)


@model(numbers)
def gaussian_mean(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.3, 2.0))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 0.7), obs=y)


@model(numbers)
def gaussian_mean_precision(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.5, 3.0))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.5))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1 / jnp.sqrt(tau)), obs=y)


@model(counts)
def gamma_poisson(y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


@model(short_waits)
def gamma_exponential(y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample("y", dist.Exponential(rate), obs=y)


@model(regression)
def linear_regression(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([X.shape[1]]).to_event(1))
    b = numpyro.sample("b", dist.Normal(1.0, 3.0))
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w + b, 0.5), obs=y)


@model(
    lambda rng, n: (
        *(rows := regression(rng, n)),
        100.0 + rng.normal(size=len(rows[1])),
    )
)
def regression_with_offset(X: Any, y: Any, offset: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w + offset, 0.5), obs=y)


@model(regression)
def regression_ard(X: Any, y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(1.5, 1.0))
    with numpyro.plate("feature", X.shape[1]):
        alpha = numpyro.sample("alpha", dist.Gamma(1.2, 0.8))
        w = numpyro.sample("w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)))
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, jnp.sqrt(1 / tau)), obs=y)


@model(logistic_labels)
def logistic_fixed(X: Any, y: Any) -> None:
    with numpyro.plate("feature", X.shape[1]):
        w = numpyro.sample("w", dist.Normal(0.0, 2.0))
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


@model(logistic_labels)
def logistic_gamma(X: Any, y: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Gamma(1.2, 0.8))
    with numpyro.plate("feature", X.shape[1]):
        w = numpyro.sample("w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)))
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


@model(logistic_labels)
def logistic_intercept(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([X.shape[1]]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w + b), obs=y)


@model(lambda rng, n: (*logistic_labels(rng, n), rng.integers(0, 4, n)))
def logistic_groups(X: Any, y: Any, group: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
    with numpyro.plate("groups", 4):
        a = numpyro.sample("a", dist.Normal(mean, 1 / jnp.sqrt(tau)))
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a[group] + X @ w), obs=y)


@model(clusters)
def mixture(x: Any) -> None:
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("components", 3):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, x.shape[0]):
        z = numpyro.sample("z", dist.Categorical(weights))
        scale = 1 / jnp.sqrt(tau[z])
        numpyro.sample("x", dist.Normal(mu[z], scale).to_event(1), obs=x)


@model(lambda rng, n: (rng.normal(size=(n, 4)),))
def factor_analysis(x: Any) -> None:
    with numpyro.plate("axes", 4):
        loadings = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
    with numpyro.plate(UNIT, x.shape[0]):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        noise = dist.Normal(u @ loadings.T, 1 / jnp.sqrt(tau))
        numpyro.sample("x", noise.to_event(1), obs=x)


@model(documents)
def topics(words: Any) -> None:
    with numpyro.plate("topics", 3):
        beta = numpyro.sample("beta", dist.Dirichlet(0.3 * jnp.ones(6)))
    with numpyro.plate(UNIT, words.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(0.5 * jnp.ones(3)))
        with numpyro.plate("words", words.shape[1], dim=-1):
            z = numpyro.sample("z", dist.Categorical(theta))
            numpyro.sample("w", dist.Categorical(beta[z]), obs=words)


# --- models that are no entries ---------------------------------------------------


def logistic(X: Any, y: Any = None) -> None:
    prior = dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1)
    w: Any = numpyro.sample("w", prior)
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def logistic_of_patients(X: Any, y: Any = None) -> None:
    """The same, with a unit that can be told from a word of the library's own."""
    prior = dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1)
    w: Any = numpyro.sample("w", prior)
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def probit_of_patients(X: Any, y: Any = None) -> None:
    prior = dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1)
    w: Any = numpyro.sample("w", prior)
    probabilities = jax.scipy.stats.norm.cdf(X @ w)
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(probs=probabilities), obs=y)


def means(y: Any) -> None:
    a: Any = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)


def rates(y: Any) -> None:
    rate: Any = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def standard_regression(X: Any, y: Any = None) -> None:
    with numpyro.plate("feature", X.shape[1]):
        w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, 0.7), obs=y)


def three_locals(y: Any = None) -> None:
    """Latents of rows that no engine takes: one or two would be integrated out."""
    m: Any = numpyro.sample("m", dist.Normal(0, 1))
    with numpyro.plate("people", y.shape[0]):
        z: Any = numpyro.sample("z", dist.Normal(m, 1).expand([3]).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.tanh(z).sum(-1), 1), obs=y)


# --- globals that are not their priors' -------------------------------------------


def away_from_prior(
    program: ConjugateProgram,
) -> tuple[dict[str, jax.Array], dict[str, float]]:
    """n̄ where no moment of the globals is zero, and a scale for each released block."""

    @jax.jit
    def expected_natural(key: jax.Array) -> dict[str, jax.Array]:
        moments = start(program, key).moments
        moments = jax.tree.map(lambda m: m + 0.3 * jnp.abs(m) + 0.1, moments)
        return expected_natural_of(program.structure, moments)

    scales = {
        statistic.name: 0.5 + 0.4 * number
        for number, statistic in enumerate(program.structure.statistics)
        if statistic.release != "public"
    }
    return expected_natural(jax.random.key(1)), scales
