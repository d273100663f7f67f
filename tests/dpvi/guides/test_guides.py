"""DPVI's guides: automatic ones, the user's own, amortised ones and networks."""

import functools
import math
from typing import Any

import _dpvi_engines
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from numpyro.distributions import constraints
from numpyro.infer import Predictive, RenyiELBO, Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.util import log_density

import numpyro_vips as nv
from numpyro_vips.dpvi import gradient_step
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.dpvi.guides.posteriors import (
    DrawsPosterior,
    JointNormalPosterior,
    NormalPosterior,
)
from numpyro_vips.dpvi.guides.unconstrained import GuideSite
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.handlers import private

KEY = jax.random.key(0)
rng = np.random.default_rng(0)
X = rng.normal(size=(20, 3)).astype(np.float32)
X[:, 1] += 0.8 * X[:, 0]
Y = (X @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=20)).astype(np.float32)


def regression(X: Any, y: Any = None):
    w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    noise: Any = numpyro.sample("noise", dist.LogNormal(-0.5, 0.5))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, noise), obs=y)


def triangular(X: Any, y: Any = None):
    """Dependent globals, one of them constrained, and a constrained parameter."""
    width = X.shape[1]
    loc: Any = numpyro.param("loc", 0.1 * jnp.ones(width))
    lower: Any = numpyro.param(
        "lower", 0.2 * jnp.eye(width), constraint=constraints.lower_cholesky
    )
    w: Any = numpyro.sample("w", dist.MultivariateNormal(loc, scale_tril=lower))
    slope: Any = numpyro.param("slope", jnp.asarray(0.3))
    numpyro.sample("noise", dist.LogNormal(slope * w[0], 0.1))


def latent_line(y: Any):
    """A factor model: one latent per row, weights without a prior, a global scale."""
    weights: Any = numpyro.param("weights", jnp.array([1.0, 0.5, -0.5]))
    noise: Any = numpyro.sample("noise", dist.LogNormal(-1.0, 0.3))
    with numpyro.plate("people", y.shape[0]):
        z: Any = numpyro.sample("z", dist.Normal(0.0, 1.0))
        mean = z[:, None] * weights
        numpyro.sample("y", dist.Normal(mean, noise).to_event(1), obs=y)


def encoder(y: Any):
    width = y.shape[1]
    a: Any = numpyro.param("encoder", jnp.full(width, 0.2))
    s: Any = numpyro.param("width", jnp.asarray(0.5), constraint=constraints.positive)
    loc: Any = numpyro.param("noise_loc", jnp.asarray(-1.0))
    numpyro.sample("noise", dist.LogNormal(loc, 0.1))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("z", dist.Normal(y @ a, s))


def engine_for(model: Any, *args: Any, **settings: Any) -> DpviEngine:
    return _dpvi_engines.engine_for(private(model, unit="people"), *args, **settings)


def full_sum(engine, state, rows, mask=None, clipping_norm=math.inf):
    count = len(next(iter(rows.values())))
    return engine.bounded_sum(
        state,
        rows,
        np.ones(count, bool) if mask is None else mask,
        scales={block.name: 1.0 for block in engine.blocks("adaptive")},
        clipping_norm=clipping_norm,
    )


def joint(sums: Any) -> np.ndarray:
    return np.concatenate([np.ravel(sums[name]) for name in sorted(sums)])


def elbo_gradient(engine: DpviEngine, state: Any, rows: Any) -> Any:
    _, draws = engine.program.draws(state.key, state.step)
    sums = full_sum(engine, state, rows)
    gradient = functools.partial(gradient_step.elbo_gradient, engine.compiled)
    return jax.jit(gradient)(state.variational, draws, sums)


def fit(model: Any, *args: Any, budget: Any = None, **options: Any) -> Any:
    budget = budget or nv.PrivacyBudget(math.inf)
    marked = private(model, unit="people")
    return vi_of(marked, budget=budget, **options).run(KEY, *args)


# --- automatic guides -----------------------------------------------------------------


def covariance(family: str, arrays: Any) -> jax.Array:
    """The covariance that the guide's documentation promises."""
    scale = jnp.diag(jnp.exp(arrays["log_scale"]))
    size = len(scale)
    if family == "full_rank":
        inner = jnp.eye(size) + jnp.tril(arrays["factor"], -1)
        return scale @ inner @ inner.T @ scale
    return scale @ (jnp.eye(size) + arrays["factor"] @ arrays["factor"].T) @ scale


