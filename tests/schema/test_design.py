"""Formulas are read without data, encoded row by row and decoded exactly."""

import sys

import numpy as np
import pytest

import numpyro_vips as nv

SCHEMA = nv.Schema(
    {"weekly hours": nv.Bounded(0, 100)},
    age=nv.Bounded(20, 80),
    income=nv.LogBounded(1, 1e6),
    job=nv.Categorical(["clerk", "cook"], reference="clerk", handle_unknown="ignore"),
    sex=nv.Binary("f", "m"),
    ill=nv.Binary(),
)


def table(count: int = 40) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "weekly hours": rng.uniform(0, 100, count),
        "age": rng.uniform(20, 80, count),
        "income": rng.uniform(1, 1e5, count),
        "job": rng.choice(["clerk", "cook"], count),
        "sex": rng.choice(["f", "m"], count),
        "ill": rng.integers(0, 2, count),
    }


@pytest.fixture(autouse=True)
def formulae():
    return pytest.importorskip("formulae")


@pytest.mark.parametrize(
    ("formula", "columns"),
    [
        ("age + job", ["intercept", "age", "job=cook"]),
        ("ill ~ 0 + age*job", ["age", "job=cook", "age:job=cook"]),
        ("ill ~ `weekly hours`:sex - 1", ["weekly hours:sex=m"]),
        (
            "(age + job + sex)**2",
            [
                *("intercept", "age", "job=cook", "sex=m"),
                *("age:job=cook", "age:sex=m", "job=cook:sex=m"),
            ],
        ),
        ("0 + income:age:sex", ["log(income):age:sex=m"]),
    ],
)
def test_terms_are_products_of_columns(formula, columns):
    design = SCHEMA.design(formula)
    assert design.design_columns == tuple(columns)
    X = design.encode(table())
    single = SCHEMA.encode(table())
    places = {name: place for place, name in enumerate(SCHEMA.design_columns)}
    for name, column in zip(columns, X.T, strict=True):
        parts = [] if name == "intercept" else name.split(":")
        expected = np.prod([single[:, places[part]] for part in parts], axis=0)
        np.testing.assert_allclose(column, np.broadcast_to(expected, 40), rtol=1e-14)
    norms = np.linalg.norm(
        design.synthetic_rows(np.random.default_rng(0), 99, places="ends"), axis=1
    )
    assert norms.max() == pytest.approx(design.row_norm)
    assert np.linalg.norm(X, axis=1).max() <= design.row_norm


KNOWN = nv.Schema(
    {"weekly hours": nv.Bounded(0, 100, mean=30, sd=10)},
    age=nv.Bounded(20, 80, mean=45, sd=15),
    income=nv.LogBounded(1, 1e6, mean=10, sd=1),
    plain=nv.Bounded(0, 1),
    sex=nv.Binary("f", "m"),
    ill=nv.Binary(),
)


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("0 + scale(age)", lambda t: [(t["age"] - 45) / 15]),
        ("0 + standardize(age)", lambda t: [(t["age"] - 45) / 15]),
        ("0 + center(age)", lambda t: [t["age"] - 45]),
        ("0 + center(`weekly hours`)", lambda t: [t["weekly hours"] - 30]),
        (
            "ill ~ 0 + scale(age) + scale(age):sex",
            lambda t: [
                (t["age"] - 45) / 15,
                (t["age"] - 45) / 15 * np.where(t["sex"] == "m", 1, -1),
            ],
        ),
    ],
)
def test_columns_are_centred_and_scaled_by_constants_of_the_schema(formula, expected):
    people = table()
    design = KNOWN.design(formula)
    found = np.asarray(design.encode(people))
    np.testing.assert_allclose(found, np.transpose(expected(people)), rtol=1e-12)
    # The rows have no part in it: one of them is encoded alike beside any others.
    few = {name: values[3:5] for name, values in people.items()}
    np.testing.assert_array_equal(np.asarray(design.encode(few)), found[3:5])
    assert np.linalg.norm(found, axis=1).max() <= design.row_norm


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("scale(plain)", "does not have the mean and standard deviation of 'plain'"),
        ("center(plain)", "does not have the mean and standard deviation of 'plain'"),
        # Its moments are those of logarithms.
        ("scale(income)", "does not have the mean and standard deviation of 'income'"),
        ("scale(sex)", "does not have the mean and standard deviation of 'sex'"),
        ("scale(height)", "names 'height', which is no column"),
        ("scale(log(age))", "A formula has columns"),
        ("scale(age, 2)", "A formula has columns"),
        ("scale(x=age)", "A formula has columns"),
        ("center(age) + age:sex", "has 'age' in two forms"),
        ("age + scale(age)", "has the term 'age' twice"),
        ("scale(age) ~ sex", r"A formula has columns.* what design\.response"),
    ],
)
def test_other_constants_are_not_taken_from_the_rows(formula, message):
    with pytest.raises(ValueError, match=message):
        KNOWN.design(formula)


