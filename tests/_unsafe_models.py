"""Models that mix rows, which no engine may run."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from _cases import Cases, normals, observe, weights_of
from _rows import grouped, linear, numbers

CASES = Cases()
unsafe = CASES.of


@unsafe(linear)
def centred_by_the_batch(X: Any, y: Any) -> None:
    observe(dist.Normal((X - X.mean(0)) @ weights_of(X), 0.5), y)


@unsafe(grouped)
def ranked_rows(x: Any, y: Any, g: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    observe(dist.Normal(b * jnp.argsort(jnp.argsort(x)), 0.5), y)


@unsafe(numbers)
def prior_from_the_rows(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, y.std()))
    observe(dist.Normal(mu, 0.5), y)


@unsafe(numbers)
def total_of_the_rows(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("total", dist.Normal(mu, 1.0), obs=y.sum())
    observe(dist.Normal(mu, 0.5), y)


@unsafe(linear)
def batch_norm(X: Any, y: Any) -> None:
    X = (X - X.mean(0)) / X.std(0)
    observe(dist.Normal(X @ normals("w", 3), 0.5), y)


@unsafe(numbers)
def running_total(y: Any) -> None:
    observe(dist.Normal(normals("w") * jnp.cumsum(y), 0.5), y)


@unsafe(numbers)
def row_before(y: Any) -> None:
    before = jnp.concatenate([jnp.zeros(1), y[:-1]])
    observe(dist.Normal(normals("w") * before, 0.5), y)


@unsafe(numbers)
def rows_reversed(y: Any) -> None:
    observe(dist.Normal(normals("w") * y[::-1], 0.5), y)


@unsafe(numbers)
def prior_from_the_number_of_rows(y: Any) -> None:
    observe(dist.Normal(normals("w", scale=len(y) ** -0.5), 0.5), y)


@unsafe(grouped)
def means_of_groups(x: Any, y: Any, g: Any) -> None:
    totals, sizes = (jax.ops.segment_sum(v, g, 4) for v in (x, jnp.ones_like(x)))
    means = totals / jnp.maximum(sizes, 1.0)
    observe(dist.Normal(normals("w") * means[g], 0.5), y)


@unsafe(numbers)
def every_pair(y: Any) -> None:
    distances = jnp.abs(y[:, None] - y).sum(1)
    observe(dist.Normal(normals("w") * distances, 0.5), y)


@unsafe(numbers)
def delta_with_a_density(y: Any) -> None:
    mu = normals("mu")
    same = numpyro.sample("same", dist.Delta(mu, log_density=-(mu**2)))
    observe(dist.Normal(same, 0.5), y)
