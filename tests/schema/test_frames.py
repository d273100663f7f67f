"""Tables of all kinds are encoded alike; errors know names and dtypes alone."""

import datetime
import decimal
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import numpyro_vips as nv

SCHEMA = nv.Schema(
    age=nv.Bounded(0, 120, missing="indicator"),
    job=nv.Categorical(["nurse", "cook"], missing="indicator"),
    ill=nv.Binary(),
    sex=nv.Binary("f", "m"),
    region=nv.Categorical([1, 2, 3]),
    intercept=nv.Intercept(),
)
CELLS = {
    "age": [30.0, None, 500.0, -1.0],
    "job": ["cook", None, "spy", "nurse"],
    "ill": [True, None, False, True],
    "sex": ["m", "f", None, "x"],
    "region": [1, 2, None, 9],
    "not in the schema": ["a", "b", "c", "d"],
}
MAPPING = {
    name: np.array(cells, object if name in ("job", "sex") else np.float64)
    for name, cells in CELLS.items()
    if name in SCHEMA
}
EXPECTED = SCHEMA.encode(MAPPING)


def pandas_nullable():
    dtypes = {
        "age": "Float64",
        "job": "string",
        "ill": "boolean",
        "sex": "category",
        "region": "Int64",
        "not in the schema": object,
    }
    return pd.DataFrame(
        {name: pd.Series(CELLS[name], dtype=dtypes[name]) for name in CELLS}
    )


def pandas_objects():
    return pd.DataFrame(MAPPING).assign(ignored=[[], {}, None, 1])


def polars():
    return pytest.importorskip("polars").DataFrame(CELLS)


def polars_categories():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(CELLS)
    return frame.with_columns(
        pl.col("job").cast(pl.Categorical), pl.col("sex").cast(pl.Enum(["f", "m", "x"]))
    )


def arrow():
    return pytest.importorskip("pyarrow").table(CELLS)


def pandas_arrow():
    pa = pytest.importorskip("pyarrow")
    return pa.table(CELLS).to_pandas(types_mapper=pd.ArrowDtype)


def lists():
    nan = float("nan")
    return CELLS | {
        name: [nan if cell is None else cell for cell in CELLS[name]]
        for name in ("age", "ill", "region")
    }


KINDS = (
    *(pandas_nullable, pandas_objects, polars, polars_categories, arrow, pandas_arrow),
    lists,
)


@pytest.mark.parametrize("kind", KINDS)
def test_all_tables_are_encoded_alike(kind):
    np.testing.assert_array_equal(SCHEMA.encode(kind()), EXPECTED)
    for name in MAPPING:
        np.testing.assert_array_equal(
            SCHEMA.response(kind(), name), SCHEMA.response(MAPPING, name)
        )


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_a_row_of_a_table_is_encoded_alike_without_the_others(kind):
    table = kind()
    for row in range(len(EXPECTED)):
        place = slice(row, row + 1)
        alone = table.iloc[place] if isinstance(table, pd.DataFrame) else table[place]
        np.testing.assert_array_equal(SCHEMA.encode(alone), EXPECTED[place])


def test_the_order_of_the_tables_columns_does_not_matter():
    table = pandas_nullable()
    turned = table[table.columns[::-1]]
    np.testing.assert_array_equal(SCHEMA.encode(turned), EXPECTED)


def large_numbers():
    yield {"age": np.array([2**63, 3], np.uint64)}
    yield {"age": np.array([np.finfo(np.longdouble).max, 3], np.longdouble)}
    yield pd.DataFrame({"age": pd.Series([2**62 + 1, 3], dtype="Int64")})
    if (pa := sys.modules.get("pyarrow")) is not None:
        # A cast of Arrow would raise, and quote the number.
        yield pa.table({"age": pa.array([2**62 + 1, 3])})
        yield pa.table({"age": pa.array([decimal.Decimal("1" * 30), 3])})


@pytest.mark.filterwarnings("error")
def test_numbers_that_a_double_rounds_are_numbers():
    schema = nv.Schema(age=nv.Bounded(0, 12))
    for table in large_numbers():
        np.testing.assert_array_equal(schema.encode(table), [[1.0], [-0.5]])


SECRET = "secret"
PEOPLE = {"age": [30.0, 40.0], "job": ["cook", SECRET]}
SMALL = nv.Schema(age=nv.Bounded(0, 120), job=nv.Categorical(["cook"]))