@pytest.mark.thorough
@pytest.mark.parametrize("perturb", ["location", "all"])
@pytest.mark.parametrize("family", ["full_rank", "low_rank"])
def test_gradient_of_a_joint_normal_is_that_of_its_elbo(family, perturb, x64):
    engine = engine_for(regression, X, Y, guide=family, perturb=perturb)
    state = engine.initial_state(KEY)
    arrays = dict(state.variational.guide)
    arrays["factor"] = 0.3 * jax.random.normal(KEY, arrays["factor"].shape)
    state = state._replace(variational=state.variational._replace(guide=arrays))
    draws = engine.program.draws(state.key, state.step)[1][0]
    size = engine.space.size

    def elbo(arrays: Any) -> Any:
        # By another way: NumPyro's log density of all rows, SciPy-like entropy.
        scale = jnp.exp(arrays["log_scale"])
        if family == "full_rank":
            inner = jnp.eye(size) + jnp.tril(arrays["factor"], -1)
            z = arrays["loc"] + scale * (inner @ draws)
        else:
            z = arrays["loc"] + scale * (draws[:size] + arrays["factor"] @ draws[size:])
        # In units of their priors' standard deviations, 1 and 0.5.
        w, log_noise = z[:3], 0.5 * z[3]
        values = {"w": w, "noise": jnp.exp(log_noise)}
        density, _ = log_density(regression, (X, Y), {}, values)
        entropy = 0.5 * jnp.linalg.slogdet(covariance(family, arrays))[1]
        return density + log_noise + entropy

    expected = jax.grad(elbo)(arrays)
    found = elbo_gradient(engine, state, {"X": X, "y": Y}).guide
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["full_rank", "low_rank"])
def test_draws_of_a_joint_normal_have_its_covariance(family, tmp_path):
    engine = engine_for(regression, X, Y, guide=family)
    state = engine.initial_state(KEY)
    arrays = dict(state.variational.guide)
    arrays["factor"] = jax.random.normal(KEY, arrays["factor"].shape)
    assert engine.program.guide is not None
    posterior = engine.program.guide.posterior(arrays, {})
    assert isinstance(posterior, JointNormalPosterior)
    draws = posterior.sample(KEY, (40_000,))
    units = {site.name: site.units for site in posterior.sites}
    log_noise = np.log(draws["noise"]) / units["noise"]
    z = np.column_stack([draws["w"] / units["w"], log_noise])
    expected = np.asarray(covariance(family, arrays))
    scale = np.sqrt(np.diag(expected))
    error = (np.cov(z.T) - expected) / np.outer(scale, scale)
    assert np.max(np.abs(error)) < 5 * math.sqrt(2 / 40_000)
    again = JointNormalPosterior.from_specification(
        posterior.specification, posterior.params
    )
    one, other = (p.sample(KEY, (3,)) for p in (posterior, again))
    np.testing.assert_array_equal(one["w"], other["w"])


@pytest.mark.parametrize(("scale", "is_one"), [(1.0, True), (1e-9, False)])
def test_draws_that_are_all_alike_are_no_posterior(scale, is_one):
    site = GuideSite(name="w", support=constraints.real, shape=(2,), dims=())
    posterior = NormalPosterior(
        sites=(site,),
        points={},
        loc={"w": jnp.array([0.0, 100.0])},
        scale={"w": jnp.array([1.0, scale])},
    )
    assert (not posterior.problems()) == is_one
    assert (np.ptp(posterior.sample(KEY, (50,))["w"], axis=0) > 0).all() == is_one


@pytest.mark.thorough
def test_a_correlation_matrix_is_a_latent_like_others():
    cov = np.array([[1.0, 0.6], [0.6, 1.0]])
    rows = np.random.default_rng(1).multivariate_normal([0, 0], cov, 400)

    def correlated(y: Any):
        rho: Any = numpyro.sample("rho", dist.LKJ(2, 1.0))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(2), rho), obs=y)

    vi = vi_of(nv.private(correlated, unit="people"), budget=math.inf)
    draws = vi.run(KEY, rows).sample_posterior(KEY, (500,))["rho"]
    np.testing.assert_allclose(draws[:, 0, 0], 1.0, atol=1e-5)
    # The posterior's standard deviation is about (1 - 0.36) / 20 = 0.03.
    assert np.mean(draws[:, 0, 1]) == pytest.approx(0.6, abs=0.1)


