"""Units of features beside an intercept in their vector, from a released norm."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _engine_fit import EngineFit
from _fits import fit_to, vi_of

import numpyro_vips as nv
from numpyro_vips.privacy.releases import Columns

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


def of_several(height: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    b = numpyro.sample("b", dist.Normal(0.0, 100.0))
    c = numpyro.sample("c", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", len(y)):
        loc = a + b * height + c * height**2
        numpyro.sample("y", dist.Normal(loc, 5.0), obs=y)


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


def test_features_of_several_latents_are_columns_of_what_they_share() -> None:
    fit = engine_fit(of_several)
    assert fit.engine.columns == {
        part.name: Columns(2, 1.0) for part in fit.parts if part.name.endswith("²")
    }
    ((name, _),) = fit.engine.columns.items()
    sizes = np.array([170.0, 170.0**2])
    state = fit.engine.with_column_sizes(fit.start, {name: sizes})
    (before,), (after,) = fit.start.standards.values(), state.standards.values()
    expected = np.asarray(before.matrix) / sizes[:, None]
    np.testing.assert_allclose(after.matrix, expected, 1e-6)


def logistic(height: Any, income: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 10.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    c = numpyro.sample("c", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        loc = a + b * height + c * income
        numpyro.sample("y", dist.Bernoulli(logits=loc), obs=y)


def logistic_fit(rows: int) -> EngineFit:
    income, labels = np.exp(HEIGHT / 20.0), (Y > 125.0).astype(np.int32)
    return EngineFit(logistic, (HEIGHT[:rows], income[:rows], labels[:rows]))


def test_a_logistic_regression_counts_the_columns_of_several_latents() -> None:
    """And all share a norm from the start, however many rows there are."""
    fit = logistic_fit(1500)
    assert [part.name for part in fit.parts] == ["⟨a+b+c⟩²", "⟨a+b+c⟩"]
    products, residuals = fit.parts
    assert products.columns is not None
    # As large as the intercept's 1.
    assert products.columns == Columns(2, np.sqrt(2.0))
    assert residuals.columns is None
    sizes = np.array([170.0, 0.5])
    state = fit.engine.with_column_sizes(fit.start, {products.name: sizes})
    (before,), (after,) = fit.start.standards.values(), state.standards.values()
    expected = np.asarray(before.matrix) / sizes[:, None]
    np.testing.assert_allclose(after.matrix, expected, 1e-6)
    # Weights of large columns start more surely, or logits would be known to no row.
    ((name, start),) = fit.start.moments.items()
    narrower = np.diag(state.moments[name]["xx"]) / np.diag(start["xx"])
    np.testing.assert_allclose(narrower, [1.0, 170.0**-2, 1.0])
    np.testing.assert_array_equal(state.moments[name]["x"], start["x"])


def test_without_a_histogram_of_columns_blocks_keep_their_norms() -> None:
    """Of rows too few for it, or of one feature, whose block is its own."""
    assert len(logistic_fit(90).parts) > 2
    schema = nv.Schema(u=nv.Binary(0, 1), v=nv.Binary(0, 1))
    table = {name: np.arange(500) % (2 + i) // (1 + i) for i, name in enumerate("uv")}

    def of_labels(X: Any, y: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=b + X @ w), obs=y)

    X = schema.encode(table).astype("f4")
    fit = EngineFit(of_labels, (X, np.arange(500) % 2))
    assert all(part.is_fixed and len(part.blocks) == 1 for part in fit.parts)


def norms(fit: EngineFit, state: Any) -> dict[str, np.ndarray]:
    found = fit.engine.row_norms(state, fit.rows, sorted(fit.scales))
    return {name: np.asarray(norm, np.float64) for name, norm in found.items()}


def norms_of_parts(fit: EngineFit, state: Any) -> dict[str, float]:
    found = norms(fit, state)
    return {
        part.name: float(np.sqrt(sum(found[name] ** 2 for name in part.blocks)).max())
        for part in fit.parts
    }


def ratios_of(fit: EngineFit) -> dict[str, float]:
    before = norms_of_parts(fit, fit.start)
    return {part.name: before[part.name] / part.reference for part in fit.parts}


@pytest.mark.parametrize("model", [in_one_vector, apart])
def test_rows_are_no_larger_than_the_norms_that_follow(
    model: Callable[..., None],
) -> None:
    fit = engine_fit(model)
    state, by = fit.engine.suited_to_norms(fit.start, ratios_of(fit))
    before, after = norms_of_parts(fit, fit.start), norms_of_parts(fit, state)
    moved = {part.name: part for part in fit.parts if by.keys() & set(part.blocks)}
    assert len(moved) == 2
    for name, part in moved.items():
        factor = max(by[block] for block in part.blocks)
        # Heights are nearly the same: the bound is nearly reached.
        assert factor / 2 < after[name] / before[name] <= factor
    (standard,) = state.next_standards.values()
    (products,) = (name for name in moved if name in ("⟨w w⟩", "⟨a+b⟩²"))
    expected = np.sqrt(ratios_of(fit)[products])
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
def test_blocks_without_an_intercept_have_norms_that_change_nothing(
    model: Callable[..., None],
) -> None:
    """One of several blocks has no intercept in it, where each has its own norm."""
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
@pytest.mark.parametrize("model", [in_one_vector, apart])
def test_a_raw_column_does_not_hide_the_slope(model: Callable[..., None]) -> None:
    """Its interval was hundreds of standard deviations of the exact one wide."""
    stddevs, errors = [], []
    rows = slice(None) if model is in_one_vector else slice(1000)
    for number in range(5):
        vi = vi_of(model)
        posterior = vi.run(jax.random.key(number), HEIGHT[rows], Y[rows]).posterior
        slope, place = ("w", 1) if model is in_one_vector else ("b", ())
        moments = posterior.moments()[slope]
        stddevs.append(moments.stddev[place])
        errors.append((moments.mean[place] - 0.5) / moments.stddev[place])
    exact = 5.0 / np.sqrt(len(Y[rows])) / HEIGHT.std()
    assert np.median(stddevs) < 30 * exact
    assert np.median(np.abs(errors)) < 2.5
    assert np.isfinite(stddevs).all()


@pytest.mark.thorough
def test_raw_columns_of_several_latents_are_all_seen() -> None:
    """Their prior came back, though 2,000 rows say much of them."""

    def model(age: Any, income: Any, children: Any, y: Any) -> None:
        a = numpyro.sample("a", dist.Normal(0.0, 100.0))
        b = numpyro.sample("b", dist.Normal(0.0, 10.0))
        c = numpyro.sample("c", dist.Normal(0.0, 10.0))
        d = numpyro.sample("d", dist.Normal(0.0, 10.0))
        s = numpyro.sample("s", dist.HalfNormal(50.0))
        with numpyro.plate("rows", len(y)):
            loc = a + b * age + c * income + d * children
            numpyro.sample("y", dist.Normal(loc, s), obs=y)

    rng, count = np.random.default_rng(1), 2000
    age, children = rng.normal(45.0, 12.0, count), 1.0 * rng.poisson(1.5, count)
    income = np.exp(rng.normal(8.0, 0.5, count))
    y = 20.0 + 0.4 * age + 0.002 * income + 3.0 * children + rng.normal(0, 10, count)
    result = fit_to(model, age, income, children, y)
    design = np.stack([np.ones(count), age, income, children], 1)
    exact = 10.0 * np.sqrt(np.diag(np.linalg.inv(design.T @ design)))
    truth = [20.0, 0.4, 0.002, 3.0]
    for site, value, stddev in zip("abcd", truth, exact, strict=True):
        moments = result.posterior.moments()[site]
        assert moments.stddev < 5 * stddev
        assert abs(moments.mean - value) < 4 * moments.stddev
