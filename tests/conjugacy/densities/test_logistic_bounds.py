"""Logistic likelihoods with a bound of fixed curvature; statistics about the mean."""

import itertools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _coordinates import isometric_coordinates
from _fits import vi_of
from _full_batch import FullBatch
from _row_by_row import solve_locals
from scipy import optimize, special, stats

import numpyro_vips as nv
from numpyro_vips.fitting.advantages.curvature_noise import SHARES
from numpyro_vips.fitting.private_step import release, update
from numpyro_vips.fitting.schedule import CURVATURE_AFTER
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.privacy.secure_random import SecureRandom
from numpyro_vips.vips.compile.compiler import compile_model
from numpyro_vips.vips.e_step.evidence_bound import row_bound
from numpyro_vips.vips.engine import VipsEngine
from numpyro_vips.vips.program.expectations import expected_natural_of
from numpyro_vips.vips.program.program import ConjugateProgram

PRIOR_SCALE = 1.5
FIXED = "fixed-curvature"


@nv.private(unit="rows", public=("trials",))
def regression(X, y, trials=1):
    w: Any = numpyro.sample(
        "w", dist.Normal(0.0, PRIOR_SCALE).expand([X.shape[1]]).to_event(1)
    )
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Binomial(trials, logits=X @ w), obs=y)


@nv.private(unit="rows")
def belief_network(y):
    b: Any = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    c: Any = numpyro.sample("c", dist.Normal(0.0, 2.0).expand([5]).to_event(1))
    W: Any = numpyro.sample("W", dist.Normal(0.0, 2.0).expand([5, 3]).to_event(2))
    with numpyro.plate("rows", y.shape[0]):
        z: Any = numpyro.sample("z", dist.Bernoulli(logits=b).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=z @ W.T + c).to_event(1), obs=y)


def compiled(model: Any, *args: Any, augmentation: Any = FIXED) -> ConjugateProgram:
    arguments = bind_arguments(model, args, {}, num_rows=None)
    graph = build_graph(model, arguments)
    return compile_model(model, graph, augmentation=augmentation)


def data(num_rows: int = 60, trials: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, 3))
    y = rng.binomial(trials, special.expit(X @ [2.0, -1.0, 0.5]))
    return X, y.astype(np.float64)


def binary_images(num_rows: int = 40) -> np.ndarray:
    rng = np.random.default_rng(1)
    z = rng.random((num_rows, 3)) < 0.4
    logits = z @ rng.normal(scale=3.0, size=(3, 5)) - 0.5
    return (rng.random(logits.shape) < special.expit(logits)).astype(np.float64)


@pytest.mark.parametrize("trials", [1, 4])
def test_bound_is_below_the_expectation_and_tight_at_a_point(trials: int, x64: None):
    X, y = data(8, trials)
    program = compiled(regression, X, y, trials)
    of_row = jax.jit(
        lambda expected_natural, x, y: row_bound(
            program, expected_natural, {"X": x, "y": y}, 2
        )
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    rng = np.random.default_rng(2)
    for size, variance in itertools.product((0.0, 1.0, 4.0), (0.0, 0.1, 2.0)):
        mean = size * rng.normal(size=3)
        square = np.outer(mean, mean) + variance * np.eye(3)
        moments = {"w": {"x": jnp.asarray(mean), "xx": jnp.asarray(square)}}
        expected_natural = expected_natural_of(program.structure, moments)
        for x, successes in zip(X, y, strict=True):
            found = float(of_row(expected_natural, x, successes))
            logits = x @ mean + nodes * math.sqrt(variance) * np.linalg.norm(x)
            likelihood = successes * logits - trials * np.logaddexp(0.0, logits)
            exact = weights @ likelihood + np.log(special.binom(trials, successes))
            assert found <= exact + 1e-9
            if variance == 0.0:
                assert found == pytest.approx(exact, abs=1e-8)


@pytest.mark.thorough
def test_mean_is_the_maximum_of_the_posterior_density(x64: None):
    """Where the tangent touches at E[ψ] = xᵀm, the gradient in m is the density's."""
    X, y = data(200, 3)

    def negative(w: np.ndarray) -> float:
        psi = X @ w
        likelihood = y @ psi - 3 * np.logaddexp(0.0, psi).sum()
        return 0.5 * w @ w / PRIOR_SCALE**2 - likelihood

    def gradient(w: np.ndarray) -> np.ndarray:
        return w / PRIOR_SCALE**2 - X.T @ (y - 3 * special.expit(X @ w))

    mode = optimize.minimize(negative, np.zeros(3), jac=gradient, tol=1e-10).x
    full = FullBatch(compiled(regression, X, y, 3), {"X": X, "y": y}, 1)
    state = full.start()
    for _ in range(150):
        state = full.step(state)
    np.testing.assert_allclose(state.moments["w"]["x"], mode, atol=1e-6)
    precision = 3 * X.T @ X / 4 + np.eye(3) / PRIOR_SCALE**2
    covariance = state.moments["w"]["xx"] - np.outer(mode, mode)
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (regression, dict(zip("Xy", data(), strict=True))),
        pytest.param(belief_network, None, marks=pytest.mark.slow),
    ],
)
def test_bound_never_falls(model: Any, rows: Any, x64: None):
    rows = rows or {"y": binary_images()}
    full = FullBatch(compiled(model, *rows.values()), rows, 5)
    state = full.step(full.start())
    bounds = [full.bound(state)]
    for _ in range(8):
        state = full.step(state)
        bounds.append(full.bound(state))
    assert all(b >= a - 1e-8 * abs(a) for a, b in itertools.pairwise(bounds))
    assert bounds[-1] > bounds[0] + 0.1