@pytest.mark.slow
def test_full_rank_finds_the_correlation_that_mean_field_misses():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 2)).astype(np.float32)
    X[:, 1] = 0.8 * X[:, 0] + 0.6 * X[:, 1]
    y = (X @ [1.0, -1.0] + 0.5 * rng.normal(size=200)).astype(np.float32)

    def linear(X: Any, y: Any = None):
        w: Any = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
        with numpyro.plate("people", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 0.5), obs=y)

    exact = np.linalg.inv(X.T @ X / 0.25 + np.eye(2) / 9)
    result = fit(linear, X, y, engine=nv.DPVI(guide="full_rank"), num_steps=2000)
    found = np.cov(np.asarray(result.sample_posterior(KEY, (20_000,))["w"]).T)
    np.testing.assert_allclose(found, exact, rtol=0.25)


# --- guides of the user's own ---------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "perturb", ["location", pytest.param("all", marks=pytest.mark.slow)]
)
def test_gradient_with_a_users_guide_is_that_of_numpyros_elbo(perturb, x64):
    engine = engine_for(regression, X, Y, guide=triangular, perturb=perturb)
    state = engine.initial_state(KEY)
    _, (draw,) = engine.program.draws(state.key, state.step)

    def loss(params: Any) -> Any:
        # The inner seed wins, so that NumPyro draws what the engine draws.
        fixed = numpyro.handlers.seed(triangular, rng_seed=draw)
        values = engine.program.constrained(params)
        return Trace_ELBO().loss(KEY, values, regression, fixed, X, Y)

    theirs = jax.jit(jax.grad(loss))(state.variational.params)
    ours = elbo_gradient(engine, state, {"X": X, "y": Y}).params
    assert set(ours) == {"loc", "lower", "slope"}
    for name in ours:
        np.testing.assert_allclose(ours[name], -theirs[name], rtol=1e-6, atol=1e-8)
    names = [block.name for block in engine.blocks("adaptive")]
    everything = ["param loc", "param lower", "param slope"]
    assert names == (["loc"] if perturb == "location" else everything)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [Trace_ELBO, TraceMeanField_ELBO])
def test_gradient_with_an_amortised_guide_is_that_of_numpyros_elbo(loss, x64):
    y = X.astype(float)
    engine = engine_for(latent_line, y, guide=encoder, loss=loss())
    state = engine.initial_state(KEY)
    key, (draw,) = engine.program.draws(state.key, state.step)
    params = engine.program.constrained(state.variational.params)
    assert engine.program.user_guide is not None
    noise = engine.program.user_guide.draw_globals(params, draw).values["noise"]

    def standard(row: Any) -> Any:
        from numpyro_vips.dpvi.gradients.row_fingerprints import fingerprint_of_row

        row_key = jax.random.fold_in(
            jax.random.fold_in(key, fingerprint_of_row({"y": row})), 0
        )
        values = {"noise": noise}
        assert engine.program.user_guide is not None
        z = engine.program.user_guide.draw_locals({"y": row}, values, params, row_key)
        return (z.values["z"][0] - row @ params["encoder"]) / params["width"]

    eps = np.array([standard(row) for row in jnp.asarray(y)])
    assert np.std(eps) > 0.3  # Rows draw on their own.
    eps_noise = (jnp.log(noise) - params["noise_loc"]) / 0.1

    def theirs(free: Any) -> Any:
        p = engine.program.constrained(free)
        z = y @ p["encoder"] + p["width"] * eps
        noise = jnp.exp(p["noise_loc"] + 0.1 * eps_noise)
        guide = numpyro.handlers.substitute(encoder, data={"z": z, "noise": noise})
        return loss().loss(KEY, p, latent_line, guide, y)

    expected = jax.jit(jax.grad(theirs))(state.variational.params)
    found = elbo_gradient(engine, state, {"y": y}).params
    for name in found:
        np.testing.assert_allclose(found[name], -expected[name], rtol=1e-6, atol=1e-8)


