"""Columns of features: which there are, their counts, and what is made of them."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_for
from _fits import fit_to, vi_of

import numpyro_vips as nv
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.jax_tools.row_sums import increasing_edges
from numpyro_vips.privacy.releases import WHOLE_VECTOR

N = 40
RNG = np.random.default_rng(0)
AGE = RNG.normal(45.0, 12.0, N).astype(np.float32)
INCOME = np.exp(RNG.normal(10.0, 0.5, N)).astype(np.float32)
YEAR = RNG.integers(1990, 2020, N).astype(np.int32)
GROUP = RNG.integers(0, 3, N).astype(np.int32)
X = RNG.normal(size=(N, 2)).astype(np.float32)
Y = RNG.integers(0, 2, N).astype(np.int32)


def normal(name: str, *shape: int) -> Any:
    prior = dist.Normal(0.0, 1.0)
    return numpyro.sample(name, prior.expand(shape).to_event(len(shape)))


def observed(logits: Any, y: Any) -> None:
    with numpyro.plate("rows", y.shape[0]):
        # No model that VIPS knows.
        probs = jnp.exp(-jnp.exp(logits))
        numpyro.sample("y", dist.Bernoulli(probs=probs), obs=y)


def apart(age, income, y):
    observed(normal("a") + normal("b") * age + normal("c") * income, y)


def one_vector(X, y):
    observed(normal("a") + X @ normal("w", 2), y)


def several_classes(X, y):
    logits = X @ normal("w", 2, 3)
    with numpyro.plate("rows", y.shape[0]):
        shares = jax.nn.softmax(jnp.sinh(logits))
        numpyro.sample("y", dist.Categorical(probs=shares), obs=y)


def slopes_of_groups(g, age, y):
    observed(normal("a", 3)[g] + normal("b", 3)[g] * age, y)


def mixed_features(g, X, y):
    of_row = jnp.sum(normal("w", 3, 2)[g] * X, -1)
    observed(of_row, y)


def integers(year, y):
    observed(normal("a") + normal("b") * year, y)


def in_scale_too(age, y):
    location, scale = normal("a") + normal("b") * age, normal("c") + normal("d") * age
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Logistic(location, jnp.exp(scale)), obs=1.0 * y)


def without_features(g, y):
    observed(normal("a") + normal("u", 3)[g], y)


def slopes_of_products(g, age, y):
    mean, scale = normal("mean"), numpyro.sample("scale", dist.HalfNormal(1.0))
    observed((mean + scale * normal("z", 3)[g]) * age, y)


# The globals of every column, as name and entry.
CASES = {
    "apart": (apart, (AGE, INCOME, Y), [["b0"], ["c0"]]),
    "one vector": (one_vector, (X, Y), [["w0"], ["w1"]]),
    "several classes": (
        several_classes,
        (X, Y),
        [["w0", "w1", "w2"], ["w3", "w4", "w5"]],
    ),
    "slopes of groups": (slopes_of_groups, (GROUP, AGE, Y), [["b0", "b1", "b2"]]),
    "mixed": (mixed_features, (GROUP, X, Y), [["w0", "w2", "w4"], ["w1", "w3", "w5"]]),
    "integers": (integers, (YEAR, Y), [["b0"]]),
    "in scale too": (in_scale_too, (AGE, Y), [["b0", "d0"]]),
    "none": (without_features, (GROUP, Y), []),
    "products": (slopes_of_products, (GROUP, AGE, Y), [["mean0", "z0", "z1", "z2"]]),
}


def engine_of(model: Any, rows: tuple[Any, ...], **options: Any) -> DpviEngine:
    return engine_for(nv.private(model, unit="rows"), *rows, **options)


def names_of(engine: DpviEngine) -> list[list[str]]:
    first = engine.compiled.first_coordinates
    assert first is not None
    names = [
        f"{site.name}{entry}"
        for site in engine.space.sites
        for entry in range(int(np.prod(site.unconstrained_shape)))
    ]
    return sorted(sorted(names[i] for i in group) for group in first.columns.groups)


@pytest.mark.thorough_with("several classes", "in scale too")
@pytest.mark.parametrize("case", CASES)
def test_what_a_feature_multiplies_is_found(case: str) -> None:
    model, rows, expected = CASES[case]
    engine = engine_of(model, rows)
    assert names_of(engine) == expected
    number = len(expected)
    assert {k: v.number for k, v in engine.columns.items()} == (
        {WHOLE_VECTOR: number} if number else {}
    )


@pytest.mark.thorough_with("several classes", "in scale too")
@pytest.mark.parametrize("case", CASES)
def test_coefficients_of_what_rows_may_have_or_not_are_found(case: str) -> None:
    """Those of columns, and effects of groups; no intercept, and no scale."""
    model, rows, _ = CASES[case]
    first = engine_of(model, rows).compiled.first_coordinates
    assert first is not None
    columns = first.columns
    everywhere = {"none": 3, "in scale too": 0, "slopes of groups": 3}
    found = np.count_nonzero(columns.linear.of_columns)
    places = [place for group in columns.groups for place in group]
    assert columns.linear.of_columns[places].all()
    assert (columns.linear.of_predictors >= columns.linear.of_columns).all()
    assert found == len(places) + everywhere.get(case, 0)


def counts_of(
    engine: DpviEngine, rows: dict[str, Any], mask: Any, edges: np.ndarray
) -> np.ndarray:
    state = engine.initial_state(threefry_key(0))
    of_vector = {WHOLE_VECTOR: increasing_edges(edges)}
    found = engine.column_counts(state, rows, mask, edges=of_vector)
    return np.asarray(found[WHOLE_VECTOR])


EDGES = np.array([1.0, 30.0, 60.0, 1e4, 2e4, 1e5])


def test_rows_count_by_the_size_of_their_entries() -> None:
    rows = {"age": AGE.copy(), "income": INCOME.copy(), "y": Y}
    rows["age"][0], rows["age"][1] = np.nan, -45.0
    mask = np.arange(N) > 2
    mask[:2] = True
    engine = engine_of(apart, (AGE, INCOME, Y))
    found = counts_of(engine, rows, mask, EDGES)
    for of_column, name in zip(found, ("age", "income"), strict=True):
        # A row that holds something invalid is in no bin.
        values = abs(rows[name][mask & np.isfinite(rows["age"])])
        bins = np.searchsorted(EDGES, values, side="left")
        np.testing.assert_array_equal(of_column, np.bincount(bins, minlength=7))


@pytest.mark.parametrize("replacement", [np.nan, np.inf, 0.0, 1e30, -1e-30])
def test_one_row_moves_counts_by_what_is_stated(replacement: float) -> None:
    """A row that is replaced leaves a bin of each column, and enters another one."""
    engine = engine_of(apart, (AGE, INCOME, Y))
    rows, other = {"age": AGE, "income": INCOME, "y": Y}, {}
    for name in ("age", "income"):
        other[name] = rows[name].copy()
        other[name][7] = replacement
    every = np.ones(N, bool)
    without = every.copy()
    without[7] = False
    here = counts_of(engine, rows, every, EDGES)
    for neighbour in (
        counts_of(engine, {**rows, **other}, every, EDGES),
        counts_of(engine, rows, without, EDGES),
    ):
        moved = np.abs(here - neighbour)
        assert np.all(moved.sum(1) <= 2)
    added = here - counts_of(engine, rows, without, EDGES)
    assert np.linalg.norm(added) == pytest.approx(np.sqrt(2))


def test_coefficients_get_units_of_their_features() -> None:
    engine = engine_of(apart, (AGE, INCOME, Y))
    before = engine.initial_state(threefry_key(0))
    sizes = {WHOLE_VECTOR: np.array([32.0, 2.0**14])}
    after = engine.with_column_sizes(before, sizes)
    assert before.coordinates is not None
    assert after.coordinates is not None
    expected = np.diag([1.0, 2.0**-5, 2.0**-14])
    np.testing.assert_allclose(after.coordinates.units, expected, rtol=1e-6)
    # Logits of the first steps are as unsure as those of rows of unit size.
    first, second = before.variational.guide, after.variational.guide
    ratio = np.exp(np.asarray(second["log_scale"] - first["log_scale"]))
    np.testing.assert_allclose(ratio, np.diag(expected), rtol=1e-4)
    np.testing.assert_allclose(
        second["loc"], np.diag(expected) * np.asarray(first["loc"]), rtol=1e-4
    )
    np.testing.assert_array_equal(after.average.guide["loc"], second["loc"])


def test_features_are_measured_by_an_intercept() -> None:
    def divided(age, y):
        mean = normal("a") + 0.5 * normal("b") * age
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.StudentT(4.0, mean, 10.0), obs=1.0 * y)

    first = engine_of(divided, (AGE, Y)).compiled.first_coordinates
    assert first is not None
    np.testing.assert_allclose(
        first.columns.units(np.array([2.0])), [1.0, 0.05], rtol=1e-5
    )


def test_no_unit_is_longer_than_the_prior_is_wide() -> None:
    engine = engine_of(apart, (AGE, INCOME, Y))
    state = engine.initial_state(threefry_key(0))
    sizes = {WHOLE_VECTOR: np.array([1e-3, 1e-6])}
    found = engine.with_column_sizes(state, sizes).coordinates
    assert found is not None
    np.testing.assert_allclose(found.units, np.eye(3), atol=0.1)


def test_a_prior_that_knows_the_feature_is_not_narrowed_twice() -> None:
    """A rate that grows by a hundredth with each year of age has such a prior."""

    def rates(age, y):
        a, b = normal("a"), numpyro.sample("b", dist.Normal(0.0, 0.03))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(a + b * age)), obs=y)

    engine = engine_of(rates, (AGE, Y))
    state = engine.initial_state(threefry_key(0))
    of_prior = np.array([float(site.units) for site in engine.space.sites])
    sizes = {WHOLE_VECTOR: np.array([64.0])}
    found = engine.with_column_sizes(state, sizes).coordinates
    assert found is not None
    np.testing.assert_allclose(of_prior * np.diag(found.units), [1.0, 1 / 64])


def test_units_last_where_others_are_found_on_the_way() -> None:
    def far(age, y):
        a = numpyro.sample("a", dist.Normal(0.0, 100.0))
        b = numpyro.sample("b", dist.Normal(0.0, 100.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.StudentT(4.0, a + b * age, 50.0), obs=1.0 * y)

    engine = engine_of(far, (AGE, Y))
    state = engine.initial_state(threefry_key(0))
    # Of ages, divided by the scale of residuals.
    state = engine.with_column_sizes(state, {WHOLE_VECTOR: np.array([32.0 / 50.0])})
    found = engine.before_norms(state, {"loc"}).coordinates
    assert found is not None
    units = np.diag(found.units)
    assert units[0] > 1.0
    assert units[1] == pytest.approx(units[0] / 32.0, rel=0.5)


def dose_and_response(dose, y):
    e0, ed50 = normal("e0"), numpyro.sample("ed50", dist.LogNormal(3.2, 1.0))
    e_max = numpyro.sample("e_max", dist.Normal(0.0, 5.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("rows", dose.shape[0]):
        mean = e0 + e_max * dose / (dose + ed50)
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


DOSES = np.array([0.0, 5.0, 25.0, 50.0, 100.0], np.float32)


def test_what_a_row_divides_by_belongs_to_its_features() -> None:
    """Else a response that levels off would be in units of one over the dose."""
    engine = engine_of(dose_and_response, (DOSES, DOSES))
    rows = {"dose": DOSES, "y": DOSES}
    edges = np.array([0.01, 0.3, 0.6, 1.0])
    (found,) = counts_of(engine, rows, np.ones(5, bool), edges)
    # The median dose leads to a half of the most.
    np.testing.assert_array_equal(found, [1, 1, 1, 2, 0])


def quiet_fit(model: Any, *rows: Any, seed: int) -> nv.PrivateVIResult:
    budget = nv.PrivacyBudget(1.0, 1e-5)
    private = nv.private(model, unit="rows")
    vi = nv.PrivateVI(private, budget=budget, insecure_seed=seed, progress_bar=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return vi.run(jax.random.key(seed), *rows)


@pytest.mark.thorough
def test_a_response_that_levels_off_is_in_its_interval() -> None:
    """With units of one over the dose the most was ten deviations too small."""
    truth = {"e0": 0.3, "e_max": 2.5, "ed50": 20.0, "sigma": 1.0}
    scores = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        dose = rng.choice(DOSES, 800)
        y = 0.3 + 2.5 * dose / (dose + 20.0) + rng.normal(size=800)
        result = quiet_fit(dose_and_response, dose, y.astype(np.float32), seed=seed)
        draws = result.sample_posterior(jax.random.key(1), sample_shape=(1000,))
        scores += [
            (np.mean(draws[name]) - true) / np.std(draws[name])
            for name, true in truth.items()
        ]
    assert np.mean(np.square(scores)) < 3.0


def test_a_coefficient_grows_though_its_prior_is_no_wider_than_one() -> None:
    """It counts how wide it is beside the unit that the feature's size has made."""

    def far(age, y):
        a, b = numpyro.sample("a", dist.Normal(0.0, 100.0)), normal("b")
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.StudentT(4.0, a + b * age, 10.0), obs=1.0 * y)

    engine = engine_of(far, (AGE, Y))
    state = engine.initial_state(threefry_key(0))
    for age, of_b in ((32.0, 1.0 / 32.0), (4.0, 1.0 / 10.0)):
        sizes = {WHOLE_VECTOR: np.array([age / 10.0])}
        sized = engine.with_column_sizes(state, sizes)
        found = engine.before_norms(sized, {"loc"}).coordinates
        assert found is not None
        units = np.diag(found.units)
        # The scale of the residuals; that of b is no longer than its prior is wide.
        unit = float(engine.space.sites[0].units)
        assert units[0] * unit == pytest.approx(10.0 / 1.25**0.5, rel=0.1)
        assert units[1] == pytest.approx(units[0] * unit * of_b, rel=0.5)


