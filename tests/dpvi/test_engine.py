"""DPVI's engine: the public side of its steps, its posteriors, and what it refuses."""

import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from _dpvi_engines import engine_for, engine_of_graph
from _dpvi_fits import (
    KEY,
    binary_data,
    fit,
    full_sum,
    logistic,
    ordered,
    probit,
    regression,
)
from _fits import vi_of
from _models import three_locals
from numpyro.infer import Trace_ELBO

from numpyro_vips.dpvi.checks import not_supported
from numpyro_vips.dpvi.guides.posteriors import NormalPosterior
from numpyro_vips.dpvi.settings import DPVI
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.fitting.schedule import FORGOTTEN_SHARE
from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph


@pytest.mark.thorough
def test_start_is_the_centre_of_the_prior():
    @private(unit="people")
    def model(y: Any = None):
        centre: Any = numpyro.sample("centre", dist.Normal(100.0, 1.0))
        numpyro.sample("below", dist.Normal(centre, 1.0))
        rate: Any = numpyro.sample("rate", dist.Gamma(50.0, 1.0))
        share: Any = numpyro.sample("share", dist.Uniform(2.0, 4.0))
        heavy: Any = numpyro.sample("heavy", dist.InverseGamma(0.5, 1.0))
        zero: Any = numpyro.sample("zero", dist.InverseGamma(1.0, 1.0))
        with numpyro.plate("people", y.shape[0]):
            mean = centre + rate + share + heavy + zero
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    engine = engine_for(model, np.zeros(4, np.float32))
    loc = fit(engine, {}, 0).loc
    start = {site.name: site.transform(loc[site.name]) for site in engine.space.sites}
    assert abs(start["centre"] - 100) < 0.5
    assert abs(start["below"] - 100) < 0.5
    assert 30 < start["rate"] < 80
    assert 2.8 < start["share"] < 3.2
    # Its mean is infinite; rate / concentration is 2, its median 4.4.
    assert 1.5 < start["heavy"] < 10
    # NumPyro's formula for its mean divides by zero; its median is 1.44.
    assert 1 < start["zero"] < 2


def test_start_has_nothing_of_the_rows():
    X, y = binary_data(20)
    one = engine_for(logistic, X, y).initial_state(KEY)
    other = engine_for(logistic, 100 * X, 1 - y).initial_state(KEY)
    np.testing.assert_array_equal(
        one.variational.guide["loc"], other.variational.guide["loc"]
    )


def test_norms_are_found_beside_a_centre_without_a_gradient():
    @private(unit="people")
    def clipped(y: Any):
        w: Any = numpyro.sample("w", dist.Normal(-2.0, 4.0))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.clip(w, 0.0, 1.0), 1.0), obs=y)

    y = np.linspace(0, 1, 8, dtype=np.float32)
    engine = engine_for(clipped, y)
    norms = engine.row_norms(engine.initial_state(KEY), {"y": y}, ["loc"])
    assert np.all(np.isfinite(norms["loc"]))
    assert np.any(norms["loc"] > 0.1)


@pytest.mark.thorough
@pytest.mark.parametrize(("scale", "reach"), [(0.01, 0.01), (3.0, 1.0), (1e4, 1e3)])
def test_steps_reach_as_far_as_the_prior(scale, reach):
    @private(unit="people")
    def mean(y: Any):
        m: Any = numpyro.sample("m", dist.Normal(0.0, scale))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.StudentT(3.0, m, 1.0), obs=y)

    y = np.full(8, 5 * scale, np.float32)
    engine = engine_for(mean, y, averaging=None)
    state = engine.initial_state(KEY)
    moved = engine.update(state, full_sum(engine, state, {"y": y}), {"loc": 0.0}, 1.0)
    step = moved.variational.guide["loc"] - state.variational.guide["loc"]
    # The first step of an Adam has the length of its rate. Units are powers of two.
    (site,) = engine.space.sites
    assert 0.7 < abs(step.item()) * site.unit / (0.2 * reach) < 1.5


