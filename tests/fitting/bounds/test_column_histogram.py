"""Histograms of columns: neighbours, what is read off them, and what they cure."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of

import numpyro_vips as nv
from numpyro_vips.fitting.bounds.column_histogram import (
    column_block,
    column_grid,
    sizes_from_counts,
)
from numpyro_vips.fitting.bounds.norm_parts import NormPart
from numpyro_vips.fitting.schedule import COLUMNS_SHARE
from numpyro_vips.jax_tools.row_sums import increasing_edges
from numpyro_vips.privacy.releases import Columns

COLUMNS = 3


@nv.private(unit="rows")
def logistic(X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


@nv.private(unit="rows")
def linear(X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 100.0).expand([X.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1000.0))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, sigma), obs=y)


@nv.private(unit="rows")
def apart(X: Any, y: Any = None) -> None:
    """A logistic regression with a latent for each column."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b, c, d = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "bcd")
    with numpyro.plate("rows", X.shape[0]):
        logits = a + b * X[:, 0] + c * X[:, 1] + d * X[:, 2]
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def _prepared(
    rows: int, columns: int = COLUMNS, model: Any = logistic, **options: Any
) -> Any:
    vi = vi_of(model, **options)
    labels = np.ones(rows, np.float32 if model is linear else np.int32)
    return vi._prepare_fit((np.ones((rows, columns), np.float32), labels), {})[0]


# --- what a row counts for ------------------------------------------------------------

SIZES = np.array(
    [
        [0.5, 2.0, -40.0],
        [0.0, 1e4, 3.0],
        [1e-3, 0.0, 0.0],
        [np.nan, 1.0, 1.0],
        [1.0, np.inf, 1.0],
        [-1e30, 1.0, 5.0],
        [1.0, 1.0, 1.0],
    ],
    np.float32,
)


def _counts(fit: Any, X: np.ndarray, mask: Any = True, units: Any = None) -> np.ndarray:
    """Before noise, of the one vector of residuals or of features."""
    step = fit.steps[0]
    assert step.is_by_column
    (part,) = step.counted
    state = fit.engine.initial_state(jax.random.key(0))
    if units is not None:
        state = fit.engine.with_column_sizes(state, {part.name: units})
    labels = np.arange(len(X), dtype=np.int32) % 2
    if np.issubdtype(fit.arguments.row_shapes()["y"].dtype, np.floating):
        labels = 1e3 * labels.astype(np.float32)
    found = fit.engine.column_counts(
        state,
        {"X": X, "y": labels},
        np.broadcast_to(mask, len(X)),
        edges={part.name: increasing_edges(column_grid(part))},
    )
    return np.asarray(found[part.name])


@pytest.mark.parametrize("model", [logistic, linear, apart])
@pytest.mark.parametrize("units", [None, np.array([10.0, 0.1, 1.0])])
def test_a_row_counts_once_in_each_column_where_its_entry_is(units, model):
    fit = _prepared(900, model=model)
    found = _counts(fit, SIZES, units=units)
    valid = SIZES[np.all(np.isfinite(SIZES), axis=1)]
    # Logits are zero at the start, so residuals are half as large as features.
    factor = 0.5 if model is logistic else 1.0
    entries = factor * np.abs(valid) / (1.0 if units is None else units)
    edges = column_grid(fit.steps[0].counted[0])
    expected = [
        np.bincount(np.searchsorted(edges, column), minlength=len(edges) + 1)
        for column in entries.T
    ]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("model", [logistic, linear, apart])
def test_neighbours_differ_by_what_is_stated(model):
    """On every pair of neighbours of these rows, for both relations."""
    fit = _prepared(900, model=model)
    mechanism = fit.steps[0].mechanism
    whole = _counts(fit, SIZES)
    reached = {"add_or_remove": 0.0, "replace_one": 0.0}
    for number in range(len(SIZES)):
        mask = np.arange(len(SIZES)) != number
        change = float(np.linalg.norm(whole - _counts(fit, SIZES, mask)))
        reached["add_or_remove"] = max(reached["add_or_remove"], change)
        for other in SIZES:
            replaced = SIZES.copy()
            replaced[number] = other
            change = float(np.linalg.norm(whole - _counts(fit, replaced)))
            reached["replace_one"] = max(reached["replace_one"], change)
    for relation, most in reached.items():
        stated = mechanism.sensitivity(relation)
        assert most <= stated * (1 + 1e-12)
        assert most > 0.99 * stated  # And some neighbours need all of it.
    assert mechanism.sensitivity("add_or_remove") == pytest.approx(math.sqrt(COLUMNS))


