"""Densities of several rows together: what a refusal advises is right."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to

import numpyro_vips as nv

RNG = np.random.default_rng(0)
X = RNG.normal(size=80)
Y = 0.5 + 0.8 * X + 0.3 * RNG.normal(size=80)


def fit(fn: Callable[..., None]) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return fit_to(fn, X, Y, budget=math.inf)


def in_plates(first: str) -> Callable[..., None]:
    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate(first, x.shape[0]):
            numpyro.sample("one", dist.Normal(w[0] + w[1] * x, scale), obs=y)
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("two", dist.Normal(w[0], 2.0), obs=y)

    return model


@pytest.mark.thorough
def test_two_plates_of_rows_are_to_be_one():
    with pytest.raises(nv.UnsafeModelError, match=r"plate 'again'.*under 'rows'"):
        fit(in_plates("again"))
    assert fit(in_plates("rows")).engine == "vips"


def with_kernel(x: Any, y: Any) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    kernel = jnp.exp(-0.5 * (x[:, None] - x) ** 2)
    covariance = kernel + scale**2 * jnp.eye(len(x))
    with numpyro.plate("rows", len(x)):
        pass
    numpyro.sample("y", dist.MultivariateNormal(0.0, covariance), obs=y)


def on_a_basis(x: Any, y: Any) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    basis = jnp.exp(-0.5 * (x[:, None] - jnp.linspace(-2.0, 2.0, 5)) ** 2)
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(basis @ weights, scale), obs=y)


@pytest.mark.thorough
def test_a_process_over_rows_is_to_be_a_regression_on_a_basis():
    with pytest.raises(nv.UnsafeModelError, match=r"all rows together.*basis"):
        fit(with_kernel)
    draws = fit(on_a_basis).sample_posterior(jax.random.key(1), sample_shape=(500,))
    assert abs(np.mean(draws["scale"]) - 0.3) < 0.1


# --- discrete latents with states from zero to a public number ------------------------


def states(high: Any) -> Callable[..., None]:
    def model(x: Any, y: Any) -> None:
        del x
        locs = jnp.array([-4.0, 0.0, 4.0])
        shift = numpyro.sample("shift", dist.Normal(0.0, 3.0))
        with numpyro.plate("rows", len(y)):
            z = numpyro.sample("z", dist.DiscreteUniform(0, high))
            numpyro.sample("y", dist.Normal(locs[z] + shift, 1.0), obs=y)

    return model


@pytest.mark.thorough
def test_states_that_are_counted_from_zero(coordinate_ascent: None):
    def summed(x: Any, y: Any) -> None:
        del x
        shift = numpyro.sample("shift", dist.Normal(0.0, 3.0))
        components = dist.Normal(jnp.array([-4.0, 0.0, 4.0]) + shift, 1.0)
        with numpyro.plate("rows", len(y)):
            numpyro.sample(
                "y",
                dist.MixtureSameFamily(dist.Categorical(jnp.ones(3) / 3), components),
                obs=y,
            )

    one, other = fit(states(2)), fit(summed)
    assert one.engine == other.engine == "vips"
    for name, value in one.params.items():
        np.testing.assert_allclose(value, other.params[name], rtol=1e-3)


def test_states_that_are_not_known_are_named():
    with pytest.raises(nv.UnsafeModelError, match="which states 'z'"):
        fit(states(jnp.array(2)))
