"""Features of regressions, standardised by what a pilot has released."""

import functools
import math
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
from _fits import fit_to

from numpyro_vips.vips.program.feature_detection import (
    weight_of_features,
    weight_of_intercepts,
)
from numpyro_vips.vips.program.features import Features, Standardisation
from numpyro_vips.vips.steps.released_sums import Unclipped

ROWS = 80


def separate(age: Any, dose: Any, y: Any) -> None:
    """A coefficient by itself for each column, as most people write it."""
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    c = numpyro.sample("c", dist.Normal(0.0, 5.0))
    s = numpyro.sample("s", dist.HalfNormal(10.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a + b * age + c * dose, s), obs=y)


def vector(X: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    w = numpyro.sample("w", dist.Normal(0.0, jnp.array([2.0, 5.0])).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(10.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a + X @ w, s), obs=y)


def no_intercept(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 5.0).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(X @ w, 4.0), obs=y)


def of_functions(age: Any, y: Any) -> None:
    """What the model makes of a column is a feature, too."""
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    b = numpyro.sample("b", dist.Normal(jnp.zeros(2), 2.0).to_event(1))
    with numpyro.plate("rows", len(y)):
        mean = a + b[0] * age + b[1] * jnp.log(jnp.abs(age))
        numpyro.sample("y", dist.Normal(mean, 4.0), obs=y)


def groups(g: Any, age: Any, y: Any) -> None:
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    with numpyro.plate("groups", 3):
        a = numpyro.sample("a", dist.Normal(0.0, 50.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a[g] + slope * age, 4.0), obs=y)


def heavy_tails(age: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.StudentT(4.0, a + b * age, 4.0), obs=y)


def with_product(age: Any, dose: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    b = numpyro.sample("b", dist.Normal(jnp.zeros(3), jnp.array([2.0, 5.0, 0.1])))
    with numpyro.plate("rows", len(y)):
        mean = a + b[0] * age + b[1] * dose + b[2] * age * dose
        numpyro.sample("y", dist.Normal(mean, 4.0), obs=y)


def with_square(age: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    c = numpyro.sample("c", dist.Normal(0.0, 0.1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a + b * age + c * age**2, 4.0), obs=y)


def slopes(g: Any, age: Any, y: Any) -> None:
    """One intercept, and a slope for every group."""
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    with numpyro.plate("groups", 3):
        b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a + b[g] * age, 4.0), obs=y)


