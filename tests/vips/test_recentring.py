"""Statistics of Gaussians that are released about the mean of a pilot."""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _engine_fit import UNCLIPPED, EngineFit
from _fits import vi_of
from _models import rates

import numpyro_vips as nv

ROWS = 60


def gaussian(y: Any) -> None:
    m = numpyro.sample("m", dist.Normal(0.0, 100.0))
    s = numpyro.sample("s", dist.HalfNormal(5.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m, s), obs=y)


def known_scale(y: Any) -> None:
    m = numpyro.sample("m", dist.Normal(0.0, 100.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(m, 2.0), obs=y)


def regression(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 10.0).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 50.0))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(b + X @ w, 1.0 / jnp.sqrt(tau)), obs=y)


def groups(g: Any, x: Any, y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 30.0))
    t = numpyro.sample("t", dist.HalfNormal(2.0))
    s = numpyro.sample("s", dist.HalfNormal(2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", 3):
        a = numpyro.sample("a", dist.Normal(mu, t))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a[g] + slope * x, s), obs=y)


def multivariate(y: Any) -> None:
    m = numpyro.sample("m", dist.Normal(jnp.zeros(2), 30.0).to_event(1))
    P = numpyro.sample("P", dist.Wishart(4.0, rate_matrix=jnp.eye(2) * 4))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.MultivariateNormal(m, precision_matrix=P), obs=y)


def mixture(y: Any) -> None:
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("components", 2):
        m = numpyro.sample("m", dist.Normal(jnp.array([10.0, 30.0]), 10.0))
        s = numpyro.sample("s", dist.HalfNormal(5.0))
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Categorical(p), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(m[z], s[z]), obs=y)


