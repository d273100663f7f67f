"""Features made uncorrelated by pilots that are repeated."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _engine_fit import UNCLIPPED, EngineFit
from _fits import fit_to, vi_of
from scipy.special import expit

import numpyro_vips as nv
from numpyro_vips.vips.program.features import Standardisation
from numpyro_vips.vips.units.frames import Frame
from numpyro_vips.vips.units.whitening import CURVATURE_PILOTS, whitened_factors

ROWS = 200


def in_one_vector(X: Any, y: Any) -> None:
    scale = np.array([2.0, 0.03, 0.03])
    w = numpyro.sample("w", dist.Normal(0.0, scale).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def with_intercept(X: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    w = numpyro.sample("w", dist.Normal(0.0, 0.03).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=b + X[:, 1:] @ w), obs=y)


def separate(X: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    v, w = (numpyro.sample(name, dist.Normal(0.0, 0.03)) for name in "vw")
    with numpyro.plate("rows", len(y)):
        logits = b + X[:, 1] * v + X[:, 2] * w
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def of_binary_columns(X: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=b + X @ w), obs=y)


MODELS = [in_one_vector, with_intercept, separate]


def table(num_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ages and incomes beside a column of ones, and labels."""
    rng = np.random.default_rng(seed)
    age, income = rng.normal(45.0, 15.0, num_rows), rng.lognormal(3.5, 0.5, num_rows)
    X = np.stack([np.ones(num_rows), age, income], 1)
    y = rng.random(num_rows) < expit(X @ [1.0, -0.03, 0.02])
    return X.astype(np.float32), y.astype(np.int32)


class Fit(EngineFit):
    """A model's engine, with a table of `ROWS`."""

    def __init__(self, model: Callable[..., None], **options: Any):
        super().__init__(model, table(ROWS), **options)
        (self.factor,) = self.engine.program.structure.newton

    def at_random(self, seed: int = 0, size: float = 1.0) -> Any:
        """A state with its features standardised somehow."""
        rng = np.random.default_rng(seed)
        features = self.engine.program.features[self.factor]
        count = len(features.places)
        means = 30.0 * rng.normal(size=count) if features.constant else np.zeros(count)
        matrix = size * (rng.normal(size=(count, count)) + 2.0 * np.eye(count))
        standard = Standardisation(means, matrix).as_rows_know()
        standards = {self.factor: standard}
        state = self.start._replace(standards=standards, next_standards=standards)
        place = np.zeros_like(state.visited[self.factor]["x"])
        place[...] = 0.02 * rng.normal(size=place.shape)
        at = {self.factor: {"x": place, "xx": place[:, None] * place}}
        natural = self.engine.on_rows.expected_natural_of(at)
        return state._replace(visited=at, moments=at, expected_natural=natural)

    def frame(self, state: Any) -> Frame:
        return self.engine.on_globals.frames_of(state)[self.factor]


@functools.cache
def fit_of(model: Callable[..., None]) -> Fit:
    """The default fit of a model; what is asked of it leaves it as it is."""
    return Fit(model)


# --- which factors --------------------------------------------------------------------


def test_factors_with_several_features_are_whitened() -> None:
    fit = fit_of(with_intercept)
    assert whitened_factors(fit.engine.program, ROWS) == {fit.factor}
    assert fit.engine.pilots == CURVATURE_PILOTS


@pytest.mark.parametrize("num_rows", [50, 10**9])
def test_with_few_rows_or_many_features_stay_as_they_are(num_rows: int) -> None:
    assert not whitened_factors(fit_of(with_intercept).engine.program, num_rows)


def test_norms_of_the_callers_are_those_of_features_as_they_are() -> None:
    fit = Fit(with_intercept, clipping_norm=3.0)
    assert fit.engine.pilots == 0 and not fit.start.standards


# --- what is released and paid for ----------------------------------------------------


def test_every_pilot_is_a_step_of_the_schedule() -> None:
    steps = vi_of(in_one_vector)._prepare_fit(table(ROWS), {})[0].steps
    of_curvature = [i for i, step in enumerate(steps) if step.blocks[0].name == "⟨w w⟩"]
    released = [i for i in of_curvature if not steps[i].counted]
    residuals = [i for i, step in enumerate(steps) if step.blocks[0].name == "⟨w⟩"]
    first = next(i for i in residuals if not steps[i].counted)
    assert sum(i < first for i in released) == CURVATURE_PILOTS + 1
    # After each pilot norms are counted, which depend on the features that it found.
    pilots = [i for i, step in enumerate(steps) if step.is_pilot]
    assert [steps[i + 1].counted[0].blocks for i in pilots] == [("⟨w w⟩",)] * len(
        pilots
    )
    assert all(steps[i].event.noise_multiplier > 0 for i in released)