def test_an_optimizer_of_the_callers_own_goes_as_far_as_it_says():
    own = engine_for(logistic, *binary_data(), optimizer=optax.sgd(1.0))
    assert own.step_sizes(100, is_private=True, is_full=True) == (1.0,) * 100


def test_steps_are_the_same_in_all_units_of_the_noise():
    """Ten times the clipping norm is ten times the gradient, and its noise."""

    def wide(X: Any, y: Any = None):
        w: Any = numpyro.sample("w", dist.Normal(0.0, 1e6).expand([3]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)

    rows = np.ones((50, 3), np.float32), np.ones(50, np.float32)
    engine = engine_for(private(wide, unit="rows"), *rows)

    def places(factor: float) -> Any:
        state = engine.initial_state(KEY)
        for unit in (1.0, factor):
            gradient = unit * np.array([1e3, -2e3, 5e2])
            state = engine.update(state, {"loc": gradient}, {"loc": 30.0 * unit}, 1.0)
        return state.variational.guide["loc"]

    np.testing.assert_allclose(places(10.0), places(1.0), rtol=1e-4)


@pytest.mark.thorough
def test_averaging_weights_later_iterates_more():
    X, y = binary_data(20)
    engine = engine_for(logistic, X, y, optimizer=optax.sgd(1.0), averaging=3.0)
    last = engine_for(logistic, X, y, optimizer=optax.sgd(1.0), averaging=None)
    state = engine.initial_state(KEY)
    plain = last.initial_state(KEY)
    iterates = []
    for _ in range(30):
        sums = full_sum(engine, state, {"X": X, "y": y})
        state = engine.update(state, sums, {"loc": 0.0}, 1.0)
        plain = last.update(plain, sums, {"loc": 0.0}, 1.0)
        iterates.append(np.asarray(state.variational.guide["loc"]))
    np.testing.assert_allclose(plain.average.guide["loc"], iterates[-1], rtol=1e-6)
    # The weights of the recursion: t(t+1)(t+2).
    t = np.arange(1, 31)
    weights = t * (t + 1.0) * (t + 2.0)
    expected = np.average(iterates, axis=0, weights=weights)
    np.testing.assert_allclose(
        state.average.guide["loc"], expected, rtol=1e-3, atol=1e-4
    )


def test_update_survives_absurd_noise():
    X, y = binary_data(20)
    engine = engine_for(logistic, X, y)
    state = engine.initial_state(KEY)
    for sign in (1.0, -1.0, 1.0):
        noisy = {"loc": sign * np.array([1e30, -1e38, np.inf])}
        state = engine.update(state, noisy, {"loc": 1e38}, 1.0)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state.variational))
    released = full_sum(engine, state, {"X": X, "y": y}, clipping_norm=1.0)
    assert np.all(np.isfinite(released["loc"]))


@pytest.mark.thorough
def test_posterior_survives_its_specification():
    X, y = binary_data(20)
    posterior = fit(engine_for(regression, X, y), {"X": X, "y": y}, 3)
    specification = json.loads(json.dumps(posterior.specification))
    assert specification["kind"] == "dpvi_normal"
    params = {name: jnp.asarray(value) for name, value in posterior.params.items()}
    again = NormalPosterior.from_specification(specification, params)
    one, other = (p.sample(KEY, (2, 5)) for p in (posterior, again))
    assert one["mix"].shape == (2, 5, 3)
    np.testing.assert_allclose(one["mix"].sum(-1), 1.0, rtol=1e-5)
    assert np.all(one["noise"] > 0)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_posterior_draws_have_the_guides_moments():
    X, y = binary_data(20)
    posterior = fit(engine_for(logistic, X, y), {"X": X, "y": y}, 3)
    assert dict(posterior.site_dims) == {"w": ("feature",), "alpha": ()}
    draws = posterior.sample(KEY, (20_000,))
    units = {site.name: site.units for site in posterior.sites}
    w, alpha = draws["w"] / units["w"], jnp.log(draws["alpha"]) / units["alpha"]
    for found, site in ((w, "w"), (alpha, "alpha")):
        scale = posterior.scale[site]
        error = (found.mean(0) - posterior.loc[site]) / scale
        assert np.max(np.abs(error)) < 5 / math.sqrt(20_000)
        np.testing.assert_allclose(found.std(0), scale, rtol=5 / math.sqrt(40_000))


