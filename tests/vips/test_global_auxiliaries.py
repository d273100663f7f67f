"""Auxiliary variables of sites outside the unit plate, against a numerical optimum.

The bound that the factors of the posterior share is written out here in NumPy and
maximised by SciPy, which knows nothing of natural parameters, moments or sweeps.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _full_batch import FullBatch
from _models import UNIT, compiled
from scipy import optimize, special, stats

import numpyro_vips as nv

Y = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0])
# Log likelihoods of the two states of the switch.
LOG_LIKELIHOOD = stats.bernoulli.logpmf(Y[:, None], [0.45, 0.6]).sum(0)
LOC, SCALE = 0.5, 1.5


def switch(copies: float) -> Callable[..., None]:
    """A global binary latent whose logit is latent."""

    def model(y: Any) -> None:
        a = numpyro.sample("a", dist.Normal(LOC, SCALE))
        with numpyro.handlers.scale(scale=copies):
            s = numpyro.sample("s", dist.Bernoulli(logits=a))
        with numpyro.plate(UNIT, y.shape[0]):
            probs = jnp.where(s == 1, 0.6, 0.45)
            numpyro.sample("y", dist.Bernoulli(probs), obs=y)

    return model


def two_humps(copies: float) -> Callable[..., None]:
    """A global real latent with a mixture for its prior."""

    def model(y: Any) -> None:
        humps = dist.MixtureSameFamily(
            dist.Categorical(jnp.array([0.4, 0.6])),
            dist.Normal(jnp.array([-1.0, 2.0]), 1.0),
        )
        with numpyro.handlers.scale(scale=copies):
            w = numpyro.sample("w", humps)
        with numpyro.plate(UNIT, y.shape[0]):
            numpyro.sample("y", dist.Normal(w, 4.0), obs=y)

    return model


def entropy(log_variance: float) -> float:
    return 0.5 * (math.log(2 * math.pi * math.e) + log_variance)


def expected_normal(mean: Any, variance: Any, loc: Any, scale: Any) -> Any:
    """E log N(x; loc, scale²) for x with this mean and variance."""
    return stats.norm.logpdf(mean, loc, scale) - 0.5 * variance / np.square(scale)


def of_switch(point: np.ndarray, copies: float, bound: str) -> float:
    """The bound at q(a) = N(m, v), q(s = 1) = r; the auxiliary variable at its best."""
    m, variance, r = point[0], math.exp(point[1]), special.expit(point[2])
    if bound == "polya-gamma":
        c = math.sqrt(m**2 + variance)
        tangent = -np.logaddexp(0.5 * c, -0.5 * c)
    else:
        tangent = -np.logaddexp(0.5 * m, -0.5 * m) - variance / 8
    switched = copies * ((r - 0.5) * m + tangent)
    of_s = (
        r * LOG_LIKELIHOOD[1]
        + (1 - r) * LOG_LIKELIHOOD[0]
        + stats.bernoulli(r).entropy()
    )
    prior = expected_normal(m, variance, LOC, SCALE)
    return float(switched + of_s + prior + entropy(point[1]))


def of_humps(point: np.ndarray, copies: float, _: str) -> float:
    m, variance = point[0], math.exp(point[1])
    each = np.log([0.4, 0.6]) + expected_normal(m, variance, np.array([-1.0, 2.0]), 1.0)
    likelihood = expected_normal(Y, 0.0, m, 4.0).sum() - len(Y) * variance / 32
    return float(copies * special.logsumexp(each) + likelihood + entropy(point[1]))


CASES = {
    "switch": (switch, of_switch, 3),
    "two humps": (two_humps, of_humps, 2),
}


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("copies", [1.0, 3.0])
@pytest.mark.parametrize(
    ("case", "bound"),
    [
        ("switch", "polya-gamma"),
        ("switch", "fixed-curvature"),
        ("two humps", "polya-gamma"),
    ],
)
def test_the_fit_is_the_best_of_its_bound(case: str, bound: str, copies: float) -> None:
    model, value, size = CASES[case]
    program = compiled(model(copies), (Y,), augmentation=bound)
    fitted = FullBatch(program, {"y": Y}, local_sweeps=1)
    state = fitted.start()
    for _ in range(5):
        state = fitted.step(state)
    starts = [np.full(size, s) for s in (-1.0, 0.0, 2.0)]
    found = [
        optimize.minimize(lambda x: -value(x, copies, bound), s, tol=1e-12)
        for s in starts
    ]
    best = min(found, key=lambda one: one.fun)
    assert fitted.bound(state) == pytest.approx(-best.fun, abs=1e-9)
    (factor,) = (name for name in ("a", "w") if name in state.moments)
    mean, second = state.moments[factor]["x"][0], state.moments[factor]["xx"][0, 0]
    assert mean == pytest.approx(best.x[0], abs=1e-4)
    assert second - mean**2 == pytest.approx(math.exp(best.x[1]), abs=1e-4)
    if case == "switch":
        on = state.moments["s"]["is"][1]
        assert on == pytest.approx(special.expit(best.x[2]), abs=1e-4)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("bound", ["polya-gamma", "fixed-curvature"])
def test_a_switch_with_a_latent_logit_runs_as_announced(bound: str) -> None:
    """Its posterior is near the exact one, summed over states and a grid."""
    y = np.repeat(Y, 8)
    vi = vi_of(switch(1.0), budget=math.inf, engine=nv.VIPS(augmentation=bound))
    plan = vi.explain(y)
    assert plan.engine == "vips"
    result = vi.run(jax.random.key(0), y)
    a = np.linspace(-12.0, 13.0, 20_001)
    log_joint = stats.norm.logpdf(a, LOC, SCALE) + np.stack(
        [np.log(special.expit(-a)), np.log(special.expit(a))]
    )
    log_joint += 8 * LOG_LIKELIHOOD[:, None]
    exact = np.exp(log_joint - special.logsumexp(log_joint))
    on = special.softmax(np.asarray(result.params["s/logits"]))[1]
    assert on == pytest.approx(exact[1].sum(), abs=0.01)
    mean = float(result.params["a/loc"][0])
    expected = (exact.sum(0) * a).sum()
    # No bound is tight where the logit is uncertain.
    assert mean == pytest.approx(expected, abs=0.1)
    # The switch tells the logit something: the prior's mean is no answer.
    assert abs(expected - LOC) > 0.3