@pytest.mark.thorough
def test_residuals_and_shared_curvature(x64: None):
    """Σ(y - σ)x about the mean, Σ xxᵀ/8 rarely; the latter needs no row's label."""
    X, y = data()
    program = compiled(regression, X, y)
    engine = VipsEngine(program, num_rows=len(X), local_steps=1)
    labels = {s.name: (s.shape, s.release) for s in engine.statistics}
    assert labels == {"⟨w⟩": ((3,), "adaptive"), "⟨w w⟩": ((3, 3), "refreshed")}
    state = engine.initial_state(jax.random.key(0))
    mean = np.array([3.0, -2.0, 1.0])
    moments = {"w": {"x": mean, "xx": np.outer(mean, mean) + np.eye(3)}}
    state = state._replace(
        moments=moments,
        visited=moments,
        expected_natural=expected_natural_of(
            program.structure, jax.tree.map(jnp.asarray, moments)
        ),
    )
    rows = {"X": jnp.asarray(X), "y": jnp.asarray(y)}
    scales = {"⟨w⟩": 1.0, "⟨w w⟩": 1.0}
    mask = np.ones(len(X), bool)
    sums = engine.bounded_sum(state, rows, mask, scales=scales, clipping_norm=math.inf)
    np.testing.assert_allclose(sums["⟨w⟩"], (y - special.expit(X @ mean)) @ X)
    np.testing.assert_allclose(sums["⟨w w⟩"], -X.T @ X / 8)
    norms = engine.row_norms(state, rows, ["⟨w⟩"])["⟨w⟩"]
    expected = np.abs(y - special.expit(X @ mean)) * np.linalg.norm(X, axis=1)
    # A bound on the rounding error is added.
    np.testing.assert_allclose(norms, expected, rtol=1e-4)
    assert np.all(norms >= expected * (1 - 1e-12))


@pytest.mark.slow
def test_pixels_share_the_second_moment_of_the_units(x64: None):
    y = binary_images()
    program = compiled(belief_network, y)
    engine = VipsEngine(program, num_rows=len(y), local_steps=5)
    labels = {s.name: (s.shape, s.release) for s in engine.statistics}
    assert labels == {
        "⟨b b⟩": ((), "public"),
        "⟨c c⟩": ((), "public"),
        "⟨W c⟩": ((3,), "adaptive"),
        "⟨b⟩": ((3,), "adaptive"),
        "⟨c⟩": ((5,), "adaptive"),
        "⟨W W⟩": ((3, 3), "adaptive"),
        "⟨W⟩": ((5, 3), "adaptive"),
    }
    state = engine.initial_state(jax.random.key(3))
    rows = {"y": jnp.asarray(y)}
    factors = jax.vmap(
        lambda row: solve_locals(program, state.expected_natural, row, 5)
    )(rows)
    z = np.asarray(factors["z"]["is"])[:, 0, :, 1]
    pairs = z[:, :, None] * z[:, None, :]
    mean = np.asarray(state.moments["c+W"]["x"])
    psi = mean[:, 0] + z @ mean[:, 1:].T
    sums = engine.bounded_sum(
        state,
        rows,
        np.ones(len(y), bool),
        scales=dict.fromkeys(labels, 1.0),
        clipping_norm=math.inf,
    )
    k = np.arange(3)
    pairs[:, k, k] = 0.0  # The diagonal repeats ⟨W c⟩, and is read off it.
    np.testing.assert_allclose(sums["⟨W W⟩"], -pairs.sum(0) / 8, rtol=1e-6)
    np.testing.assert_allclose(sums["⟨W c⟩"], -z.sum(0) / 4, rtol=1e-6)
    slope = np.asarray(factors["y:tangent"]["x"])[:, 0]
    residual = y - 0.5 + slope - psi / 4
    np.testing.assert_allclose(sums["⟨c⟩"], residual.sum(0), rtol=1e-6)
    spread = (z * (1 - z)).sum(0) * mean[:, 1:] / 4
    np.testing.assert_allclose(sums["⟨W⟩"], residual.T @ z - spread, atol=1e-6)