@pytest.mark.thorough
def test_closed_forms_give_the_expected_gradient(x64):
    one = engine_for(regression, X, Y, loss=TraceMeanField_ELBO())
    other = engine_for(regression, X, Y)
    state = one.initial_state(KEY)
    arrays = state.variational.guide

    def public(engine: DpviEngine, count: int) -> Any:
        size = engine.program.guide.num_draws  # type: ignore[union-attr]
        draws = jax.random.normal(KEY, (count, size))
        return jax.jit(jax.grad(engine.program.public_elbo))(arrays, {}, draws)

    exact, sampled = public(one, 1), public(other, 200_000)
    # KL of Normals, by hand. NumPyro has no closed form for the log-normal noise.
    loc, scale = np.asarray(arrays["loc"]), np.exp(arrays["log_scale"])
    np.testing.assert_allclose(exact["loc"][:3], -loc[:3], rtol=1e-6)
    np.testing.assert_allclose(exact["log_scale"][:3], 1 - scale[:3] ** 2, rtol=1e-6)
    for name in exact:
        np.testing.assert_allclose(sampled[name][:3], exact[name][:3], atol=0.02)
    # As many draws of it come to the same: KL(LogNormal ‖ LogNormal(-1/2, 1/2)).
    unit = one.space.sites[1].unit
    expected = -(unit * loc[3] + 0.5) * 4 * unit
    np.testing.assert_allclose(sampled["loc"][3], expected, atol=0.02)
    expected = 1 - 4 * (unit * scale[3]) ** 2
    np.testing.assert_allclose(sampled["log_scale"][3], expected, atol=0.02)


@pytest.mark.slow
def test_a_guide_without_arguments_and_its_file(tmp_path):
    def guide():
        loc: Any = numpyro.param("loc", jnp.zeros(3))
        scale: Any = numpyro.param(
            "scale", jnp.ones(3), constraint=constraints.positive
        )
        numpyro.sample("w", dist.Normal(loc, scale).to_event(1))
        numpyro.sample("noise", dist.LogNormal(numpyro.param("n", 0.0), 0.1))

    result = fit(regression, X, Y, engine=nv.DPVI(guide=guide), num_steps=3)
    assert isinstance(result.posterior, DrawsPosterior)
    assert set(result.posterior.points) == {"loc", "scale", "n"}
    draws = result.sample_posterior(KEY, (50, 40))
    assert draws["w"].shape == (50, 40, 3) and np.all(draws["noise"] > 0)
    z = (draws["w"].reshape(-1, 3) - result.params["loc"]) / result.params["scale"]
    assert np.max(np.abs(z.mean(0))) < 5 / math.sqrt(2000)
    result.save(tmp_path / "fit.nc")
    again = nv.load(tmp_path / "fit.nc")
    saved = again.sample_posterior(KEY, (2000,))["w"]
    z = (saved - result.params["loc"]) / result.params["scale"]
    assert np.max(np.abs(z.mean(0))) < 5 / math.sqrt(1000)
    np.testing.assert_allclose(z.std(0), 1.0, atol=0.15)
    assert again.to_arviz(KEY, num_samples=7).posterior["w"].shape == (1, 7, 3)


@pytest.mark.thorough
def test_a_delta_guide_estimates_points():
    def guide(X: Any, y: Any = None):
        w: Any = numpyro.param("at", jnp.zeros(X.shape[1]))
        numpyro.sample("w", dist.Delta(w).to_event(1))
        numpyro.sample("noise", dist.Delta(jnp.asarray(0.3)))

    result = fit(regression, X, Y, engine=nv.DPVI(guide=guide))
    mode = np.linalg.solve(X.T @ X / 0.09 + np.eye(3), X.T @ Y / 0.09)
    np.testing.assert_allclose(result.params["at"], mode, atol=0.02)


# --- latents of rows ------------------------------------------------------------------