def test_each_coefficient_has_the_unit_of_its_own_prior():
    """Of a constant, ages and incomes in one vector."""
    stddev = np.array([2.0, 0.03, 3e-5], np.float32)

    @private(unit="people")
    def counts(X: Any, y: Any):
        w: Any = numpyro.sample("w", dist.Normal(0.0, stddev).to_event(1))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(X @ w)), obs=y)

    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(9), rng.normal(45, 9, 9), rng.normal(3e4, 9e3, 9)])
    rows = {"X": X.astype(np.float32), "y": rng.poisson(2.0, 9)}
    engine = engine_for(counts, *rows.values())
    (site,) = engine.space.sites
    units = np.array([1.0, 2.0**-5, 2.0**-15])
    np.testing.assert_allclose(site.unit, units)
    np.testing.assert_allclose(engine.program.prior_scale, stddev / units, rtol=0.2)
    state = engine.initial_state(KEY)
    found = full_sum(engine, state, rows, clipping_norm=math.inf)["loc"]
    _, draws = engine.program.draws(state.key, state.step)
    z = np.asarray(engine.program.value(state.variational, draws[0]), float)
    residual = rows["y"] - np.exp(X @ (units * z))
    np.testing.assert_allclose(found, units * (residual @ X), rtol=1e-3)
    # Draws, and those of a file, are in the model's own units.
    posterior: Any = engine.posterior(state)
    again = type(posterior).from_specification(
        json.loads(json.dumps(posterior.specification)), posterior.params
    )
    one, other = (p.sample(KEY, (2_000,))["w"] for p in (posterior, again))
    np.testing.assert_array_equal(one, other)
    scale = np.exp(np.asarray(state.average.guide["log_scale"]))
    np.testing.assert_allclose(np.std(one, axis=0), units * scale, rtol=0.1)


@pytest.mark.parametrize("perturb", ["location", "all"])
def test_steps_on_their_way_get_less_of_the_budget(perturb):
    """Where scores make the posterior; averages of iterates need all steps alike."""
    vi = vi_of(probit, engine=DPVI(perturb=perturb))
    prepared, _ = vi._prepare_fit(binary_data(40), {})
    steps = [step for step in prepared.steps if not step.is_aside]
    shares = np.array([step.share for step in steps])
    on_their_way = FORGOTTEN_SHARE if perturb == "location" else 1.0
    np.testing.assert_allclose(shares[:100], on_their_way * shares[-1])
    np.testing.assert_allclose(shares[100:], shares[-1])


@pytest.mark.quick_with("away", "about zero")
@pytest.mark.parametrize(
    ("prior", "unit"),
    [
        (dist.Normal(145.0, 10.0), 8.0),
        (dist.Normal(-3000.0, 500.0), 512.0),
        (dist.Normal(10.0, 10.0), 1.0),
        (dist.Normal(0.0, 10.0), 1.0),
        (dist.Normal(145.0, 0.5), 0.5),
        (dist.LogNormal(9.0, 3.0), 1.0),
    ],
    ids=["away", "far away", "near", "about zero", "narrow", "on a log scale"],
)
def test_a_level_that_is_known_has_the_unit_of_its_prior(prior, unit):
    def curve(dose, y=None):
        level = numpyro.sample("level", prior)
        with numpyro.plate("rows", len(dose)):
            numpyro.sample("y", dist.StudentT(4.0, level * jnp.exp(-dose), 1.0), obs=y)

    rows = np.ones(5, np.float32)
    engine = engine_for(private(curve, unit="rows"), rows, rows)
    (site,) = engine.space.sites
    assert site.unit == unit


