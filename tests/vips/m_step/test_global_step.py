"""A step's public side: what is averaged with which weight, and what follows from it.

Sums are numbers made here; no row is read. That averages state their own noise is
tested in `test_engine.py`, and Newton's way in `test_newton_steps.py`.
"""

import functools
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import uncertified

from numpyro_vips.vips.engine import VipsEngine
from numpyro_vips.vips.m_step.global_step import GAIN_DECAY, _gain

NUM_ROWS = 50


def rates(y: Any, days: Any) -> None:
    first: Any = numpyro.sample("first", dist.Gamma(2.0, 3.0))
    second: Any = numpyro.sample("second", dist.Gamma(1.0, 0.5))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Poisson(first), obs=y)
        numpyro.sample("z", dist.Exponential(second), obs=days)


@functools.cache
def engine() -> VipsEngine:
    rows = np.arange(8), np.linspace(1.0, 2.0, 8).astype(np.float32)
    return VipsEngine(uncertified(rates, rows), num_rows=NUM_ROWS, local_steps=None)


def start() -> Any:
    return engine().initial_state(jax.random.key(0))


COUNTS, DAYS = "⟨log first⟩", "⟨second⟩"


def after(state: Any, step_size: float, noise: float, **sums: float) -> Any:
    """The state after a step that has released some sums."""
    names = {"counts": COUNTS, "days": DAYS}
    released = {names[name]: np.asarray(value) for name, value in sums.items()}
    stddev = dict.fromkeys(released, noise)
    return engine().update(state, released, stddev, step_size)


def params(state: Any) -> dict[str, float]:
    found = engine().on_globals.posterior_of(state.natural).params
    return {name: float(value) for name, value in found.items()}


@pytest.mark.parametrize("step", range(5))
def test_newton_steps_become_shorter_like_a_power(step: int) -> None:
    """The first goes all the way, and the weights 2 / (t + 2) give (t + 1)^-0.3."""
    assert _gain(2.0 / (step + 2.0)) == pytest.approx((step + 1.0) ** -GAIN_DECAY)


def test_globals_are_those_of_all_sums_once_each_is_there() -> None:
    """Gamma posteriors of a Poisson rate and of one over a mean; known in closed form.

    What rows contribute whatever they hold is counted by their public number.
    """
    state = after(start(), 1.0, 0.0, counts=120.0)
    assert not state.natural and state.released >= {COUNTS}
    assert state.moments == start().moments
    state = after(state, 1.0, 0.0, days=-80.0)
    assert params(state) == pytest.approx(
        {
            "first/concentration": 2.0 + 120.0,
            "first/rate": 3.0 + NUM_ROWS,
            "second/concentration": 1.0 + NUM_ROWS,
            "second/rate": 0.5 + 80.0,
        },
        rel=1e-5,
    )


def test_only_what_is_released_moves() -> None:
    """Weights are the step's; sums that it has not released keep theirs, and noise."""
    state = after(start(), 1.0, 4.0, counts=100.0, days=-60.0)
    state = after(state, 0.25, 2.0, counts=140.0)
    assert state.statistics[COUNTS] == pytest.approx(0.75 * 100.0 + 0.25 * 140.0)
    assert state.statistics[DAYS] == -60.0
    found = state.noise_stddev
    assert found[COUNTS] == pytest.approx(np.hypot(0.75 * 4.0, 0.25 * 2.0))
    assert found[DAYS] == 4.0
    assert params(state)["first/rate"] == pytest.approx(3.0 + NUM_ROWS, rel=1e-5)


def test_drift_is_in_standard_deviations_of_the_noise_of_both() -> None:
    state = after(start(), 1.0, 3.0, counts=100.0, days=-60.0)
    assert not state.drift  # There was no sum before.
    state = after(state, 0.5, 4.0, counts=110.0, days=-60.0)
    assert state.drift == pytest.approx({COUNTS: 10.0 / 5.0, DAYS: 0.0})


def test_the_state_before_stays_as_it_is() -> None:
    """Averages are taken in place, of arrays that are the new state's own."""
    before = after(start(), 1.0, 3.0, counts=100.0, days=-60.0)
    copy = jax.tree.map(np.array, before)
    later = after(before, 0.5, 3.0, counts=40.0, days=-90.0)
    assert later.statistics[COUNTS] == 70.0
    for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(copy), strict=True):
        np.testing.assert_array_equal(one, other)