@pytest.mark.thorough_with("all-1.0", "all-1e+18")
@pytest.mark.optimized
@pytest.mark.parametrize("size", [1.0, 1e3, 1e10, 1e18])
@pytest.mark.parametrize("perturb", ["location", "all"])
def test_one_row_moves_an_amortised_sum_by_at_most_the_norm(size, perturb):
    y = X[:8].copy()
    engine = engine_for(latent_line, y, guide=encoder, perturb=perturb)
    state = engine.initial_state(KEY)
    rng = np.random.default_rng(2)
    largest = 0.0
    for _ in range(10):
        y[3] = size * rng.uniform(-1, 1, 3)
        present = full_sum(engine, state, {"y": y}, clipping_norm=0.7)
        mask = np.arange(8) != 3
        absent = full_sum(engine, state, {"y": y}, mask, clipping_norm=0.7)
        # The others' draws do not know that a row is missing before them.
        without = {"y": np.delete(y, 3, 0)}
        removed = full_sum(engine, state, without, clipping_norm=0.7)
        np.testing.assert_allclose(joint(absent), joint(removed), rtol=1e-5, atol=1e-6)
        difference = np.linalg.norm(joint(present) - joint(removed))
        assert difference <= 0.7 * (1 + 1e-5)
        largest = max(largest, difference)
    if size <= 1e10:
        assert largest >= 0.95 * 0.7


@pytest.mark.quick_with("nan")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_row_of_an_amortised_model_counts_as_zero(bad):
    y = X[:8].copy()
    engine = engine_for(latent_line, y, guide=encoder)
    state = engine.initial_state(KEY)
    mask = np.arange(8) != 3
    without = full_sum(engine, state, {"y": y}, mask, clipping_norm=1.0)
    y[3, 1] = bad
    found = full_sum(engine, state, {"y": y}, clipping_norm=1.0)
    for name in without:
        np.testing.assert_array_equal(found[name], without[name])


@pytest.mark.slow
def test_a_factor_model_finds_the_principal_axis():
    rng = np.random.default_rng(3)
    axis = np.array([2.0, 1.0, -1.0])
    y = np.outer(rng.normal(size=400), axis) + 0.3 * rng.normal(size=(400, 3))
    y = y.astype(np.float32)
    result = fit(latent_line, y, engine=nv.DPVI(guide=encoder), num_steps=1500)
    weights = result.params["weights"]
    # Probabilistic PCA: the leading eigenvector times sqrt(eigenvalue - noise²).
    values, vectors = np.linalg.eigh(y.T @ y / 400)
    best = vectors[:, -1] * np.sqrt(values[-1] - values[:2].mean())
    best *= np.sign(best @ weights)
    np.testing.assert_allclose(weights, best, atol=0.1)
    found = Predictive(encoder, params=result.posterior.points, num_samples=1)(KEY, y)
    scores = y @ vectors[:, -1]
    assert abs(np.corrcoef(found["z"][0], scores)[0, 1]) > 0.95


@pytest.mark.slow
def test_a_private_autoencoder_names_what_it_releases():
    budget = nv.PrivacyBudget(4.0, 1e-5)
    marked = private(latent_line, unit="people")
    vi = vi_of(marked, budget=budget, engine=nv.DPVI(guide=encoder), num_steps=5)
    plan = vi.explain(X)
    assert plan.engine == "dpvi"
    names = {row["statistic"] for row in plan.statistics}
    assert names == {"loc", "param encoder", "param weights", "param width"}
    posteriors = {site["site"]: site["posterior"] for site in plan.sites}
    assert posteriors["z"] == posteriors["noise"] == "the given guide"
    result = vi.run(KEY, X)
    assert "z" not in result.sample_posterior(KEY)
    assert "weights" in result.params and budget.spent().epsilon > 0


# --- networks -------------------------------------------------------------------------


def cosine_fit(model: Any) -> tuple[Any, float]:
    x = np.random.default_rng(0).uniform(-1, 1, (200, 1)).astype(np.float32)
    y = np.cos(3 * x[:, 0]).astype(np.float32)
    result = fit(model, x, y, num_steps=600)
    samples = result.sample_posterior(KEY, (30,))
    predictive = Predictive(model, samples, params=result.posterior.points)
    error = predictive(KEY, x)["y"].mean(0) - y
    return result, float(np.mean(error**2) / np.var(y))


def observed(net: Any, x: Any, y: Any) -> None:
    noise: Any = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(net(x)[..., 0], noise), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equinox", "random equinox", "plain"])
