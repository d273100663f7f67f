"""Globals without a gradient are told from those with one, and warned of."""

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of

import numpyro_vips as nv
from numpyro_vips.dpvi.compared_globals import compared_globals


@jax.custom_jvp
def straight_through(x: jax.Array) -> jax.Array:
    """Rounded, with the derivative of what is not."""
    return jnp.floor(x)


straight_through.defjvps(lambda change, _, x: change)


@pytest.mark.parametrize(
    ("density", "expected"),
    [
        (lambda a, b, x: jnp.where(x > a, b, -b) * x, ("a",)),
        (lambda a, b, x: jnp.where(x > a, b, a) * x, ()),
        (lambda a, b, x: jnp.floor(a) * b * x, ("a",)),
        (lambda a, b, x: jnp.array([1.0, 2.0])[a.astype(int)] * b * x, ("a",)),
        (lambda a, b, x: jax.lax.stop_gradient(a) * b * x, ("a",)),
        (lambda a, b, x: jnp.clip(x, a, b), ()),
        (lambda a, b, x: jnp.maximum(a, x) * jnp.abs(b), ()),
        (lambda a, b, x: jax.nn.sigmoid(x - a) * jax.jit(jnp.exp)(b), ()),
        (lambda a, b, x: straight_through(a) * b * x, ()),
        (lambda a, b, x: jax.lax.cond(x > a, lambda: b, lambda: 2.0 * b), ("a",)),
        (lambda a, b, x: jax.lax.fori_loop(0, 3, lambda _, c: c * a, b) * x, ()),
    ],
)
def test_what_has_no_derivative_is_found(density: Any, expected: tuple) -> None:
    free = {"a": jnp.asarray(0.3), "b": jnp.asarray(0.7)}
    program = jax.make_jaxpr(lambda free, x: density(free["a"], free["b"], x))(
        free, 0.5
    )
    assert compared_globals(program, free, [*free]) == expected
    # As JAX's own gradients have it, at these points.
    gradients = jax.grad(lambda free: density(free["a"], free["b"], 0.5))(free)
    assert all(gradients[name] == 0.0 for name in expected)


def change(t: Any, y: Any) -> None:
    early = numpyro.sample("early", dist.Exponential(1.0))
    late = numpyro.sample("late", dist.Exponential(1.0))
    switch = numpyro.sample("switch", dist.Uniform(0.0, 1.0))
    with numpyro.plate("years", y.shape[0]):
        rate = jnp.where(t > switch, late, early)
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def test_a_change_point_is_a_warning() -> None:
    t = np.linspace(0.0, 1.0, 200, dtype=np.float32)
    y = np.random.default_rng(0).poisson(np.where(t > 0.3, 1.0, 4.0)).astype(np.int32)
    model = nv.private(change, unit="years")
    # A norm and few steps, so that nothing is compiled but these.
    few: Any = {"num_steps": 5, "clipping_norm": 1.0, "progress_bar": False}
    vi = vi_of(model, **few)
    assert "has none in 'switch'" in str(vi.explain(t, y))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = vi.run(jax.random.key(0), t, y)
    assert any("has none in 'switch'" in str(w.message) for w in caught)
    assert any("'switch'" in text for text in result.diagnostics["warnings"])
    few.pop("clipping_norm")
    with warnings.catch_warnings(action="ignore"):
        result = fit_to(model, t, y, budget=math.inf, **few)
    assert any("'switch'" in text for text in result.diagnostics["warnings"])
