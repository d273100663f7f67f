"""Which products of globals rows release."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of

SIZE = 6
ROWS = 300


def plan_of(model: Any, *rows: np.ndarray) -> dict[str, tuple[int, ...]]:
    """The shape of each statistic that rows release."""
    statistics = vi_of(model, engine="vips").explain(*rows).statistics
    return {found["statistic"]: tuple(found["shape"]) for found in statistics}


def arguments(*, groups: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    found: list[Any] = [rng.integers(0, SIZE, ROWS) for _ in range(groups)]
    return [*found, *rng.normal(size=(2, ROWS)).astype(np.float32)]


def slopes(group, x, y=None):
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("groups", SIZE):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(a[group] + b[group] * x, noise), obs=y)


def own_noise(group, x, y=None):
    with numpyro.plate("groups", SIZE):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(a[group], noise[group]), obs=y)


def other_noise(group, other, x, y=None):
    with numpyro.plate("groups", SIZE):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(a[group], noise[other]), obs=y)


def next_noise(group, x, y=None):
    with numpyro.plate("groups", SIZE):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(a[group], noise[(group + 1) % SIZE]), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize("model", [slopes, own_noise])
def test_effects_of_one_group_have_products_in_their_own_group_alone(model):
    shapes = plan_of(model, *arguments(groups=1))
    assert all(len(shape) <= 1 for shape in shapes.values()), shapes
    assert (SIZE,) in shapes.values()


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "groups"), [(other_noise, 2), (next_noise, 1)])
def test_effects_of_two_groups_have_products_in_all_pairs(model, groups):
    shapes = plan_of(model, *arguments(groups=groups))
    assert shapes["⟨a⟩⟨noise^-2⟩"] == (SIZE, SIZE)


@pytest.mark.thorough
def test_the_fit_of_two_columns_by_one_index_is_that_of_the_groups():
    """Without noise, against least squares in each group by itself."""
    rng = np.random.default_rng(1)
    group, x = rng.integers(0, SIZE, 2000), rng.normal(size=2000).astype(np.float32)
    a, b = rng.normal(size=(2, SIZE))
    y = (a[group] + b[group] * x + 0.1 * rng.normal(size=2000)).astype(np.float32)
    draws = fit_to(slopes, group, x, y, budget=math.inf).sample_posterior(
        jax.random.key(1), sample_shape=(2000,)
    )
    for number in range(SIZE):
        mine = group == number
        slope, intercept = np.polyfit(x[mine], y[mine], 1)
        found = [float(jnp.mean(draws[name][:, number])) for name in ("a", "b")]
        np.testing.assert_allclose(found, [intercept, slope], atol=0.01)
