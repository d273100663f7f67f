"""The engine and the default clipping norms follow from the model, not from types."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_vips as nv
from numpyro_vips.fitting.prepare import prepare_fit
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.privacy.sampling import FullBatch

OPTIONS = ScheduleOptions(sampling=FullBatch(), num_steps=3)


def prepared(fn: Callable[..., None], *rows: np.ndarray) -> Any:
    model = nv.private(fn, unit="rows")
    return prepare_fit(model, bind_arguments(model, rows, {}), "auto", OPTIONS, None)


def default_norm(fn: Callable[..., None], *rows: np.ndarray) -> float:
    """Where the grid of the histogram of norms has an edge."""
    return max(part.reference for part in prepared(fn, *rows).parts)


def schools(errors: Any, y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, 1 / jnp.sqrt(tau)))
        numpyro.sample("y", dist.Normal(theta, errors), obs=y)


def proportions(totals: Any, y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Binomial(totals, p), obs=y)


def seeds(totals: Any, y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = numpyro.sample("tau", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        b = numpyro.sample("b", dist.Normal(mu, 1 / jnp.sqrt(tau)))
        numpyro.sample("y", dist.Binomial(totals, logits=b), obs=y)


def exposures(exposure: Any, y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Poisson(rate * exposure), obs=y)


@pytest.mark.quick_with("proportions-uint8")
@pytest.mark.parametrize(
    "dtype", [pytest.param(np.int32, marks=pytest.mark.slow), np.uint8, np.float32]
)
@pytest.mark.parametrize("fn", [schools, proportions, seeds, exposures])
def test_the_engine_does_not_depend_on_the_type_of_an_argument(
    fn: Callable[..., None], dtype: Any
) -> None:
    fit = prepared(fn, np.full(9, 7, dtype), np.full(9, 2, np.int32))
    assert fit.engine.name == "vips", fit.choice.reasons
    assert all(math.isfinite(part.reference) for part in fit.parts)


@pytest.mark.thorough
def test_a_gradient_of_zero_at_the_first_start_is_no_obstacle() -> None:
    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        v = numpyro.sample("v", dist.Normal(0.0, 1.0))
        w, v = jnp.clip(w, 0.0, 1.0), jnp.clip(v, 0.0, 1.0)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(jnp.tanh(w * v) * x, 1.0), obs=y)

    y = np.zeros(9, np.float32)
    assert 0 < default_norm(model, y, y) < 10


def test_heavy_tails_do_not_set_the_norm() -> None:
    """Draws of a Pareto of exponent 1/3 are beyond 1e6."""

    def model(y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Pareto(2.0, jnp.exp(w - 1) + w**2), obs=y)

    assert 0.01 < default_norm(model, np.full(9, 3.0, np.float32)) < 30


def test_an_observation_that_cannot_be_made_is_named() -> None:
    def model(y: Any) -> None:
        low = numpyro.sample("low", dist.Gamma(1.0, 1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Uniform(100.0, 100 + low), obs=jnp.log(y))

    with pytest.raises(ValueError, match=r"'y' \(Uniform;.*clipping_norm="):
        prepared(model, np.full(9, 3.0, np.float32))
