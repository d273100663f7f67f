"""Several measurements of a row are clipped and noised in units of their own."""

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

from numpyro_vips.vips.units.entry_units import (
    Power,
    powers_of_others,
    suited_to_entries,
)

NUM_ROWS = 2000
RNG = np.random.default_rng(0)
LEVELS, SCALES = np.array([1.0, 10.0, 300.0]), np.array([0.5, 4.0, 60.0])
Y = (LEVELS + SCALES * RNG.normal(size=(NUM_ROWS, 3))).astype(np.float32)


def measurements(y: Any) -> None:
    level = numpyro.sample("level", dist.Normal(0.0, 200.0).expand([3]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(50.0).expand([3]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(level, scale).to_event(1), obs=y)


def counts(y: Any) -> None:
    with numpyro.plate("kinds", 3):
        rate = numpyro.sample("rate", dist.Gamma(1.0, 0.1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Poisson(rate).to_event(1), obs=y)


def baskets(y: Any) -> None:
    chances = numpyro.sample("chances", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Multinomial(20, chances), obs=y)


def answers(y: Any) -> None:
    with numpyro.plate("questions", 3):
        chance = numpyro.sample("chance", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(chance).to_event(1), obs=y)


def groups(group: Any, y: Any) -> None:
    with numpyro.plate("groups", 3):
        level = numpyro.sample("level", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(level[group], 1.0), obs=y)


def regression(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)


WHOLE = np.tile(np.array([[3, 5, 12]], np.int32), (NUM_ROWS, 1))


# --- of which vectors ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "rows", "expected"),
    [
        (measurements, (Y,), {"⟨level⟩⟨scale^-2⟩", "⟨scale^-2⟩"}),
        (counts, (WHOLE,), {"⟨log rate⟩"}),
        (baskets, (WHOLE,), set()),
        (answers, (WHOLE % 2,), set()),
        (groups, (WHOLE[:, 0] % 3, Y[:, 0]), set()),
        (regression, (Y, Y[:, 0]), set()),
    ],
)
def test_entries_are_columns_that_the_model_does_not_limit(
    model: Callable[..., None], rows: tuple[np.ndarray, ...], expected: set[str]
) -> None:
    """Not categories of one total, labels, groups of rows or products of columns."""
    fit = EngineFit(model, rows)
    assert set(fit.start.units) == expected
    for units in fit.start.units.values():
        np.testing.assert_array_equal(units, np.ones(3))


def test_norms_of_the_caller_are_those_of_numbers_as_they_are() -> None:
    assert not EngineFit(measurements, (Y,), clipping_norm=1.0).start.units


# --- what is counted -----------------------------------------------------------------


def test_a_square_is_as_large_as_what_is_squared_says() -> None:
    """Every column adds to the noise of all, and squares are counted worst."""
    (part,) = EngineFit(measurements, (Y,)).steps[0].counted
    assert part.name == "⟨level⟩⟨scale^-2⟩"


def test_columns_are_counted_about_zero_and_about_the_means_of_the_pilot() -> None:
    steps = EngineFit(measurements, (Y,)).steps
    kinds = [
        "columns" if step.is_by_column else "pilot" if step.is_pilot else "other"
        for step in steps
    ]
    assert kinds == ["columns", "other", "pilot", "columns", "other", "other"]
    assert [step.recentres for step in steps] == [False] * 3 + [True] * 2 + [False]
    # Three of them are a share; of twenty each four.
    shares = [step.share for step in steps if step.is_by_column]
    np.testing.assert_allclose(shares, shares[0])
    many = EngineFit(_of_width(20), (np.tile(Y[:, :1], (1, 20)),)).steps
    assert many[0].share == pytest.approx(3.0 * shares[0])
    # The counts of a Poisson have no points.
    alone = EngineFit(counts, (WHOLE,)).steps
    assert sum(step.is_by_column for step in alone) == 1


def _of_width(number: int) -> Callable[..., None]:
    def model(y: Any) -> None:
        with numpyro.plate("tests", number):
            level = numpyro.sample("level", dist.Normal(0.0, 200.0))
            scale = numpyro.sample("scale", dist.HalfNormal(50.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(level, scale).to_event(1), obs=y)

    return model


def test_powers_are_found_whatever_their_constants() -> None:
    x = np.abs(RNG.normal(size=(2, 50)))
    entries = {
        "square": np.array([[3.0], [0.5]]) * x**2,
        "first": x,
        "root": 2.0 * np.sqrt(x),
        "other": np.abs(RNG.normal(size=(2, 50))),
        "of other rows": np.abs(RNG.normal(size=(2, 50))) * x,
        "shorter": x[:1],
        "constant": np.ones((2, 50)),
        "unknown": np.full((2, 50), np.nan),
    }
    found = powers_of_others(entries)
    assert set(found) == {"square", "first"}
    assert {power.of for power in found.values()} == {"root"}
    assert found["square"].exponent == pytest.approx(4.0)
    assert found["first"].exponent == pytest.approx(2.0)


def test_rows_that_count_as_zero_say_nothing_of_powers() -> None:
    x = np.abs(RNG.normal(size=(2, 50)))
    x[:, :10] = np.nan
    x[0, 10:20] = 0.0
    assert powers_of_others({"x": x, "xx": x**2})["xx"].of == "x"


def test_units_undo_sizes_about_means_and_their_roots_about_zero() -> None:
    units = {name: np.array([2.0, 1.0]) for name in ("x", "xx", "count", "w")}
    sizes = {"x": np.array([4.0, 0.25]), "count": np.array([4.0, 0.25])}
    found = suited_to_entries(
        units, sizes, powers={"xx": Power("x", 2.0)}, about_points={"x", "xx"}
    )
    np.testing.assert_allclose(found["x"], [0.5, 4.0])
    np.testing.assert_allclose(found["xx"], [0.125, 16.0])
    np.testing.assert_allclose(found["count"], [1.0, 2.0])
    np.testing.assert_allclose(found["w"], [2.0, 1.0])


# --- what is released ----------------------------------------------------------------


def _sized(fit: EngineFit) -> Any:
    sizes = {"⟨level⟩⟨scale^-2⟩": SCALES / 4.0}
    return fit.engine.with_column_sizes(fit.start, sizes)


def test_units_are_taken_before_rows_are_clipped_and_taken_back_after_the_noise() -> (
    None
):
    fit = EngineFit(measurements, (Y[:6],))
    state = _sized(fit)
    plain, sums = fit.sums(fit.start, UNCLIPPED), fit.sums(state, UNCLIPPED)
    for name, units in state.units.items():
        np.testing.assert_allclose(sums[name], units * plain[name], rtol=1e-5)
    after = fit.engine.update(state, sums, dict.fromkeys(sums, 3.0), 1.0)
    for name, units in state.units.items():
        np.testing.assert_allclose(after.statistics[name], plain[name], rtol=1e-5)
        np.testing.assert_allclose(after.noise_stddev[name], 3.0 / units)
    fit.check_counted_norms(state)


@pytest.mark.optimized
@pytest.mark.parametrize("clipping_norm", [1e-3, 1.0, 30.0])
def test_a_row_moves_sums_in_units_by_the_norm_at_most(clipping_norm: float) -> None:
    fit = EngineFit(measurements, (Y[:6],))
    moved = fit.furthest_neighbour(_sized(fit), clipping_norm)
    assert moved <= clipping_norm * (1 + 1e-9)
    assert moved > 0.9 * clipping_norm


# --- intervals -----------------------------------------------------------------------


@pytest.mark.thorough
def test_small_measurements_beside_large_ones_have_narrow_intervals_that_hold() -> None:
    """Scales of small ones were up to a hundred times too uncertain."""
    errors, widths = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        y = (LEVELS + SCALES * rng.normal(size=(NUM_ROWS, 3))).astype(np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            result = fit_to(measurements, y)
        draws = result.sample_posterior(jax.random.key(1), sample_shape=(1000,))
        for name, truth in (("level", LEVELS), ("scale", SCALES)):
            drawn = np.asarray(draws[name], float)
            errors.append((drawn.mean(0) - truth) / drawn.std(0))
            alone = SCALES / np.sqrt(NUM_ROWS * (1 if name == "level" else 2))
            widths.append(drawn.std(0) / alone)
    assert np.max(np.median(widths, axis=0)) < 4.0
    assert np.sqrt(np.mean(np.square(errors))) < 1.5


@pytest.mark.thorough
def test_what_clipping_takes_off_is_added_back_in_units_too() -> None:
    """Of rows that are all clipped the scales come out right, in any units."""
    fit = EngineFit(measurements, (Y,))
    state = _sized(fit)
    scales = dict.fromkeys(state.units, 1.0)
    state = fit.engine.with_bound(state, scales, 60.0, 1.0)
    sums = fit.sums(state, 60.0)
    state = fit.engine.update(state, sums, dict.fromkeys(sums, 1.0), 1.0)
    found, _ = fit.engine._reading.sums_of(state)
    whole = fit.sums(fit.start, UNCLIPPED)
    for name in scales:
        clipped = state.statistics[name] / whole[name]
        corrected = found.statistics[name] / whole[name]
        assert np.max(np.abs(corrected - 1.0)) < 0.5 * np.max(np.abs(clipped - 1.0))
        assert np.shape(found.noise_stddev[name]) == (3,)


def test_explain_says_that_columns_are_counted() -> None:
    assert "are scaled before rows are clipped" in str(vi_of(measurements).explain(Y))
