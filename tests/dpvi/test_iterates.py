"""Iterates are added up as they come, and wait for nobody."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.dpvi.drift import Drift
from numpyro_vips.dpvi.iterates import (
    MOST_RECENT,
    DpviState,
    Variational,
    drift_of_iterates,
    for_program,
    with_drift,
)
from numpyro_vips.dpvi.posterior.noise_aware import RunningScore
from numpyro_vips.dpvi.posterior.variational_newton import VectorNormal

RNG = np.random.default_rng(0)
PLACES = RNG.normal(size=(100, 5))


def iterate(number: int) -> Variational:
    """Three numbers of the guide's means, and two of a network."""
    loc, weights = np.split(PLACES[number], [3])
    return Variational(
        guide={"loc": jnp.asarray(loc), "log_scale": jnp.zeros(3)},
        params={"net": {"w": jnp.asarray(weights)}},
    )


def state_of(variational: Variational, step: int = 0) -> DpviState:
    return DpviState(
        variational=variational,
        average=variational,
        optimizer_state=(),
        key=jax.random.key(0),
        step=jnp.asarray(step),
    )


def run(number: int) -> DpviState:
    before = state_of(iterate(0))
    for step in range(number):
        updated = state_of(iterate(step), step + 1)
        before = with_drift(updated, before, is_noisy=False)
    return before


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("number", [MOST_RECENT - 1, MOST_RECENT, 75])
def test_all_iterates_count_once_whenever_they_are_looked_at(number: int) -> None:
    found = run(number)
    assert len(found.recent) == number % MOST_RECENT
    direct = Drift.of(PLACES[0])
    for place in PLACES[:number]:
        direct = direct.with_iterate(place)
    # What is said of them is what all of them say.
    diagnostics = drift_of_iterates(found, {"a": 1, "b": 2}, np.ones(3))
    r_hat = direct.r_hat()
    if r_hat is None:
        assert diagnostics["r_hat"] is None or not diagnostics["r_hat"]
        return
    assert diagnostics["r_hat"] == pytest.approx(
        {"a": r_hat[0], "b": r_hat[1:3].max(), "net": r_hat[3:].max()}, rel=1e-6
    )


def test_nothing_is_said_before_the_first_iterate() -> None:
    assert drift_of_iterates(state_of(iterate(0)), {"a": 3}, np.ones(3)) == {}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("is_average", [True, False])
def test_collinear_globals_that_are_far_together_are_far(is_average: bool) -> None:
    """As an intercept and its slope, on a covariate that is far from zero."""
    covariance = np.array([[1.0, -0.999, 0.0], [-0.999, 1.0, 0.0], [0.0, 0.0, 1.0]])
    mean, tril = np.array([3.0, 4.0, 5.0]), np.linalg.cholesky(covariance)
    before = run(75)

    def distance(*away: float, unseen: np.ndarray | None = None) -> list[float]:
        place = jnp.asarray(mean + np.array(away))
        score = RunningScore(
            jnp.zeros(3), jnp.asarray(mean) if is_average else place, jnp.asarray(1.0)
        )
        guide = {"loc": place if is_average else jnp.asarray(mean)}
        state = before._replace(
            average=before.average._replace(guide=guide), score=score, is_noisy=True
        )
        found = drift_of_iterates(
            state,
            dict.fromkeys("abc", 1),
            np.ones(3),
            VectorNormal(mean, tril),
            unseen=unseen,
        )
        return [found["distance"][name] for name in "abc"]

    # A standard deviation each, against each other: along the long direction.
    assert distance(1.0, -1.0, 0.0) == pytest.approx([0.7, 0.7, 0.0], abs=0.02)
    # The same, together: they are where the rows say they are not.
    assert distance(1.0, 1.0, 0.0) == pytest.approx([31.6, 31.6, 0.0], abs=0.1)
    assert distance(0.0, 0.0, 2.0) == pytest.approx([0.0, 0.0, 2.0], abs=1e-6)
    # Where rows say nothing iterates are where noise has led.
    together = np.array([[1.0], [1.0], [0.0]])
    assert distance(3.0, 3.0, 2.0, unseen=together) == pytest.approx(
        [0.0, 0.0, 2.0], abs=1e-6
    )
    assert distance(1.0, -1.0, 0.0, unseen=together) == pytest.approx(
        [0.7, 0.7, 0.0], abs=0.02
    )


def test_what_a_program_takes_does_not_grow_and_comes_back() -> None:
    information: Any = object()
    before = run(5)._replace(information=information, is_noisy=True)
    stripped = for_program(before)
    assert stripped.recent == () and stripped.drift is None
    assert stripped.information is None and not stripped.is_noisy
    after = with_drift(stripped, before, is_noisy=True)
    assert after.information is information and after.is_noisy
    assert len(after.recent) == 6
