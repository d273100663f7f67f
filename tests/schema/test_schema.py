"""Rows are encoded one by one, within a public norm, and decoded exactly."""

import math
import pickle

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import numpyro_vips as nv

SCHEMA = nv.Schema(
    {"weekly hours": nv.Bounded(1, 99, missing="indicator")},
    age=nv.Bounded(17, 90),
    income=nv.LogBounded(1, 1e6),
    job=nv.Categorical(["nurse", "cook"]),
    region=nv.Categorical(
        range(1, 4), reference=3, handle_unknown="ignore", missing="indicator"
    ),
    ill=nv.Binary(),
    sex=nv.Binary("f", "m", missing="indicator"),
    intercept=nv.Intercept(),
)
TEXTS = ("job", "sex")
HOSTILE = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 2.0, 5e-324, -1e308, 1e308]
hostile_numbers = st.sampled_from(HOSTILE) | st.floats()
hostile_texts = st.sampled_from(["nurse", "cook", "f", "m", "", "spy", None]) | (
    st.text(max_size=3) | st.integers() | st.floats() | st.lists(st.none())
)
rows = st.fixed_dictionaries(
    {
        name: hostile_texts if name in TEXTS else hostile_numbers
        for name in SCHEMA
        if name != "intercept"
    }
)


def table(rows):
    """A mapping from names to arrays, of a list of rows."""
    columns = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        columns[name] = np.empty(len(rows), object if name in TEXTS else np.float64)
        for place, cell in enumerate(cells):
            columns[name][place] = cell
    return columns


@hypothesis.given(st.lists(rows, min_size=1, max_size=5), rows)
@hypothesis.settings(deadline=None)
def test_a_row_is_encoded_whatever_the_others_are(rows, replacement):
    X = SCHEMA.encode(table(rows))
    alone = [SCHEMA.encode(table([row]))[0] for row in rows]
    np.testing.assert_array_equal(X, alone)
    neighbour = SCHEMA.encode(table([*rows[:-1], replacement]))
    np.testing.assert_array_equal(neighbour[:-1], X[:-1])


@hypothesis.given(st.lists(rows, min_size=1, max_size=5))
@hypothesis.settings(deadline=None)
def test_no_row_exceeds_the_public_norm(rows):
    X = SCHEMA.encode(table(rows))
    assert np.all(np.abs(X) <= 1.0)
    assert np.all(np.linalg.norm(X, axis=1) <= SCHEMA.row_norm)
    assert X.shape == (len(rows), len(SCHEMA.design_columns))


ORDINARY = {
    "weekly hours": np.array([40.0, 99.0, math.nan]),
    "age": np.array([17.0, 90.0, 200.0]),
    "income": np.array([1.0, 1e6, 2e4]),
    "job": np.array(["nurse", "spy", "cook"]),
    "region": np.array([1, 2, 3]),
    "ill": np.array([True, False, True]),
    "sex": np.array(["f", "m", "f"]),
}


def test_the_public_norm_is_reached():
    norms = np.linalg.norm(SCHEMA.encode(ORDINARY), axis=1)
    assert norms[1] == pytest.approx(SCHEMA.row_norm, rel=1e-15)
    assert SCHEMA.row_norm == math.sqrt(8)


def test_nothing_is_remembered_between_calls_and_nothing_written():
    before = pickle.dumps(SCHEMA), repr(SCHEMA), hash(SCHEMA)
    columns = {name: column.copy() for name, column in ORDINARY.items()}
    for column in columns.values():
        column.setflags(write=False)
    first = SCHEMA.encode(columns)
    SCHEMA.encode(table([dict.fromkeys(ORDINARY, 1e9) | {"job": "x", "sex": "y"}]))
    np.testing.assert_array_equal(SCHEMA.encode(columns), first)
    first[:] = 7.0
    assert not np.any(SCHEMA.encode(columns) == 7.0)
    assert before == (pickle.dumps(SCHEMA), repr(SCHEMA), hash(SCHEMA))


def test_names_of_encoded_columns():
    assert SCHEMA.design_columns == (
        "weekly hours",
        "weekly hours=missing",
        "age",
        "log(income)",
        "job=nurse",
        "job=cook",
        "job=other",
        "region=1",
        "region=2",
        "region=missing",
        "ill",
        "sex=m",
        "sex=missing",
        "intercept",
    )


def test_a_schema_is_a_value_and_prints_as_its_code():
    again = eval(repr(SCHEMA), dict(vars(nv)))
    assert again == SCHEMA and hash(again) == hash(SCHEMA)
    turned = nv.Schema(dict(reversed(list(SCHEMA.items()))))
    assert turned != SCHEMA  # Another order is another encoding.
    assert turned.design_columns != SCHEMA.design_columns