def with_groups(number: int, g: Any, age: Any, y: Any) -> None:
    """Intercepts, slopes and scales of groups; what slopes have in common is learnt."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    with numpyro.plate("groups", number):
        a = numpyro.sample("a", dist.Normal(0.0, 100.0))
        b = numpyro.sample("b", dist.Normal(mean, 2.0))
        s = numpyro.sample("s", dist.HalfNormal(5.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a[g] + b[g] * age, s[g]), obs=y)


def in_one_vector(age: Any, dose: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), jnp.array([100.0, 2.0, 5.0])))
    with numpyro.plate("rows", len(y)):
        mean = w[0] + w[1] * age + w[2] * dose
        numpyro.sample("y", dist.Normal(mean, 4.0), obs=y)


def rest_of_a_vector(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), jnp.array([100.0, 2.0, 5.0])))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(w[0] + X @ w[1:], 4.0), obs=y)


def two_responses(age: Any, y: Any) -> None:
    """The same column is a feature of two blocks."""
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    c = numpyro.sample("c", dist.Normal(0.0, 100.0))
    d = numpyro.sample("d", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a + b * age, 4.0), obs=y)
        numpyro.sample("z", dist.Normal(c + d * age, 2.0), obs=2.0 * y)


def one_slope(age: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(b * age, 4.0), obs=y)


def ages_twice(age: Any, y: Any) -> None:
    """The intercept is multiplied by the column, too."""
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(age * (a + b * age), 4.0), obs=y)


def labels(is_ill: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 10.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(y)):
        mean = jnp.where(is_ill, a + b, a)
        numpyro.sample("y", dist.Normal(mean, 4.0), obs=y)


def rows_of(model: Callable[..., None]) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    age = rng.normal(50.0, 12.0, ROWS).astype(np.float32)
    dose = (rng.normal(3.0, 0.5, ROWS) + 0.02 * age).astype(np.float32)
    y = (90.0 + 0.5 * age - 4.0 * dose + rng.normal(0.0, 4.0, ROWS)).astype(np.float32)
    if model in (separate, with_product, in_one_vector):
        return age, dose, y
    if model in (vector, no_intercept, rest_of_a_vector):
        return np.stack([age, dose], 1), y
    if model in (groups, slopes):
        return rng.integers(0, 3, ROWS), age, y
    if model is labels:
        return rng.integers(0, 2, ROWS).astype(bool), y
    return age, y


WITH_FEATURES = {
    separate: (2, 1),
    vector: (2, 1),
    no_intercept: (2, 0),
    of_functions: (2, 1),
    groups: (1, 3),
    heavy_tails: (1, 1),
    with_product: (3, 1),
    with_square: (2, 1),
    slopes: (3, 1),
    in_one_vector: (2, 1),
    rest_of_a_vector: (2, 1),
}


class Fit(EngineFit):
    """A model's engine, with its rows."""

    def __init__(self, model: Callable[..., None], **options: Any):
        super().__init__(model, rows_of(model), **options)

    @property
    def features(self) -> Features:
        (found,) = self.engine.program.features.values()
        return found

    def standardised(self, means: Any, matrix: Any) -> Any:
        """The state that asks rows for their features like this."""
        (name,) = self.engine.program.features
        standard = Standardisation(np.asarray(means, float), np.asarray(matrix, float))
        return self.start._replace(next_standards={name: standard.as_rows_know()})

    def at_random(self, seed: int = 1, size: float = 1.0) -> Any:
        rng = np.random.default_rng(seed)
        count = len(self.features.places)
        means = 50.0 * rng.normal(size=count) if self.features.constant else 0.0
        matrix = rng.normal(size=(count, count)) + 2.0 * np.eye(count)
        return self.standardised(means * np.ones(count), size * matrix)


@functools.cache
def fit_of(model: Callable[..., None]) -> Fit:
    """The default fit of a model; what is asked of it leaves it as it is."""
    return Fit(model)


# --- what is a feature ----------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("model", list(WITH_FEATURES))
def test_features_are_found(model: Callable[..., None]) -> None:
    features = fit_of(model).features
    count, intercepts = WITH_FEATURES[model]
    assert (len(features.places), len(features.constant)) == (count, intercepts)


@pytest.mark.thorough
@pytest.mark.parametrize("model", [one_slope, labels])
def test_these_are_left_alone(model: Callable[..., None]) -> None:
    fit = fit_of(model)
    assert fit.engine.recentred
    assert not fit.engine.program.features


@pytest.mark.thorough
def test_a_coefficient_that_is_multiplied_by_a_column_is_no_intercept() -> None:
    fit = fit_of(ages_twice)
    assert all(not of.constant for of in fit.engine.program.features.values())


@pytest.mark.thorough
def test_a_column_may_be_a_feature_of_two_blocks() -> None:
    features = fit_of(two_responses).engine.program.features
    assert len(features) == 2
    tokens = [of.tokens for of in features.values()]
    # Each has a copy of its own, which is standardised by itself.
    assert set(tokens[0]).isdisjoint(tokens[1])
    assert all(len(of.places) == len(of.constant) == 1 for of in features.values())


def test_norms_of_the_callers_are_those_of_features_as_they_are() -> None:
    fit = Fit(separate, clipping_norm=3.0)
    assert not fit.engine.recentred and not fit.start.standards


# --- a change of variables ------------------------------------------------------------


@pytest.mark.thorough
def test_statistics_are_those_of_standardised_rows() -> None:
    fit = fit_of(vector)
    means, matrix = np.array([45.0, 3.5]), np.array([[0.1, 0.02], [-0.05, 1.5]])
    found = fit.sums(fit.standardised(means, matrix), UNCLIPPED)
    X = (fit.rows["X"] - means) @ matrix.T
    moved = {**fit.rows, "X": X.astype(np.float32)}
    plain = fit.standardised(np.zeros(2), np.eye(2))
    for name, value in fit.sums(plain, UNCLIPPED, moved).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-3)