# --- what is read off -----------------------------------------------------------------

PART = NormPart(
    name="residuals", blocks=("residuals",), reference=2.0, columns=Columns(4)
)


def test_sizes_are_those_of_the_entries_that_stand_out():
    """Over what they would be in rows of unit size, in which all columns are alike."""
    rng = np.random.default_rng(0)
    edges, rows = column_grid(PART), 20_000
    entries = np.stack(
        [
            np.full(rows, 1.0),
            np.abs(rng.normal(45.0, 15.0, rows)),
            np.where(rng.random(rows) < 0.1, 1e-4, 0.0),
            np.where(rng.random(rows) < 1e-3, 1e6, 0.0),
        ]
    )
    counts = [
        np.bincount(np.searchsorted(edges, e), minlength=len(edges) + 1)
        for e in entries
    ]
    noise = 40.0
    noisy = counts + noise * rng.normal(size=(4, len(edges) + 1))
    found = sizes_from_counts(noisy, PART, noise_stddev=noise, num_rows=rows)
    # A column of which nothing stands out hides none of the others.
    ages = math.hypot(45.0, 15.0)
    expected = np.array([1.0, ages, 1e-4, ages])
    assert np.all(np.abs(np.log2(found / expected)) <= 0.6)
    assert found[3] == found[1]


def test_columns_may_have_a_norm_of_their_own():
    """That of their products has the unit of what these are multiplied by, too."""
    edges = column_grid(PART)
    entries = np.repeat([[1.0], [1e-3], [45.0], [1e5]], 5_000, axis=1)

    def sizes(part: NormPart) -> np.ndarray:
        edges = column_grid(part)
        counts = [
            np.bincount(np.searchsorted(edges, e), minlength=len(edges) + 1)
            for e in entries
        ]
        return sizes_from_counts(
            np.array(counts, float), part, noise_stddev=10.0, num_rows=5_000
        )

    own = dataclasses.replace(PART, reference=1e-6, columns=Columns(4, reference=2.0))
    np.testing.assert_allclose(column_grid(own), edges)
    np.testing.assert_allclose(sizes(own), sizes(PART))
    assert np.all(np.abs(np.log2(sizes(own) / [1.0, 1e-3, 45.0, 1e5])) <= 0.6)


def test_a_few_rows_far_from_the_others_are_not_the_size():
    """A code for what is missing, such as 999999, in a tenth of the rows."""
    edges = column_grid(PART)
    entries = np.where(np.arange(5_000) % 10 == 0, 999_999.0, 30.0)
    counts = np.bincount(np.searchsorted(edges, entries), minlength=len(edges) + 1)
    found = sizes_from_counts(
        np.tile(counts.astype(float), (4, 1)), PART, noise_stddev=10.0, num_rows=5_000
    )
    np.testing.assert_allclose(found, 30.0, rtol=0.5)


def test_columns_that_are_counted_again_are_measured_within_their_bins():
    """Measurements that are alike get sizes that are, wherever the bins end."""
    edges = column_grid(PART)
    rng = np.random.default_rng(0)
    sizes = 2.0 ** np.linspace(0.0, 0.75, 4)
    entries = sizes[:, None] * np.abs(rng.normal(size=(4, 50_000)))
    counts = [
        np.bincount(np.searchsorted(edges, e), minlength=len(edges) + 1)
        for e in entries
    ]

    def ratios(columns: Columns) -> np.ndarray:
        part = dataclasses.replace(PART, columns=columns)
        found = sizes_from_counts(
            np.array(counts, float), part, noise_stddev=20.0, num_rows=50_000
        )
        return found / sizes / np.mean(found / sizes)

    np.testing.assert_allclose(ratios(Columns(4, about_points=True)), 1.0, rtol=0.1)
    assert np.ptp(ratios(Columns(4))) > 0.3


@pytest.mark.parametrize(("height", "is_seen"), [(5.5, False), (7.5, True)])
def test_what_one_bin_of_noise_may_make_up_is_no_size(height: float, is_seen: bool):
    counts = np.zeros(column_block(PART).shape)
    counts[:, 80] = height * 50.0
    found = sizes_from_counts(counts, PART, noise_stddev=50.0, num_rows=10_000)
    assert np.all((found != 1.0) == is_seen)


