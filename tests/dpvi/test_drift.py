"""Whether iterates still drift: lines do, noise about a place does not."""

from typing import Any

import numpy as np
import pytest

from numpyro_vips.dpvi.drift import Drift, diagnostics_of


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
    found = diagnostics_of(None, {}, num_steps=10, is_private=True)
    assert not found["converged"]
    assert "too few" in found["warnings"][0]


def test_the_limit_is_higher_under_noise():
    settings: Any = {"r_hat": {"w": 1.5, "b": 1.0}, "num_steps": 100}
    settings["fluctuation"] = {"w": 1.0, "b": 1.0}
    assert diagnostics_of(**settings, is_private=True)["converged"]
    found = diagnostics_of(**settings, is_private=False)
    assert not found["converged"]
    assert "'w'" in found["warnings"][0]
    assert "'b'" not in found["warnings"][0]


def test_iterates_that_go_to_and_fro_have_not_converged():
    iterates = np.random.default_rng(0).normal(size=(200, 2)) * [1.0, 30.0]
    drift = drift_of(iterates)
    np.testing.assert_allclose(drift.fluctuation(), [1.0, 30.0], rtol=0.2)
    fluctuation = dict(zip("ab", drift.fluctuation().tolist(), strict=True))
    settings: Any = {"r_hat": {"a": 1.0, "b": 1.0}, "fluctuation": fluctuation}
    found = diagnostics_of(**settings, num_steps=200, is_private=False)
    assert not found["converged"]
    assert "'b' went to and fro" in found["warnings"][0]
    assert diagnostics_of(**settings, num_steps=200, is_private=True)["converged"]
