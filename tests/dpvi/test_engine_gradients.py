"""The gradient of DPVI's bound, in the globals and in the guide."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from _dpvi_engines import engine_for
from _dpvi_fits import KEY, binary_data, full_sum, logistic, ordered, probit, regression
from numpyro.infer import Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoNormal
from scipy import stats

from numpyro_vips.dpvi import gradient_step
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.dpvi.iterates import DpviState, Variational

GRADIENT_CASES = {
    "logistic": (logistic, binary_data(20)),
    "constrained": (regression, binary_data(20)),
    "factor": (ordered, binary_data(20)[1:]),
}


def elbo_gradient(engine: DpviEngine, state: DpviState, sums: Any) -> Variational:
    _, draws = engine.program.draws(state.key, state.step)
    gradient = functools.partial(gradient_step.elbo_gradient, engine.compiled)
    return jax.jit(gradient)(state.variational, draws, sums)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case", [pytest.param("logistic", marks=pytest.mark.slow), "constrained", "factor"]
)
def test_gradient_is_that_of_numpyros_elbo(case, x64):
    model, args = GRADIENT_CASES[case]
    engine = engine_for(model, *args)
    state = engine.initial_state(KEY)
    noise = engine.space.split(engine.program.draws(state.key, state.step)[1][0])
    starts = {
        site.name: jnp.ones(site.shape) / max((1, *site.shape))
        for site in engine.space.sites
    }

    # NumPyro's own loss and guide, made to draw what the engine draws. Setting the
    # guide up under jit saves compiling its operations one by one.
    def loss(variational: Variational) -> Any:
        guide = AutoNormal(model, init_loc_fn=init_to_value(values=starts))
        with numpyro.handlers.seed(rng_seed=0):
            guide(*args)
        loc = engine.space.split(variational.guide["loc"])
        scale = engine.space.split(jnp.exp(variational.guide["log_scale"]))
        values, params = {}, {}
        for site in engine.space.sites:
            name = site.name
            params[f"{name}_auto_loc"] = site.unit * loc[name]
            params[f"{name}_auto_scale"] = site.unit * scale[name]
            values[name] = site.transform(loc[name] + scale[name] * noise[name])
        fixed = numpyro.handlers.substitute(guide, data=values)
        return Trace_ELBO().loss(KEY, params, model, fixed, *args)

    theirs = jax.jit(jax.grad(loss))(state.variational)
    rows = dict(zip(("X", "y")[-len(args) :], args, strict=True))
    sums = full_sum(engine, state, rows)
    if state.coordinates is not None:
        sums["loc"] = sums["loc"] @ state.coordinates.inverse
    ours = elbo_gradient(engine, state, sums)
    np.testing.assert_allclose(
        ours.guide["loc"], -theirs.guide["loc"], rtol=1e-6, atol=1e-8
    )
    np.testing.assert_allclose(
        ours.guide["log_scale"], -theirs.guide["log_scale"], rtol=1e-6, atol=1e-8
    )


@pytest.mark.thorough
def test_gradient_with_particles_averages_single_draws(x64):
    X, y = binary_data(20)
    engine = engine_for(probit, X, y, loss=Trace_ELBO(num_particles=3))
    state = engine.initial_state(KEY)
    _, draws = engine.program.draws(state.key, state.step)
    sums = full_sum(engine, state, {"X": X, "y": y})
    scale = np.exp(state.variational.guide["log_scale"])
    expected: Any = {"loc": 0.0, "log_scale": 0.0}
    for noise in np.asarray(draws):
        w = np.asarray(state.variational.guide["loc"]) + scale * noise
        sign = 2 * y.astype(float) - 1
        ratio = np.exp(stats.norm.logpdf(X @ w) - stats.norm.logcdf(sign * (X @ w)))
        g = X.T @ (sign * ratio)
        expected["loc"] += g / 3
        expected["log_scale"] += g * scale * noise / 3
    # NumPyro's Bernoulli(probs) clips probabilities, which moves the last digits.
    np.testing.assert_allclose(sums["loc"], expected["loc"], rtol=1e-6)
    np.testing.assert_allclose(sums["log_scale"], expected["log_scale"], rtol=1e-6)


@pytest.mark.thorough
def test_location_rebuilds_what_all_releases():
    X, y = binary_data(20)
    gradients = []
    for perturb in ("location", "all"):
        engine = engine_for(logistic, X, y, perturb=perturb)
        state = engine.initial_state(KEY)
        sums = full_sum(engine, state, {"X": X, "y": y})
        gradients.append(elbo_gradient(engine, state, sums))
    for one, other in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_draw_of_a_step_is_shared_by_chunks_and_changes_between_steps():
    X, y = binary_data(20)
    engine = engine_for(logistic, X, y)
    state = engine.initial_state(KEY)
    whole = full_sum(engine, state, {"X": X, "y": y}, clipping_norm=0.5)
    halves = [
        full_sum(engine, state, {"X": X[s], "y": y[s]}, clipping_norm=0.5)["loc"]
        for s in (slice(0, 10), slice(10, 20))
    ]
    np.testing.assert_allclose(whole["loc"], halves[0] + halves[1], rtol=1e-5)
    moved = engine.update(state, {"loc": np.zeros(3)}, {"loc": 0.0}, 0.0)
    again = full_sum(engine, moved, {"X": X, "y": y}, clipping_norm=0.5)
    np.testing.assert_allclose(
        moved.variational.guide["loc"], state.variational.guide["loc"]
    )
    assert np.max(np.abs(again["loc"] - whole["loc"])) > 1e-3


def test_only_what_rows_read_is_released():
    X, y = binary_data(20, width=3)
    engine = engine_for(logistic, X, y)
    assert [block.shape for block in engine.blocks("adaptive")] == [(3,)]
    assert [site.name for site in engine.space.sites] == ["w", "alpha"]
    # The prior of w still teaches alpha something.
    state = engine.initial_state(KEY)
    moved = engine.update(state, {"loc": np.zeros(3)}, {"loc": 0.0}, 1.0)
    assert (
        abs(
            float(moved.variational.guide["loc"][3] - state.variational.guide["loc"][3])
        )
        > 1e-3
    )