def test_noise_alone_says_nothing():
    rng = np.random.default_rng(0)
    shape = column_block(PART).shape
    for _ in range(200):
        noisy = 50.0 * rng.normal(size=shape)
        found = sizes_from_counts(noisy, PART, noise_stddev=50.0, num_rows=10_000)
        np.testing.assert_array_equal(found, 1.0)


# --- when, and for what ---------------------------------------------------------------


@pytest.mark.thorough
def test_columns_are_counted_where_they_are_few_for_the_rows():
    for model in (logistic, linear):
        assert _prepared(150, model=model).steps[0].is_by_column
        for few in ((149, COLUMNS), (9_000, 1), (90_000, 129)):
            steps = _prepared(*few, model=model).steps
            assert not any(step.is_by_column for step in steps)
        given = _prepared(9_000, model=model, clipping_norm=1.0)
        assert not any(step.is_by_column for step in given.steps)


def test_they_have_their_share_of_the_budget():
    vi = vi_of(logistic)
    rows = np.ones((5_000, COLUMNS), np.float32), np.ones(5_000, np.int32)
    plan = vi.explain(*rows)
    first = plan.schedule[0]
    assert first["releases"] == "histogram of the columns of ⟨w⟩"
    assert first["share"] == pytest.approx(COLUMNS_SHARE, rel=1e-6)
    assert sum(line["share"] for line in plan.schedule) == pytest.approx(1.0)
    assert any("histogram of each column" in note for note in plan.notes)


@pytest.mark.parametrize(("columns", "is_said"), [(1, False), (3, True)])
def test_where_columns_are_not_counted_several_are_said_to_be(columns, is_said):
    """A single column hides no other."""
    vi = vi_of(logistic)
    plan = vi.explain(np.ones((100, columns), np.float32), np.ones(100, np.int32))
    assert any("too few rows or too many" in note for note in plan.notes) == is_said


@pytest.mark.thorough
def test_raw_columns_with_a_prior_that_knows_nothing_of_them_hide_no_other():
    """An intercept beside ages and incomes, all with the same prior.

    The budget is large, so that what is left of the error is the rows' own.
    """
    rng = np.random.default_rng(0)
    rows = 20_000
    ages, incomes = rng.normal(45.0, 15.0, rows), rng.lognormal(10.0, 0.5, rows)
    X = np.stack([np.ones(rows), ages, incomes], 1).astype(np.float32)
    truth = np.array([-1.5, 0.03, 2e-5])
    y = (rng.random(rows) < jax.nn.sigmoid(jnp.asarray(X @ truth))).astype(np.int32)
    result = fit_to(logistic, X, y, budget=20.0)
    draws = np.asarray(result.sample_posterior(jax.random.key(1), (500,))["w"])
    errors = (draws.mean(0) - truth) / draws.std(0)
    assert np.all(np.abs(errors) < 4.5), errors
    assert draws.std(0)[0] < 0.3


@pytest.mark.thorough
def test_raw_columns_of_a_linear_regression_hide_no_other():
    """Slopes were seven, and the residuals' scale ten times as wrong."""
    rng = np.random.default_rng(0)
    rows, truth = 10_000, np.array([200.0, -5.0, 0.01])
    ages, incomes = rng.normal(45.0, 15.0, rows), rng.lognormal(10.0, 0.5, rows)
    X = np.stack([np.ones(rows), ages, incomes], 1).astype(np.float32)
    y = (X @ truth + rng.normal(0.0, 100.0, rows)).astype(np.float32)
    stddevs = []
    for number in range(3):
        result = vi_of(linear).run(jax.random.key(number), X, y)
        draws = result.sample_posterior(jax.random.key(1), (500,))
        w, sigma = np.asarray(draws["w"], float), np.asarray(draws["sigma"])
        errors = (w.mean(0) - truth) / w.std(0)
        assert np.all(np.abs(errors) < 4.5), errors
        assert abs(sigma.mean() - 100.0) < 20.0
        stddevs.append(w.std(0))
    exact = 100.0 * np.sqrt(np.diag(np.linalg.inv(X.T.astype(float) @ X)))
    assert np.all(np.median(stddevs, 0) < 12.0 * exact), np.median(stddevs, 0) / exact
