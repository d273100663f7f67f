"""Conjugate models in programs with values that are no latents, loops and masks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from _cases import Cases, gammas, normals, observe, simplices, wide_normals
from _models import UNIT
from _rows import feature_and_count, letters, linear, numbers, points
from numpyro.handlers import mask

CASES = Cases()
conjugate, observed = CASES.of, CASES.observed


# --- values that are no latents -------------------------------------------------------


@conjugate(linear)
def delta_of_all_weights(X: Any, y: Any) -> None:
    w = normals("w", 3)
    doubled = numpyro.sample("doubled", dist.Delta(2.0 * w, event_dim=1))
    observe(dist.Normal(X @ doubled, 0.5), y)


@conjugate(linear)
def delta_in_a_plate(X: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("feature", 3):
        same = numpyro.sample("same", dist.Delta(a))
    observe(dist.Normal(X @ same, 0.5), y)


@conjugate(linear)
def delta_of_the_row(X: Any, y: Any) -> None:
    w = normals("w", 3)
    with numpyro.plate(UNIT, X.shape[0]):
        mean = numpyro.sample("mean", dist.Delta(X @ w))
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


@conjugate(letters)
def delta_of_a_state(y: Any) -> None:
    theta = simplices("theta", 2, 4)
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        other = numpyro.sample("other", dist.Delta(1 - z))
        numpyro.sample("y", dist.Categorical(theta[other]), obs=y)


@conjugate(linear)
def deterministic_everywhere(X: Any, y: Any) -> None:
    w = numpyro.deterministic("w", 2.0 * normals("half", 3))
    with numpyro.plate(UNIT, X.shape[0]):
        mean = numpyro.deterministic("mean", X @ w)
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


@conjugate(numbers)
def improper_mean(y: Any) -> None:
    flat = dist.ImproperUniform(dist.constraints.real, (), ())
    observe(dist.Normal(numpyro.sample("mu", flat), 0.5), y)


@conjugate(numbers)
def improper_scale(y: Any) -> None:
    flat = dist.ImproperUniform(dist.constraints.positive, (), ())
    observe(dist.Normal(0.0, numpyro.sample("sd", flat)), y)


# --- loops, and masks on several levels -----------------------------------------------


def _summed(X: Any, y: Any) -> Any:
    w = wide_normals("w", 3)

    def add(j: Any, total: Any) -> Any:
        return total + jnp.asarray(X)[:, j] * w[j]

    return dist.Normal(jax.lax.fori_loop(0, 3, add, jnp.zeros(X.shape[0])), 0.5)


def _branch(g: Any, y: Any) -> Any:
    a = wide_normals("a", 2)

    def of_row(i: Any) -> Any:
        return jax.lax.cond(i == 0, lambda: a[0], lambda: -a[1])

    return dist.Normal(jax.vmap(of_row)(g), 0.5)


def _walk(y: Any) -> Any:
    steps = wide_normals("steps", 3)
    path = jax.lax.scan(lambda at, step: (at + step, at + step), 0.0, steps)[1]
    return dist.Normal(path, 0.5).to_event(1)


for _name, _rows, _density in (
    ("fori_loop", linear, _summed),
    ("scan of a walk", points, _walk),
    (
        "polyval",
        feature_and_count,
        lambda x, y: dist.Normal(jnp.polyval(wide_normals("w", 3), x), 0.5),
    ),
    ("branches by data", lambda r, n: (r.integers(0, 2, n), r.normal(size=n)), _branch),
    (
        "mask inside to_event",
        points,
        lambda y: dist.Normal(wide_normals("mu", 3), 0.5).mask(y > 0).to_event(1),
    ),
    (
        "mask of several entries with constants",
        points,
        lambda y: (
            dist.Normal(wide_normals("mu", 3), gammas("t") ** -0.5)
            .mask(jnp.cumsum(y, -1) > 0)
            .to_event(1)
        ),
    ),
):
    observed(_name, _rows, _density)


@conjugate(points)
def mask_around_an_event_of_the_same_length(y: Any) -> None:
    mu = wide_normals("mu", 3)
    y = jnp.stack([y, 2 * y, -y], 1)
    with (
        numpyro.plate(UNIT, y.shape[0], dim=-2),
        numpyro.plate("repeats", 3, dim=-1),
        mask(mask=y[:, :, 0] > 0),
    ):
        numpyro.sample("y", dist.Normal(mu, 0.5).to_event(1), obs=y)