def test_decoded_coefficients_of_centred_columns_are_in_their_own_units():
    people = table()
    design = KNOWN.design("ill ~ center(age) + scale(`weekly hours`)")
    weights = np.random.default_rng(1).normal(size=(3, 3))
    decoded = design.decode(weights)
    total = (
        decoded["intercept"]
        + people["age"][:, None] * decoded["age"]
        + people["weekly hours"][:, None] * decoded["weekly hours"]
    )
    encoded = np.asarray(design.encode(people))
    np.testing.assert_allclose(total, encoded @ weights.T, rtol=1e-10)
    np.testing.assert_allclose(decoded["age"], weights[:, 1])
    np.testing.assert_allclose(decoded["weekly hours"], weights[:, 2] / 10)


def test_decoded_coefficients_make_the_same_predictor():
    design = SCHEMA.design("ill ~ age*job*sex + income:age")
    rng = np.random.default_rng(1)
    weights, intercept = rng.normal(size=(2, len(design.design_columns))), [0.5, -2.0]
    rows = table()
    predictor = np.asarray(design.encode(rows)) @ weights.T + intercept
    decoded = design.decode(weights, np.array(intercept))
    raw = {
        "age": rows["age"],
        "log(income)": np.log(rows["income"]),
        "job=cook": rows["job"] == "cook",
        # One of two values counts as 0 or 1.
        "sex=m": rows["sex"] == "m",
    }
    total = decoded.pop("intercept")
    for name, values in decoded.items():
        product = np.prod([raw[part] for part in name.split(":")], axis=0)
        total = total + product[:, None] * values
    np.testing.assert_allclose(total, predictor, rtol=1e-10)
    # What a product brings along though the formula does not name it.
    assert "log(income)" in decoded


def test_the_response_is_that_of_the_schema():
    design = SCHEMA.design("ill ~ age")
    np.testing.assert_array_equal(
        design.response(table()), SCHEMA.response(table(), "ill")
    )
    with pytest.raises(ValueError, match="have a response"):
        SCHEMA.design("age").response(table())


def test_a_design_is_a_value():
    one, other = SCHEMA.design("ill ~ age"), SCHEMA.design("ill ~ age")
    assert one == other and hash(one) == hash(other)
    assert one != SCHEMA.design("ill ~ sex")
    assert repr(one) == "Design('ill ~ age': intercept, age)"


@pytest.mark.parametrize(
    "formula",
    [
        *("scale(age)", "center(age)", "bs(age, df=4)", "np.log(income)", "C(job)"),
        *("I(age + 1)", "2:age", "ill ~ poly(age, 2)", "log(ill) ~ age"),
    ],
)
def test_what_is_computed_from_rows_asks_for_constants(formula):
    with pytest.raises(ValueError, match="constants that are known without the rows"):
        SCHEMA.design(formula)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("ill ~ agee", r"no column of the schema. Did you mean 'age'\?"),
        ("ill ~ age + (1|job)", "a plate of groups"),
        ("np.log(income) ~ age", r"write its column alone.*design\.response\(table\)"),
        ("ill ~ C(job)", r"those of the schema, without C\(\)\.$"),
        ("ill ~ age + ill", "both sides"),
        ("ill ~ 1", "column of the table"),
        ("ill ~ age +", "to be a formula"),
        ("job[cook] ~ age", "selects a value"),
    ],
)
def test_other_formulas_are_errors(formula, message):
    with pytest.raises(ValueError, match=message):
        SCHEMA.design(formula)


def test_without_formulae_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "formulae", None)
    with pytest.raises(ImportError, match=r"numpyro-vips\[formulas\]"):
        SCHEMA.design("ill ~ age")
