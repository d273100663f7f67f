"""Residuals are clipped and noised in units of columns, made of released numbers."""

import warnings
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.sparse
from _fits import vi_of
from scipy.special import expit

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.vips.units.column_units import column_units, first_column_units

ROWS, COLUMNS = 400, 4
UNITS = np.array([0.25, 1.0, 2.0, 8.0])
MEAN = np.array([1.0, -2.0, 0.5, 3.0])


@nv.private(unit="rows")
def logistic(X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, COLUMNS)) * (rng.random((ROWS, COLUMNS)) < 0.5)
    X = (X / [1.0, 2.0, 4.0, 8.0]).astype(np.float32)
    return X, (rng.random(ROWS) < expit(X @ MEAN)).astype(np.int32)


def _engine(data: Any, **options: Any) -> Any:
    return vi_of(logistic, **options)._prepare_fit(data, {})[0].engine


def _state(engine: Any) -> Any:
    state = engine.initial_state(jax.random.key(0))
    (factor,) = state.moments
    at = {factor: {"x": MEAN, "xx": np.outer(MEAN, MEAN)}}
    assert set(state.units) == {"⟨w⟩", "⟨w w⟩"}
    natural = engine.on_rows.expected_natural_of(at)
    units = {"⟨w⟩": UNITS, "⟨w w⟩": np.outer(UNITS, UNITS)}
    return state._replace(visited=at, moments=at, expected_natural=natural, units=units)


def _all_units(state: Any) -> np.ndarray:
    """What columns are multiplied by: as features, and then for their residuals."""
    (standard,) = state.standards.values()
    return np.diagonal(standard.matrix) * state.units["⟨w⟩"]


# --- the units ------------------------------------------------------------------------


def test_units_undo_the_size_of_columns():
    squares = np.array([400.0, 100.0, 25.0])
    found = column_units(-np.diag(squares), np.full(3, 1e-3), np.ones(3))
    np.testing.assert_allclose(found**2 * squares, np.mean(squares))


def test_columns_below_the_noise_count_as_twice_its_size():
    squares = np.array([400.0, 3.0, -5.0])
    found = column_units(-np.diag(squares), np.full(3, 10.0), np.ones(3))
    np.testing.assert_allclose((found / found[0]) ** 2, [1.0, 20.0, 20.0])
    # What a typical row's norm is made of stays as large.
    assert found**2 @ squares == pytest.approx(squares.sum())


def test_where_noise_may_be_all_there_is_no_units_are_taken():
    curvature, before = -np.diag([19.0, 2.0, -3.0]), np.array([1.0, 0.5, 2.0])
    found = column_units(curvature, 10.0 / before**2, before)
    np.testing.assert_array_equal(found, before)


def test_units_do_not_depend_on_those_of_the_data():
    """A column in thousandths, with units of before that say so, ends up the same."""
    rng = np.random.default_rng(0)
    squares, noise = np.array([400.0, 100.0, 3.0]), np.full(3, 10.0)
    factor = 10.0 ** rng.integers(-3, 4, 3)
    found = column_units(-np.diag(squares), noise, np.ones(3))
    scaled = column_units(-np.diag(squares * factor**2), noise * factor**2, 1 / factor)
    np.testing.assert_allclose(scaled * factor, found)


def test_priors_say_in_which_units_columns_are():
    stddev = np.array([1e-4, 0.5, 1.0, 2.5, 10.0, 1e4, np.inf, 0.0, np.nan])
    expected = [1e-4, 0.5, 1.0, 1.0, 1.0, 1e3, 1.0, 1.0, 1.0]
    np.testing.assert_allclose(first_column_units(stddev), expected)


@pytest.mark.thorough
def test_coefficients_of_large_columns_start_more_surely(data: Any):
    """In units in which their columns are as large as others; small ones as before."""
    engine = _engine(data)
    state = engine.initial_state(jax.random.key(0))
    sizes = np.array([128.0, 1.0, 0.125, 2.0])
    found = engine.with_column_sizes(state, {"⟨w⟩": sizes})
    np.testing.assert_allclose(_all_units(found) * sizes, _all_units(state))
    np.testing.assert_allclose(
        found.units["⟨w w⟩"], np.outer(found.units["⟨w⟩"], found.units["⟨w⟩"])
    )
    (factor,) = state.moments
    before, after = (s.visited[factor] for s in (state, found))
    np.testing.assert_array_equal(after["x"], before["x"])
    ratio = np.sqrt(np.diagonal(after["xx"]) / np.diagonal(before["xx"]))
    np.testing.assert_allclose(ratio, [1 / 128, 1.0, 1.0, 0.5], rtol=1e-6)


