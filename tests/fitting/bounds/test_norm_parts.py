"""Where clipping norms come from: on real rows, for both engines."""

import dataclasses
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _models import rates as counts
from _models import standard_regression as regression

import numpyro_vips as nv
from numpyro_vips.fitting.bounds.norm_parts import NormPart
from numpyro_vips.jax_tools.row_sums import (
    CLIPPED_ROWS,
    DIAGNOSTICS,
    ZERO_ROWS,
    increasing_edges,
)
from numpyro_vips.privacy.releases import WHOLE_VECTOR


def labels(y):
    chances = numpyro.sample("chances", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Categorical(chances), obs=y)


def totals(y):
    chance = numpyro.sample("chance", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Binomial(10, chance), obs=y)


def fit(model: Any, *arguments: Any, **options: Any) -> nv.PrivateVIResult:
    vi = vi_of(
        model,
        budget=options.pop("budget", 1.0),
        insecure_seed=options.pop("seed", 0),
        **options,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "insecure_seed", UserWarning)
        return vi.run(jax.random.key(0), *arguments)


def prepared(model: Any, *arguments: Any, **options: Any) -> Any:
    return vi_of(model, **options)._prepare_fit(arguments, {})[0]


def bounds(model: Any, *arguments: Any, **options: Any) -> dict[str, str]:
    """Where each statistic's norm comes from, as `explain` says it."""
    plan = vi_of(model, **options).explain(*arguments)
    return {
        row["statistic"]: row["bound"]
        for row in plan.statistics
        if row["released"] != "public"
    }


# --- which of them applies ------------------------------------------------------------

Y = np.arange(60, dtype=np.float32) % 4
X = np.ones((60, 3), np.float32)


@pytest.mark.thorough
def test_indicators_need_no_histogram():
    assert set(bounds(labels, Y.astype(np.int32)).values()) == {"structure"}
    result = fit(labels, Y.astype(np.int32))
    assert not any("histogram" in event.label for event in result.privacy.events)
    assert "the clipping norms, which must not be" in str(result.privacy)


@pytest.mark.thorough
@pytest.mark.parametrize("model", [counts, totals])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
def test_counts_are_found_whatever_their_type_is(model, dtype):
    found = bounds(model, Y.astype(dtype))
    assert "histogram" in found.values()


@pytest.mark.thorough
def test_counts_out_of_totals_are_found_too():
    """Of rows of unit size the totals are one at most, and so are the counts."""

    def successes(total, y=None):
        chance = numpyro.sample("chance", dist.Beta(2.0, 2.0))
        with numpyro.plate("rows", total.shape[0]):
            numpyro.sample("y", dist.Binomial(total, chance), obs=y)

    rng = np.random.default_rng(0)
    total = rng.integers(1, 60, 4000)
    y = rng.binomial(total, 0.3)
    assert set(bounds(successes, total, y).values()) == {"histogram"}
    result = fit(successes, total, y)
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(500,))
    assert abs(np.mean(draws["chance"]) - 0.3) < 0.02
    assert result.diagnostics["warnings"] == []


@pytest.mark.thorough
def test_a_norm_of_the_callers_costs_nothing():
    assert set(bounds(counts, Y, clipping_norm=5.0).values()) == {"clipping_norm="}
    events = fit(counts, Y, clipping_norm=5.0).privacy.events
    assert not any("histogram" in event.label for event in events)


def test_without_noise_nothing_is_counted_or_clipped():
    result = fit(counts, Y, budget=np.inf)
    assert result.privacy.events == ()
    assert result.privacy.clipping_norm == np.inf
    # Rows that count as zero are told of all the same.
    assert all(share.stddev == 0 for share in result.privacy.shares.values())


@pytest.mark.thorough
def test_too_few_rows_are_said():
    with pytest.warns(UserWarning, match="Too few rows"):
        result = fit(counts, Y[:8], budget=0.1)
    assert any("Too few rows" in text for text in result.diagnostics["warnings"])


# --- the histogram of private rows ----------------------------------------------------

ENGINES = ("vips", "dpvi")
ROWS = np.array([0.5, 2.0, 40.0, np.nan, -1e30, np.inf, 0.0], np.float32)