@pytest.mark.parametrize("as_table", [dict, pd.DataFrame, "polars", "pyarrow"])
@pytest.mark.parametrize(
    ("replaced", "kind", "message"),
    [
        ({"age": ["30", SECRET]}, TypeError, "'age' to hold numbers.*row by row"),
        ({"age": [b"30", SECRET.encode()]}, TypeError, "'age' to hold numbers"),
        (
            {"job": [30.0, 123456.0]},
            TypeError,
            "'job' to hold texts.*(?i:float64|double)",
        ),
        ({"job": [True, False]}, TypeError, "'job' to hold texts.*(?i:bool)"),
        ({"age": None, "Age": [30.0, 4.0]}, ValueError, "'age'.*Did you mean 'Age'"),
    ],
)
def test_errors_quote_no_value(as_table, replaced, kind, message):
    columns = {
        name: np.array(cells)
        for name, cells in {**PEOPLE, **replaced}.items()
        if cells is not None
    }
    if isinstance(as_table, str):
        library = pytest.importorskip(as_table)
        table = getattr(library, "DataFrame", None) or library.table
        as_table = lambda columns: table(  # noqa: E731
            {name: cells.tolist() for name, cells in columns.items()}
        )
    with pytest.raises(kind, match=message) as raised:
        SMALL.encode(as_table(columns))
    assert SECRET not in str(raised.value) and "123456" not in str(raised.value)


DAYS = np.array(["2020-01-11", "NaT"], "M8[D]")


@pytest.mark.parametrize(
    ("column", "remedy"),
    [
        (DAYS, "Count from a date"),
        (DAYS - np.datetime64("2020-01-01"), "Count in a unit"),
    ],
)
@pytest.mark.parametrize("as_table", [dict, pd.DataFrame, "polars", "pyarrow"])
def test_times_are_to_be_counted(as_table, column, remedy):
    """`pandas.to_numeric` makes nanoseconds of them, and -2**63 of a missing one."""
    if isinstance(as_table, str):
        library = pytest.importorskip(as_table)
        make = getattr(library, "DataFrame", None) or library.table
        as_table = lambda columns: make(  # noqa: E731
            {name: np.asarray(cells).tolist() for name, cells in columns.items()}
        )
    with pytest.raises(TypeError, match=f"'age' to hold numbers.*{remedy}") as raised:
        SMALL.encode(as_table({**PEOPLE, "age": column}))
    assert "to_numeric" not in str(raised.value)


def test_counted_times_are_numbers_and_missing_ones_are_missing():
    """As the message says to do it."""
    column = pd.Series(DAYS.astype("M8[ns]"))
    counted = (column - pd.Timestamp("2020-01-01")).dt.days
    schema = nv.Schema(age=nv.Bounded(0, 20, missing="indicator"))
    X = schema.encode(pd.DataFrame({"age": counted}))
    np.testing.assert_array_equal(X, [[0, 0], [0, 1]])


def test_errors_quote_no_categories_of_a_dtype():
    dtype = pd.CategoricalDtype([SECRET, "b"], ordered=True)
    table = pd.DataFrame(PEOPLE).assign(age=pd.Series([SECRET, "b"], dtype=dtype))
    with pytest.raises(TypeError, match="to hold numbers, got the dtype") as raised:
        SMALL.encode(table)
    assert SECRET not in str(raised.value)


def test_errors_do_not_tell_how_long_texts_are():
    messages = set()
    for text in ("a", "a" * 1000):
        with pytest.raises(TypeError) as raised:
            SMALL.encode(PEOPLE | {"age": np.array([text, "b"])})
        messages.add(str(raised.value))
    assert len(messages) == 1


@pytest.mark.parametrize("cell", [3, [SECRET], {}, np.ones(2), b"cook", pd.NaT])
def test_objects_that_are_no_texts_are_unknown_or_missing(cell):
    column = np.empty(2, object)
    column[:] = "cook", cell
    for table in ({**PEOPLE, "job": column}, pd.DataFrame({**PEOPLE, "job": column})):
        X = SMALL.encode(table)
        np.testing.assert_array_equal(X[:, 1:], [[1, 0], [0, 1]])


@pytest.mark.parametrize("table", [[1, 2], np.ones((2, 2)), pd.Series([1.0]), 3, None])
def test_what_is_no_table_is_an_error(table):
    kind = type(table).__name__
    with pytest.raises(TypeError, match=rf"DataFrame of pandas or polars.*got {kind}"):
        SMALL.encode(table)


