import functools
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
from _dpvi_engines import engine_for, new_engine
from _models import three_locals
from numpyro.infer import Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoNormal
from scipy import optimize, stats

from numpyro_vips.accounting import GaussianEvent, calibrate
from numpyro_vips.dpvi import gradient_step
from numpyro_vips.dpvi.checks import not_supported
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.dpvi.guides.posteriors import NormalPosterior
from numpyro_vips.dpvi.iterates import DpviState, Variational
from numpyro_vips.dpvi.settings import DPVI
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.privacy.batch_selection import select_rows
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism
from numpyro_vips.privacy.row_keys import RowKeys
from numpyro_vips.privacy.secure_random import SecureRandom

KEY = jax.random.key(0)


# --- models ---------------------------------------------------------------------------


@private(unit="people")
def logistic(X: Any, y: Any = None):
    alpha: Any = numpyro.sample("alpha", dist.Gamma(2.0, 2.0))
    with numpyro.plate("feature", X.shape[1]):
        w: Any = numpyro.sample("w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


@private(unit="people")
def probit(X: Any, y: Any = None):
    w: Any = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("people", X.shape[0]):
        probs = jax.scipy.stats.norm.cdf(X @ w)
        numpyro.sample("y", dist.Bernoulli(probs), obs=y)


@private(unit="people")
def network(X: Any, y: Any = None, hidden=4):
    width = X.shape[1]
    inner = dist.Normal(0.0, 2.0).expand([width, hidden]).to_event(2)
    first: Any = numpyro.sample("first", inner)
    bias: Any = numpyro.sample("bias", dist.Normal(0, 1).expand([hidden]).to_event(1))
    second: Any = numpyro.sample(
        "second", dist.Normal(0, 2).expand([hidden]).to_event(1)
    )
    noise: Any = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("people", X.shape[0]):
        mean = jnp.tanh(X @ first + bias) @ second
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)


@private(unit="people")
def regression(X: Any, y: Any = None):
    """With constrained globals and a transformed prior."""
    w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    noise: Any = numpyro.sample("noise", dist.LogNormal(-0.5, 0.5))
    mix: Any = numpyro.sample("mix", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("people", X.shape[0]):
        mean = X @ w + mix @ jnp.array([-1.0, 0.0, 1.0])
        numpyro.sample("y", dist.Normal(mean, noise), obs=y)


@private(unit="people")
def visits(group: Any, y: Any = None):
    with numpyro.plate("group", 5):
        rate: Any = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("people", group.shape[0]):
        numpyro.sample("y", dist.Poisson(rate[group]), obs=y)


@private(unit="people")
def ordered(y: Any):
    """With a factor of the globals, which touches no row."""
    means: Any = numpyro.sample("means", dist.Normal(0, 3).expand([2]).to_event(1))
    numpyro.factor("order", jax.nn.log_sigmoid(4.0 * (means[1] - means[0])))
    with numpyro.plate("people", y.shape[0]):
        parts = dist.MixtureSameFamily(
            dist.Categorical(jnp.array([0.3, 0.7])), dist.Normal(means, 1.0)
        )
        numpyro.sample("y", parts, obs=y)


def binary_data(num_rows=200, width=3, seed=0, link=stats.logistic.cdf):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, width)).astype(np.float32)
    w = np.linspace(-1.0, 1.5, width)
    y = (rng.random(num_rows) < link(X @ w)).astype(np.float32)
    return X, y


def full_sum(
    engine,
    state,
    rows,
    mask=None,
    *,
    scales=None,
    clipping_norm=math.inf,
    row_keys=None,
):
    count = len(next(iter(rows.values())))
    sums = engine.bounded_sum(
        state,
        rows,
        np.ones(count, bool) if mask is None else mask,
        scales=scales or {block.name: 1.0 for block in engine.blocks("adaptive")},
        clipping_norm=clipping_norm,
        row_keys=row_keys,
    )
    return jax.block_until_ready(sums)  # Tests change the rows afterwards.


