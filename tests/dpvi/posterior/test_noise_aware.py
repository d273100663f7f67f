"""Posteriors of DPVI that know of the noise, through whole fits."""

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of

import numpyro_vips as nv
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.dpvi.guides.posteriors import NoiseAwarePosterior, NormalPosterior
from numpyro_vips.dpvi.posterior.noise_aware import RunningScore
from numpyro_vips.fitting.found_norms import NormHistogram, clipped_to, found_norms
from numpyro_vips.fitting.private_step import release
from numpyro_vips.fitting.schedule import (
    INFORMATION_SHARES,
    INFORMED_AFTER,
    REFRESH_SHARE,
)
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.privacy.releases import INFORMATION
from numpyro_vips.privacy.secure_random import SecureRandom

KEY = jax.random.key(0)
NUM_ROWS = 2000


@nv.private(unit="people")
def linear(X: Any, y: Any = None):
    w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, 0.5), obs=y)


@nv.private(unit="people")
def with_hyperprior(X: Any, y: Any = None):
    """The scale is in no row's density."""
    scale: Any = numpyro.sample("scale", dist.HalfNormal(1.0))
    w: Any = numpyro.sample(
        "w", dist.Normal(0.0, scale).expand([X.shape[1]]).to_event(1)
    )
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.StudentT(5.0, X @ w, 1.0), obs=y)


@nv.private(unit="people")
def with_param(X: Any, y: Any = None):
    slope: Any = numpyro.param("slope", np.zeros(X.shape[1], np.float32))
    w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ slope + w, 1.0), obs=y)


