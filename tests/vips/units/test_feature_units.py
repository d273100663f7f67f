"""Units of features beside an intercept in their vector, from a released norm."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _engine_fit import EngineFit

import numpyro_vips as nv

NUM_ROWS = 1500
RNG = np.random.default_rng(0)
HEIGHT = RNG.normal(170.0, 10.0, NUM_ROWS).astype(np.float32)
Y = (40.0 + 0.5 * HEIGHT + RNG.normal(0.0, 5.0, NUM_ROWS)).astype(np.float32)


def in_one_vector(height: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 100.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(w[0] + w[1] * height, 5.0), obs=y)


def apart(height: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    b = numpyro.sample("b", dist.Normal(0.0, 100.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a + b * height, 5.0), obs=y)


def whole_matrix(x: Any, y: Any) -> None:
    """Nothing says that a column of the table is an intercept."""
    w = numpyro.sample("w", dist.Normal(0.0, 100.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(x @ w, 5.0), obs=y)


def engine_fit(model: Callable[..., None] = in_one_vector) -> EngineFit:
    if model is whole_matrix:
        table = np.stack([np.ones_like(HEIGHT), HEIGHT], 1)
        return EngineFit(model, (table[:50], Y[:50]))
    return EngineFit(model, (HEIGHT[:50], Y[:50]))


def test_columns_that_share_a_norm_get_the_sizes_that_were_found() -> None:
    """Neither an intercept nor a coefficient by itself is one of several columns."""
    fit = engine_fit(whole_matrix)
    ((name, columns),) = fit.engine.columns.items()
    assert (columns.number, columns.reference) == (2, 1.0)
    state = fit.engine.with_column_sizes(fit.start, {name: np.array([1.0, 170.0])})
    (before,), (after,) = fit.start.standards.values(), state.standards.values()
    expected = np.asarray(before.matrix) / [[1.0], [170.0]]
    np.testing.assert_allclose(after.matrix, expected, 1e-6)
    assert state.next_standards == state.standards
    # The norm of products is the squared norm of a row, now of two columns alike.
    ratio = norms(fit, fit.start)[name].max() / norms(fit, state)[name].max()
    assert ratio == pytest.approx((1.0 + 170.0**2) / 2.0, rel=0.3)
    assert not engine_fit().engine.columns
    assert not engine_fit(apart).engine.columns


def norms(fit: EngineFit, state: Any) -> dict[str, np.ndarray]:
    found = fit.engine.row_norms(state, fit.rows, sorted(fit.scales))
    return {name: np.asarray(norm, np.float64) for name, norm in found.items()}


def ratios_of(fit: EngineFit) -> dict[str, float]:
    before = norms(fit, fit.start)
    return {
        name: before[name].max() / part.reference
        for part in fit.parts
        for name in part.blocks
    }


def test_rows_are_no_larger_than_the_norms_that_follow() -> None:
    fit = engine_fit()
    state, by = fit.engine.suited_to_norms(fit.start, ratios_of(fit))
    before, after = norms(fit, fit.start), norms(fit, state)
    assert by.keys() == {name for name in fit.scales if "w" in name}
    for name, factor in by.items():
        # Heights are nearly the same: the bound is nearly reached.
        assert factor / 2 < after[name].max() / before[name].max() <= factor
    (standard,) = state.next_standards.values()
    (largest,) = (part for part in fit.parts if "w w" in part.name)
    expected = np.sqrt(ratios_of(fit)[largest.name])
    np.testing.assert_allclose(standard.matrix, [[1.0 / expected]], rtol=1e-6)


@pytest.mark.parametrize("ratio", [0.001, 1.0, 4.0])
def test_features_that_are_hardly_larger_stay(ratio: float) -> None:
    fit = engine_fit()
    state, by = fit.engine.suited_to_norms(
        fit.start, dict.fromkeys(ratios_of(fit), ratio)
    )
    (standard,) = state.next_standards.values()
    assert by == {}
    np.testing.assert_array_equal(standard.matrix, [[1.0]])


def test_what_stands_out_of_no_histogram_changes_nothing() -> None:
    fit = engine_fit()
    state, by = fit.engine.suited_to_norms(fit.start, {})
    assert (state, by) == (fit.start, {})


@pytest.mark.parametrize("model", [apart, whole_matrix])
def test_where_no_entry_is_an_intercept_nothing_changes(
    model: Callable[..., None],
) -> None:
    fit = engine_fit(model)
    state, by = fit.engine.suited_to_norms(fit.start, dict.fromkeys(fit.scales, 1e4))
    assert by == {}
    assert state.next_standards == fit.start.next_standards


def test_after_a_pilot_units_are_its_own() -> None:
    fit = engine_fit()
    noise = dict.fromkeys(fit.scales, 0.0)
    state = fit.engine.update(fit.start, fit.sums(fit.start, 1e9), noise, 1.0)
    again, by = fit.engine.suited_to_norms(state, dict.fromkeys(fit.scales, 1e4))
    assert by == {}
    assert again is state


@pytest.mark.thorough
def test_a_raw_column_does_not_hide_the_slope() -> None:
    """Its interval was hundreds of standard deviations of the exact one wide."""
    stddevs, errors = [], []
    for number in range(5):
        vi = nv.PrivateVI(
            nv.private(in_one_vector, unit="rows"),
            budget=nv.PrivacyBudget(1.0, 1e-5),
            progress_bar=False,
        )
        moments = vi.run(jax.random.key(number), HEIGHT, Y).posterior.moments()["w"]
        stddevs.append(moments.stddev[1])
        errors.append((moments.mean[1] - 0.5) / moments.stddev[1])
    exact = 5.0 / np.sqrt(NUM_ROWS) / HEIGHT.std()
    assert np.median(stddevs) < 30 * exact
    assert np.median(np.abs(errors)) < 2.5
    assert np.isfinite(stddevs).all()