@pytest.mark.optimized
@pytest.mark.parametrize(
    "model", ["regression", pytest.param("belief_network", marks=pytest.mark.slow)]
)
def test_one_row_moves_the_sum_by_no_more_than_the_norm(model: str, x64: None):
    rng = np.random.default_rng(5)
    if model == "regression":
        X, y = data(4)
        program, rows = compiled(regression, X, y), {"X": X, "y": y}
        rows["X"] = 10.0 ** rng.uniform(-3, 3, (4, 1)) * X
    else:
        rows = {"y": binary_images(4)}
        program = compiled(belief_network, rows["y"])
    engine = VipsEngine(program, num_rows=10, local_steps=3)
    blocks = {b.name: b for kind in ("once", "adaptive") for b in engine.blocks(kind)}
    scales = {name: float(10.0 ** rng.uniform(-1, 1)) for name in blocks}
    arrays = {name: jnp.asarray(value) for name, value in rows.items()}
    largest = 0.0
    for seed, size in itertools.product(range(3), (0.1, 3.0, 50.0)):
        state = engine.initial_state(jax.random.key(seed))
        moments = {}
        for factor in program.structure.posterior_factors_of("global"):
            mean = size * rng.normal(size=factor.shape)
            square = mean[..., None] * mean[..., None, :] + np.eye(factor.shape[-1])
            moments[factor.name] = {"x": jnp.asarray(mean), "xx": jnp.asarray(square)}
        expected_natural = expected_natural_of(program.structure, moments)
        state = state._replace(moments=moments, expected_natural=expected_natural)
        for number in range(4):
            mask = np.arange(4) == number
            sums = engine.bounded_sum(
                state, arrays, mask, scales=scales, clipping_norm=0.3
            )
            squares = [
                np.sum((scales[k] * np.asarray(v)) ** 2) for k, v in sums.items()
            ]
            largest = max(largest, math.sqrt(sum(squares)))
            assert largest <= 0.3 * (1 + 1e-9)
    assert largest >= 0.3 * 0.999


def test_what_follows_from_globals_alone_is_public(x64: None):
    """⟨ξ⟩ of logits without data: no noise, and brought to convergence in one step."""

    @nv.private(unit="rows")
    def model(y):
        b: Any = numpyro.sample("b", dist.Normal(0.0, 2.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=b), obs=y)

    y = np.repeat([1.0, 1.0, 1.0, 0.0], 10)
    vi = vi_of(model, budget=math.inf, engine="vips")
    plan = vi.explain(y)
    assert {s["statistic"]: s["released"] for s in plan.statistics} == {
        "⟨b⟩": "once",
        "⟨b b⟩": "public",
    }
    result = vi.run(jax.random.key(0), y)
    mean, variance = 0.0, 1.0
    for _ in range(500):
        tilt = math.sqrt(mean**2 + variance)
        variance = 1.0 / (0.25 + len(y) * math.tanh(tilt / 2) / (2 * tilt))
        mean = variance * (y - 0.5).sum()
    np.testing.assert_allclose(result.params["b/loc"], [mean], rtol=1e-6)


@pytest.mark.thorough
def test_option_is_checked_explained_and_kept(tmp_path: Path):
    X, y = (array.astype(np.float32) for array in data())
    settings: dict[str, Any] = {
        "budget": nv.PrivacyBudget(math.inf),
        "num_steps": 5,
        "progress_bar": False,
    }
    with pytest.raises(ValueError, match="augmentation"):
        nv.VIPS(augmentation="tight")
    other = nv.VIPS(augmentation={"z": FIXED})
    with pytest.raises(ValueError, match=r"\['z'\]"):
        nv.PrivateVI(regression, engine=other, **settings).explain(X, y)
    engine = nv.VIPS(augmentation={"y": FIXED})
    vi = nv.PrivateVI(regression, engine=engine, **settings)
    sites = {site["site"]: site for site in vi.explain(X, y).sites}
    assert sites["y"]["augmentation"] == "fixed curvature"
    result = vi.run(jax.random.key(0), X, y)
    result.save(tmp_path / "fit.nc")
    loaded = nv.load(tmp_path / "fit.nc", model=regression)
    np.testing.assert_allclose(loaded.elbo(X, y), result.elbo(X, y))
    tangent: Any = loaded.local_posterior(X, y)["y:tangent"]
    np.testing.assert_allclose(tangent.v, X @ result.params["w/loc"], rtol=1e-4)


