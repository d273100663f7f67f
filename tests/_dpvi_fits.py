"""Models that DPVI fits, their rows, and its steps without noise."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

from numpyro_vips.dpvi.guides.posteriors import NormalPosterior
from numpyro_vips.handlers import private

KEY = jax.random.key(0)


@private(unit="people")
def logistic(X: Any, y: Any = None):
    alpha: Any = numpyro.sample("alpha", dist.Gamma(2.0, 2.0))
    with numpyro.plate("feature", X.shape[1]):
        w: Any = numpyro.sample("w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


@private(unit="people")
def probit(X: Any, y: Any = None):
    w: Any = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("people", X.shape[0]):
        probs = jax.scipy.stats.norm.cdf(X @ w)
        numpyro.sample("y", dist.Bernoulli(probs), obs=y)


@private(unit="people")
def network(X: Any, y: Any = None, hidden=4):
    width = X.shape[1]
    inner = dist.Normal(0.0, 2.0).expand([width, hidden]).to_event(2)
    first: Any = numpyro.sample("first", inner)
    bias: Any = numpyro.sample("bias", dist.Normal(0, 1).expand([hidden]).to_event(1))
    second: Any = numpyro.sample(
        "second", dist.Normal(0, 2).expand([hidden]).to_event(1)
    )
    noise: Any = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("people", X.shape[0]):
        mean = jnp.tanh(X @ first + bias) @ second
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)


@private(unit="people")
def regression(X: Any, y: Any = None):
    """With constrained globals and a transformed prior."""
    w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    noise: Any = numpyro.sample("noise", dist.LogNormal(-0.5, 0.5))
    mix: Any = numpyro.sample("mix", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("people", X.shape[0]):
        mean = X @ w + mix @ jnp.array([-1.0, 0.0, 1.0])
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)


@private(unit="people")
def visits(group: Any, y: Any = None):
    with numpyro.plate("group", 5):
        rate: Any = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("people", group.shape[0]):
        numpyro.sample("y", dist.Poisson(rate[group]), obs=y)


@private(unit="people")
def ordered(y: Any):
    """With a factor of the globals, which touches no row."""
    means: Any = numpyro.sample("means", dist.Normal(0, 3).expand([2]).to_event(1))
    numpyro.factor("order", jax.nn.log_sigmoid(4.0 * (means[1] - means[0])))
    with numpyro.plate("people", y.shape[0]):
        parts = dist.MixtureSameFamily(
            dist.Categorical(jnp.array([0.3, 0.7])), dist.Normal(means, 1.0)
        )
        numpyro.sample("y", parts, obs=y)


def binary_data(num_rows=200, width=3, seed=0, link=stats.logistic.cdf):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, width)).astype(np.float32)
    w = np.linspace(-1.0, 1.5, width)
    y = (rng.random(num_rows) < link(X @ w)).astype(np.float32)
    return X, y


def full_sum(
    engine,
    state,
    rows,
    mask=None,
    *,
    scales=None,
    clipping_norm=math.inf,
    row_keys=None,
):
    count = len(next(iter(rows.values())))
    sums = engine.bounded_sum(
        state,
        rows,
        np.ones(count, bool) if mask is None else mask,
        scales=scales or {block.name: 1.0 for block in engine.blocks("adaptive")},
        clipping_norm=clipping_norm,
        row_keys=row_keys,
    )
    return jax.block_until_ready(sums)  # Tests change the rows afterwards.


def joint(sums, scales=None):
    scales = scales or dict.fromkeys(sums, 1.0)
    parts = [scales[name] * np.asarray(sums[name], float) for name in sorted(sums)]
    return np.concatenate(parts)


def fit(engine, rows, num_steps, key=KEY, step_size=1.0):
    state = engine.initial_state(key)
    no_noise = {block.name: 0.0 for block in engine.blocks("adaptive")}
    for _ in range(num_steps):
        state = engine.update(state, full_sum(engine, state, rows), no_noise, step_size)
    posterior = engine.posterior(state)
    assert isinstance(posterior, NormalPosterior)
    return posterior