def table(size: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of correlated columns, and the weights behind them."""
    rng = np.random.default_rng(seed)
    root = np.eye(size) + 0.7 * np.tri(size, k=-1)
    X = (rng.normal(size=(NUM_ROWS, size)) @ root.T).astype(np.float32)
    w = rng.normal(size=size)
    y = (X @ w + 0.5 * rng.normal(size=NUM_ROWS)).astype(np.float32)
    return X, y, w


def fitted(model: Any, *args: Any, engine: Any = "dpvi", **settings: Any) -> Any:
    settings = {
        "budget": nv.PrivacyBudget(1.0, 1e-5),
        **settings,
    }
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        vi = nv.PrivateVI(model, engine=engine, progress_bar=False, **settings)
        return vi.run(KEY, *args)


def steps_of(model: Any, *args: Any, engine: Any = "dpvi", **settings: Any) -> Any:
    settings = {"budget": nv.PrivacyBudget(1.0, 1e-5), **settings}
    vi = nv.PrivateVI(model, engine=engine, **settings)
    return vi._prepare_fit(args, {})[0].steps


def test_scores_of_the_approach_do_not_count():
    """After three steps on their way the averages begin anew."""
    rng = np.random.default_rng(0)
    gradients, places = rng.normal(size=(2, 7, 2))
    stddevs = np.array([3.0, 3.0, 3.0, 2.0, 2.0, 2.0, 2.0])
    score = RunningScore(jnp.zeros(2), jnp.zeros(2), jnp.zeros(()))
    for step, (gradient, place, stddev) in enumerate(
        zip(gradients, places, stddevs, strict=True), 1
    ):
        score = score.after(
            jnp.asarray(step),
            jnp.asarray(gradient),
            jnp.asarray(place),
            float(stddev),
            approach=3,
        )
    np.testing.assert_allclose(score.gradient, gradients[3:].mean(0), rtol=1e-5)
    np.testing.assert_allclose(score.place, places[3:].mean(0), rtol=1e-5)
    assert float(score.stddev) == pytest.approx(2.0 / np.sqrt(4))


@nv.private(unit="people")
def with_scale(X: Any, y: Any = None):
    w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    sigma: Any = numpyro.sample("sigma", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, sigma), obs=y)


@pytest.mark.thorough
def test_what_noise_does_on_the_way_is_no_part_of_the_posterior():
    """Weights are far from the prior's centre, and first steps are mostly noise.

    When all steps counted, means were up to 5.6 away from the truth, and half of such
    fits by more than four of their standard deviations.
    """
    errors, distances = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(NUM_ROWS, 4)).astype(np.float32)
        w = 2.0 * rng.normal(size=4)
        y = (X @ w + 0.7 * rng.normal(size=NUM_ROWS)).astype(np.float32)
        result = fitted(with_scale, X, y)
        draws = np.asarray(result.sample_posterior(KEY, (400,))["w"])
        errors.append(abs(draws.mean(0) - w))
        distances.append(errors[-1] / draws.std(0))
    assert np.max(errors) < 0.4
    assert np.max(distances) < 4.5


@pytest.mark.thorough
def test_with_little_noise_it_is_the_exact_posterior_with_its_correlations():
    X, y, _ = table()
    result = fitted(
        linear,
        X,
        y,
        budget=nv.PrivacyBudget(1e5, 1e-5),
        clipping_norm=50.0,
        num_steps=300,
        insecure_seed=1,
    )
    precision = np.eye(3) + X.T @ X / 0.25
    mean = np.linalg.solve(precision, X.T @ y / 0.25)
    posterior = result.posterior
    assert isinstance(posterior, NoiseAwarePosterior)
    covariance = np.asarray(posterior.factor @ posterior.factor.T)
    exact = np.linalg.inv(precision)
    np.testing.assert_allclose(covariance, exact, atol=0.05 * exact.max())
    error = (np.asarray(posterior.loc) - mean) / np.sqrt(np.diag(exact))
    assert abs(error).max() < 0.3


@pytest.mark.thorough
def test_intervals_grow_with_the_noise():
    X, y, _ = table()
    widths = []
    for epsilon in (0.1, 10.0, 100.0):
        result = fitted(
            linear,
            X,
            y,
            budget=nv.PrivacyBudget(epsilon, 1e-5),
            clipping_norm=50.0,
            insecure_seed=2,
        )
        draws = np.asarray(result.sample_posterior(KEY, (400,))["w"])
        widths.append(draws.std(0).mean())
    assert widths[0] > 2.0 * widths[1]
    assert widths[1] > 1.1 * widths[2]


@pytest.fixture(scope="module")
def result() -> nv.PrivateVIResult:
    X, y, _ = table()
    return fitted(linear, X, y, insecure_seed=2)


@pytest.mark.thorough
def test_the_variance_has_two_parts(result: Any, tmp_path: Any):
    X, y, _ = table()
    parts = result.posterior.variance_parts()["w"]
    draws = np.asarray(result.sample_posterior(KEY, (4000,))["w"])
    np.testing.assert_allclose(parts.data + parts.privacy, draws.var(0), rtol=0.35)
    exact = np.diag(np.linalg.inv(np.eye(3) + X.T @ X / 0.25))
    np.testing.assert_allclose(parts.data, exact, rtol=0.5)
    # Without a histogram of norms it is not known how many rows are clipped how far.
    given = fitted(linear, X, y, insecure_seed=2, clipping_norm=5.0)
    data = given.posterior.variance_parts()["w"].data
    assert np.all((0.8 * exact < data) & (data < 1.75 * exact))
    assert (parts.privacy > 0).all()
    ratios = np.sqrt((parts.data + parts.privacy) / parts.data)
    assert result.diagnostics["width_ratio"]["w"] == pytest.approx(
        ratios.max(), rel=1e-3
    )
    result.save(tmp_path / "fit.nc")
    assert str(nv.load(tmp_path / "fit.nc").uncertainty()) == str(result.uncertainty())


@pytest.mark.thorough
def test_a_fit_that_hands_back_the_prior_says_so(result: Any):
    """With a hundred rows noise hides raw ages and incomes."""

    @nv.private(unit="people")
    def probit(age: Any, income: Any, y: Any = None):
        a, b, c = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "abc")
        with numpyro.plate("people", len(age)):
            probability = jax.scipy.stats.norm.cdf(a + b * age + c * income)
            numpyro.sample("y", dist.Bernoulli(probs=probability), obs=y)

    rng = np.random.default_rng(0)
    age, income = rng.normal(45.0, 12.0, 100), rng.lognormal(3.5, 0.5, 100)
    latent = 0.03 * age + 0.02 * income - 2.0 + rng.normal(size=100)
    labels = (latent > 0).astype(np.int32)
    found = fitted(probit, age, income, labels, insecure_seed=0)
    (text,) = (
        text for text in found.diagnostics["warnings"] if "about the prior" in text
    )
    assert text.startswith("Noise hides what the rows say of 'a', 'b', 'c': ")
    # Where the rows say much, nothing is said.
    assert not any("prior" in text for text in result.diagnostics["warnings"])


@pytest.mark.thorough
def test_globals_that_no_row_depends_on_are_in_the_joint_posterior():
    X, y, _ = table()
    result = fitted(with_hyperprior, X, y, insecure_seed=3)
    draws = result.sample_posterior(KEY, (2000,))
    assert draws["scale"].shape == (2000,)
    assert 0.1 < float(draws["scale"].mean()) < 3.0
    assert float(draws["scale"].std()) > 0.05
    assert result.diagnostics["fluctuation"].keys() == {"scale", "w"}


@pytest.mark.thorough
def test_what_was_saved_is_what_was_fitted(result: Any, tmp_path: Any):
    result.save(tmp_path / "fit.nc")
    again = nv.load(tmp_path / "fit.nc")
    for result_of in (result, again):
        assert set(result_of.params) == {
            *("joint.loc", "joint.factor", "joint.data_stddev")
        }
    np.testing.assert_array_equal(
        again.sample_posterior(KEY, (5,))["w"], result.sample_posterior(KEY, (5,))["w"]
    )


def test_the_information_has_its_share_near_the_end():
    X, y, _ = table()
    steps = steps_of(linear, X, y)
    (number,) = [i for i, step in enumerate(steps) if step.informs]
    share = steps[number].share / sum(step.share for step in steps)
    assert share == pytest.approx(INFORMATION_SHARES[INFORMATION])
    before = [s for s in steps[:number] if not s.is_aside]
    gradients = [s for s in steps if not s.is_aside]
    assert len(before) == INFORMED_AFTER * len(gradients)
    assert steps[number].sampling.scheme == "full"
    assert steps[number].clipping_norm is None  # The histogram before it says it.
    histogram = steps[number - 1]
    assert [part.name for part in histogram.counted] == [INFORMATION]
    share = histogram.share / sum(step.share for step in steps)
    assert share == pytest.approx(REFRESH_SHARE)


def test_the_norm_of_gradients_bounds_the_information_and_not_its_histogram():
    X, y, _ = table()
    prepared = vi_of(linear, engine="dpvi")._prepare_fit((X, y), {})[0]
    steps = tuple(step.scaled(1e-3) for step in prepared.steps)  # Hardly any noise.
    (part, *_) = prepared.parts
    counts = np.zeros(len(part.grid) + 1)
    counts[np.searchsorted(part.grid, 0.1)] = NUM_ROWS
    histogram = NormHistogram(
        steps=steps, number=0, parts=prepared.parts, is_one_vector=True
    )
    norms, *_ = found_norms(
        histogram,
        {part.name: counts},
        {},
        num_rows=NUM_ROWS,
        expected_squares={},
        of_priors=lambda parts, counts: {},
    )
    found = clipped_to(histogram, norms)
    (number,) = [i for i, step in enumerate(found) if step.informs]
    assert norms[part.name] < 1.0
    assert found[number].clipping_norm == norms[part.name] ** 2
    # A row counts as one, however small its gradient is.
    assert found[number - 1] == steps[number - 1]
    assert found[number - 1].mechanism.sensitivity() == 1.0


def sensitivity_of_information(result: Any) -> float:
    (event,) = [e for e in result.privacy.events if e.label == INFORMATION]
    return event.sensitivity


def test_its_norm_is_the_callers_squared_where_there_is_one():
    X, y, _ = table()
    steps = steps_of(linear, X, y, clipping_norm=3.0)
    (given,) = [step for step in steps if step.informs]
    assert given.clipping_norm == 9.0
    assert not any(step.counted for step in steps)


def test_its_norm_is_that_of_a_histogram_of_its_own():
    """Near the optimum squares of gradients have longer tails than the information."""
    X, y, w = table()
    # In coordinates of equal information, one unit for each row or the strongest.
    values, axes = np.linalg.eigh(X.T @ X / 0.25 / len(X))
    lengths = np.sqrt(min(1.0, np.max(values)) / values)
    rows, ratios = np.sum((X @ axes * lengths) ** 2, axis=1) / 0.25, []
    squares = rows * (y - X @ w) ** 2 / 0.25
    # The noise of one histogram may well find a norm that is four times as large.
    for _ in range(5):
        result = fitted(linear, X, y, budget=nv.PrivacyBudget(10.0, 1e-5))
        norms = result.diagnostics["clipping_norms"]
        assert sensitivity_of_information(result) == pytest.approx(norms[INFORMATION])
        assert result.privacy.events[-1].label.startswith("loc")
        assert np.mean(rows > norms[INFORMATION]) < 0.05
        ratios.append(norms[INFORMATION] / np.quantile(squares, 0.99))
    assert np.median(ratios) < 0.75


def test_where_its_histogram_shows_nothing_its_norm_is_the_gradients_squared():
    X, y, _ = table()
    result = fitted(linear, X[:40], y[:40])
    norms = result.diagnostics["clipping_norms"]
    assert INFORMATION not in norms
    assert sensitivity_of_information(result) == pytest.approx(norms["gradient"] ** 2)
    (text,) = [w for w in result.diagnostics["warnings"] if "Too few rows" in w]
    assert INFORMATION not in text


def test_noise_of_the_callers_is_that_of_gradients():
    X, y, _ = table()
    steps = steps_of(
        linear, X, y, clipping_norm=1.0, noise_multiplier=7.0, num_steps=20
    )
    of_gradients = {s.noise_multiplier for s in steps if not s.informs}
    (informing,) = [s for s in steps if s.informs]
    assert of_gradients == {7.0}
    total = sum(step.share for step in steps)
    assert informing.share / total == pytest.approx(INFORMATION_SHARES[INFORMATION])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (linear, {"engine": nv.DPVI(guide="low_rank")}),
        (linear, {"engine": nv.DPVI(perturb="all")}),
        (linear, {"engine": nv.DPVI(averaging=None)}),
        (with_param, {}),
        (linear, {"budget": nv.PrivacyBudget(math.inf)}),
    ],
    ids=["low rank", "perturb all", "last iterate", "parameters", "no noise"],
)
def test_elsewhere_the_guide_stays_and_nothing_more_is_released(
    model: Any, settings: dict[str, Any]
):
    X, y, _ = table()
    assert not any(step.informs for step in steps_of(model, X, y, **settings))


def test_of_many_globals_there_is_no_matrix():
    X = np.zeros((10, 129), np.float32)
    steps = steps_of(linear, X, np.zeros(10, np.float32))
    assert not any(step.informs for step in steps)


@pytest.mark.thorough
def test_before_the_information_the_posterior_is_the_guide():
    X, y, _ = table()
    kinds = []
    fitted(
        linear,
        X,
        y,
        num_steps=20,
        callback=lambda number, result: kinds.append(type(result.posterior)),
    )
    assert kinds[:18] == [NormalPosterior] * 18
    assert kinds[18:] == [NoiseAwarePosterior] * 2


def test_the_noise_that_is_added_is_the_noise_that_is_stated(monkeypatch):
    """Rows are redrawn in each release: noise is by what it differs from its sum."""
    X, y, _ = table()
    sums = []
    bounded_sum = DpviEngine.bounded_sum

    def watched(self: Any, *args: Any, **options: Any) -> Any:
        assert options["row_keys"] is not None
        found = bounded_sum(self, *args, **options)
        sums.append(np.array(found[INFORMATION]))
        return found

    monkeypatch.setattr(DpviEngine, "bounded_sum", watched)
    vi = vi_of(linear, engine="dpvi", clipping_norm=2.0)
    prepared = vi._prepare_fit((X, y), {})[0]
    (step,) = [s for s in prepared.steps if s.informs]
    arguments, engine = bind_arguments(linear, (X, y), {}), prepared.engine
    state = engine.initial_state(KEY)
    with pytest.warns(UserWarning, match="insecure_seed"):
        random = SecureRandom(insecure_seed=0)
    released = [
        release(arguments, engine, step, state, random, None)[INFORMATION]
        for _ in range(300)
    ]
    assert len(sums) == len(released)
    found = np.array(released) - np.array(sums)
    stddev = step.mechanism.block_noise_stddev(INFORMATION)
    assert stddev == pytest.approx(4.0 * step.noise_multiplier)
    measured = np.std(found, axis=0)
    np.testing.assert_allclose(np.diag(measured), stddev, rtol=0.15)
    off = measured[np.triu_indices(3, 1)]
    np.testing.assert_allclose(off, stddev / math.sqrt(2.0), rtol=0.15)
    assert all((matrix == matrix.T).all() for matrix in released)


@pytest.mark.slow
def test_intervals_hold_the_truth():
    """40 tables, rows drawn from the model: 90 % intervals under ε = 1."""
    hits = []
    for seed in range(40):
        X, y, w = table(seed=seed)
        result = fitted(linear, X, y, insecure_seed=seed)
        draws = np.asarray(result.sample_posterior(KEY, (1000,))["w"])
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        hits.append((low < w) & (w < high))
    assert 0.8 < np.mean(hits) < 0.98


@pytest.mark.thorough
def test_a_correlation_has_a_posterior_that_knows_of_the_noise():
    """NumPyro's transforms of correlations take no single precision among doubles."""
    cov = np.array([[1.0, 0.6], [0.6, 1.0]])
    rows = np.random.default_rng(1).multivariate_normal([0, 0], cov, 5_000)

    def correlated(y: Any) -> None:
        L: Any = numpyro.sample("L", dist.LKJCholesky(2, 1.0))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample(
                "y", dist.MultivariateNormal(jnp.zeros(2), scale_tril=L), obs=y
            )

    vi = vi_of(nv.private(correlated, unit="people"), budget=5.0, insecure_seed=0)
    result = vi.run(jax.random.key(0), rows)
    assert isinstance(result.posterior, NoiseAwarePosterior)
    draws = result.sample_posterior(jax.random.key(1), (500,))["L"]
    assert np.mean(draws[:, 1, 0]) == pytest.approx(0.6, abs=0.15)


@pytest.mark.thorough
def test_a_posterior_that_would_overflow_is_the_guide_and_says_so():
    """Rows say next to nothing of a scale whose prior is as good as flat."""

    @nv.private(unit="people")
    def model(y: Any) -> None:
        log_scale = numpyro.sample("log_scale", dist.Normal(0.0, 300.0))
        w = numpyro.sample("w", dist.LogNormal(log_scale, 1.0))
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("y", dist.StudentT(5.0, w, 1.0), obs=y)

    y = np.random.default_rng(0).normal(1.0, 1.0, 60).astype(np.float32)
    with warnings.catch_warnings(action="ignore"):
        result = fit_to(model, y, budget=0.005, engine="dpvi", insecure_seed=1)
    assert isinstance(result.posterior, NormalPosterior)
    said = " ".join(result.diagnostics["warnings"])
    assert "do not allow for the noise" in said