# --- in a fit -------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("is_sparse", [False, True])
def test_norms_are_those_of_residuals_in_these_units(data: Any, is_sparse: bool):
    X, y = data
    given = scipy.sparse.csr_matrix(X) if is_sparse else X
    options: dict[str, Any] = {"max_nonzeros": COLUMNS} if is_sparse else {}
    engine = _engine((given, y), **options)
    arguments = bind_arguments(
        logistic,
        (given, y),
        {},
        num_rows=None,
        max_nonzeros=options.get("max_nonzeros"),
    )
    rows = arguments.take(np.arange(ROWS))
    found = engine.row_norms(_state(engine), rows, ["⟨w⟩", "⟨w w⟩"])
    residuals = (y - expit(X @ MEAN))[:, None] * X
    expected = np.linalg.norm(UNITS * residuals, axis=1)
    np.testing.assert_allclose(found["⟨w⟩"], expected, rtol=1e-4, atol=1e-5)
    # Half of the bound's curvature stands beside the square of the coefficients.
    logit = np.where(X @ MEAN == 0, 1e-6, X @ MEAN)
    expected = 0.25 * np.tanh(0.5 * logit) / logit * ((UNITS * X) ** 2).sum(1)
    np.testing.assert_allclose(found["⟨w w⟩"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["⟨w⟩", "⟨w w⟩"])
@pytest.mark.parametrize("size", [0.01, 1.0, 1e6])
@pytest.mark.parametrize("column", range(COLUMNS))
def test_a_row_moves_the_sum_by_no_more_than_the_norm(
    data: Any, column: int, size: float, name: str
):
    """In the units in which the sum is handed to the mechanism."""
    engine = _engine(data)
    state, norm = _state(engine), 0.3
    added = size * (np.eye(COLUMNS)[[column]] + 0.1)
    X = np.concatenate([data[0], added]).astype(np.float32)
    y = np.append(data[1], 0).astype(np.int32)
    without, whole = (
        engine.bounded_sum(
            state,
            {"X": X, "y": y},
            np.arange(ROWS + 1) < rows,
            scales={name: 1.0},
            clipping_norm=norm,
        )[name]
        for rows in (ROWS, ROWS + 1)
    )
    moved = np.linalg.norm(whole - without)
    assert moved <= norm * (1 + 1e-9)
    if name == "⟨w⟩" and size == 1e6 and MEAN[column] > 0:
        assert moved >= 0.999 * norm


def test_what_is_released_is_read_without_units(data: Any):
    engine = _engine(data)
    state = _state(engine)
    released = {"⟨w⟩": np.array([1.0, 2.0, 3.0, 4.0])}
    new = engine.update(state, released, {"⟨w⟩": 5.0}, 1.0)
    np.testing.assert_allclose(new.statistics["⟨w⟩"], released["⟨w⟩"] / UNITS)
    np.testing.assert_allclose(new.noise_stddev["⟨w⟩"], 5.0 / UNITS)


@pytest.mark.thorough
def test_a_fit_starts_in_units_of_the_prior(data: Any):
    @nv.private(unit="rows")
    def in_cents(X: Any, y: Any = None) -> None:
        scale = np.array([2.0, 0.5, 0.01, 100.0])
        w = numpyro.sample("w", dist.Normal(-4.0, scale).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    engine = vi_of(in_cents)._prepare_fit(data, {})[0].engine
    state = engine.initial_state(jax.random.key(0))
    expected = np.array([1.0, 0.5, 0.01, 10.0])
    np.testing.assert_allclose(_all_units(state), expected, rtol=1e-5)


def test_units_follow_the_released_curvature(data: Any):
    engine = _engine(data)
    state = engine.initial_state(jax.random.key(0))
    np.testing.assert_array_equal(state.units["⟨w⟩"], np.ones(COLUMNS))
    curvature = -np.diag([40.0, 10.0, 5.0, 1.0])
    state = engine.update(state, {"⟨w w⟩": curvature}, {"⟨w w⟩": 0.1}, 1.0)
    expected = column_units(curvature, np.full(COLUMNS, 0.1), np.ones(COLUMNS))
    np.testing.assert_allclose(state.units["⟨w⟩"], expected, rtol=1e-6)
    of_matrix = np.outer(expected, expected)
    np.testing.assert_allclose(state.units["⟨w w⟩"], of_matrix, rtol=1e-6)
    # Rows have them in single precision, and so has what is released.
    assert np.all(state.units["⟨w⟩"] == state.units["⟨w⟩"].astype(np.float32))


def test_the_mechanism_knows_no_limits_on_entries_in_units(data: Any):
    """A limit on an entry, as of an indicator's residual, holds without units only."""
    (block,) = _engine(data).blocks("adaptive")
    assert block.geometry == "signed"


def test_norms_that_the_caller_gives_are_those_of_the_statistics(data: Any):
    engine = _engine(data, clipping_norm=1.0)
    assert not engine.initial_state(jax.random.key(0)).units


@pytest.mark.thorough
def test_explain_says_which_units(data: Any):
    vi = vi_of(logistic)
    assert "in units of columns" in " ".join(str(vi.explain(*data)).split())
    vi = vi_of(logistic, clipping_norm=1.0)
    assert "in units of columns" not in " ".join(str(vi.explain(*data)).split())


@pytest.mark.slow
def test_rare_columns_are_learnt_beside_common_ones():
    """Their coefficients have less error than with equal noise, at the same budget."""
    rng, n = np.random.default_rng(3), 20_000
    rates = np.r_[np.ones(1), np.full(15, 0.02)]
    X = (rng.random((n, 16)) < rates).astype(np.float32)
    w = np.r_[-0.5, np.tile([1.5, -1.5, 1.0], 5)]
    y = (rng.random(n) < expit(X @ w)).astype(np.int32)

    def error(**options: Any) -> float:
        errors = []
        for seed in range(2):
            with warnings.catch_warnings(action="ignore"):
                vi = vi_of(
                    logistic,
                    budget=nv.PrivacyBudget(0.5, 1e-6),
                    insecure_seed=seed,
                    **options,
                )
                result = vi.run(jax.random.key(0), X, y)
            errors.append(np.mean((np.asarray(result.params["w/loc"]) - w)[1:] ** 2))
        return float(np.mean(errors))

    # What rows may add at most, about: residuals of .5 on an intercept and a column.
    equal = error(clipping_norm={"⟨w⟩": 0.7, "⟨w w⟩": 0.25})
    assert error() < 0.8 * equal
