"""Whether iterates still drift: lines do, a little noise about a place does not."""

import math
import warnings
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.dpvi.drift import Drift, drift_diagnostics


def drift_of(iterates: np.ndarray) -> Drift:
    drift = Drift.of(iterates[0])
    for iterate in iterates:
        drift = drift.with_iterate(iterate)
    return drift


@pytest.mark.parametrize("num_steps", [64, 200, 1000])
def test_lines_drift_and_noise_does_not(num_steps):
    noise = np.random.default_rng(0).normal(size=(num_steps, 50))
    line = np.arange(num_steps)[:, None] * np.ones(1)
    # A large origin must not cost digits.
    iterates = 1e6 + np.hstack([noise, line, np.zeros((num_steps, 1))])
    r_hat = drift_of(iterates).r_hat()
    assert r_hat is not None
    assert np.mean(r_hat[:50]) < 1.1
    assert abs(r_hat[50] - np.sqrt(7.0)) < 0.1
    assert r_hat[51] < 1.0


def test_blocks_are_those_of_the_late_iterates():
    # Without the first half of the run, which is a line, there is noise alone.
    rng = np.random.default_rng(0)
    iterates = np.concatenate([np.linspace(100, 0, 250), np.zeros(262)])[:, None]
    r_hat = drift_of(iterates + rng.normal(size=iterates.shape)).r_hat()
    assert r_hat is not None
    assert r_hat[0] < 1.1


def test_few_steps_say_nothing():
    assert drift_of(np.zeros((10, 1))).r_hat() is None
    found = drift_diagnostics(None, {}, {}, num_steps=10, is_private=True)
    assert not found["converged"]
    assert "too few" in found["warnings"][0]


def test_the_limit_is_higher_under_noise():
    settings: Any = {"r_hat": {"w": 1.5, "b": 1.0}, "num_steps": 100}
    settings["fluctuation"] = {"w": 4.0, "b": 1.0}
    settings["apart"] = {"w": 5.0, "b": 0.0}
    assert drift_diagnostics(**settings, is_private=True)["converged"]
    found = drift_diagnostics(**settings, is_private=False)
    assert not found["converged"]
    assert "'w'" in found["warnings"][0]
    assert "'b'" not in found["warnings"][0]


def test_iterates_that_go_to_and_fro_have_not_converged():
    iterates = np.random.default_rng(0).normal(size=(200, 2)) * [1.0, 30.0]
    drift = drift_of(iterates)
    np.testing.assert_allclose(drift.fluctuation(), [1.0, 30.0], rtol=0.2)
    fluctuation = dict(zip("ab", drift.fluctuation().tolist(), strict=True))
    settings: Any = {"r_hat": {"a": 1.0, "b": 1.0}, "fluctuation": fluctuation}
    settings["apart"] = {"a": 0.0, "b": 0.0}
    found = drift_diagnostics(**settings, num_steps=200, is_private=False)
    assert not found["converged"]
    assert "'b' went to and fro" in found["warnings"][0]
    # Noise drives iterates, and so far that the average is not near either.
    found = drift_diagnostics(**settings, num_steps=200, is_private=True)
    assert not found["converged"]
    assert "'b' went to and fro" in found["warnings"][0]
    assert found["fluctuation"] == fluctuation


@pytest.mark.parametrize(
    ("fluctuation", "distance", "r_hat", "warning"),
    [
        (3.0, 0.5, 3.0, None),  # Wandering about the posterior's mean.
        (9.0, 1.0, 1.0, None),
        (11.0, 1.0, 1.0, "went to and fro"),
        (3.0, 2.0, 3.0, "still drifted"),  # Not near it.
        (1.0, 0.5, 3.0, None),  # The way is as short as intervals are.
        (1.5, 0.5, 3.5, "still drifted"),  # Nothing drives them but their way.
        (1.0, 2.0, 3.0, "still drifted"),
        (3.0, 4.5, 1.0, "average of the iterates"),
        (3.0, 0.5, math.inf, "not finite"),
        (3.0, 0.5, math.nan, "not finite"),
    ],
)
def test_a_posterior_made_of_scores_is_not_where_iterates_wander(
    fluctuation: float, distance: float, r_hat: float, warning: str | None
) -> None:
    settings: Any = {
        "r_hat": {"w": r_hat},
        "fluctuation": {"w": fluctuation},
        "apart": {"w": fluctuation * math.sqrt(max(r_hat**2 - 1.0, 0.0))},
        "num_steps": 200,
    }
    found = drift_diagnostics(**settings, distance={"w": distance}, is_private=True)
    assert found["converged"] == (warning is None)
    assert [warning in text for text in found["warnings"] if warning] == (
        [] if warning is None else [True]
    )
    # One that is their average may be as far off as they are.
    found = drift_diagnostics(**settings, is_private=True)
    assert found["converged"] == (r_hat < 2.2 and fluctuation < 5.0)


@pytest.mark.parametrize(
    ("r_hat", "distance", "words"),
    [(3.0, 0.5, "still drifted"), (1.0, 3.5, "average of the iterates")],
)
def test_of_components_small_drifts_and_distances_count(
    r_hat: float, distance: float, words: str
) -> None:
    settings: Any = {
        "r_hat": {"w": r_hat},
        "fluctuation": {"w": 1.0},
        "apart": {"w": 3.0},
        "num_steps": 200,
        "is_private": True,
        "distance": {"w": distance},
    }
    assert drift_diagnostics(**settings)["converged"]
    (text,) = drift_diagnostics(**settings, has_components=True)["warnings"]
    assert words in text


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("num_steps", "num_rows"),
    [pytest.param(25, 20_000, marks=pytest.mark.slow), (10, 2_000), (200, 500)],
)
def test_noise_does_not_hide_that_iterates_are_on_their_way(num_steps, num_rows):
    """Far from the prior's centre after few steps, or driven about by noise.

    An interval may be wide enough for that; where it is not, the fit says so. After ten
    steps means are up to seven of their deviations from the truth.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, 3))
    w = np.array([1.0, -1.0, 6.0])
    y = (rng.uniform(size=num_rows) < 1 / (1 + np.exp(-X @ w))).astype(int)

    @nv.private(unit="rows")
    def logistic(X: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 10.0).expand([3]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    for seed in range(3):
        vi = vi_of(logistic, engine="dpvi", num_steps=num_steps, insecure_seed=seed)
        with warnings.catch_warnings(action="ignore"):
            result = vi.run(jax.random.key(0), X, y)
        draws = result.sample_posterior(jax.random.key(1), sample_shape=(500,))["w"]
        error = np.max(abs(np.mean(draws, axis=0) - w) / np.std(draws, axis=0))
        diagnostics = result.diagnostics
        says_so = not diagnostics["converged"] and any(
            "'w'" in text or "10 steps are too few" in text
            for text in diagnostics["warnings"]
        )
        assert says_so or error < 3.0
        assert says_so or num_steps > 10