def rows_of(values: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of a regression on one feature that both vary."""
    return {"X": np.cbrt(np.abs(values) + 1.0)[:, None], "y": values}


def counted(fit: Any, rows: np.ndarray, mask: Any = True) -> dict[str, np.ndarray]:
    """Counts of rows of a regression on one feature, before noise."""
    (histogram,) = (step for step in fit.steps[:1] if step.counted)
    state = fit.engine.initial_state(jax.random.key(0))
    found = fit.engine.norm_counts(
        state,
        rows_of(rows),
        np.broadcast_to(mask, len(rows)),
        parts={part.name: part.blocks for part in histogram.counted},
        edges={p.name: increasing_edges(p.grid) for p in histogram.counted},
    )
    return {name: np.asarray(counts) for name, counts in found.items()}


def one_feature(engine: str) -> Any:
    arguments = np.ones((9, 1), np.float32), np.ones(9, np.float32)
    return prepared(regression, *arguments, engine=engine)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ENGINES)
def test_a_row_counts_once_where_its_norm_is(engine):
    fit = one_feature(engine)
    state = fit.engine.initial_state(jax.random.key(0))
    parts: tuple[NormPart, ...] = fit.steps[0].counted
    blocks = [name for part in parts for name in part.blocks]
    rows = rows_of(ROWS)
    norms = fit.engine.row_norms(state, rows, blocks)
    total = counted(fit, ROWS)
    for part in parts:
        joint = np.sqrt(sum(norms[name] ** 2 for name in part.blocks))
        valid = joint[np.isfinite(joint)]
        assert 3 <= len(valid) < len(ROWS)
        bins = np.searchsorted(part.grid, valid)
        expected = np.bincount(bins, minlength=len(part.grid) + 1)
        np.testing.assert_array_equal(total[part.name][:-1], expected)
        assert total[part.name][-1] == len(ROWS) - len(valid)
    if engine == "dpvi":
        assert [part.name for part in parts] == [WHOLE_VECTOR]


@pytest.mark.parametrize("engine", ENGINES)
def test_neighbours_differ_by_what_is_stated(engine):
    """On every pair of neighbours of these rows, for both relations."""
    fit = one_feature(engine)
    mechanism = fit.steps[0].mechanism

    def joint(counts: dict[str, np.ndarray]) -> np.ndarray:
        blocks = mechanism.blocks
        return np.concatenate([b.scale * counts[b.name].ravel() for b in blocks])

    whole = joint(counted(fit, ROWS))
    reached = {"add_or_remove": 0.0, "replace_one": 0.0}
    for number in range(len(ROWS)):
        mask = np.arange(len(ROWS)) != number
        without = joint(counted(fit, ROWS, mask))
        change = float(np.linalg.norm(whole - without))
        reached["add_or_remove"] = max(reached["add_or_remove"], change)
        for other in ROWS:
            replaced = ROWS.copy()
            replaced[number] = other
            change = float(np.linalg.norm(whole - joint(counted(fit, replaced))))
            reached["replace_one"] = max(reached["replace_one"], change)
    for relation, most in reached.items():
        stated = mechanism.sensitivity(relation)
        assert most <= stated * (1 + 1e-12)
        assert most > 0.99 * stated  # And some neighbours need all of it.


@pytest.mark.parametrize("clipping_norm", [0.3, 10.0, 1e6])
@pytest.mark.parametrize("engine", ENGINES)
def test_neighbours_differ_by_what_a_reporting_step_states(engine, clipping_norm):
    """The whole joint vector with its reports, on every pair of neighbours of rows that
    are clipped, are not, lie at the norm, or count as zero; for both relations."""
    fit = one_feature(engine)
    state = fit.engine.initial_state(jax.random.key(0))
    (step, *_) = (step for step in fit.steps if step.reports)
    step = dataclasses.replace(step, clipping_norm=clipping_norm, parts=())
    scales = {block.name: block.scale for block in step.released}
    assert set(DIAGNOSTICS) < scales.keys()
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-3.0, 12.0, 12)
    values = np.concatenate([ROWS, -ROWS, sizes * rng.choice([-1.0, 1.0], 12)])
    values = values.astype(np.float32)

    def joint(values: np.ndarray, mask: Any = True) -> np.ndarray:
        sums = fit.engine.bounded_sum(
            state,
            rows_of(values),
            np.broadcast_to(mask, len(values)),
            scales=scales,
            clipping_norm=clipping_norm,
        )
        return np.concatenate([np.ravel(s * sums[name]) for name, s in scales.items()])

    whole, places = joint(values), np.arange(len(values))
    added = np.array([whole - joint(values, places != place) for place in places])
    reached = {"add_or_remove": np.max(np.linalg.norm(added, axis=1))}
    # A row adds the same wherever it stands, which is looked at for some of the pairs.
    pairs = np.linalg.norm(added[:, None] - added, axis=2)
    reached["replace_one"] = np.max(pairs)
    for old, new in np.argwhere(pairs > 0.99 * np.max(pairs))[:6]:
        replaced = values.copy()
        replaced[old] = values[new]
        change = np.linalg.norm(whole - joint(replaced))
        assert change == pytest.approx(pairs[old, new], rel=1e-6)
    for relation, most in reached.items():
        stated = step.mechanism.sensitivity(relation)
        assert most <= stated * (1 + 1e-9)
        assert most > 0.97 * stated  # And some neighbours need about all of it.
    # Without what is priced for the reports it would not be enough.
    assert reached["add_or_remove"] > clipping_norm * (1 + 1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_that_are_clipped_or_zero_are_counted(engine):
    fit = one_feature(engine)
    state = fit.engine.initial_state(jax.random.key(0))
    blocks = fit.engine.blocks("adaptive") or fit.engine.blocks("once")
    rows = rows_of(ROWS)
    norms = fit.engine.row_norms(state, rows, [block.name for block in blocks])
    joint = np.sqrt(sum(norm**2 for norm in norms.values()))
    clipping_norm = 10.0
    sums = fit.engine.bounded_sum(
        state,
        rows,
        np.ones(len(ROWS), bool),
        scales={block.name: 1.0 for block in blocks} | dict.fromkeys(DIAGNOSTICS, 1.0),
        clipping_norm=clipping_norm,
    )
    assert sums[CLIPPED_ROWS] == np.sum(joint > clipping_norm)
    assert sums[ZERO_ROWS] == np.sum(~np.isfinite(joint))
    assert 0 < sums[CLIPPED_ROWS] < len(ROWS)
    assert 0 < sums[ZERO_ROWS] < len(ROWS)


# --- rows of components that have none yet --------------------------------------------


def outliers(y):
    share = numpyro.sample("share", dist.Beta(1.0, 30.0))
    spread = numpyro.sample("spread", dist.HalfNormal(0.2))
    with numpyro.plate("rows", y.shape[0]):
        is_one = numpyro.sample(
            "is_one", dist.Bernoulli(share), infer={"enumerate": "parallel"}
        )
        scale = jnp.where(is_one == 1, 10.0, spread)
        numpyro.sample("y", dist.Normal(0.0, scale), obs=y)


@pytest.mark.thorough
def test_a_row_has_the_norms_of_any_component_before_the_first_step():
    """At the start a row far from zero is no row of the narrow component at all."""
    rows = np.array([0.1, 3.0, -40.0], np.float32)
    fit = prepared(outliers, rows)
    state = fit.engine.initial_state(jax.random.key(0))
    names = [block.name for block in fit.engine.blocks("adaptive")]
    norms = fit.engine.row_norms(state, {"y": rows}, names)
    np.testing.assert_allclose(norms["⟨spread^-2⟩"], rows**2 / 2.0, rtol=1e-5)
    alone = fit.engine.bounded_sum(
        state,
        {"y": rows[1:]},
        np.ones(2, bool),
        scales={"⟨spread^-2⟩": 1.0},
        clipping_norm=np.inf,
    )
    assert abs(alone["⟨spread^-2⟩"]) < 1e-3
    # What is bounded by one in any state needs no histogram.
    fixed = {part.name for part in fit.parts if part.is_fixed}
    assert {"⟨log share⟩", "⟨log(1-share)⟩"} <= fixed


@pytest.mark.thorough
def test_parts_that_are_counted_alone_have_the_counts_that_they_have_with_others():
    def engine(width: float) -> Any:
        def line(x, y=None):
            w = numpyro.sample("w", dist.Normal(0.0, width))
            with numpyro.plate("rows", x.shape[0]):
                numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

        return prepared(line, x, y).engine

    x, y = np.random.default_rng(0).normal(size=(2, 50)).astype(np.float32)
    mask = np.arange(50) < 40

    parts = {"vector": ("⟨w⟩",), "square": ("⟨w w⟩",)}
    edges = {name: increasing_edges(np.geomspace(0.01, 9.0, 20)) for name in parts}

    def counted(by: Any, *names: str) -> dict[str, np.ndarray]:
        found = by.norm_counts(
            by.initial_state(jax.random.key(0)),
            {"x": x, "y": y},
            mask,
            parts={name: parts[name] for name in names},
            edges={name: edges[name] for name in names},
        )
        return {name: np.asarray(counts) for name, counts in found.items()}

    first = engine(1.0)
    together = counted(first, "vector", "square")
    # Norms do not depend on the width of the prior, but programs do.
    for name, width in zip(parts, (2.0, 3.0), strict=True):
        after, alone = counted(first, name), counted(engine(width), name)
        assert after.keys() == alone.keys() == {name}
        np.testing.assert_array_equal(after[name], alone[name])
        np.testing.assert_array_equal(after[name], together[name])
        assert after[name].sum() == 40


@pytest.mark.thorough
def test_later_norms_are_those_at_the_globals():
    rows = np.array([0.1, 3.0, -40.0], np.float32)
    fit = prepared(outliers, rows)
    engine = fit.engine
    (part,) = (p for p in fit.parts if p.name == "⟨spread^-2⟩")

    def bins(state: Any) -> np.ndarray:
        found = engine.norm_counts(
            state,
            {"y": rows},
            np.ones(3, bool),
            parts={part.name: part.blocks},
            edges={part.name: increasing_edges(part.grid)},
        )
        return np.flatnonzero(found[part.name])

    start = engine.initial_state(jax.random.key(0))
    scales = {block.name: block.scale for block in engine.blocks("adaptive")}
    sums = engine.bounded_sum(
        start, {"y": rows}, np.ones(3, bool), scales=scales, clipping_norm=np.inf
    )
    later = engine.update(start, sums, dict.fromkeys(scales, 1.0), 1.0)
    assert bins(start).max() > bins(later).max()


# --- what users see -------------------------------------------------------------------


@pytest.mark.thorough
def test_released_shares_stand_in_statement_result_and_files(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.poisson(3.0, 5000).astype(np.float32)
    with pytest.warns(UserWarning, match="rows were clipped") as caught:
        result = fit(counts, y, clipping_norm=1.0)
    share = result.privacy.shares[CLIPPED_ROWS]
    # Those above one; the rest is noise.
    assert abs(share.share - np.mean(y > 1)) < 5 * share.stddev
    assert 0 < share.stddev < 0.02
    (text,) = (w for w in result.diagnostics["warnings"] if "clipped" in w)
    assert str(share) in text
    assert text in str(caught[-1].message)
    assert f"{share} {CLIPPED_ROWS}" in str(result.privacy)
    assert result.diagnostics[CLIPPED_ROWS]["share"] == share.share
    result.save(tmp_path / "fit.nc")
    assert nv.load(tmp_path / "fit.nc").privacy.shares == result.privacy.shares
    idata = result.to_arviz(jax.random.key(0), num_samples=4)
    attributes = idata["posterior"] if hasattr(idata, "children") else idata.posterior
    assert CLIPPED_ROWS in attributes.attrs["diagnostics"]


@pytest.mark.thorough
def test_rows_that_the_model_cannot_have_are_said():
    y = np.where(np.arange(5000) % 3 == 0, -1.0, 2.0).astype(np.float32)
    with pytest.warns(UserWarning, match="counted as zero"):
        result = fit(counts, y)
    share = result.privacy.shares[ZERO_ROWS]
    assert abs(share.share - 1 / 3) < 5 * share.stddev


def test_diagnostics_can_be_switched_off():
    result = fit(counts, Y, diagnostics=False, clipping_norm=5.0)
    assert result.privacy.shares == {}
    (event,) = result.privacy.events
    assert event.sensitivity == pytest.approx(5.0)


@pytest.mark.quick_with("1000.0")
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_scale_of_a_model_does_not_matter(scale):
    """A regression in other units, its prior too: the same result, scaled back."""

    def scaled(X, y=None):
        with numpyro.plate("feature", X.shape[1]):
            w = numpyro.sample("w", dist.Normal(0.0, scale))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 0.7 * scale), obs=y)

    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 3)).astype(np.float32)
    w = np.array([1.0, -0.5, 0.3])
    y = scale * (X @ w + 0.7 * rng.normal(size=5000))
    result = fit(scaled, X, y.astype(np.float32))
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(500,))["w"]
    np.testing.assert_allclose(np.mean(draws, 0) / scale, w, atol=0.15)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "expected"),
    [("regression", {"⟨w⟩", "⟨w w⟩"}), ("with a constant", set()), ("mean", set())],
)
def test_statistics_of_regressions_are_balanced(model: str, expected: set[str]) -> None:
    def with_a_constant(X, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Normal(b + X @ w, 0.7), obs=y)

    def mean(X, y=None):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("x", dist.Normal(b, 0.7), obs=X[:, 0])

    models = {"regression": regression, "with a constant": with_a_constant}
    X, y = np.ones((50, 3)), np.ones(50)
    engine = prepared(models.get(model, mean), X, y).engine
    assert engine.balanced == expected


SEXES = nv.Schema({name: nv.Binary(0, 1) for name in "abcd"})


def logistic(X, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("feature", X.shape[1]):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b + X @ w), obs=y)


def binary_table(count):
    rng = np.random.default_rng(0)
    return {name: rng.integers(0, 2, count) for name in SEXES}


@pytest.mark.thorough
def test_encoded_rows_of_one_length_need_no_histogram():
    table = binary_table(400)
    X, y = SEXES.encode(table).astype("f4"), table["a"]
    assert set(bounds(logistic, X, y).values()) == {"structure"}
    parts = {part.name: part for part in prepared(logistic, X, y).parts}
    assert parts["⟨w⟩"].reference == pytest.approx(SEXES.row_norm, rel=1e-3)
    result = fit(logistic, X, y, num_steps=3)
    assert not any("histogram" in event.label for event in result.privacy.events)
    assert any("how 'X' was encoded" in fact for fact in result.privacy.public)
    # The same numbers, of which nothing is known.
    assert "histogram" in bounds(logistic, np.array(X), y).values()


@pytest.mark.thorough
def test_encoded_numbers_that_vary_are_counted_in_a_histogram():
    schema = nv.Schema(SEXES, age=nv.Bounded(0, 120))
    table = {**binary_table(400), "age": np.linspace(20, 90, 400)}
    found = bounds(logistic, schema.encode(table), table["a"])
    assert found["⟨w⟩"] == found["⟨w w⟩"] == "histogram"
    # On the same grid as for numbers of which nothing is known.
    X = schema.encode(table)
    known, plain = (prepared(logistic, rows, table["a"]) for rows in (X, np.array(X)))
    assert known.parts == plain.parts


@pytest.mark.parametrize(
    ("count", "expected"), [(400, "structure"), (700, "histogram")]
)
def test_norms_of_encoded_categories_are_counted_where_rows_are_enough(count, expected):
    """Hardly any row is in several rare categories, which the longest one is in."""
    jobs = nv.Categorical(["cook", "nurse", "clerk"], reference="cook")
    schema = nv.Schema(job=jobs, town=nv.Categorical(["north", "south"]))
    rng = np.random.default_rng(0)
    table = {
        "job": rng.choice(["cook", "nurse", "clerk"], count),
        "town": rng.choice(["north", "south"], count),
    }
    found = bounds(logistic, schema.encode(table), rng.integers(0, 2, count))
    assert set(found.values()) == {expected}


def test_rows_that_are_longer_than_their_schema_allows_are_clipped():
    table = binary_table(400)
    X: Any = SEXES.encode(table).astype("f4")
    y = np.random.default_rng(1).permutation(400) % 2
    # Written where NumPy does not say so to the encoded rows.
    np.asarray(X)[:200] *= 10.0
    assert getattr(X, "encoding", None) == SEXES
    result = fit(logistic, X, y, budget=50.0, num_steps=4)
    assert result.privacy.shares[CLIPPED_ROWS].share > 0.2


@pytest.mark.thorough
def test_residuals_that_the_structure_bounds_may_double_after_the_start():
    """Effects of groups: y - σ(ψ) is a half where logits are zero, and up to one."""

    def groups(g, y=None):
        with numpyro.plate("groups", 4):
            effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", g.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=effect[g]), obs=y)

    analysis = prepared(groups, np.zeros(50, int), np.zeros(50, int))
    parts = {part.name: part for part in analysis.parts}
    assert parts["⟨effect⟩"].is_fixed
    assert parts["⟨effect⟩"].reference == pytest.approx(1.0, rel=1e-3)
    # Half of the curvature, which is largest at the start.
    assert parts["⟨effect effect⟩"].reference == pytest.approx(0.125, rel=1e-3)
