"""Captured arrays of 64 bits, which a model needs in both precisions."""

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

from numpyro_vips.model.references.wide_arrays import with_fresh_arrays

POSITIONS = np.array([0, 1, 1], np.int64)


def of_globals(y: Any) -> None:
    theta = numpyro.sample("theta", dist.Beta(1.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        seen = dist.Bernoulli(theta[POSITIONS]).expand([y.shape[0], 3])
        numpyro.sample("y", seen.to_event(1), obs=y)


def of_a_closure() -> Callable[..., None]:
    positions = POSITIONS.copy()

    def model(y: Any) -> None:
        def chances(theta: Any) -> Any:
            return theta[positions]

        theta = numpyro.sample("theta", dist.Beta(1.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            seen = dist.Bernoulli(chances(theta)).expand([y.shape[0], 3])
            numpyro.sample("y", seen.to_event(1), obs=y)

    return model


@pytest.mark.quick_with("model-vips")
@pytest.mark.parametrize(
    ("model", "engine"),
    [(of_globals, "vips"), (of_globals, "dpvi"), (of_a_closure(), "vips")],
)
def test_a_captured_index_runs(model: Callable[..., None], engine: str) -> None:
    y = (np.random.default_rng(0).uniform(size=(200, 3)) < [0.2, 0.7, 0.7]).astype(int)
    with warnings.catch_warnings(action="ignore"):
        result = fit_to(model, y, budget=math.inf, engine=engine)
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(500,))["theta"]
    expected = [(1 + y[:, 0].sum()) / 202, (1 + y[:, 1:].sum()) / 402]
    np.testing.assert_allclose(np.mean(draws, axis=0), expected, atol=0.02)


def test_single_precision_takes_the_function_as_it_is() -> None:
    assert with_fresh_arrays(of_globals) is of_globals


@pytest.mark.usefixtures("x64")
def test_only_what_is_wide_is_copied() -> None:
    wide, narrow, default = np.ones(3), np.arange(3, dtype=np.int32), np.arange(2)

    def function(x: int = 1, *, y: Any = default) -> Any:
        return x, y, wide, narrow, POSITIONS

    fresh = with_fresh_arrays(function)
    *rest, one, other, of_module = fresh()
    assert rest == [1, default]
    assert one is not wide and (one == wide).all()
    assert other is narrow
    assert of_module is not POSITIONS and (of_module == POSITIONS).all()
    assert function()[2] is wide
    assert with_fresh_arrays(jnp.sum) is jnp.sum
