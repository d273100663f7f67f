"""Columns check themselves, and encode cells as scikit-learn would, given the facts."""

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder

import numpyro_vips as nv

NAN, INF = math.nan, math.inf
# For what a type checker would refuse.
untyped: Any = nv
COLUMNS = (
    nv.Bounded(0, 120),
    nv.Bounded(-1e300, 1e300, missing="indicator"),
    nv.LogBounded(1e-3, 1e6),
    nv.Binary(),
    nv.Binary("no", "yes", missing="indicator"),
    nv.Categorical(["nurse", "cook"]),
    nv.Categorical([3, 1], handle_unknown="ignore", missing="indicator"),
    nv.Categorical(["no", "yes"], reference="no"),
    nv.Intercept(),
)


@pytest.mark.parametrize("column", COLUMNS, ids=repr)
def test_columns_are_values_and_print_as_their_code(column):
    again = eval(repr(column), dict(vars(nv)))
    assert again == column and hash(again) == hash(column)
    assert [other == column for other in COLUMNS].count(True) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        column.missing = "centre"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: untyped.Bounded(120, 0), r"low=120.0 to be less than high=0.0"),
        (lambda: untyped.Bounded(0, INF), r"high=inf to be a finite number"),
        (lambda: untyped.Bounded(NAN, 1), r"low=nan to be a finite number"),
        (lambda: untyped.Bounded(-1.7e308, 1.7e308), "to be less than"),
        (lambda: untyped.Bounded(1, 1 + 2e-16), "with numbers in between"),
        (lambda: untyped.Bounded(0, 1, missing="zero"), "one of 'centre', 'indicator'"),
        (lambda: untyped.LogBounded(0, 1), "low=0 to be positive"),
        (lambda: untyped.LogBounded(1e6, 1e6 + 1e-9), "with numbers in between"),
        (lambda: untyped.Binary("yes", "yes"), "different texts"),
        (lambda: untyped.Binary("no", 1), "different texts or different integers"),
        (lambda: untyped.Categorical([]), "different texts"),
        (lambda: untyped.Categorical(["a", "a"]), "different texts"),
        (lambda: untyped.Categorical(["a", ""]), "not to be empty"),
        (
            lambda: untyped.Categorical(["a"], handle_unknown="error"),
            "'other', 'ignore'",
        ),
        (lambda: untyped.Categorical(["a"], reference="b"), "to be one of 'a'"),
        (
            lambda: untyped.Categorical(["a"], missing="centre"),
            "'unknown', 'indicator'",
        ),
    ],
)
def test_values_that_make_no_column_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: untyped.Bounded("0", 1),
        lambda: untyped.Categorical("nurse"),
        lambda: untyped.Categorical({"nurse", "cook"}),
        # What may well have been read off the rows.
        lambda: untyped.Categorical(np.unique(["nurse", "cook"])),
        lambda: untyped.Categorical([1.5, 2.5]),
        lambda: untyped.Bounded(0, 1, "indicator"),
    ],
)
def test_types_that_make_no_column_are_errors(make):
    with pytest.raises(TypeError):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: untyped.Bounded(0),
            r"missing .*'high'.*called as Bounded\(low, high,",
        ),
        (
            lambda: untyped.Bounded(0, 1, 2),
            r"too many.*called as Bounded\(low, high, \*",
        ),
        (lambda: untyped.Bounded(min=0, max=1), r"no min=: .*Bounded\(0, 120\)"),
        (lambda: untyped.Categorical("a", "b"), r"called as Categorical\(categories, "),
        (lambda: untyped.Categorical(["a"], ref="a"), "Did you mean 'reference'"),
    ],
)
def test_who_calls_a_column_otherwise_is_told_how_it_is_called(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    "column", [nv.Binary(), nv.Binary(1, 2), nv.Categorical([1, 2])], ids=str
)
@pytest.mark.parametrize("as_table", [dict, pd.DataFrame])
def test_texts_for_which_integers_are_listed_are_to_be_named(column, as_table):
    """To convert them to numbers would make all of them missing."""
    table = as_table({"x": np.array(["yes", "no"])})
    with pytest.raises(TypeError, match=r"are texts, name these.*Binary") as raised:
        nv.Schema(x=column).encode(table)
    assert "to_numeric" not in str(raised.value)


def encoded(column: nv.Bounded | nv.Binary | nv.Categorical | nv.LogBounded, cells):
    return nv.Schema(x=column).encode({"x": np.asarray(cells)})