# One with each kind of intercept: of its own, of groups, none, in the vector; and one
# with latents of rows, and one whose features are made of columns.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "model",
    [
        *(vector, groups, no_intercept, in_one_vector, heavy_tails, with_product),
        *(
            pytest.param(model, marks=pytest.mark.slow)
            for model in (separate, of_functions, with_square, slopes)
        ),
    ],
)
def test_the_posterior_is_the_same_for_any_features(
    model: Callable[..., None],
) -> None:
    fit = fit_of(model)
    noise, found = dict.fromkeys(fit.scales, 0.0), []
    for state in (fit.start, fit.at_random(1), fit.at_random(2)):
        state = state._replace(kept=0.0)
        state = fit.engine.update(state, fit.sums(state, UNCLIPPED), noise, 1.0)
        posterior = fit.engine.on_globals.posterior_of(state.natural)
        found.append(posterior.moments())
    for other in found[1:]:
        for name, of_site in found[0].items():
            np.testing.assert_allclose(other[name].mean, of_site.mean, rtol=2e-3)
            np.testing.assert_allclose(other[name].stddev, of_site.stddev, rtol=2e-3)


@pytest.mark.thorough
def test_features_become_uncorrelated_and_of_one_size() -> None:
    fit = fit_of(vector)
    noise = dict.fromkeys(fit.scales, 1e-6)
    state = fit.engine.update(fit.start, fit.sums(fit.start, UNCLIPPED), noise, 1.0)
    (standard,) = fit.engine.recentre(state).next_standards.values()
    X = (fit.rows["X"] - standard.means) @ np.asarray(standard.matrix).T
    np.testing.assert_allclose(X.mean(0), 0.0, atol=1e-3)
    np.testing.assert_allclose(np.cov(X.T, bias=True), np.eye(2), atol=1e-2)


def test_what_noise_hides_is_made_no_larger() -> None:
    """Of a column that is next to nothing beside its noise, little is made."""
    features = Features((0,), (0, 1), ())
    before = Standardisation(np.zeros(2), np.eye(2))
    noise = np.full((2, 2), 10.0)
    found = features.standardisation(before, np.diag([1e4, 1e-3]), noise)
    first, second = np.linalg.norm(found.matrix, axis=1)
    # By the root of the one over twice the noise of the other, not over what it reads.
    assert 1.0 < second / first < math.sqrt(1e4 / 20.0) * 1.01
    # Without an intercept nothing says how many rows there are, and the size stays.
    assert first * second == pytest.approx(1.0)


def test_a_number_of_rows_that_is_known_is_not_read_off_the_noise() -> None:
    features = Features((0,), (1,), (0,))
    before = Standardisation(np.array([3.0]), np.array([[2.0]]))
    moments = np.array([[-7.0, 500.0], [500.0, 3000.0]])
    noise = np.full((2, 2), 10.0)
    found = features.standardisation(before, moments, noise, 100.0)
    mean = 5.0 * 25.0 / (25.0 + 0.1**2)
    assert found.means[0] == pytest.approx(3.0 + mean / 2.0)
    assert found.matrix[0, 0] == pytest.approx(2.0 / np.sqrt(30.0 - mean**2))


@pytest.mark.quick_with("in_one_vector")
@pytest.mark.parametrize("model", [groups, slopes, in_one_vector])
def test_the_weight_of_intercepts_is_known_of_a_normal(
    model: Callable[..., None],
) -> None:
    """One over the variance, whatever rows hold and whichever intercept is theirs."""
    assert weight_in(fit_of(model)) == pytest.approx(1.0 / 4.0**2)


def test_the_weight_of_intercepts_goes_with_the_other_globals() -> None:
    fit = fit_of(separate)
    (other,) = fit.start.moments.keys() - fit.engine.program.features.keys()
    moments = {name: dict(of) for name, of in fit.start.moments.items()}
    before = weight_in(fit, moments)
    moments[other] = {n: np.asarray(3.0 * value) for n, value in moments[other].items()}
    assert before is not None
    assert weight_in(fit, moments) == pytest.approx(3.0 * before)


def test_the_weight_of_intercepts_differs_where_rows_have_weights() -> None:
    assert weight_in(fit_of(heavy_tails)) is None