def joint(sums, scales=None):
    scales = scales or dict.fromkeys(sums, 1.0)
    parts = [scales[name] * np.asarray(sums[name], float) for name in sorted(sums)]
    return np.concatenate(parts)


def fit(engine, rows, num_steps, key=KEY, step_size=1.0):
    state = engine.initial_state(key)
    no_noise = {block.name: 0.0 for block in engine.blocks("adaptive")}
    for _ in range(num_steps):
        state = engine.update(state, full_sum(engine, state, rows), no_noise, step_size)
    posterior = engine.posterior(state)
    assert isinstance(posterior, NormalPosterior)
    return posterior


# --- the gradient ---------------------------------------------------------------------


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


# --- the guarantee --------------------------------------------------------------------


HUGE = [1.0, 1e3, 1e10, 1e18, 1e30, 3e38]


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("scales", "is_redrawn"),
    [(None, False), ({"loc": 3.0, "log_scale": 0.5}, False), (None, True)],
)
@pytest.mark.parametrize("size", HUGE)
def test_one_row_moves_the_sum_by_at_most_the_clipping_norm(size, scales, is_redrawn):
    """With its key, where rows are redrawn; others keep theirs."""
    X, y = binary_data(8, width=4)
    perturb = "location" if scales is None else "all"
    row_keys: Any = RowKeys(SecureRandom().sampling).of_places(0, 8)
    engine = engine_for(logistic, X, y, perturb=perturb)
    state = engine.initial_state(KEY)
    rng = np.random.default_rng(1)
    largest = 0.0
    for _ in range(20):
        outlier = (size * rng.uniform(-1, 1, 4)).astype(np.float32)
        X[3], y[3] = outlier, rng.integers(0, 2)
        arguments: Any = {"scales": scales, "clipping_norm": 0.7}
        rows = {"X": X, "y": y}
        keys = row_keys if is_redrawn else None
        present = full_sum(engine, state, rows, row_keys=keys, **arguments)
        mask = np.arange(8) != 3
        absent = full_sum(engine, state, rows, mask, row_keys=keys, **arguments)
        without = {"X": np.delete(X, 3, 0), "y": np.delete(y, 3)}
        keys = np.delete(row_keys, 3, 0) if is_redrawn else None
        removed = full_sum(engine, state, without, row_keys=keys, **arguments)
        difference = np.linalg.norm(joint(present, scales) - joint(absent, scales))
        assert difference <= 0.7 * (1 + 1e-5)
        np.testing.assert_allclose(joint(absent), joint(removed), rtol=1e-5, atol=1e-6)
        largest = max(largest, difference)
    # Beyond float32's range the gradient is infinite and counts as zero.
    if 1e3 <= size <= 1e30:
        assert largest >= 0.95 * 0.7


def norm_counts(engine, state, rows, mask=None, row_keys=None):
    count = len(next(iter(rows.values())))
    return engine.norm_counts(
        state,
        rows,
        np.ones(count, bool) if mask is None else mask,
        parts={"gradient": ["loc"]},
        edges={"gradient": np.geomspace(1e-3, 1e3, 40)},
        row_keys=row_keys,
    )["gradient"]


@pytest.mark.parametrize("size", HUGE)
def test_a_row_counts_once_among_the_norms_of_redrawn_rows(size):
    """With its key; others keep theirs, and stay in their bins."""
    X, y = binary_data(8, width=4)
    keys: Any = RowKeys(SecureRandom().sampling).of_places(0, 8)
    engine = engine_for(logistic, X, y)
    state = engine.initial_state(KEY)
    X[3] = size
    present = norm_counts(engine, state, {"X": X, "y": y}, row_keys=keys)
    without = {"X": np.delete(X, 3, 0), "y": np.delete(y, 3)}
    absent = norm_counts(engine, state, without, row_keys=np.delete(keys, 3, 0))
    difference = present - absent
    assert (absent.sum(), abs(difference).sum()) in {(7.0, 0.0), (7.0, 1.0)}
    assert difference.min() >= 0.0


