"""Rows that the model draws in the place of others."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import new_engine
from scipy import stats

import numpyro_vips as nv
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.dpvi.gradients.redrawn_rows import redrawing

COUNT = 4000
X = np.linspace(-1.0, 1.0, COUNT).astype(np.float32)


def durations(x: Any, y: Any) -> None:
    """Whose rate is in units of its own, see `dpvi.compiler`."""
    slope = numpyro.sample("slope", dist.Normal(50.0, 10.0))
    shape: Any = numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        scale = jnp.exp(jnp.asarray(slope) * x / 50.0)
        numpyro.sample("y", dist.Weibull(scale, shape), obs=y)


def effects(x: Any, y: Any) -> None:
    """With a latent of each row, and counts."""
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    spread: Any = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("rows", x.shape[0]):
        effect: Any = numpyro.sample("effect", dist.Normal(level, spread))
        numpyro.sample("y", dist.Poisson(jnp.exp(effect + x)), obs=y)


class WithoutSampler(dist.Normal):
    def sample(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def not_drawn(x: Any, y: Any) -> None:
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", WithoutSampler(level + x, 1.0), obs=y)


def engine_of(fn: Any, *rows: np.ndarray, **settings: Any) -> DpviEngine:
    return new_engine(nv.private(fn, unit="rows"), *rows, **settings)


def redrawn(engine: DpviEngine, rows: Any, values: Any) -> Any:
    redraw: Any = redrawing(engine.program.graph, engine.space)
    free = {s.name: s.transform.inv(values[s.name]) for s in engine.space.sites}
    keys = jax.random.split(jax.random.key(3), len(X))
    found = jax.jit(jax.vmap(lambda row, key: redraw((free, {}), row, key)))(rows, keys)
    return {name: np.asarray(array) for name, array in found.items()}


def test_rows_keep_their_covariates_and_follow_the_model_at_the_globals() -> None:
    rows = {"x": X, "y": np.ones_like(X)}
    engine = engine_of(durations, X, rows["y"])
    found = redrawn(engine, rows, {"slope": jnp.float32(60.0), "shape": 2.0})
    np.testing.assert_array_equal(found["x"], X)
    scaled = found["y"] / np.exp(60.0 * X / 50.0)
    assert stats.kstest(scaled, stats.weibull_min(2.0).cdf).pvalue > 1e-3


def test_a_row_has_its_own_latents_drawn_too() -> None:
    rows = {"x": np.zeros_like(X), "y": np.zeros(COUNT, np.int32)}
    engine = engine_of(effects, rows["x"], rows["y"])
    found = redrawn(engine, rows, {"level": jnp.float32(0.3), "spread": 0.8})
    mean = np.exp(0.3 + 0.8**2 / 2)
    variance = mean + mean**2 * (np.exp(0.8**2) - 1)
    assert found["y"].mean() == pytest.approx(mean, abs=5 * (variance / COUNT) ** 0.5)
    assert found["y"].var() == pytest.approx(variance, rel=0.4)
    assert found["y"].dtype == np.int32


def test_a_model_that_cannot_draw_rows_is_fitted_without() -> None:
    engine = engine_of(not_drawn, X, X)
    assert redrawing(engine.program.graph, engine.space) is None
    assert engine.redrawn_after is None


def weighted(x: Any, y: Any) -> None:
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]), numpyro.handlers.scale(scale=jnp.exp(x)):
        numpyro.sample("y", dist.Normal(level, 1.0), obs=y)


def test_rows_with_weights_are_not_redrawn() -> None:
    """Weights are no covariates: a response may go with them."""
    engine = engine_of(weighted, X, X)
    assert redrawing(engine.program.graph, engine.space) is None
    assert engine.redrawn_after is None


def test_rows_are_redrawn_after_a_fifth_of_the_steps() -> None:
    """Before those whose scores count."""
    engine = engine_of(durations, X, np.ones_like(X), num_steps=41)
    assert engine.redrawn_after == 9 < engine.program.options.num_approaching


@pytest.mark.parametrize(
    "settings", [{"perturb": "all"}, {"guide": "low_rank"}, {"averaging": None}]
)
def test_fits_whose_posterior_is_the_guide_are_as_ever(settings: Any) -> None:
    engine = engine_of(durations, X, np.ones_like(X), **settings)
    assert engine.redrawn_after is None