@pytest.mark.quick_with("in_one_vector")
@pytest.mark.parametrize("model", [no_intercept, with_square, in_one_vector])
def test_the_weight_of_features_is_known_of_a_normal(
    model: Callable[..., None],
) -> None:
    found = weight_in(fit_of(model), of=weight_of_features)
    assert found == pytest.approx(1.0 / 4.0**2)


def test_the_weight_of_features_differs_where_rows_have_weights() -> None:
    assert weight_in(fit_of(heavy_tails), of=weight_of_features) is None


@pytest.mark.quick_with("False-vector", "True-with_square")
@pytest.mark.parametrize("model", [vector, no_intercept, with_square])
@pytest.mark.parametrize("standardised", [False, True])
def test_sums_tell_the_moments_of_features(
    model: Callable[..., None], standardised: bool
) -> None:
    fit = fit_of(model)
    engine, (name,) = fit.engine, fit.engine.program.features
    state = fit.at_random() if standardised else fit.start
    sums = fit.sums(state, UNCLIPPED)
    state = engine.update(state, sums, dict.fromkeys(sums, 1e-9), 1.0)
    exact = Unclipped(state.statistics, state.noise_stddev)
    found = engine.on_globals.features.moments_of_features(state, exact, name)
    X, *_ = fit.rows.values()
    if X.ndim == 1:
        X = np.stack([X, X**2], 1)
    X = np.concatenate([np.ones((len(X), 1)), X], 1).astype(np.float64)
    wanted = X.T @ X / len(X)
    if not fit.features.constant:
        wanted[0, 1:] = wanted[1:, 0] = 0.0  # Nothing tells means.
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * wanted.max())


def weight_in(
    fit: Fit, moments: Any = None, of: Callable[..., Any] = weight_of_intercepts
) -> float | None:
    program = fit.engine.program
    ((name, features),) = program.features.items()
    return of(
        program.structure,
        name,
        features,
        program.row_terms,
        fit.start.moments if moments is None else moments,
    )


def test_without_a_number_of_rows_features_stay_as_they_were() -> None:
    features = Features((0,), (1,), (0,))
    before = Standardisation(np.array([3.0]), np.array([[2.0]]))
    moments = np.array([[1.0, 5.0], [5.0, 30.0]])
    found = features.standardisation(before, moments, np.full((2, 2), 10.0))
    assert found is before


# --- privacy --------------------------------------------------------------------------


@pytest.mark.quick_with("no_intercept")
@pytest.mark.parametrize("model", list(WITH_FEATURES))
def test_one_row_moves_the_sum_by_at_most_the_clipping_norm(
    model: Callable[..., None],
) -> None:
    fit, norm = fit_of(model), 1.0
    for size in (1e-3, 1.0, 1e4):
        # An outlier, too, on real neighbouring rows.
        rows = {name: np.array(array) for name, array in fit.rows.items()}
        name = next(n for n, array in rows.items() if array.dtype == np.float32)
        rows[name][0] = 1e20
        furthest = fit.furthest_neighbour(fit.at_random(size=size), norm, rows)
        assert furthest <= norm * (1.0 + 1e-6)
        assert furthest > 0.5 * norm or size < 1.0


@pytest.mark.parametrize("model", [separate, in_one_vector])
def test_norms_that_are_counted_are_those_of_what_is_released(
    model: Callable[..., None],
) -> None:
    """A product of two entries of a vector is on both sides of the diagonal."""
    fit = fit_of(model)
    fit.check_counted_norms(fit.at_random())


@pytest.mark.thorough
def test_features_of_groups_are_not_worth_a_matrix_of_many_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    age, y = rows_of(with_square)

    def engine(number: int) -> Any:
        model = functools.partial(with_groups, number)
        return EngineFit(model, (np.arange(ROWS) % number, age, y)).engine

    def size(engine: Any) -> int:
        (found,) = (s for s in engine.statistics if s.name == "⟨b b⟩⟨s^-2⟩")
        return math.prod(found.shape)

    assert size(engine(6)) == 6
    # Of two slopes of one row at most one is not zero.
    monkeypatch.setattr("numpyro_vips.vips.program.program._MOST_GROWTH", math.inf)
    wide = engine(5)
    assert size(wide) == 5**3
    names = [part.name for part in wide.together]
    assert len(set(names)) == len(names) == 2