def test_norms_of_redrawn_rows_are_of_what_is_clipped():
    X, y = binary_data(50)
    keys: Any = RowKeys(SecureRandom().sampling).of_places(0, 50)
    engine = engine_for(logistic, X, y)
    state = engine.initial_state(KEY)
    edges = np.geomspace(1e-3, 1e3, 40)
    norms = []
    for i in range(50):
        alone = {"X": X[i : i + 1], "y": y[i : i + 1]}
        difference = full_sum(engine, state, alone, row_keys=keys[i : i + 1])
        norms.append(np.linalg.norm(difference["loc"]))
    expected = np.bincount(np.searchsorted(edges, norms), minlength=41)
    rows = {"X": X, "y": y}
    found = norm_counts(engine, state, rows, row_keys=keys)
    np.testing.assert_array_equal(found, expected)
    # Where the label is drawn as it was the difference is zero.
    assert 10 < found[0] < 40 and norm_counts(engine, state, rows)[0] == 0


def test_a_row_below_the_norm_is_not_shortened(x64):
    X, y = binary_data(1)
    engine = engine_for(logistic, X, y)
    state = engine.initial_state(KEY)
    free = joint(full_sum(engine, state, {"X": X, "y": y}))
    norm = float(np.linalg.norm(free))
    above = full_sum(engine, state, {"X": X, "y": y}, clipping_norm=1.001 * norm)
    below = full_sum(engine, state, {"X": X, "y": y}, clipping_norm=0.5 * norm)
    np.testing.assert_array_equal(joint(above), free)
    # Rows are clipped a millionth below the norm.
    expected = 0.5 * (1 - 2.0**-20) * free
    np.testing.assert_allclose(joint(below), expected, rtol=1e-12)


BAD_ROWS = {
    "nan feature": (np.nan, 1.0),
    "infinite feature": (np.inf, 0.0),
    "minus infinite feature": (-np.inf, 1.0),
    "nan label": (0.5, np.nan),
    "infinite label": (0.5, np.inf),
    "label two": (0.5, 2.0),
    "label one half": (0.5, 0.5),
    "label minus one": (0.5, -1.0),
}


@pytest.mark.quick_with("0.5-*-nan feature-logistic")
@pytest.mark.parametrize("model", [logistic, probit])
@pytest.mark.parametrize("bad", BAD_ROWS)
@pytest.mark.parametrize(
    ("clipping_norm", "is_redrawn"), [(0.5, False), (math.inf, False), (0.5, True)]
)
def test_a_bad_row_counts_as_zero_exactly(model, bad, clipping_norm, is_redrawn):
    X, y = binary_data(20)
    engine = engine_for(model, X, y)
    state = engine.initial_state(KEY)
    mask = np.arange(20) != 4
    arguments: dict[str, Any] = {"clipping_norm": clipping_norm}
    if is_redrawn:
        arguments["row_keys"] = RowKeys(SecureRandom().sampling).of_places(0, 20)
    good = full_sum(engine, state, {"X": X, "y": y}, mask, **arguments)
    X[4, 1], y[4] = BAD_ROWS[bad]
    rows = {"X": X, "y": y}
    found = full_sum(engine, state, rows, **arguments)
    np.testing.assert_array_equal(found["loc"], good["loc"])
    assert np.linalg.norm(good["loc"]) > 0.1


@pytest.mark.parametrize(("index", "counts"), [(4, True), (-1, True), (5, False)])
def test_an_id_out_of_range_counts_as_zero(index, counts):
    group, y = np.arange(10) % 5, np.arange(10) % 4
    engine = engine_for(visits, group, y)
    state = engine.initial_state(KEY)
    mask = np.arange(10) != 4
    without = full_sum(engine, state, {"group": group, "y": y}, mask)["loc"]
    group[4] = index
    found = full_sum(engine, state, {"group": group, "y": y})["loc"]
    assert bool(np.any(found != without)) is counts


