"""Latents of rows that are solved for, against marginal densities in closed form."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_of_graph
from _fits import vi_of
from _models import three_locals
from scipy import special, stats

from numpyro_vips.dpvi.row_latents.locals_of_rows import find_locals_of_rows
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph

KEY = jax.random.key(0)


def _weights(shape: tuple[int, ...], name: str = "w") -> Any:
    return numpyro.sample(name, dist.Normal(0, 1).expand(shape).to_event(len(shape)))


def _positive(name: str) -> Any:
    return numpyro.sample(name, dist.HalfNormal(1.0))


# --- models, each with its marginal density -------------------------------------------


def effects(X: Any, y: Any = None):
    """A Gaussian effect of every row around a mean that is no line."""
    w, spread, noise = _weights((3,)), _positive("spread"), _positive("noise")
    with numpyro.plate("people", X.shape[0]):
        z: Any = numpyro.sample("z", dist.Normal(jnp.tanh(X @ w), spread))
        numpyro.sample("y", dist.Normal(z + X @ w, noise), obs=y)


def marginal_effects(X: Any, y: Any = None):
    w, spread, noise = _weights((3,)), _positive("spread"), _positive("noise")
    with numpyro.plate("people", X.shape[0]):
        mean = jnp.tanh(X @ w) + X @ w
        scale = jnp.sqrt(spread**2 + noise**2)
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def frailty(X: Any, y: Any = None):
    w, shape = _weights((3,)), _positive("shape")
    with numpyro.plate("people", X.shape[0]):
        u: Any = numpyro.sample("u", dist.Gamma(shape, shape))
        numpyro.sample("y", dist.Poisson(u * jnp.exp(X @ w)), obs=y)


def marginal_frailty(X: Any, y: Any = None):
    w, shape = _weights((3,)), _positive("shape")
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.GammaPoisson(shape, shape * jnp.exp(-X @ w)), obs=y)


def mixture(X: Any, y: Any = None):
    """A discrete and a continuous latent, and an observation with neither."""
    w, mean = _weights((3, 2)), _weights((2,), "mean")
    spread, noise = _positive("spread"), _positive("noise")
    with numpyro.plate("people", X.shape[0]):
        k: Any = numpyro.sample("k", dist.CategoricalLogits(X @ w))
        u: Any = numpyro.sample("u", dist.Normal(mean[k], spread))
        numpyro.sample("y", dist.Normal(u, noise), obs=y)
        numpyro.sample("x", dist.Cauchy(jnp.tanh(mean[0]), 1.0), obs=X[:, 0])


def marginal_mixture(X: Any, y: Any = None):
    w, mean = _weights((3, 2)), _weights((2,), "mean")
    spread, noise = _positive("spread"), _positive("noise")
    with numpyro.plate("people", X.shape[0]):
        scale = jnp.sqrt(spread**2 + noise**2)
        parts = dist.Normal(jnp.broadcast_to(mean, (X.shape[0], 2)), scale)
        which = dist.Categorical(logits=X @ w)
        numpyro.sample("y", dist.MixtureSameFamily(which, parts), obs=y)
        numpyro.sample("x", dist.Cauchy(jnp.tanh(mean[0]), 1.0), obs=X[:, 0])


def factors(X: Any):
    """Factor analysis whose loadings are no linear function of the globals."""
    w, noise = _weights((3, 2)), _positive("noise")
    shift = numpyro.param("shift", jnp.linspace(-0.5, 0.5, 3))
    with numpyro.plate("people", X.shape[0]):
        z: Any = numpyro.sample("z", dist.Normal(0, 1).expand([2]).to_event(1))
        mean = z @ jnp.sin(w).T + shift
        numpyro.sample("x", dist.Normal(mean, noise).to_event(1), obs=X)


def marginal_factors(X: Any):
    w, noise = _weights((3, 2)), _positive("noise")
    shift = numpyro.param("shift", jnp.linspace(-0.5, 0.5, 3))
    with numpyro.plate("people", X.shape[0]):
        covariance = jnp.sin(w) @ jnp.sin(w).T + noise**2 * jnp.eye(3)
        numpyro.sample("x", dist.MultivariateNormal(shift, covariance), obs=X)


def _rows(count: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "X": rng.normal(size=(count, 3)).astype(np.float32),
        "y": rng.normal(size=count).astype(np.float32),
        "counts": rng.poisson(2.0, count),
    }


PAIRS = {
    "effects": (effects, marginal_effects, ("X", "y")),
    "frailty": (frailty, marginal_frailty, ("X", "counts")),
    "mixture": (mixture, marginal_mixture, ("X", "y")),
    "factors": (factors, marginal_factors, ("X",)),
}


def _graph(model: Any, *args: Any) -> Any:
    marked = private(model, unit="people")
    return build_graph(marked, bind_arguments(marked, args, {}))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    [
        "effects",
        pytest.param("mixture", marks=pytest.mark.slow),
        pytest.param("frailty", marks=pytest.mark.slow),
        pytest.param("factors", marks=pytest.mark.slow),
    ],
)
def test_exact_posteriors_give_the_marginal_density(case, x64):
    """The sums of clipped gradients are those of the model with the latents gone."""
    solved, marginal, names = PAIRS[case]
    args = tuple(_rows()[name] for name in names)
    sums = []
    for model in (solved, marginal):
        engine = engine_of_graph(_graph(model, *args))
        state = engine.initial_state(KEY)
        rows = dict(bind_arguments(private(model, unit="people"), args, {}).private)
        found = engine.bounded_sum(
            state,
            rows,
            np.arange(6) != 3,
            scales={block.name: 1.0 for block in engine.blocks("adaptive")},
            clipping_norm=1.0,
        )
        sums.append(found)
    assert set(sums[0]) == set(sums[1])
    for name in sums[0]:
        np.testing.assert_allclose(sums[0][name], sums[1][name], rtol=1e-6, atol=1e-9)
    assert np.linalg.norm(sums[0]["loc"]) > 0.1


# --- where the family does not hold the posterior -------------------------------------


def logistic_effects(X: Any, y: Any = None):
    w, spread = _weights((3,)), _positive("spread")
    with numpyro.plate("people", X.shape[0]):
        z: Any = numpyro.sample("z", dist.Normal(0.0, spread))
        logits = z[:, None] + jnp.tanh(X @ w)[:, None]
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


@pytest.mark.thorough
def test_the_gradient_of_a_bound_is_that_of_its_value(x64):
    X = _rows()["X"][:1].astype(float)
    y = np.array([[1.0, 0.0, 1.0, 1.0]])
    found = find_locals_of_rows(_graph(logistic_effects, X, y), sweeps=200)
    assert found is not None

    def bound(flat: Any) -> Any:
        values = {"w": flat[:3], "spread": jnp.exp(flat[3])}
        return found(values, {"X": X[0], "y": y[0]}, {})[0]

    start = jnp.array([0.3, -0.5, 0.2, 0.4])
    value, gradient = jax.jit(jax.value_and_grad(bound))(start)
    evaluate = jax.jit(bound)
    for axis, step in enumerate(1e-5 * jnp.eye(4)):
        slope = (evaluate(start + step) - evaluate(start - step)) / 2e-5
        np.testing.assert_allclose(gradient[axis], slope, rtol=1e-5, atol=1e-7)
    # Against quadrature: below the density itself, and close to it.
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    logits = math.exp(0.4) * nodes[:, None] + np.tanh(X[0] @ np.asarray(start[:3]))
    likelihood = np.exp(-np.logaddexp(0, -(2 * y - 1) * logits).sum(1))
    exact = math.log(weights @ likelihood / math.sqrt(2 * math.pi))
    assert exact - 0.1 < value < exact


def topics(words: Any):
    """Logistic-normal topics; the assignments have too many states to enumerate."""
    topic = jax.nn.softmax(_weights((2, 4), "topic"), axis=-1)
    with numpyro.plate("people", words.shape[0], dim=-2):
        share: Any = numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
        with numpyro.plate("word", words.shape[1], dim=-1):
            k: Any = numpyro.sample("k", dist.CategoricalProbs(share))
            numpyro.sample("words", dist.CategoricalProbs(topic[k]), obs=words)


@pytest.mark.thorough
def test_discrete_latents_that_are_too_many_are_solved_for_too(x64):
    words = np.array([[0, 1, 1, 3, 2, 0, 0, 1, 1, 3, 2]])
    found = find_locals_of_rows(_graph(topics, words))
    assert found is not None
    assert set(found.solved) == {"share", "k"}
    free = np.random.default_rng(0).normal(size=(2, 4))
    values = {"topic": jnp.asarray(free)}
    value, valid = jax.jit(lambda: found(values, {"words": words[0]}, {}))()
    assert valid
    # By all assignments: their Dirichlet-multinomial weight depends on counts alone.
    chances = np.asarray(jax.nn.softmax(free, axis=-1))[:, words[0]]
    polynomial = np.ones(1)
    for first, second in chances.T:
        polynomial = np.convolve(polynomial, [second, first])
    count = np.arange(len(polynomial))
    total = len(polynomial) - 1
    exact = np.log(polynomial @ special.beta(1 + count, 1 + total - count))
    assert exact - 1.0 < value < exact


# --- the guarantee --------------------------------------------------------------------


@pytest.mark.optimized
def test_one_row_moves_the_sum_by_at_most_the_clipping_norm():
    rows = _rows()
    engine = engine_of_graph(_graph(frailty, rows["X"], rows["counts"]))
    state = engine.initial_state(KEY)

    def loc(X: Any, y: Any, mask: Any) -> np.ndarray:
        sums = engine.bounded_sum(
            state, {"X": X, "y": y}, mask, scales={"loc": 1.0}, clipping_norm=0.7
        )
        return np.asarray(sums["loc"], float)

    absent = loc(rows["X"], rows["counts"], np.arange(6) != 2)
    reached = 0.0
    for size in (1.0, 10.0, 1e3, 1e10, 1e30, np.inf, np.nan):
        for count in (0, 3, 10**9, -1):
            X, y = rows["X"].copy(), rows["counts"].copy()
            X[2], y[2] = size, count
            moved = np.linalg.norm(loc(X, y, np.ones(6, bool)) - absent)
            assert moved <= 0.7 * (1 + 1e-5)
            if count < 0 or not np.isfinite(size):
                assert moved == 0.0
            reached = max(reached, moved)
    assert reached > 0.69


def test_globals_are_legal_up_to_rounding():
    """Where 500 probabilities add up to one only nearly, rows count all the same."""

    def model(y: Any):
        share: Any = numpyro.sample("share", dist.Dirichlet(jnp.ones(500)))
        scale = _positive("scale")
        with numpyro.plate("people", y.shape[0]):
            k: Any = numpyro.sample("k", dist.CategoricalProbs(share))
            mean = jnp.linspace(-1.0, 1.0, 500)[k]
            z: Any = numpyro.sample("z", dist.Normal(mean, scale))
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    found = find_locals_of_rows(_graph(model, np.zeros(3, np.float32)))
    assert found is not None
    share = jnp.full(500, (1 + 1e-5) / 500)
    values = {"share": share, "scale": jnp.asarray(0.5)}
    value, valid = jax.jit(lambda: found(values, {"y": jnp.asarray(0.3)}, {}))()
    parts = dist.Normal(jnp.linspace(-1.0, 1.0, 500), math.hypot(0.5, 1.0))
    expected = jnp.log(jnp.mean(jnp.exp(parts.log_prob(0.3))))
    assert valid
    np.testing.assert_allclose(value, expected, rtol=1e-4)


# --- what users see -------------------------------------------------------------------


def test_what_is_not_conjugate_is_refused_with_the_reason():
    graph = _graph(three_locals, np.zeros(3, np.float32))
    with pytest.raises(UnsafeModelError, match=r"tanh.*Pass guide="):
        find_locals_of_rows(graph)


@pytest.mark.thorough
def test_a_fit_explains_itself_and_bounds_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)).astype(np.float32)
    w = np.array([0.5, -0.4, 0.2])
    y = np.tanh(X @ w) + X @ w + rng.normal(size=400) * math.hypot(0.7, 0.4)
    vi = vi_of(private(effects, unit="people"), budget=math.inf, num_steps=200)
    y = y.astype(np.float32)
    plan = vi.explain(X, y)
    assert plan.engine == "dpvi"
    (site,) = (site for site in plan.sites if site["site"] == "z")
    assert site["posterior"] == "conjugate, solved per row"
    result = vi.run(KEY, X, y)
    draws = result.sample_posterior(jax.random.key(1), (200,))
    np.testing.assert_allclose(draws["w"].mean(0), w, atol=0.1)
    scale = np.hypot(draws["spread"], draws["noise"])
    assert abs(scale.mean() - math.hypot(0.7, 0.4)) < 0.1
    line = np.asarray(draws["w"]) @ X[:5].T
    density = dist.Normal(np.tanh(line) + line, scale[:, None]).log_prob(y[:5])
    np.testing.assert_allclose(result.elbo(X[:5], y[:5]), density.mean(0), atol=0.05)


def density_at_spread(spread: float) -> tuple[Any, Any]:
    """The log density of y = 2 about an effect with mean 1.5, in double precision."""

    def levels(y: Any = None) -> None:
        mean, scale = _weights((1,)), _positive("spread")
        with numpyro.plate("people", y.shape[0]):
            z: Any = numpyro.sample("z", dist.Normal(mean[0], scale))
            numpyro.sample("y", dist.Normal(z, 1.0), obs=y)

    model = private(levels, unit="people")
    arguments = bind_arguments(model, (np.full(2, 2.0, np.float32),), {})
    solved = find_locals_of_rows(build_graph(model, arguments))
    assert solved is not None
    with jax.enable_x64(True):
        values = {"w": jnp.array([1.5]), "spread": jnp.array(spread)}
        return solved(values, {"y": jnp.array(2.0)}, {})


def test_a_bound_that_rounding_decides_is_none():
    """At a scale of 1e-20 its terms cancel, and fits without noise would go there."""
    found = {}
    for spread in (1e-20, 0.5):
        log_density, is_valid = density_at_spread(spread)
        found[spread] = bool(is_valid), float(log_density)
    assert not found[1e-20][0] and found[0.5][0]
    # Of y ~ Normal(1.5, sqrt(spread² + 1)), at y = 2.
    expected = stats.norm.logpdf(2.0, 1.5, np.hypot(0.5, 1.0))
    assert found[0.5][1] == pytest.approx(expected)