def test_what_becomes_a_table_is_told_how():
    people = pytest.importorskip("polars").DataFrame(PEOPLE)
    for table, remedy in (
        (people.lazy(), r"\.collect\(\)"),
        (people["age"], r"\.to_frame\(\)"),
        (pd.Series([1.0]), r"\.to_frame\(\)"),
        (np.ones((2, 2)), r"\{'age': array\[:, 0\]\}"),
    ):
        with pytest.raises(TypeError, match=remedy):
            SMALL.encode(table)


@pytest.mark.parametrize("kind", ["pandas", "pyarrow"])
def test_a_name_that_two_columns_have_is_refused(kind):
    if kind == "pandas":
        pytest.importorskip("narwhals")
        table = pd.DataFrame([[30.0, 50.0]], columns=["age", "age"])
    else:
        table = pytest.importorskip("pyarrow").table([[30.0], [50.0]], ["age", "age"])
    with pytest.raises(ValueError, match="'age'"):
        nv.Schema(age=nv.Bounded(0, 120)).encode(table)


def test_numbers_may_name_columns():
    """As pandas does where a table is made of an array."""
    schema = nv.Schema({"0": nv.Bounded(0, 4), "1": nv.Bounded(0, 4)})
    for table in (pd.DataFrame(np.array([[3, 4]])), {0: [3], 1: [4]}):
        np.testing.assert_array_equal(schema.encode(table), [[0.5, 1.0]])


def test_a_number_and_its_text_are_one_name():
    frame = pd.DataFrame(np.array([[3, 4]]), columns=[1, "1"])
    for table in (frame, {1: [3], "1": [4]}):
        with pytest.raises(ValueError, match=r"to have one column '1', got 2\."):
            nv.Schema({"1": nv.Bounded(0, 4)}).encode(table)


def test_columns_of_a_mapping_have_one_axis_and_one_length():
    with pytest.raises(ValueError, match="'age' to be an array with one axis"):
        SMALL.encode({**PEOPLE, "age": np.ones((2, 1))})
    with pytest.raises(ValueError, match="to have one length"):
        SMALL.encode({**PEOPLE, "age": np.ones(1)})


def test_without_narwhals_mappings_work_and_tables_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "narwhals", None)
    np.testing.assert_array_equal(SCHEMA.encode(MAPPING), EXPECTED)
    with pytest.raises(ImportError, match=r"pip install 'numpyro-vips\[tables\]'"):
        SCHEMA.encode(pd.DataFrame(MAPPING))


@pytest.mark.parametrize(
    "cell", [None, float("nan"), "cook", "", True, 2.0, np.float32("nan"), [], 2**64]
)
def test_a_cell_of_a_list_changes_its_own_row_alone(cell):
    """Neighbouring tables of lists: NumPy would give all cells one dtype."""
    others = {
        "age": [30, 40.5, None, True, "50", 10**400, float("nan")],
        "job": ["cook", float("nan"), True, 2.0, None, "spy", 3],
        "region": [1, 2, None, "1", 2.0, True, 3.5],
        "ill": [True, False, None, 1, 0.0, "yes", 2],
        "sex": ["f", "m", None, 0, 1.0, True, "x"],
    }
    before = SCHEMA.encode(others)
    for name in others:
        more = {n: [*cells, cells[0]] for n, cells in others.items()}
        more[name][-1] = cell
        found = SCHEMA.encode(more)
        np.testing.assert_array_equal(found[:-1], before)
        assert np.all(np.abs(found) <= 1)


def test_lists_and_tuples_are_encoded_as_arrays_are():
    lists = {name: CELLS[name] for name in MAPPING}
    np.testing.assert_array_equal(SCHEMA.encode(lists), EXPECTED)
    tuples = {name: tuple(cells) for name, cells in lists.items()}
    np.testing.assert_array_equal(SCHEMA.encode(tuples), EXPECTED)
    with pytest.raises(ValueError, match="'age' to be an array with one axis"):
        SCHEMA.encode({**lists, "age": "30"})


def raising(*_: Any) -> Any:
    raise RuntimeError(SECRET)


OWN_CODE: dict[str, Any] = dict.fromkeys(
    ("__eq__", "__ne__", "__gt__", "__float__", "__str__", "__bool__"), raising
) | {"__hash__": None}
# Classes whose own code raises.
Odd: Any = type("Odd", (str,), OWN_CODE)
OddFloat: Any = type("OddFloat", (float,), OWN_CODE)
OddInteger: Any = type("OddInteger", (int,), OWN_CODE)
OddNumPyNumber: Any = type("OddNumPyNumber", (np.float32,), OWN_CODE)
OddObject: Any = type("OddObject", (), OWN_CODE | {"__class__": property(raising)})


