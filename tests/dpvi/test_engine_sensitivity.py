"""What one row can do to DPVI's clipped sum."""

import math
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_for, new_engine
from _dpvi_fits import KEY, binary_data, full_sum, joint, logistic, probit, visits

from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.row_sums import increasing_edges
from numpyro_vips.privacy.row_keys import RowKeys
from numpyro_vips.privacy.secure_random import SecureRandom

HUGE = [1.0, 1e3, 1e10, 1e18, 1e30, 3e38]


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("scales", "is_redrawn"),
    [(None, False), ({"loc": 3.0, "log_scale": 0.5}, False), (None, True)],
)
@pytest.mark.parametrize("size", HUGE)
def test_one_row_moves_the_sum_by_at_most_the_clipping_norm(size, scales, is_redrawn):
    """With its key, where rows are redrawn; others keep theirs."""
    X, y = binary_data(8, width=4)
    perturb = "location" if scales is None else "all"
    row_keys: Any = RowKeys(SecureRandom().sampling).of_places(0, 8)
    engine = engine_for(logistic, X, y, perturb=perturb)
    state = engine.initial_state(KEY)
    rng = np.random.default_rng(1)
    largest = 0.0
    for _ in range(20):
        outlier = (size * rng.uniform(-1, 1, 4)).astype(np.float32)
        X[3], y[3] = outlier, rng.integers(0, 2)
        arguments: Any = {"scales": scales, "clipping_norm": 0.7}
        rows = {"X": X, "y": y}
        keys = row_keys if is_redrawn else None
        present = full_sum(engine, state, rows, row_keys=keys, **arguments)
        mask = np.arange(8) != 3
        absent = full_sum(engine, state, rows, mask, row_keys=keys, **arguments)
        without = {"X": np.delete(X, 3, 0), "y": np.delete(y, 3)}
        keys = np.delete(row_keys, 3, 0) if is_redrawn else None
        removed = full_sum(engine, state, without, row_keys=keys, **arguments)
        difference = np.linalg.norm(joint(present, scales) - joint(absent, scales))
        assert difference <= 0.7 * (1 + 1e-5)
        np.testing.assert_allclose(joint(absent), joint(removed), rtol=1e-5, atol=1e-6)
        largest = max(largest, difference)
    # Beyond float32's range the gradient is infinite and counts as zero.
    if 1e3 <= size <= 1e30:
        assert largest >= 0.95 * 0.7


def norm_counts(engine, state, rows, mask=None, row_keys=None):
    count = len(next(iter(rows.values())))
    found = engine.norm_counts(
        state,
        rows,
        np.ones(count, bool) if mask is None else mask,
        parts={"gradient": ["loc"]},
        edges={"gradient": increasing_edges(np.geomspace(1e-3, 1e3, 40))},
        row_keys=row_keys,
    )["gradient"]
    return np.asarray(found)


@pytest.mark.parametrize("size", HUGE)
def test_a_row_counts_once_among_the_norms_of_redrawn_rows(size):
    """With its key; others keep theirs, and stay in their bins."""
    X, y = binary_data(8, width=4)
    keys: Any = RowKeys(SecureRandom().sampling).of_places(0, 8)
    engine = engine_for(logistic, X, y)
    state = engine.initial_state(KEY)
    X[3] = size
    present = norm_counts(engine, state, {"X": X, "y": y}, row_keys=keys)
    without = {"X": np.delete(X, 3, 0), "y": np.delete(y, 3)}
    absent = norm_counts(engine, state, without, row_keys=np.delete(keys, 3, 0))
    difference = present - absent
    assert (absent.sum(), abs(difference).sum()) in {(7.0, 0.0), (7.0, 1.0)}
    assert difference.min() >= 0.0


def test_norms_of_redrawn_rows_are_of_what_is_clipped():
    X, y = binary_data(50)
    keys: Any = RowKeys(SecureRandom().sampling).of_places(0, 50)
    engine = engine_for(logistic, X, y)
    state = engine.initial_state(KEY)
    edges = np.geomspace(1e-3, 1e3, 40)
    norms = []
    for i in range(50):
        alone = {"X": X[i : i + 1], "y": y[i : i + 1]}
        difference = full_sum(engine, state, alone, row_keys=keys[i : i + 1])
        norms.append(np.linalg.norm(difference["loc"]))
    expected = np.bincount(np.searchsorted(edges, norms), minlength=41)
    rows = {"X": X, "y": y}
    found = norm_counts(engine, state, rows, row_keys=keys)
    np.testing.assert_array_equal(found, [*expected, 0])
    # Where the label is drawn as it was the difference is zero.
    assert 10 < found[0] < 40 and norm_counts(engine, state, rows)[0] == 0