@pytest.mark.thorough
def test_gradients_are_in_units_of_the_prior():
    """Beside its scale, a mean of 100 +- 50 was hidden by the noise."""

    @private(unit="people")
    def pressure(y: Any):
        m: Any = numpyro.sample("m", dist.Normal(100.0, 320.0))
        s: Any = numpyro.sample("s", dist.HalfNormal(1.0))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.StudentT(3.0, m, 20.0 * s), obs=y)

    y = np.linspace(80.0, 160.0, 9, dtype=np.float32)
    engine = engine_for(pressure, y)
    units = {site.name: site.unit for site in engine.space.sites}
    assert units == {"m": 32.0, "s": 1.0}
    state = engine.initial_state(KEY)
    one = full_sum(engine, state, {"y": y}, clipping_norm=math.inf)["loc"]
    _, draws = engine.program.draws(state.key, state.step)
    z = np.asarray(engine.program.value(state.variational, draws[0]), float)
    place = dict(zip((site.name for site in engine.space.sites), z, strict=True))
    loc, scale = 32.0 * place["m"], 20.0 * math.exp(place["s"])
    away = (y - loc) / scale
    score = np.sum(4.0 * away / (3.0 + away**2)) / scale
    mine = [site.name for site in engine.space.sites].index("m")
    assert one[mine] == pytest.approx(32.0 * score, rel=1e-3)
    # What is clipped is what is released: the bound is on these.
    bounded = full_sum(engine, state, {"y": y[:1]}, clipping_norm=0.1)["loc"]
    assert np.linalg.norm(bounded) == pytest.approx(0.1, rel=1e-4)


def local_discrete(y: Any = None):
    m: Any = numpyro.sample("m", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", y.shape[0]):
        states = dist.CategoricalProbs(jnp.ones(2) / 2).expand([11]).to_event(1)
        z: Any = numpyro.sample("z", states)
        numpyro.sample("y", dist.Normal(m[z].sum(-1), 1), obs=y)


def global_discrete(y: Any = None):
    prior: dist.Distribution = dist.GeometricProbs(0.5)
    k: Any = numpyro.sample("k", prior)
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(k, 1), obs=y)


def moving_support(y: Any = None):
    top: Any = numpyro.sample("top", dist.Exponential(1.0))
    m: Any = numpyro.sample("m", dist.Uniform(0.0, top))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(m, 1), obs=y)


def nothing_to_learn(y: Any = None):
    numpyro.sample("m", dist.Normal(0, 1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(0, 1), obs=y)


def no_latent(y: Any = None):
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(0, 1), obs=y)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (three_locals, "latents of single rows, such as 'z'"),
        (local_discrete, "Sum them out by hand"),
        (global_discrete, "discrete latent 'k'"),
        (moving_support, "support of 'm' depends on another latent"),
        (nothing_to_learn, "depends on a latent"),
        (no_latent, "there is nothing to fit"),
    ],
)
def test_refusals_say_why(function, words):
    model = private(function, unit="people")
    graph = build_graph(model, bind_arguments(model, (np.ones(4, np.float32),), {}))
    with pytest.raises(UnsafeModelError, match=words):
        engine_of_graph(graph)


@pytest.mark.thorough
def test_supported_models_have_no_reason():
    X_y = binary_data(9)
    cases = [(logistic, X_y), (regression, X_y), (ordered, X_y[1:]), (probit, X_y)]
    for model, args in cases:
        assert (
            not_supported(build_graph(model, bind_arguments(model, args, {}))) is None
        )


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"loss": Trace_ELBO(num_particles=0)}, "num_particles"),
        ({"loss": Trace_ELBO(num_particles=2), "perturb": "location"}, "num_particles"),
        ({"perturb": "scale"}, "perturb"),
        ({"averaging": -1.0}, "averaging"),
    ],
)
def test_settings_are_checked(settings, name):
    with pytest.raises(ValueError, match=name):
        DPVI(**settings)