def test_norms_of_the_structure_are_those_of_features_as_they_are() -> None:
    """Rows of binary columns are equally long, and would not be when standardised."""
    schema = nv.Schema(old=nv.Binary(), ill=nv.Binary())
    rng = np.random.default_rng(0)
    rows = {name: rng.integers(0, 2, ROWS) for name in ("old", "ill")}
    vi = vi_of(of_binary_columns)
    y = rng.integers(0, 2, ROWS)
    prepared, _ = vi._prepare_fit((schema.encode(rows).astype("f4"), y), {})
    assert prepared.engine.pilots == CURVATURE_PILOTS
    assert all(part.is_fixed for part in prepared.parts)
    assert not any(step.is_pilot for step in prepared.steps)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_neighbours_differ_by_at_most_the_clipping_norm(
    model: Callable[..., None], size: float
) -> None:
    fit, norm = fit_of(model), 1.0
    rows = {name: np.array(array) for name, array in fit.rows.items()}
    rows["X"][0] = 1e20
    furthest = fit.furthest_neighbour(fit.at_random(size=size), norm, rows)
    assert 0.5 * norm < furthest <= norm * (1.0 + 1e-6)


@pytest.mark.parametrize("model", MODELS)
def test_norms_that_are_counted_are_those_of_what_is_released(
    model: Callable[..., None],
) -> None:
    fit = fit_of(model)
    fit.check_counted_norms(fit.at_random())


# --- a change of variables ------------------------------------------------------------


