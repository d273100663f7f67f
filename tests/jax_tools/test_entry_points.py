"""Fits and results are the same whatever the caller has JAX refuse, or check."""

from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _jax_settings import CHOSEN

from numpyro_vips import PrivacyBudget


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


@pytest.mark.parametrize("kind", ["nan", "divide", "oob"])
def test_settings_under_which_jax_maps_nothing_are_refused(kind: str) -> None:
    vi = vi_of(model, budget=PrivacyBudget(1.0, 1e-5))
    name = f"jax_error_checking_behavior_{kind}"
    jax.config.update(name, "raise")
    try:
        with pytest.raises(RuntimeError, match=f'update."{name}", "ignore"'):
            vi.run(jax.random.key(0), np.ones((9, 2), np.float32), np.ones(9, np.int32))
    finally:
        jax.config.update(name, "ignore")
    assert vi.budget.remaining().epsilon == 1.0