def test_networks_learn(kind, tmp_path):
    def plain(x: Any) -> Any:
        keys = jax.random.split(KEY)
        first: Any = numpyro.param("first", 2 * jax.random.normal(keys[0], (1, 8)))
        bias: Any = numpyro.param("bias", jnp.linspace(-1, 1, 8))
        second: Any = numpyro.param("second", 0.3 * jax.random.normal(keys[1], (8, 1)))
        return jnp.tanh(x @ first + bias) @ second

    def model(x: Any, y: Any = None):
        from numpyro.contrib import module

        net: Any = plain
        if kind == "equinox":
            of_one: Any = module.eqx_module("net", network)
            net = jax.vmap(of_one)
        elif kind == "random equinox":
            prior = dist.Normal(0.0, 2.0)
            of_one = module.random_eqx_module("net", network, prior)
            net = jax.vmap(of_one)
        observed(net, x, y)

    if kind != "plain":
        import equinox

        network = equinox.nn.MLP(1, 1, 8, 1, activation=jnp.tanh, key=KEY)
    result, error = cosine_fit(model)
    assert error < 0.1
    result.save(tmp_path / "net.nc")
    again = nv.load(tmp_path / "net.nc")
    assert set(again.params) == set(result.params)
    for name, value in result.params.items():
        np.testing.assert_array_equal(again.params[name], value)
    if kind != "random equinox":
        # The marked model knows what the network is, which a file does not.
        marked = private(model, unit="people")
        posterior: Any = again.posterior
        predictive = Predictive(marked, {}, params=posterior.points, num_samples=1)
        assert predictive(KEY, np.zeros((5, 1), np.float32))["y"].shape == (1, 5)


def test_parameters_keep_vips_away():
    def model(y: Any):
        m: Any = numpyro.sample("m", dist.Normal(0, 1))
        shift: Any = numpyro.param("shift", 0.0)
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.Normal(m + shift, 1.0), obs=y)

    marked = private(model, unit="people")
    budget = nv.PrivacyBudget(1.0, 1e-5)
    vi = vi_of(marked, budget=budget)
    assert vi.explain(Y).engine == "dpvi"
    assert "without a prior" in vi.explain(Y).reasons["shift"]
    with pytest.raises(nv.NotConjugateError, match="shift"):
        vi_of(marked, budget=budget, engine="vips").explain(Y)


# --- what is refused ------------------------------------------------------------------


def reads_rows(X: Any, y: Any = None):
    numpyro.sample("w", dist.Normal(X.mean(0), 1.0).to_event(1))
    numpyro.sample("noise", dist.LogNormal(0.0, 1.0))


def starts_at_rows(X: Any, y: Any = None):
    loc: Any = numpyro.param("loc", X.mean(0))
    numpyro.sample("w", dist.Normal(loc, 1.0).to_event(1))
    numpyro.sample("noise", dist.LogNormal(0.0, 1.0))


def counts_rows(X: Any, y: Any = None):
    width = 1 / jnp.sqrt(X.shape[0])
    numpyro.sample("w", dist.Normal(jnp.zeros(3), width).to_event(1))
    numpyro.sample("noise", dist.LogNormal(0.0, 1.0))


def captures_rows(X: Any, y: Any = None):
    numpyro.sample("w", dist.Normal(_ROWS.mean(0), 1.0).to_event(1))
    numpyro.sample("noise", dist.LogNormal(0.0, 1.0))


def leaves_one_out(X: Any, y: Any = None):
    numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))


def has_one_more(X: Any, y: Any = None):
    leaves_one_out(X)
    numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
    numpyro.sample("other", dist.Normal(0.0, 1.0))


def has_another_shape(X: Any, y: Any = None):
    numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("noise", dist.LogNormal(0.0, 1.0))


def has_no_gradient(X: Any, y: Any = None):
    numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    mixing: Any = dist.CategoricalProbs(jnp.ones(2) / 2)
    base = dist.LogNormal(jnp.zeros(2), 1.0)
    mixture: Any = dist.MixtureSameFamily(mixing, base)
    numpyro.sample("noise", mixture)


_ROWS = np.array(X)


@pytest.mark.parametrize(
    ("guide", "words"),
    [
        (reads_rows, "private argument 'X'"),
        (starts_at_rows, "initial value of a parameter.*private argument 'X'"),
        (counts_rows, "number of rows"),
        (captures_rows, "In the guide: .*axis of the length of the data"),
        (leaves_one_out, "does not sample 'noise'"),
        (has_one_more, "'other', which is no latent of the model"),
        (has_another_shape, "has the shape"),
        (has_no_gradient, "no reparametrised draws"),
    ],
)
def test_a_guide_is_refused_before_any_budget_is_spent(guide, words):
    budget = nv.PrivacyBudget(1.0, 1e-5)
    with pytest.raises(UnsafeModelError, match=words):
        fit(regression, X, Y, engine=nv.DPVI(guide=guide), budget=budget)
    assert budget.spent().epsilon == 0