# --- what is released once ------------------------------------------------------------


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle and Wang (2018), theorem 8: full batches are one release at μ."""
    below = special.ndtr(-epsilon / mu + mu / 2)
    return below - math.exp(epsilon) * special.ndtr(-epsilon / mu - mu / 2)


@pytest.mark.quick_with("replace_one")
@pytest.mark.parametrize("relation", ["add_or_remove", "replace_one"])
def test_curvature_has_its_share_of_the_budget(relation: Any):
    X, y = (array.astype(np.float32) for array in data())

    def squared_prices(**options: Any) -> dict[str, float]:
        vi = vi_of(
            regression,
            budget=1.5,
            engine=nv.VIPS(augmentation=FIXED, **options),
            sampling=nv.FullBatch(relation=relation),
            num_steps=4,
            clipping_norm=0.7,
        )
        prices: dict[str, float] = {}
        for event in vi.run(jax.random.key(0), X, y).privacy.events:
            price = event.num_steps * (event.sensitivity / event.noise_stddev) ** 2
            prices[event.label] = prices.get(event.label, 0.0) + price
        return prices

    apart = squared_prices()
    assert set(apart) == {"⟨w w⟩", "⟨w⟩"}
    total = sum(apart.values())
    share = SHARES[0] * len(CURVATURE_AFTER)
    assert apart["⟨w w⟩"] == pytest.approx(share * total, rel=1e-6)
    assert gaussian_delta(1.5, math.sqrt(total)) == pytest.approx(1e-5, rel=1e-3)
    # In every step instead, it shares each step's noise, at the same price.
    (together,) = squared_prices(release_once=False).values()
    assert together == pytest.approx(total, rel=1e-4)


@pytest.mark.thorough
def test_curvature_has_the_noise_of_one_release():
    """Rows of zeros leave the noise alone; the second release takes its place."""
    X, y = np.zeros((50, 40), np.float32), np.zeros(50, np.float32)
    analysis, _ = vi_of(
        regression, engine=nv.VIPS(augmentation=FIXED), num_steps=3, clipping_norm=0.7
    )._prepare_fit((X, y), {})
    first, *others = analysis.steps
    assert [block.name for block in first.blocks] == ["⟨w w⟩"]
    state: Any = analysis.engine.initial_state(jax.random.key(0))
    with pytest.warns(UserWarning, match="insecure_seed"):
        random = SecureRandom(insecure_seed=4)

    def after(step: Any, state: Any) -> Any:
        engine = analysis.engine
        released = release(analysis.arguments, engine, step, state, random, None)
        return update(engine, step, state, released)

    state = after(first, state)
    noise = state.statistics["⟨w w⟩"]
    coordinates = isometric_coordinates(first.blocks[0], noise)
    # 0.7 in L2 norm, and a release's share of the squared budget.
    stddev = 0.7 / math.sqrt(SHARES[0])
    assert first.mechanism.noise_stddev == pytest.approx(stddev)
    assert state.noise_stddev["⟨w w⟩"] == pytest.approx(stddev)
    statistic = np.sum((coordinates / stddev) ** 2)
    assert 1e-3 < stats.chi2(40 * 41 // 2).cdf(statistic) < 1 - 1e-3
    names = [[block.name for block in step.blocks] for step in others]
    assert names == [["⟨w⟩"], ["⟨w w⟩"], ["⟨w⟩"], ["⟨w⟩"]]
    state = after(others[0], state)
    np.testing.assert_array_equal(state.statistics["⟨w w⟩"], noise)
    state = after(others[1], state)
    again = isometric_coordinates(first.blocks[0], state.statistics["⟨w w⟩"])
    assert np.abs(np.corrcoef(coordinates, again)[0, 1]) < 0.15
    assert np.std(again) == pytest.approx(stddev, rel=0.1)
    assert state.noise_stddev["⟨w w⟩"] == pytest.approx(stddev)


@pytest.mark.thorough
def test_a_belief_network_has_nothing_to_release_once():
    """Its curvature is that of the units, which depend on the globals."""
    y = binary_images().astype(np.float32)

    def labels(augmentation: str, **options: Any) -> list[list[str]]:
        vi = vi_of(
            belief_network,
            engine=nv.VIPS(augmentation=augmentation, **options),
            num_steps=2,
            clipping_norm=1.0,
        )
        steps = vi._prepare_fit((y,), {})[0].steps
        assert sum(s.noise_multiplier**-2 for s in steps) == pytest.approx(1.0)
        return [[block.name for block in step.blocks] for step in steps]

    every = ["⟨W c⟩", "⟨b⟩", "⟨c⟩", "⟨W W⟩", "⟨W⟩"]
    assert labels(FIXED) == labels(FIXED, release_once=False) == [every] * 2
    assert labels("polya-gamma")[0] == ["⟨c⟩"]