@pytest.mark.thorough
def test_ages_beside_many_groups_are_in_their_interval() -> None:
    """In units of one over the age alone, root mean squares of scores were 11."""

    def survey(age, school, region, y):
        mean = numpyro.sample("mean", dist.Normal(50.0, 20.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        tau = numpyro.sample("tau", dist.HalfNormal(5.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(10.0))
        with numpyro.plate("schools", 12):
            of_school: Any = numpyro.sample("of_school", dist.Normal(0.0, tau))
        with numpyro.plate("regions", 4):
            of_region: Any = numpyro.sample("of_region", dist.Normal(0.0, 5.0))
        with numpyro.plate("rows", y.shape[0]):
            loc = mean + slope * age + of_school[school] + of_region[region]
            numpyro.sample("y", dist.Normal(loc, sigma), obs=y)

    scores = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        age = rng.integers(18, 80, 3000).astype(np.float32)
        school, region = rng.integers(0, 12, 3000), rng.integers(0, 4, 3000)
        loc = 50.0 + 0.2 * age + 4.0 * rng.normal(size=12)[school] + region
        y = (loc + 8.0 * rng.normal(size=3000)).astype(np.float32)
        result = quiet_fit(survey, age, school, region, y, seed=seed)
        assert result.engine == "dpvi"
        draws = result.sample_posterior(jax.random.key(1), sample_shape=(1000,))
        scores.append((np.mean(draws["slope"]) - 0.2) / np.std(draws["slope"]))
    assert np.mean(np.square(scores)) < 3.0


@pytest.mark.parametrize("options", [{"has_norms": True}, {"perturb": "all"}])
def test_where_gradients_stay_as_they_are_nothing_is_counted(options: Any) -> None:
    assert engine_of(apart, (AGE, INCOME, Y), **options).columns == {}


def first_labels(model: Any, rows: Any, *columns: Any) -> list[str]:
    vi = vi_of(model, engine="dpvi")
    return [step.label for step in vi._prepare_fit(rows, {})[0].steps][:2]


def test_columns_are_counted_first_and_paid_for() -> None:
    many = 500 * (AGE[0],), 500 * (INCOME[0],), 500 * (0,)
    rows = tuple(np.array(column) for column in many)
    assert first_labels(apart, rows) == [
        "histogram of the columns of gradient",
        "histogram of the norms of gradient",
    ]
    few = tuple(column[:50] for column in rows)
    assert first_labels(apart, few)[0] == "histogram of the norms of gradient"


def test_columns_that_a_schema_encodes_are_not_counted() -> None:
    schema = nv.Schema(age=nv.Bounded(0, 120), dose=nv.Bounded(0, 10))
    frame = {"age": AGE, "dose": np.full(N, 5.0)}
    rows = schema.encode(frame), Y
    engine = engine_of(one_vector, rows)
    assert engine.columns == {}


@pytest.mark.thorough
def test_raw_columns_are_told_apart() -> None:
    """Without units the posterior is the prior: rows say nothing beside their noise."""
    rng = np.random.default_rng(1)
    age, income = rng.normal(45.0, 12.0, 2000), np.exp(rng.normal(3.5, 0.5, 2000))
    truth = {"a": -2.0, "b": 0.03, "c": 0.02}
    logits = truth["a"] + truth["b"] * age + truth["c"] * income
    y = rng.random(2000) < np.exp(-np.exp(logits))

    result = fit_to(apart, age, income, y.astype(np.int32))
    assert result.engine == "dpvi"
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(2000,))
    # About three times as wide as without noise, at most.
    for name, most in {"a": 0.6, "b": 0.012, "c": 0.008}.items():
        mean, stddev = np.mean(draws[name]), np.std(draws[name])
        assert abs(mean - truth[name]) < 4.0 * stddev
        assert stddev < most
