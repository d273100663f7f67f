"""One step on released numbers: no row is read here."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.dpvi.gradient_step import _pull_of_prior
from numpyro_vips.dpvi.gradients.noisy_adam import LEARNING_RATE

STEPS = 200


def model(x: Any, y: Any = None) -> None:
    level: Any = numpyro.sample("level", dist.Normal(2.0, 0.5))
    wide: Any = numpyro.sample("wide", dist.Normal(0.0, 100.0))
    scale: Any = numpyro.sample("scale", dist.LogNormal(1.0, 0.8))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(level + wide * x, scale), obs=y)


@pytest.fixture(scope="module")
def engine() -> Any:
    vi = vi_of(model, engine=nv.DPVI(), clipping_norm=1.0)
    rows = np.ones(8, np.float32), np.ones(8, np.float32)
    return vi._prepare_fit(rows, {})[0].engine


def places(engine: Any, gradients: np.ndarray, noise_stddev: float) -> np.ndarray:
    """Where the means are after each step with such a released gradient."""
    state, found = engine.initial_state(jax.random.key(0)), []
    sizes = engine.step_sizes(STEPS, is_private=True, is_full=True)
    for gradient, size in zip(gradients, sizes, strict=False):
        released = {"loc": gradient}
        state = engine.update(state, released, {"loc": noise_stddev}, size)
        found.append(np.asarray(state.variational.guide["loc"]))
    return np.array(found)


@pytest.mark.parametrize("size", [1e4, 1e24])
def test_gradients_count_in_units_of_their_noise_however_large(engine, size):
    """The square of the last is beyond single precision, and nothing used to move."""
    rng = np.random.default_rng(0)
    gradients = np.array([5.0, -5.0, 5.0]) + rng.normal(size=(20, 3))
    # So large that the prior has no part in them.
    found = places(engine, 1e8 * size * gradients, 1e8 * size)
    expected = places(engine, 1e8 * gradients, 1e8)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    assert np.all(abs(found[-1] - engine.program.start) > 0.5)


def test_where_there_is_nothing_but_noise_globals_stay_as_wide_as_the_prior(engine):
    """Up to half of the steps; the second global goes no further than it can."""
    number = STEPS // 2
    ends = []
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(size=(number, 3))
        away = places(engine, 1e6 * noise, 1e6)[-1] - engine.program.start
        ends.append(away / engine.program.prior_scale)
    spread = np.std(ends, axis=0)
    assert np.all(spread[[0, 2]] > 0.5) and np.all(spread[[0, 2]] < 1.3)
    assert spread[1] < 1.0


def test_where_there_is_a_gradient_globals_are_held_back_by_little(engine):
    """Two standard deviations above the prior's centre, with a slope of 5 noises."""
    rng = np.random.default_rng(1)
    state, stddev = engine.initial_state(jax.random.key(0)), engine.program.prior_scale
    target = engine.program.start + 2.0 * stddev
    sizes = engine.step_sizes(STEPS, is_private=True, is_full=True)
    found = []
    for size in sizes[: STEPS // 2]:
        loc = np.asarray(state.variational.guide["loc"])
        away = np.asarray(target - loc) / stddev
        gradient = 1e6 * (5.0 * away + rng.normal(size=3)) * np.array([1.0, 0.0, 1.0])
        state = engine.update(state, {"loc": gradient}, {"loc": 1e6}, size)
        found.append(away)
    mean = np.mean(found[50:], axis=0)
    assert np.all(abs(mean[[0, 2]]) < 0.15)


@pytest.mark.parametrize(
    ("step", "noise_stddev", "pulls"),
    [(0, 1e6, True), (99, 1e6, True), (100, 1e6, False), (0, 0.0, False)],
)
def test_nothing_pulls_without_noise_and_in_the_second_half(
    engine, step, noise_stddev, pulls
):
    program, state = engine.program, engine.initial_state(jax.random.key(0))
    away = 2.0 * program.prior_scale
    guide = {**state.variational.guide, "loc": program.start + away}
    state = state._replace(
        variational=state.variational._replace(guide=guide),
        step=jnp.asarray(step, jnp.int32),
    )
    found = _pull_of_prior(program, state, 0.7, noise_stddev)
    walk = LEARNING_RATE * 0.7 * program.reach
    expected = 0.5 * (walk / program.prior_scale) ** 2 * away
    np.testing.assert_allclose(found, pulls * expected, rtol=1e-4)