def local_parameters(y: Any):
    loc: Any = numpyro.param("loc", jnp.zeros(y.shape[0]))
    numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("z", dist.Normal(loc, 1.0))


def indexed_parameters(y: Any):
    loc: Any = numpyro.param("loc", jnp.zeros(50))
    numpyro.sample("noise", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("people", y.shape[0]) as rows:
        numpyro.sample("z", dist.Normal(loc[rows], 1.0))


def global_from_rows(y: Any):
    with numpyro.plate("people", y.shape[0]):
        z: Any = numpyro.sample("z", dist.Normal(0.0, 1.0))
    numpyro.sample("noise", dist.LogNormal(z.mean(), 1.0))


@pytest.mark.parametrize(
    ("guide", "words"),
    [
        (local_parameters, "shape of the parameter 'loc' depends on the number"),
        (indexed_parameters, "amortised guide"),
        (global_from_rows, "latents of single rows"),
    ],
)
def test_a_guide_for_rows_is_refused(guide, words):
    with pytest.raises(UnsafeModelError, match=words):
        fit(latent_line, X, engine=nv.DPVI(guide=guide))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"guide": "diagonal"}, ValueError, "guide"),
        ({"guide": 3}, TypeError, "NumPyro function"),
        ({"guide": AutoNormal(regression)}, TypeError, "mean_field"),
        ({"guide": lambda a, b, c: None}, TypeError, "model's arguments or none"),
        ({"loss": RenyiELBO()}, TypeError, "Trace_ELBO"),
        (
            {"loss": Trace_ELBO(num_particles=2), "perturb": "location"},
            ValueError,
            "single draw",
        ),
    ],
)
def test_options_are_checked_before_any_budget_is_spent(options, error, words):
    budget = nv.PrivacyBudget(1.0, 1e-5)
    with pytest.raises(error, match=words):
        fit(regression, X, Y, budget=budget, engine=nv.DPVI(**options))
    assert budget.spent().epsilon == 0


# --- agreement ------------------------------------------------------------------------


def normal_mean(y: Any):
    m: Any = numpyro.sample("m", dist.Normal(0.0, 10.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(m, 2.0), obs=y)


def linear(X: Any, y: Any):
    w: Any = numpyro.sample("w", dist.Normal(0, 3).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, 0.5), obs=y)


def counts(y: Any):
    rate: Any = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def coin(y: Any):
    p: Any = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.BernoulliProbs(p), obs=y)


def dice(y: Any):
    p: Any = numpyro.sample("p", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.CategoricalProbs(p), obs=y)


def agreement_cases() -> dict[str, tuple[Any, ...]]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    X[:, 1] += 0.5 * X[:, 0]
    y = (X @ [1.0, -2.0, 0.5, 0.0] + 0.5 * rng.normal(size=300)).astype(np.float32)
    return {
        "normal mean": (normal_mean, 3 + 2 * rng.normal(size=400).astype(np.float32)),
        "linear regression": (linear, X, y),
        "Gamma-Poisson": (counts, rng.poisson(4.0, 500)),
        "Gamma-Poisson, narrow": (counts, rng.poisson(40.0, 5000)),
        "Beta-Bernoulli": (coin, (rng.random(300) < 0.1).astype(np.float32)),
        "Dirichlet-Categorical": (dice, rng.choice(4, 400, p=[0.1, 0.2, 0.3, 0.4])),
    }


FAST_AGREEMENT = ("linear regression",)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in FAST_AGREEMENT else pytest.mark.slow)
        for case in agreement_cases()
    ],
)
def test_engines_agree_on_conjugate_models(case):
    model, *args = agreement_cases()[case]
    draws = {}
    for engine in ("vips", "dpvi"):
        result = fit(model, *args, engine=engine)
        (draws[engine],) = result.sample_posterior(KEY, (40_000,)).values()
    difference = draws["dpvi"].mean(0) - draws["vips"].mean(0)
    assert np.max(np.abs(difference / draws["vips"].std(0))) < 0.1
