"""How large residuals must be, against sums over rows that are there to see."""

from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from scipy.special import expit

ROWS = 4_000


def logistic(X: Any, y: Any = None) -> None:
    """An intercept beside a vector of coefficients, in one block."""
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a + X @ w), obs=y)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (rng.normal(size=(ROWS, 2)) * [1.0, 3.0]).astype(np.float32)


def _found(rows: np.ndarray, intercept: float, w: np.ndarray) -> dict[str, float]:
    """At these coefficients, after a release of the curvature without noise."""
    data = (rows, np.zeros(ROWS, np.int32))
    engine = vi_of(logistic)._prepare_fit(data, {})[0].engine
    state = engine.initial_state(jax.random.key(0))
    assert engine.expected_squares(state) == {}
    released = {
        block.name: np.zeros(block.shape)
        for kind in ("refreshed", "adaptive")
        for block in engine.blocks(kind)
    }
    x = np.c_[np.ones(ROWS), rows]
    half = -0.125 * x.T @ x
    released |= {"⟨a a⟩": half[:1, :1].reshape(released["⟨a a⟩"].shape)}
    released |= {"⟨w w⟩": half[1:, 1:], "⟨a w⟩": 2 * half[0, 1:]}
    state = engine.update(state, released, dict.fromkeys(released, 1e-6), 1.0)
    (factor,) = state.visited
    place = np.array([intercept, *w])
    state = state._replace(
        visited={factor: {"x": place, "xx": np.outer(place, place)}},
        units={name: np.ones_like(of) for name, of in state.units.items()},
    )
    return dict(engine.expected_squares(state))


@pytest.mark.thorough
@pytest.mark.parametrize("intercept", [0.0, -3.0, 5.0])
@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0])
def test_rare_labels_are_counted(rows: np.ndarray, intercept: float, slope: float):
    """Exactly where all logits are alike; elsewhere by rather too little.

    Rows that are large and have large logits count for more than they are.
    """
    w = slope * np.array([1.0, -0.5])
    found = _found(rows, intercept, w)
    chance = expit(intercept + rows @ w)
    exact = chance * (1 - chance)
    expected = {"⟨a⟩": exact.sum(), "⟨w⟩": exact @ (rows**2).sum(1)}
    assert found.keys() == expected.keys()
    assert found["⟨a⟩"] <= 1.001 * expected["⟨a⟩"]
    assert found["⟨w⟩"] <= 1.2 * expected["⟨w⟩"]
    if slope == 0.0:
        assert found == pytest.approx(expected, rel=1e-3)


def test_other_models_have_none():
    def mean(y: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    engine = vi_of(mean)._prepare_fit((np.zeros(50, np.float32),), {})[0].engine
    assert engine.expected_squares(engine.initial_state(jax.random.key(0))) == {}