# Each with whether it stands for a missing one among texts, as pandas has it.
ODD_CELLS = {
    "signalling NaN": (decimal.Decimal("sNaN"), True),
    "decimal NaN": (decimal.Decimal("NaN"), True),
    "large decimal": (decimal.Decimal("1e999"), False),
    "float NaN of one's own": (OddFloat("nan"), True),
    "float of one's own": (OddFloat(1.0), False),
    "integer of one's own": (OddInteger(10**400), False),
    "NumPy number of one's own": (OddNumPyNumber(1.0), None),
    "text of one's own": (Odd("spy"), False),
    "object of one's own": (OddObject(), False),
    "NA": (pd.NA, True),
    "NaT": (pd.NaT, True),
    "masked": (np.ma.masked, True),
    "NaT of NumPy": (np.datetime64("NaT"), True),
    "date of NumPy": (np.datetime64("2020"), False),
    "wide NaN": (np.longdouble("nan"), True),
    "wide number": (np.longdouble("1e4000"), False),
    "date": (datetime.datetime(2020, 1, 1), False),
    "duration": (pd.Timedelta(days=1), False),
    "record": (np.zeros(1, [("a", float)])[0], False),
    "array": (np.ma.masked_array([1.0, 2.0], [True, False]), False),
    "bytes": (b"\xff", False),
    "half a character": ("\ud800", False),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("what", ODD_CELLS)
def test_no_code_of_a_cell_decides_about_other_rows(what):
    """Neighbouring tables of objects, with cells that raise when they are compared."""
    cell, is_missing = ODD_CELLS[what]
    column = np.empty(3, object)
    column[0], column[1], column[2] = "cook", "spy", cell
    with np.errstate(all="raise"):
        tables = (
            {"job": column},
            {"job": list(column)},
            pd.DataFrame({"job": pd.Series(column, dtype=object)}),
        )
        schema = nv.Schema(job=nv.Categorical(["cook", "nurse"], missing="indicator"))
        for table in tables:
            found = schema.encode(table)
            np.testing.assert_array_equal(found[:2], schema.encode(CELLS)[[0, 2]])
            if is_missing is not None:
                expected = schema.encode(CELLS)[1 if is_missing else 2]
                np.testing.assert_array_equal(found[2], expected)
        ages = {"age": [30.0, 500.0, cell]}
        found = nv.Schema(age=nv.Bounded(0, 120)).encode(ages)
        np.testing.assert_array_equal(found[:2], [[-0.5], [1.0]])
        assert abs(found[2, 0]) <= 1


@pytest.mark.parametrize("dtype", [object, "O"])
@pytest.mark.parametrize("cell", ["30", 3, None, SECRET, True])
def test_a_column_of_objects_is_refused_by_its_dtype_where_numbers_should_be(
    cell, dtype
):
    """What narwhals infers from the cells of pandas' objects would name them."""
    messages = set()
    for cells in (["x", "y"], ["x", cell], [cell, cell], [None, None]):
        frame = pd.DataFrame({"age": pd.Series(cells, dtype=dtype)})
        for table in (frame, {"age": np.array(cells, object)}):
            with pytest.raises(TypeError, match="got the dtype object_") as raised:
                nv.Schema(age=nv.Bounded(0, 120)).encode(table)
            messages.add(str(raised.value))
    assert len(messages) == 1


def test_a_column_of_objects_is_read_as_texts_whatever_it_holds():
    schema = nv.Schema(job=nv.Categorical(["cook"], missing="indicator"))
    before = schema.encode({"job": ["cook", "spy", "spy"]})
    for cells in (
        ["cook", True, False],
        ["cook", 3, 4.0],
        ["cook", b"a", pd.Timestamp(0)],
    ):
        frame = pd.DataFrame({"job": pd.Series(cells, dtype=object)})
        np.testing.assert_array_equal(schema.encode(frame), before)


def test_masked_cells_of_an_array_are_missing():
    mask = [False, True]
    age, job = (
        np.ma.array([30.0, 40.0], mask=mask),
        np.ma.array(["cook"] * 2, mask=mask),
    )
    found = SMALL.encode({"age": age, "job": job})
    expected = SMALL.encode({"age": [30.0, None], "job": ["cook", None]})
    np.testing.assert_array_equal(found, expected)


def columns_with_missing_cells():
    """By kind of column: makes it of cells, for a mapping and as a table."""
    dtypes = {"ill": "boolean", "age": "Float64", "region": "Int64", "job": "string"}
    in_arrow = {"ill": "bool", "age": "double", "region": "int64", "job": "string"}
    for name, dtype in dtypes.items():
        yield name, lambda cells, dtype=dtype: pd.Series(cells, dtype=dtype)
        yield name, lambda cells, dtype=dtype: pd.array(cells, dtype=dtype)
        yield name, lambda cells, dtype=dtype: pd.Index(cells, dtype=dtype)
        yield name, lambda cells: pd.Series(pd.Categorical(cells))
        yield name, lambda cells: pd.Series(cells, dtype=object)
        yield name, lambda cells: pd.Categorical(cells)
        if (pa := sys.modules.get("pyarrow")) is None:
            continue
        kind = f"{in_arrow[name]}[pyarrow]"
        yield name, lambda cells, kind=kind: pd.Series(cells, dtype=kind)
        yield name, pa.array
        yield name, lambda cells, pa=pa: pa.chunked_array([cells[:1], cells[1:]])
    if (pl := sys.modules.get("polars")) is not None:
        yield from (
            (name, lambda cells, pl=pl: pl.Series(cells, strict=False))
            for name in dtypes
        )


def outcome(name, table):
    """The encoded column, or the exception and its message."""
    schema = nv.Schema({name: SCHEMA[name]})
    try:
        return np.asarray(schema.encode(table)).tolist(), schema.response(table, name)
    except TypeError as error:
        return str(error), None


@pytest.mark.parametrize(("name", "make"), list(columns_with_missing_cells()))
def test_a_missing_cell_changes_its_own_row_alone_in_any_column_of_a_mapping(
    name, make
):
    """Neighbouring columns: of the dtypes that NumPy makes of all cells."""
    full = [cell for cell in CELLS[name] if cell is not None]
    (before, _), (after, answers) = (
        outcome(name, {name: make(cells)}) for cells in (full, [*full, None])
    )
    assert (after if isinstance(after, str) else after[:-1]) == before
    column = make([*full, None])
    if type(column).__module__.startswith("pyarrow"):
        table = sys.modules["pyarrow"].table({name: column})
    elif type(column).__module__.startswith("polars"):
        table = column.to_frame(name)
    else:
        table = pd.DataFrame({name: column})
    assert outcome(name, table)[0] == after
    np.testing.assert_array_equal(outcome(name, table)[1], answers)


def test_private_moments_of_a_nullable_column_of_a_mapping():
    schema = nv.Schema(ill=nv.Bounded(0, 1))
    budget = nv.PrivacyBudget(1.0, 1e-6)
    table = {"ill": pd.Series([True, None, True], dtype="boolean")}
    schema.private_moments(table, budget=budget, unit="rows", num_rows=3)
    assert len(budget.charges) == 1


def test_without_narwhals_columns_of_a_mapping_are_read_cell_by_cell(monkeypatch):
    monkeypatch.setitem(sys.modules, "narwhals", None)
    for dtypes in (
        {"age": "Float64", "job": "string", "ill": "boolean", "region": "Int64"},
        {"age": "float64", "job": object, "ill": object, "region": "float64"},
    ):
        table: dict[str, Any] = {
            name: pd.Series(CELLS[name], dtype=dtype) for name, dtype in dtypes.items()
        }
        if dtypes["ill"] is object:
            table["ill"] = np.array(MAPPING["ill"])
        table["sex"] = CELLS["sex"]
        np.testing.assert_array_equal(SCHEMA.encode(table), EXPECTED)
    if (pa := sys.modules.get("pyarrow")) is not None:
        table = {name: pa.array(CELLS[name]) for name in MAPPING}
        np.testing.assert_array_equal(SCHEMA.encode(table), EXPECTED)


def test_arrays_of_other_libraries_keep_their_dtype():
    arrays: dict[str, Any] = {
        name: column if column.dtype == object else jnp.asarray(column)
        for name, column in MAPPING.items()
    }
    arrays["ill"] = xr.DataArray(MAPPING["ill"])
    np.testing.assert_allclose(SCHEMA.encode(arrays), EXPECTED, rtol=1e-6)


@pytest.mark.parametrize(
    "column", [3.0, "30", b"30", {"a": 1}, {1.0}, pd.DataFrame({"age": [1.0]}), None]
)
def test_what_is_no_column_is_an_error(column):
    with pytest.raises(ValueError, match="'age' to be an array with one axis"):
        nv.Schema(age=nv.Bounded(0, 120)).encode({"age": column})