def test_residuals_are_those_of_standardised_rows() -> None:
    fit = fit_of(in_one_vector)
    state = fit.at_random()
    X, y = fit.rows["X"].astype(float), fit.rows["y"]
    standard = state.standards[fit.factor]
    moved = (X - standard.means) @ np.asarray(standard.matrix).T
    place = state.visited[fit.factor]["x"]
    expected = (y - expit(X @ place)) @ moved
    found = fit.sums(state, UNCLIPPED)["⟨w⟩"]
    np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_steps_lead_to_the_same_place_for_any_features(
    model: Callable[..., None],
) -> None:
    """Without noise; a Newton step does not depend on its coordinates."""
    fit, ends = fit_of(model), []
    plain = fit.at_random(0)
    for seed in (0, 1):
        state = fit.at_random(seed)
        state = state._replace(
            visited=plain.visited,
            moments=plain.moments,
            expected_natural=plain.expected_natural,
        )
        sums, noise = fit.sums(state, UNCLIPPED), dict.fromkeys(fit.scales, 1e-9)
        state = fit.engine.update(state, sums, noise, 1.0)
        ends.append((state.visited[fit.factor], fit.engine.posterior(state).moments()))
    (first, one), (second, other) = ends
    np.testing.assert_allclose(second["x"], first["x"], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(second["xx"], first["xx"], rtol=2e-3, atol=1e-6)
    for name in one:
        np.testing.assert_allclose(other[name].mean, one[name].mean, rtol=2e-3)
        np.testing.assert_allclose(other[name].stddev, one[name].stddev, rtol=2e-3)


# --- pilots ---------------------------------------------------------------------------


def after_pilot(fit: Fit, state: Any, noise: float) -> Any:
    curvatures = fit.engine._roles.curvatures
    sums = fit.sums(state, UNCLIPPED)
    released = {name: sums[name] for name in curvatures}
    noises = dict.fromkeys(curvatures, noise)
    return fit.engine.update(state, released, noises, 1.0, is_pilot=True)


@pytest.mark.parametrize("model", MODELS)
def test_pilots_make_features_uncorrelated_and_keep_their_size(
    model: Callable[..., None],
) -> None:
    fit = fit_of(model)
    state = after_pilot(fit, fit.start, 1e-6)
    # It is for this alone: nothing counts as released, and no average has begun.
    assert state.released == fit.start.released
    assert state.statistics is fit.start.statistics
    X = fit.rows["X"].astype(float)
    X = X if model is in_one_vector else X[:, 1:]
    before, after = (
        (X - standard.means) @ np.asarray(standard.matrix).T
        for standard in (s.standards[fit.factor] for s in (fit.start, state))
    )
    second = after.T @ after / ROWS
    correlation = second / np.sqrt(np.outer(np.diagonal(second), np.diagonal(second)))
    # Rows have weights, which differ as logits do.
    np.testing.assert_allclose(correlation, np.eye(len(correlation)), atol=0.05)
    sizes = np.sum(before**2, 0)
    if model is separate:  # Columns of latents of their own become alike.
        sizes = np.full_like(sizes, sizes.mean())
    np.testing.assert_allclose(np.sum(after**2, 0), sizes, rtol=0.05)


def test_noise_alone_changes_no_features() -> None:
    fit = fit_of(in_one_vector)
    state = after_pilot(fit, fit.start, 1e6)
    pairs = zip(
        state.standards[fit.factor], fit.start.standards[fit.factor], strict=True
    )
    for found, before in pairs:
        np.testing.assert_array_equal(found, before)


def test_what_one_pilot_hides_shows_in_the_next() -> None:
    """The ratio of the smallest eigenvalue to the largest grows from pilot to pilot."""
    fit = fit_of(in_one_vector)
    X = fit.rows["X"].astype(float)

    def ratio(state: Any) -> float:
        moved = X @ np.asarray(state.standards[fit.factor].matrix).T
        values = np.linalg.eigvalsh(moved.T @ moved)
        return float(values[0] / values[-1])

    first = after_pilot(fit, fit.start, 1.0)
    second = after_pilot(fit, first, 1.0)
    assert ratio(first) > 2.0 * ratio(fit.start)
    assert ratio(second) > 1.4 * ratio(first)


def test_a_column_gets_back_the_size_that_noise_took() -> None:
    """Of ages about 45 the first pilot saw the mean alone, and took that off."""
    fit = fit_of(with_intercept)
    X = fit.rows["X"].astype(float)[:, 1:]
    (start,), first = fit.start.standards.values(), after_pilot(fit, fit.start, 10.0)
    about_zero = X @ np.asarray(start.matrix).T
    known = after_pilot(fit, fit.start, 1e-6)
    sizes = []
    for state in (first, after_pilot(fit, first, 1e-6), known):
        standard = state.standards[fit.factor]
        moved = (X - standard.means) @ np.asarray(standard.matrix).T
        sizes.append(np.mean(moved**2, 0) / np.mean(about_zero**2, 0))
    hidden, shown, expected = (size[0] / size[1] for size in sizes)
    assert hidden < 0.5 * expected
    assert shown == pytest.approx(expected, rel=0.1)


@pytest.mark.thorough
def test_only_released_numbers_decide_the_features() -> None:
    fit = fit_of(with_intercept)
    one, other = (after_pilot(fit, fit.start, 0.5).standards for _ in range(2))
    for a, b in zip(one[fit.factor], other[fit.factor], strict=True):
        np.testing.assert_array_equal(a, b)
        # Rows know these in their own precision, and the M-step the same numbers.
        assert np.all(a == np.asarray(a).astype(np.float32))


# --- fits -----------------------------------------------------------------------------


def exact(X: np.ndarray, y: np.ndarray, scale: np.ndarray) -> Any:
    """Mean and covariance of the Laplace approximation, by Newton's method."""

    def information(w: np.ndarray) -> np.ndarray:
        p = expit(X @ w)
        return (X.T * (p * (1 - p))) @ X + np.diag(scale**-2.0)

    w = np.zeros(len(scale))
    for _ in range(30):
        gradient = X.T @ (y - expit(X @ w)) - w / scale**2
        w += np.linalg.solve(information(w), gradient)
    return w, np.linalg.inv(information(w))


@pytest.mark.thorough
@pytest.mark.parametrize("model", MODELS)
def test_raw_columns_have_the_posterior_that_standardised_ones_have(
    model: Callable[..., None],
) -> None:
    """Before, the widths were three to six times those of the exact posterior.

    So they were of several latents, when those of one vector were right.
    """
    scale = np.array([2.0, 0.03, 0.03])
    X, y = table(10_000)
    mean, covariance = exact(X.astype(float), y, scale)
    errors, ratios = [], []
    for seed in range(5):
        with warnings.catch_warnings(action="ignore"):
            result = vi_of(model).run(jax.random.key(seed), X, y)
        moments = result.posterior.moments()
        found, stddev = (
            np.concatenate([np.ravel(getattr(moments[k], of)) for k in sorted(moments)])
            for of in ("mean", "stddev")
        )
        errors.append((found - mean) / np.sqrt(np.diag(covariance)))
        ratios.append(stddev / np.sqrt(np.diag(covariance)))
    assert np.sqrt(np.mean(np.square(errors))) < 1.0
    assert 0.9 < np.median(ratios) < 1.6
    assert jnp.isfinite(jnp.asarray(ratios)).all()


def of_years(year: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 200.0))
    b = numpyro.sample("b", dist.Normal(0.0, 0.1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=a + b * year), obs=y)


@pytest.mark.thorough
def test_years_as_they_are_have_an_interval_of_their_own() -> None:
    """Squares of years hide those about their mean, at the norm that they have. Before,
    the posterior of the slope was as wide as its prior."""
    rng = np.random.default_rng(0)
    year = rng.integers(1990, 2021, 10_000).astype(float)
    y = (rng.random(10_000) < expit(0.05 * (year - 2005.0))).astype(float)
    about = np.stack([np.ones_like(year), year - 2005.0], 1)
    mean, covariance = exact(about, y, np.array([200.0, 0.1]))
    with warnings.catch_warnings(action="ignore"):
        result = fit_to(of_years, year.astype(np.float32), y.astype(np.int32))
    found = result.posterior.moments()["b"]
    stddev = float(np.asarray(found.stddev))
    assert stddev < 2.0 * np.sqrt(covariance[1, 1])
    assert abs(float(np.asarray(found.mean)) - mean[1]) < 4.0 * stddev