def heavy_tails(y: Any) -> None:
    m = numpyro.sample("m", dist.Normal(0.0, 100.0))
    s = numpyro.sample("s", dist.HalfNormal(5.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.StudentT(4.0, m, s), obs=y)


def _rows(model: Callable[..., None]) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    y = rng.normal(20.0, 3.0, ROWS).astype(np.float32)
    x = rng.normal(size=(ROWS, 2)).astype(np.float32)
    if model is regression:
        return x, (y + x @ [2.0, -1.0]).astype(np.float32)
    if model is groups:
        return rng.integers(0, 3, ROWS), x[:, 0], y
    if model is multivariate:
        return ((20.0 + 3.0 * x).astype(np.float32),)
    return (y,)


ONCE = (gaussian, known_scale, regression, groups, multivariate)
ADAPTIVE = (mixture, heavy_tails)


class Fit(EngineFit):
    """A model's engine, with its rows."""

    def __init__(self, model: Callable[..., None], **options: Any):
        super().__init__(model, _rows(model), **options)

    def origins(self, scale: float = 1.0) -> dict[str, np.ndarray]:
        """Points that are no mean of anything."""
        rng = np.random.default_rng(1)
        return {
            name: (scale * rng.normal(15.0, 5.0, zero.shape)).astype(np.float32)
            for name, zero in self.start.origins.items()
        }

    def about(self, origins: Mapping[str, np.ndarray]) -> Any:
        double = {name: point.astype(np.float64) for name, point in origins.items()}
        return self.start._replace(next_origins=double, kept=0.0)


@functools.cache
def fit_of(model: Callable[..., None]) -> Fit:
    """The default fit of a model; what is asked of it leaves it as it is."""
    return Fit(model)


def _means(engine: Any, natural: Any) -> dict[str, np.ndarray]:
    moments = engine.on_globals.posterior_of(natural).moments()
    return {name: np.asarray(found.mean) for name, found in moments.items()}


# --- what is recentred ----------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("model", [*ONCE, *ADAPTIVE])
def test_locations_are_recentred(model: Callable[..., None]):
    fit = fit_of(model)
    assert fit.start.origins
    moved = fit.engine.recentred
    assert moved <= set(fit.scales)
    kinds = {s.release for s in fit.engine.statistics if s.name in moved}
    assert kinds == ({"once"} if model in ONCE else {"adaptive"})
    # About a point that moves there is no structure that bounds a norm.
    assert not any(p.is_fixed for p in fit.parts if moved & set(p.blocks))
    # Nor does a square stay one, term by term; but products of features do.
    for statistic in fit.engine.statistics:
        if statistic.recentred:
            assert statistic.geometry == "signed"
            assert statistic.lower == -np.inf and statistic.upper == np.inf


def logistic(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def loadings(Y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(jnp.zeros((3, 2)), 1.0).to_event(2))
    with numpyro.plate("rows", len(Y)):
        z = numpyro.sample("z", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        numpyro.sample("Y", dist.Normal(z @ W.T, 0.5).to_event(1), obs=Y)


def many_groups(g: Any, y: Any) -> None:
    with numpyro.plate("groups", 1000):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize("model", [logistic, loadings, rates, many_groups])
def test_these_are_not(model: Callable[..., None]):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(ROWS, 2)), rng.integers(0, 2, ROWS)
    rows = {
        logistic: (X, y),
        loadings: (rng.normal(size=(ROWS, 3)),),
        rates: (y,),
        many_groups: (y, X[:, 0]),
    }[model]
    prepared, _ = vi_of(model)._prepare_fit(rows, {})
    assert prepared.engine.name == "vips"
    assert not prepared.engine.recentred
    assert not any(step.is_pilot or step.recentres for step in prepared.steps)


@pytest.mark.parametrize(
    "options", [{"clipping_norm": 3.0}, {"engine": nv.VIPS(release_once=False)}]
)
def test_norms_of_the_callers_are_those_about_zero(options: dict[str, Any]):
    fit = Fit(gaussian, **options)
    assert not fit.engine.recentred and not fit.start.origins
    assert not any(step.is_pilot for step in fit.steps)


# --- a change of variables ------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("model", [gaussian, known_scale, multivariate, heavy_tails])
def test_statistics_about_a_point_are_those_of_rows_less_the_point(
    model: Callable[..., None],
):
    fit = fit_of(model)
    point = 19.0
    origins = {n: np.full_like(zero, point) for n, zero in fit.start.origins.items()}
    moved = {"y": fit.rows["y"] - np.float32(point)}
    state = fit.about(origins)
    if model is heavy_tails:
        # Latents of rows know the globals as they are, so these move as well.
        (name,) = origins
        at = dict(fit.start.moments)
        mean = at[name]["x"] + point
        square = mean[..., :, None] * mean[..., None, :]
        spread = at[name]["xx"] - at[name]["x"][..., None] * at[name]["x"][..., None, :]
        at[name] = {"x": mean, "xx": square + spread}
        natural = fit.engine.on_rows.expected_natural_of(at)
        state = state._replace(expected_natural=natural)
    found = fit.sums(state, UNCLIPPED)
    expected = fit.sums(fit.start, UNCLIPPED, moved)
    for name in fit.scales:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-4, atol=2e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("model", [*ONCE, *ADAPTIVE])
def test_the_posterior_is_the_same_about_any_point(model: Callable[..., None]):
    fit = fit_of(model)
    noise = dict.fromkeys(fit.scales, 0.0)
    found = []
    for state in (fit.start, fit.about(fit.origins())):
        state = fit.engine.update(state, fit.sums(state, UNCLIPPED), noise, 1.0)
        found.append(_means(fit.engine, state.natural))
    for name, mean in found[0].items():
        np.testing.assert_allclose(found[1][name], mean, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
def test_noise_in_large_squares_is_none_of_the_spread():
    """The same noise in Σ xxᵀ, once beside weights near 20 and once near zero."""
    fit = fit_of(regression)
    noise = dict.fromkeys(fit.scales, 5.0)
    spreads = []
    (factor,) = fit.start.origins
    near = np.array([2.0, -1.0, 20.0], np.float32)
    for state in (fit.start, fit.about({factor: near})):
        sums = fit.sums(state, UNCLIPPED)
        state = fit.engine.update(state, sums, noise, 1.0)
        draws = fit.engine.posterior(state).sample(jax.random.key(0), (4000,))
        spreads.append(float(np.std(np.asarray(draws["w"])[:, 0])))
    assert spreads[1] < spreads[0] / 2


# --- privacy --------------------------------------------------------------------------


@pytest.mark.quick_with("gaussian", "known_scale")
@pytest.mark.parametrize("model", [*ONCE, *ADAPTIVE])
def test_one_row_moves_the_sum_by_at_most_the_clipping_norm(
    model: Callable[..., None],
):
    fit = fit_of(model)
    norm = 1.0
    for scale in (0.0, 1.0, 1e3):
        state = fit.about(fit.origins(scale))
        furthest = fit.furthest_neighbour(state, norm, num_rows=8)
        assert furthest <= norm * (1.0 + 1e-6)
        assert furthest > 0.5 * norm  # Rows are clipped here.


@pytest.mark.thorough
@pytest.mark.parametrize("model", [gaussian, groups, mixture])
def test_norms_that_are_counted_are_those_about_the_next_origins(
    model: Callable[..., None],
):
    fit = fit_of(model)
    state = fit.about(fit.origins())
    norms = fit.engine.row_norms(state, fit.rows, sorted(fit.scales))
    one = {n: array[:1] for n, array in fit.rows.items()}
    alone = {
        name: np.linalg.norm(value)
        for name, value in fit.sums(state, UNCLIPPED, one).items()
        if name in fit.engine.recentred
    }
    assert alone
    expected = dict(alone)
    if model is mixture:
        # It may come to be of one component alone, the furthest one.
        furthest = np.abs(one["y"] - fit.origins()["m"]).max()
        expected = {"⟨m⟩⟨s^-2⟩": furthest, "⟨s^-2⟩": furthest**2 / 2}
        assert expected.keys() == alone.keys()
        assert all(alone[name] < expected[name] for name in alone)
    for name, norm in expected.items():
        assert norms[name][0] == pytest.approx(norm, rel=1e-4)


def test_the_pilot_is_charged_and_stated():
    vi = vi_of(gaussian, insecure_seed=0)
    y = np.random.default_rng(0).normal(200.0, 5.0, 2000).astype(np.float32)
    with warnings.catch_warnings(action="ignore"):
        result = vi.run(jax.random.key(0), y)
    labels = [event.label for event in result.privacy.events]
    released = labels[-1]
    pilot = f"pilot of {released}"
    # From it the norms of the squares follow.
    histogram = "histogram of the norms of ⟨m⟩⟨s^-2⟩"
    assert "⟨m⟩⟨s^-2⟩" in released and "⟨s^-2⟩" in released
    # Flat or wide priors let the mean be far away: there are three pilots.
    assert labels == [*[histogram, pilot] * 3, histogram, released]
    assert result.privacy.epsilon == pytest.approx(1.0, abs=0.01)
    assert "pilot of" in str(result.privacy)
    assert result.diagnostics["num_steps"] == 1
    draws = result.sample_posterior(jax.random.key(1), (2000,))
    # The sd was below the noise when squares of 200 were released.
    assert np.std(np.asarray(draws["s"])) < 0.5
    assert abs(np.mean(np.asarray(draws["s"])) - 5.0) < 1.0
    assert abs(np.mean(np.asarray(draws["m"])) - 200.0) < 1.0


@pytest.mark.thorough
@pytest.mark.parametrize("model", [gaussian, mixture])
def test_a_plan_says_that_statistics_are_recentred(model: Callable[..., None]):
    plan = vi_of(model).explain(*_rows(model))
    text = " ".join(str(plan).split())
    assert "are released about means that earlier releases, the pilots, have" in text
    assert sum(entry["share"] for entry in plan.schedule) == pytest.approx(1.0)


def test_only_released_numbers_decide_the_origins():
    fit = fit_of(gaussian)
    noise = dict.fromkeys(fit.scales, 3.0)
    released = {
        n: np.asarray(value + 1.0) for n, value in fit.sums(fit.start, 9.0).items()
    }
    state = fit.engine.update(fit.start, released, noise, 1.0)
    again = fit.engine.update(fit.start, released, noise, 1.0)
    origins = fit.engine.recentre(state).next_origins
    for name, point in fit.engine.recentre(again).next_origins.items():
        np.testing.assert_array_equal(origins[name], point)
        # Rows know it in their own precision, and the M-step the same number.
        assert np.all(point == point.astype(np.float32))
    # Who reads the released sums can tell what they are about.
    assert fit.engine.released(state)["m.origin"] == 0.0
    about = fit.engine.update(fit.engine.recentre(state), released, noise, 1.0)
    assert fit.engine.released(about)["m.origin"] == origins["m"]
    # Until something is released about them the held sums stay what they were.
    for name, zero in state.origins.items():
        np.testing.assert_array_equal(fit.engine.recentre(state).origins[name], zero)


@pytest.mark.thorough
def test_what_is_the_same_sum_in_both_is_averaged_and_the_rest_is_not():
    fit = fit_of(regression)
    steps = [step for step in fit.steps if not step.counted]
    pilot, main = steps
    ones = {n: np.ones_like(v) for n, v in fit.sums(fit.start, 1.0).items()}
    state = fit.engine.update(
        fit.start, ones, dict.fromkeys(ones, 4.0), pilot.step_size
    )
    state = fit.engine.recentre(state)
    twos = {name: np.asarray(2.0 * value) for name, value in ones.items()}
    state = fit.engine.update(state, twos, dict.fromkeys(ones, 1.0), main.step_size)
    for name in ones:
        weight = 1.0 if name in fit.engine.recentred else main.step_size
        np.testing.assert_allclose(state.statistics[name], 1.0 + weight)
        stddev = np.hypot(4.0 * (1.0 - weight), weight)
        np.testing.assert_allclose(state.noise_stddev[name], stddev)


def mixture_after_a_step() -> tuple[Any, Any, Any, Any]:
    """A mixture, sums of ones, noise in them, and the state that they lead to."""
    fit = fit_of(mixture)
    released = {n: np.ones_like(v) for n, v in fit.sums(fit.start, 1.0).items()}
    noise = dict.fromkeys(released, 1.0)
    return fit, released, noise, fit.engine.update(fit.start, released, noise, 1.0)


@pytest.mark.thorough
def test_a_second_average_weighs_steps_as_the_first_would():
    fit, released, noise, state = mixture_after_a_step()
    # Components part anew, unless scales wait for them.
    assert fit.engine.recentre(state).moments is state.moments
    state = fit.engine.recentre(state._replace(to_wait=0))
    assert state.moments is fit.start.moments
    values, sizes = (5.0, 2.0, -1.0), (0.5, 0.4, 0.25)
    for value, size in zip(values, sizes, strict=True):
        sums = {name: value * array for name, array in released.items()}
        state = fit.engine.update(state, sums, noise, size)
    left = [
        size * np.prod([1.0 - s for s in sizes[i + 1 :]])
        for i, size in enumerate(sizes)
    ]
    expected = np.dot(left, values) / np.sum(left)
    for name in released:
        np.testing.assert_allclose(state.statistics[name], expected, rtol=1e-6)
        np.testing.assert_allclose(
            state.noise_stddev[name], np.linalg.norm(left) / np.sum(left)
        )


@pytest.mark.thorough
def test_points_follow_the_globals_and_components_keep_their_places():
    fit, released, noise, state = mixture_after_a_step()
    state = fit.engine.recentre(state._replace(to_wait=0))
    state = fit.engine.update(state, released, noise, 1.0)
    followed = fit.engine.recentre_again(state)
    (name,) = followed.next_origins
    mean = state.moments[name]["x"]
    np.testing.assert_allclose(followed.next_origins[name], mean, rtol=1e-6)
    assert np.any(followed.next_origins[name] != state.origins[name])
    assert followed.moments is state.moments and followed.kept == 0.0
    # Only the first pilot is about zero, which makes components alike.
    assert fit.engine.recentre(state).moments is state.moments


def local_level(y: Any) -> None:
    q = numpyro.sample("q", dist.HalfNormal(1.0))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    m = numpyro.sample("m", dist.Normal(0.0, 5.0))
    with numpyro.plate("rows", len(y)):
        x = 0.0
        for t in range(y.shape[1]):
            x = numpyro.sample(f"x{t}", dist.Normal(x, q))
            numpyro.sample(f"y{t}", dist.Normal(m + x, s), obs=y[:, t])


@pytest.mark.thorough
def test_a_mean_that_moves_slowly_is_not_held_where_the_first_steps_left_it():
    """It was 0.82, 0.72 and 0.77, six to ten standard deviations from 1."""
    for seed in (4, 3, 6):
        rng = np.random.default_rng(seed)
        x = np.cumsum(rng.normal(0.0, 0.4, (500, 10)), 1)
        y = rng.normal(1.0 + x, 0.8)
        vi = vi_of(local_level, engine="vips", insecure_seed=100 + seed)
        with warnings.catch_warnings(action="ignore"):
            result = vi.run(jax.random.key(seed), y)
        draws = np.asarray(result.sample_posterior(jax.random.key(1), (1000,))["m"])
        assert abs(draws.mean() - 1.0) < min(3.0 * draws.std(), 0.15)