def test_a_masked_entry_may_be_missing():
    @private(unit="people")
    def model(y: Any = None, seen: Any = None):
        m: Any = numpyro.sample("m", dist.Normal(0, 1).expand([2]).to_event(1))
        people = numpyro.plate("people", y.shape[0])
        with people, numpyro.handlers.mask(mask=seen):
            numpyro.sample("y", dist.Normal(m, 1.0).to_event(1), obs=y)

    y = np.ones((3, 2), np.float32)
    seen = np.array([True, True, False])
    engine = engine_for(model, y, seen)
    state = engine.initial_state(KEY)
    expected = full_sum(engine, state, {"y": y[:2], "seen": seen[:2]})["loc"]
    y[2] = np.nan
    found = full_sum(engine, state, {"y": y, "seen": seen})["loc"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_pieces_of_a_large_chunk_add_up(monkeypatch):
    X, y = binary_data(50)
    sums = []
    for numbers in (2**23, 4 * 7):
        monkeypatch.setattr(
            "numpyro_vips.dpvi.gradients.clipped_gradients._MOST_GRADIENT_NUMBERS",
            numbers,
        )
        engine = new_engine(logistic, X, y)
        state = engine.initial_state(KEY)
        mask = np.arange(50) % 3 > 0
        sums.append(full_sum(engine, state, {"X": X, "y": y}, mask, clipping_norm=0.4))
    np.testing.assert_allclose(sums[0]["loc"], sums[1]["loc"], rtol=1e-5, atol=1e-6)


def test_row_norms_are_those_of_single_rows():
    X, y = binary_data(6)
    y[2] = 7.0
    engine = engine_for(logistic, X, y)
    state = engine.initial_state(KEY)
    norms = engine.row_norms(state, {"X": X, "y": y}, ["loc"])["loc"]
    for i in range(6):
        single = full_sum(engine, state, {"X": X[i : i + 1], "y": y[i : i + 1]})["loc"]
        if i == 2:
            assert np.isnan(norms[i])
        else:
            np.testing.assert_allclose(norms[i], np.linalg.norm(single), rtol=1e-5)


# --- the public side ------------------------------------------------------------------


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


# --- posteriors -----------------------------------------------------------------------


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


# --- what cannot run ------------------------------------------------------------------


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
        DpviEngine(graph)


@pytest.mark.thorough
def test_supported_models_have_no_reason():
    cases = [*GRADIENT_CASES.values(), (probit, binary_data(9))]
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


# --- fits -----------------------------------------------------------------------------


@pytest.mark.thorough
def test_linear_regression_finds_the_exact_posterior_mean():
    @private(unit="people")
    def linear(X: Any, y: Any = None):
        w: Any = numpyro.sample("w", dist.Normal(0, 3).expand([X.shape[1]]).to_event(1))
        with numpyro.plate("people", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 0.5), obs=y)

    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4)).astype(np.float32)
    X[:, 1] += 0.5 * X[:, 0]
    y = (X @ [1.0, -2.0, 0.5, 0.0] + 0.5 * rng.normal(size=500)).astype(np.float32)
    precision = X.T @ X / 0.25 + np.eye(4) / 9
    mean = np.linalg.solve(precision, X.T @ y / 0.25)
    posterior = fit(engine_for(linear, X, y), {"X": X, "y": y}, 2000)
    # The best mean-field Normal has the exact mean and 1/sqrt of the precisions.
    scale = 1 / np.sqrt(np.diag(precision))
    assert np.max(np.abs(posterior.loc["w"] - mean) / scale) < 0.1
    np.testing.assert_allclose(posterior.scale["w"], scale, rtol=0.1)