def test_a_row_below_the_norm_is_not_shortened(x64):
    X, y = binary_data(1)
    engine = engine_for(logistic, X, y)
    state = engine.initial_state(KEY)
    free = joint(full_sum(engine, state, {"X": X, "y": y}))
    norm = float(np.linalg.norm(free))
    above = full_sum(engine, state, {"X": X, "y": y}, clipping_norm=1.001 * norm)
    below = full_sum(engine, state, {"X": X, "y": y}, clipping_norm=0.5 * norm)
    np.testing.assert_array_equal(joint(above), free)
    # Rows are clipped a millionth below the norm.
    expected = 0.5 * (1 - 2.0**-20) * free
    np.testing.assert_allclose(joint(below), expected, rtol=1e-12)


BAD_ROWS = {
    "nan feature": (np.nan, 1.0),
    "infinite feature": (np.inf, 0.0),
    "minus infinite feature": (-np.inf, 1.0),
    "nan label": (0.5, np.nan),
    "infinite label": (0.5, np.inf),
    "label two": (0.5, 2.0),
    "label one half": (0.5, 0.5),
    "label minus one": (0.5, -1.0),
}


@pytest.mark.quick_with("0.5-*-nan feature-logistic")
@pytest.mark.parametrize("model", [logistic, probit])
@pytest.mark.parametrize("bad", BAD_ROWS)
@pytest.mark.parametrize(
    ("clipping_norm", "is_redrawn"), [(0.5, False), (math.inf, False), (0.5, True)]
)
def test_a_bad_row_counts_as_zero_exactly(model, bad, clipping_norm, is_redrawn):
    X, y = binary_data(20)
    engine = engine_for(model, X, y)
    state = engine.initial_state(KEY)
    mask = np.arange(20) != 4
    arguments: dict[str, Any] = {"clipping_norm": clipping_norm}
    if is_redrawn:
        arguments["row_keys"] = RowKeys(SecureRandom().sampling).of_places(0, 20)
    good = full_sum(engine, state, {"X": X, "y": y}, mask, **arguments)
    X[4, 1], y[4] = BAD_ROWS[bad]
    rows = {"X": X, "y": y}
    found = full_sum(engine, state, rows, **arguments)
    np.testing.assert_array_equal(found["loc"], good["loc"])
    assert np.linalg.norm(good["loc"]) > 0.1


@pytest.mark.parametrize(("index", "counts"), [(4, True), (-1, True), (5, False)])
def test_an_id_out_of_range_counts_as_zero(index, counts):
    group, y = np.arange(10) % 5, np.arange(10) % 4
    engine = engine_for(visits, group, y)
    state = engine.initial_state(KEY)
    mask = np.arange(10) != 4
    without = full_sum(engine, state, {"group": group, "y": y}, mask)["loc"]
    group[4] = index
    found = full_sum(engine, state, {"group": group, "y": y})["loc"]
    assert bool(np.any(found != without)) is counts


def test_a_masked_entry_may_be_missing():
    @private(unit="people")
    def model(y: Any = None, seen: Any = None):
        m: Any = numpyro.sample("m", dist.Normal(0, 1).expand([2]).to_event(1))
        people = numpyro.plate("people", y.shape[0])
        with people, numpyro.handlers.mask(mask=seen):
            numpyro.sample("y", dist.Normal(m, 1.0).to_event(1), obs=y)

    y = np.ones((3, 2), np.float32)
    seen = np.array([True, True, False])
    engine = engine_for(model, y, seen)
    state = engine.initial_state(KEY)
    expected = full_sum(engine, state, {"y": y[:2], "seen": seen[:2]})["loc"]
    y[2] = np.nan
    found = full_sum(engine, state, {"y": y, "seen": seen})["loc"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_pieces_of_a_large_chunk_add_up(monkeypatch):
    X, y = binary_data(50)
    sums = []
    for numbers in (2**23, 4 * 7):
        monkeypatch.setattr(
            "numpyro_vips.dpvi.gradients.clipped_gradients._MOST_GRADIENT_NUMBERS",
            numbers,
        )
        engine = new_engine(logistic, X, y)
        state = engine.initial_state(KEY)
        mask = np.arange(50) % 3 > 0
        sums.append(full_sum(engine, state, {"X": X, "y": y}, mask, clipping_norm=0.4))
    np.testing.assert_allclose(sums[0]["loc"], sums[1]["loc"], rtol=1e-5, atol=1e-6)


def test_row_norms_are_those_of_single_rows():
    X, y = binary_data(6)
    y[2] = 7.0
    engine = engine_for(logistic, X, y)
    state = engine.initial_state(KEY)
    norms = engine.row_norms(state, {"X": X, "y": y}, ["loc"])["loc"]
    for i in range(6):
        single = full_sum(engine, state, {"X": X[i : i + 1], "y": y[i : i + 1]})["loc"]
        if i == 2:
            assert np.isnan(norms[i])
        else:
            np.testing.assert_allclose(norms[i], np.linalg.norm(single), rtol=1e-5)