def test_rows_of_two_groups_are_clipped_as_one() -> None:
    """Scales and slopes of groups stand on labels of their own in what is released."""
    age, y = rows_of(with_square)
    rows = np.arange(ROWS) % 2, age, y
    fit = EngineFit(functools.partial(with_groups, 2), rows)
    assert fit.engine.program.features and len(fit.engine.together) == 2
    fit.check_counted_norms(fit.start)
    age[0] = 1e20
    furthest = fit.furthest_neighbour(
        fit.start, 1.0, {"g": rows[0], "age": age, "y": y}
    )
    assert 0.5 < furthest <= 1.0 + 1e-6


def test_all_that_features_change_is_released_anew() -> None:
    fit = fit_of(separate)
    products = {s.name for s in fit.engine.statistics if len(s.atoms) > 1}
    public = {s.name for s in fit.engine.statistics if s.release == "public"}
    assert products - public <= fit.engine.recentred
    (again,) = [step for step in fit.steps if step.recentres]
    counted = {name for part in again.counted for name in part.blocks}
    assert counted == fit.engine.recentred


@pytest.mark.thorough
def test_only_released_numbers_decide_the_features() -> None:
    fit = fit_of(separate)
    noise = dict.fromkeys(fit.scales, 3.0)
    released = {n: np.asarray(v + 1.0) for n, v in fit.sums(fit.start, 1e6).items()}
    first, second = (
        fit.engine.recentre(fit.engine.update(fit.start, released, noise, 1.0))
        for _ in range(2)
    )
    (name,) = first.next_standards
    for a, b in zip(*(of.next_standards[name] for of in (first, second)), strict=True):
        np.testing.assert_array_equal(a, b)
        # Rows know these in their own precision, and the M-step the same numbers.
        assert np.all(a == np.asarray(a).astype(np.float32))
    about = fit.engine.update(first, released, noise, 1.0)
    saved = fit.engine.released(about)
    np.testing.assert_array_equal(
        saved[f"{name}.feature_means"], first.next_standards[name].means
    )


# --- fits -----------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "model", [separate, pytest.param(vector, marks=pytest.mark.slow)]
)
def test_an_intercept_is_found_beside_columns_far_from_zero(
    model: Callable[..., None],
) -> None:
    """It was 800 standard deviations off, without a warning."""
    rng = np.random.default_rng(1)
    count = 6_000
    age = rng.uniform(18.0, 90.0, count).astype(np.float32)
    dose = rng.normal(26.0, 4.0, count).astype(np.float32)
    y = (90.0 + 0.5 * age + 0.8 * dose + 12.0 * rng.normal(size=count)).astype("f4")
    rows = (age, dose, y) if model is separate else (np.stack([age, dose], 1), y)
    with warnings.catch_warnings(action="ignore"):
        result = fit_to(model, *rows, insecure_seed=0)
    draws = result.sample_posterior(jax.random.key(1), (2000,))
    intercept = np.asarray(draws["a"])
    assert abs(intercept.mean() - 90.0) < 4.0 * intercept.std()
    assert intercept.std() < 30.0


def test_a_rare_column_does_not_hide_how_others_are_correlated() -> None:
    """Noise in units of its size is large, and no bar for directions of the others."""
    rng = np.random.default_rng(0)
    chances = np.array([1.0, 0.5, 0.4, 0.3, 0.2, 0.02])
    second = np.outer(chances, chances)
    np.fill_diagonal(second, chances)
    count = len(chances)
    features = Features(tokens=(0,), places=tuple(range(count)), constant=())
    before = Standardisation(np.zeros(count), np.eye(count))
    noise = 16.0 * np.where(np.eye(count, dtype=bool), 1.0, math.sqrt(0.5))
    shares = []
    for _ in range(20):
        drawn = rng.normal(size=(count, count))
        moments = 250.0 * second + 16.0 * (drawn + drawn.T) / 2.0
        matrix = features.standardisation(before, moments, noise).matrix
        values = np.linalg.eigvalsh(matrix @ second @ matrix.T)
        shares.append(values[-1] / values.sum())
    assert np.linalg.eigvalsh(second)[-1] / chances.sum() > 0.65
    assert np.mean(shares) < 0.33