@pytest.mark.thorough
def test_probit_regression_agrees_with_its_laplace_approximation():
    X, y = binary_data(400, link=stats.norm.cdf)
    posterior = fit(engine_for(probit, X, y), {"X": X, "y": y}, 1000)
    sign = 2 * y.astype(float) - 1

    def loss(w: np.ndarray) -> float:
        return -stats.norm.logcdf(sign * (X @ w)).sum() + 0.5 * (w / 2) @ (w / 2)

    def gradient(w: np.ndarray) -> np.ndarray:
        t = sign * (X @ w)
        ratio = np.exp(stats.norm.logpdf(t) - stats.norm.logcdf(t))
        return -X.T @ (sign * ratio) + w / 4

    mode = optimize.minimize(loss, np.zeros(3), jac=gradient).x
    precision = np.asarray(optimize.approx_fprime(mode, gradient, 1e-5))
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert np.max(np.abs(posterior.loc["w"] - mode) / sd) < 0.3
    # Mean-field scales are those of the conditionals.
    expected = 1 / np.sqrt(np.diag(precision))
    np.testing.assert_allclose(posterior.scale["w"], expected, rtol=0.15)


@pytest.mark.slow
def test_neural_network_learns_what_no_line_can():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(300, 1)).astype(np.float32)
    y = (np.cos(3 * X[:, 0]) + 0.1 * rng.normal(size=300)).astype(np.float32)
    posterior = fit(engine_for(network, X, y), {"X": X, "y": y}, 1000)
    draws = posterior.sample(KEY, (200,))
    hidden = np.tanh(X @ draws["first"] + draws["bias"][:, None])
    fitted = np.mean(np.einsum("snh,sh->sn", hidden, draws["second"]), 0)
    line = np.polynomial.Polynomial.fit(X[:, 0], y, 1)(X[:, 0])
    assert np.mean((fitted - y) ** 2) < 0.1 * np.mean((line - y) ** 2)


@pytest.mark.slow
def test_private_fit_with_minibatches_comes_close_to_the_best_one():
    X, y = binary_data(4000, width=3)
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
    num_steps, rate = 200, 0.25
    engine = engine_for(logistic, X, y)
    multiplier = calibrate(
        epsilon=2.0, delta=1e-5, sampling_rate=rate, num_steps=num_steps
    )
    mechanism = GaussianMechanism(
        blocks=engine.blocks("adaptive"),
        clipping_norm=1.0,
        noise_multiplier=multiplier,
        relation="add_or_remove",
    )
    event = GaussianEvent(
        noise_stddev=mechanism.noise_stddev,
        sensitivity=mechanism.sensitivity(),
        relation="add_or_remove",
        sampling="poisson",
        sampling_rate=rate,
    )
    with pytest.warns(UserWarning, match="insecure_seed"):
        random = SecureRandom(insecure_seed=0)
    state = engine.initial_state(KEY)
    for _ in range(num_steps):
        total = np.zeros(3)
        drawn = np.isin(np.arange(len(X)), select_rows(event, len(X), random.sampling))
        rows = {"X": X, "y": y}
        total += full_sum(engine, state, rows, drawn, clipping_norm=1.0)["loc"]
        noisy = mechanism.add_noise({"loc": total}, random.noise)
        released = {"loc": noisy["loc"] / rate}
        state = engine.update(state, released, {"loc": 0.0}, 1.0)
    posterior = engine.posterior(state)
    assert isinstance(posterior, NormalPosterior)
    found = np.asarray(posterior.loc["w"])

    def loss(w):
        return np.logaddexp(0, -(2 * y - 1) * (X @ w)).sum() + 0.5 * w @ w

    best = optimize.minimize(loss, np.zeros(3)).x
    assert np.linalg.norm(found - best) < 0.25 * np.linalg.norm(best)
    excess = (loss(found) - loss(best)) / (loss(np.zeros(3)) - loss(best))
    assert excess < 0.03