def test_dropping_a_column_leaves_the_encoding_of_the_others():
    features = SCHEMA.drop("age", "sex")
    kept = [
        place
        for place, name in enumerate(SCHEMA.design_columns)
        if name.split("=")[0] not in ("age", "sex")
    ]
    np.testing.assert_array_equal(
        features.encode(ORDINARY), SCHEMA.encode(ORDINARY)[:, kept]
    )
    assert features.row_norm == math.sqrt(6)
    assert "age" in SCHEMA


def test_no_rows_are_encoded_as_none():
    empty = {name: column[:0] for name, column in ORDINARY.items()}
    assert SCHEMA.encode(empty).shape == (0, len(SCHEMA.design_columns))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nv.Schema(), "a column of the table at least"),
        (lambda: nv.Schema(intercept=nv.Intercept()), "a column of the table"),
        (lambda: nv.Schema(constant=nv.Intercept()), "name 'intercept' for Intercept"),
        (lambda: nv.Schema(intercept=nv.Binary()), "name 'intercept' for Intercept"),
        (
            lambda: nv.Schema({"a=b": nv.Binary()}, a=nv.Categorical(["b"])),
            r"\['a=b'\] twice",
        ),
        (lambda: SCHEMA.drop("aeg"), "Did you mean 'age'"),
        (lambda: nv.Schema(age=nv.Binary()).drop("age"), "a column of the table"),
        (lambda: SCHEMA.response(ORDINARY, "aeg"), "Did you mean 'age'"),
        (lambda: SCHEMA.response(ORDINARY, "intercept"), "a column of the table"),
    ],
)
def test_names_that_make_no_schema_are_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_columns_are_checked_and_an_instance_is_asked_for():
    with pytest.raises(TypeError, match=r"'age' to be a column.*got tuple"):
        nv.Schema(age=(0, 120))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"Binary\(\), got the class Binary"):
        nv.Schema(ill=nv.Binary)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"by name, as in Schema\(age=.*got list"):
        nv.Schema([nv.Binary()])  # pyright: ignore[reportArgumentType]


def test_names_that_are_none_or_not_there_are_named():
    with pytest.raises(TypeError, match=r"one by one, as in drop\(.*got list"):
        SCHEMA.drop(["age", "ill"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(KeyError, match=r"no column 'aeg'\. Did you mean 'age'"):
        SCHEMA["aeg"]
    assert SCHEMA.get("aeg") is None and "aeg" not in SCHEMA


def original_numbers(columns):
    """What decoded coefficients are multiplied with, by hand from the raw columns."""
    hours = columns["weekly hours"]
    return {
        "weekly hours": np.where(np.isnan(hours), 50.0, np.clip(hours, 1, 99)),
        "weekly hours=missing": np.isnan(hours),
        "age": np.clip(columns["age"], 17, 90),
        "log(income)": np.log(np.clip(columns["income"], 1, 1e6)),
        "job=nurse": columns["job"] == "nurse",
        "job=cook": columns["job"] == "cook",
        "job=other": ~np.isin(columns["job"], ["nurse", "cook"]),
        "region=1": columns["region"] == 1,
        "region=2": columns["region"] == 2,
        "region=missing": np.zeros(3),
        "ill": columns["ill"],
        "sex=m": columns["sex"] == "m",
        "sex=missing": np.zeros(3),
        "intercept": np.ones(3),
    }


@pytest.mark.parametrize("scale", [1.0, SCHEMA.row_norm])
def test_decoded_coefficients_predict_the_same_from_the_original_numbers(scale):
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(2, 5, len(SCHEMA.design_columns)))
    intercept = rng.normal(size=(2, 5))
    X = SCHEMA.encode(ORDINARY) / scale
    encoded = intercept[..., None] + weights @ X.T
    coefficients = SCHEMA.decode(weights / scale, intercept)
    numbers = original_numbers(ORDINARY)
    assert coefficients.keys() == numbers.keys()
    original = sum(coefficients[name][..., None] * numbers[name] for name in numbers)
    np.testing.assert_allclose(original, encoded, rtol=1e-12)


def test_decoding_takes_one_vector_and_needs_no_intercept():
    schema = nv.Schema(age=nv.Bounded(0, 120))
    assert schema.decode([60.0]) == {"age": 1.0, "intercept": -60.0}


@pytest.mark.parametrize(
    ("weights", "intercept", "message"),
    [
        (np.ones(4), 0.0, r"last axis of length 14, got the shape \(4,\)"),
        (1.0, 0.0, r"got the shape \(\)"),
        (np.ones((9, 14)), np.ones((9, 1)), r"shape \(9,\), got \(9, 1\)"),
    ],
)
def test_shapes_that_do_not_fit_are_errors(weights, intercept, message):
    with pytest.raises(ValueError, match=message):
        SCHEMA.decode(weights, intercept)