def test_numbers_are_scaled_as_by_a_scaler_that_knows_the_ends():
    values = np.array([-INF, -3.0, 0.0, 17.0, 60.0, 119.9, 120.0, 1e300, INF])
    scaler = MinMaxScaler((-1, 1), clip=True).fit([[0.0], [120.0]])
    expected = scaler.transform(np.clip(values, -1e6, 1e6)[:, None])
    np.testing.assert_allclose(
        encoded(nv.Bounded(0, 120), values), expected, rtol=1e-15, atol=1e-15
    )


def test_logarithms_are_scaled():
    values = [-1.0, 0.0, 1.0, 10.0, 1e3, 1e6, INF]
    expected = [-1.0, -1.0, -1.0, -2 / 3, 0.0, 1.0, 1.0]
    found = encoded(nv.LogBounded(1, 1e6), values)
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-15)


def test_categories_are_encoded_as_by_an_encoder_that_ignores_unknown_ones():
    categories = ["nurse", "cook", "other"]
    cells = np.array(["cook", "spy", "nurse", None, "other", "", "Cook"], object)
    for drop, reference in ((None, None), ([categories[1]], categories[1])):
        encoder: Any = OneHotEncoder(
            categories=[categories],  # pyright: ignore[reportArgumentType]
            drop=drop,
            handle_unknown="ignore",
            sparse_output=False,
        ).fit([["cook"]])
        column = nv.Categorical(
            categories, handle_unknown="ignore", reference=reference
        )
        with warnings.catch_warnings():  # That unknown ones are zeros.
            warnings.simplefilter("ignore")
            expected = encoder.transform(cells[:, None])
        np.testing.assert_array_equal(encoded(column, cells), expected)


@pytest.mark.parametrize(
    ("column", "cells", "expected"),
    [
        (nv.Bounded(0, 2), [NAN, 2.0], [[0], [1]]),
        (nv.Bounded(0, 2, missing="indicator"), [NAN, 2.0], [[0, 1], [1, 0]]),
        (nv.Binary(), [False, True], [[-1], [1]]),
        (nv.Binary(), [0.0, 1.0, 0.5, -INF, NAN], [[-1], [1], [0], [0], [0]]),
        (nv.Binary(2, 1, missing="indicator"), [1, 2, 0], [[1, 0], [-1, 0], [0, 1]]),
        (nv.Binary("no", "yes"), ["yes", "no", "Yes"], [[1], [-1], [0]]),
        (
            nv.Categorical([3, 1]),
            [1.0, 3.0, 2.0, NAN],
            [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]],
        ),
        (nv.Categorical(["a"]), ["a", "b", None], [[1, 0], [0, 1], [0, 1]]),
        (
            nv.Categorical(["a"], missing="indicator"),
            ["a", "b", None],
            [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        ),
        (
            nv.Categorical(["a"], handle_unknown="ignore", missing="indicator"),
            ["a", "b", None],
            [[1, 0], [0, 0], [0, 1]],
        ),
        (
            nv.Categorical([2, 1], reference=2),
            [1, 2, 3],
            [[1, 0], [0, 0], [0, 1]],
        ),
        # Listed categories of these names are those.
        (nv.Categorical(["other", "a"]), ["b", "a", None], [[1, 0], [0, 1], [1, 0]]),
        (
            nv.Categorical(["missing"], handle_unknown="ignore", missing="indicator"),
            ["missing", None, "b"],
            [[1], [1], [0]],
        ),
    ],
    ids=repr,
)
def test_what_is_missing_or_unknown_goes_by_its_rule(column, cells, expected):
    np.testing.assert_array_equal(encoded(column, cells), expected)


@pytest.mark.parametrize(
    ("column", "cells", "expected"),
    [
        (nv.Bounded(0, 120), [30.0, 500.0, -INF, NAN], [30.0, 120.0, 0.0, NAN]),
        (nv.LogBounded(1, 1e6), [0.0, 5.0, NAN], [1.0, 5.0, NAN]),
        (nv.Binary(), [True, False], [1.0, 0.0]),
        (nv.Binary("no", "yes"), ["yes", "maybe"], [1.0, NAN]),
        (nv.Categorical(["a", "b"]), ["b", "a", "c"], [1, 0, 2]),
        (nv.Categorical(["a"], handle_unknown="ignore"), ["c", "a"], [-1, 0]),
        (nv.Categorical(["a"], missing="indicator"), ["c", None], [1, 2]),
        (nv.Categorical(["a", "b"], reference="a"), ["b", "a", "c"], [1, 0, 2]),
    ],
    ids=repr,
)
def test_responses_are_not_scaled(column, cells, expected):
    schema = nv.Schema(x=column)
    found = schema.response({"x": np.asarray(cells)}, "x")
    np.testing.assert_array_equal(found, expected)
    assert found.dtype.kind == np.asarray(expected).dtype.kind
