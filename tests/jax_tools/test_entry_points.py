"""Fits and results are the same whatever the caller has JAX refuse, or check."""

from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _jax_settings import CHOSEN


def model(X: Any, y: Any) -> None:
    w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


@pytest.mark.usefixtures("without_remarks")
@pytest.mark.filterwarnings("ignore:insecure_seed")
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
def test_a_fit_is_the_same_whatever_the_caller_has_jax_refuse(engine: str) -> None:
    X = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    X[0, 0] = np.nan
    y = np.arange(100, dtype=np.int32) % 2

    key = jax.random.key(0)

    def fitted() -> list[np.ndarray]:
        settings = {"num_steps": 2, "clipping_norm": 1.0, "insecure_seed": 1}
        result = vi_of(model, engine=engine, **settings).run(key, X, y)
        draws = result.sample_posterior(key, (3,))
        deviations = result.uncertainty().parts["w"].data
        bounds = result.elbo(X[1:], y[1:])
        return [np.asarray(found) for found in (draws["w"], deviations, bounds)]

    usual = fitted()
    for setting in CHOSEN.values():
        with setting():
            for found, expected in zip(fitted(), usual, strict=True):
                np.testing.assert_array_equal(found, expected)
