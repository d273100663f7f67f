import argparse
import collections
import dataclasses
import decimal
import functools
import tracemalloc
import types
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import numpyro_vips as nv
from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import bind_arguments

Visit = collections.namedtuple("Visit", ["age", "weight"])
ROWS = 6


@dataclasses.dataclass
class Record:
    age: Any


@dataclasses.dataclass(slots=True)
class Slotted:
    age: Any


class Holder:
    def __init__(self, age: Any):
        self.age = age


def X(dtype: Any = np.float32, columns=3):
    return np.arange(ROWS * columns, dtype=dtype).reshape(ROWS, columns)


def any_model(X, y=None, vocab=None, *more, batch=None, **rest):
    pass


def bind(*args, public=(), fn=None, num_rows=None, **kwargs):
    model = private(fn or any_model, unit="N", public=public)
    return bind_arguments(model, args, kwargs, num_rows=num_rows)


# Sorting ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "public", "expected_private", "expected_public"),
    [
        ((X(),), {}, (), ["X"], []),
        ((X(), np.ones(ROWS)), {}, (), ["X", "y"], []),
        ((X(),), {"y": jnp.ones(ROWS)}, (), ["X", "y"], []),
        ((X(), None, np.ones(4)), {}, ("vocab",), ["X"], ["vocab"]),
        ((X(), None, None, X(), X()), {}, (), ["X", "more.0", "more.1"], []),
        ((X(),), {"extra": np.ones(ROWS)}, (), ["X", "extra"], []),
        (
            ((X(), np.ones(ROWS)),),
            {},
            (),
            ["X.0", "X.1"],
            [],
        ),
        (
            ({"a": X(), "vocab": np.ones(9)},),
            {},
            ("X.vocab",),
            ["X.a"],
            ["X.vocab"],
        ),
        (
            (Visit(np.ones(ROWS), {"kg": np.ones(ROWS), "scale": np.ones(2)}),),
            {},
            ("X.weight.scale",),
            ["X.age", "X.weight.kg"],
            ["X.weight.scale"],
        ),
        # A whole container may be public.
        ((X(),), {"batch": (np.ones(2), np.ones(3))}, ("batch",), ["X"], None),
        ((scipy.sparse.csr_matrix(X()),), {}, (), ["X"], []),
        ((scipy.sparse.csr_array(X()),), {}, (), ["X"], []),
    ],
)
def test_arrays_are_private_unless_named_public(
    args, kwargs, public, expected_private, expected_public
):
    arguments = bind(*args, public=public, **kwargs)
    assert list(arguments.private) == expected_private
    if expected_public is None:
        expected_public = ["batch.0", "batch.1"]
    assert list(arguments.public) == expected_public
    assert arguments.num_rows == ROWS


def test_constants_are_whole_arguments_or_values_of_a_dict():
    arguments = bind(X(), None, batch={"topics": 20, "name": "run"}, flag=True, a=0.5)
    assert arguments.constants == {
        "y": None,
        "batch.topics": 20,
        "batch.name": "run",
        "flag": True,
        "a": 0.5,
    }
    assert list(arguments.private) == ["X"]


def test_names_come_from_partials_methods_and_objects():
    class Model:
        def __call__(self, counts, labels):
            pass

        def method(self, counts, labels):
            pass

    def model(scale, counts, labels):
        pass

    for fn in (Model(), Model().method, functools.partial(model, 1.0)):
        arguments = bind(X(), np.ones(ROWS), fn=fn)
        assert list(arguments.private) == ["counts", "labels"]


def test_a_declared_number_of_rows_need_not_be_the_number_present():
    declared = bind(X(), num_rows=1000)
    assert (declared.num_rows, declared.public_num_rows) == (ROWS, 1000)
    assert declared.num_rows_declared
    default = bind(X())
    assert (default.num_rows, default.public_num_rows) == (ROWS, ROWS)
    assert not default.num_rows_declared
    with pytest.raises(ValueError, match="num_rows=0"):
        bind(X(), num_rows=0)


# Rows and calls -----------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        X(np.float32),
        X(np.float64),
        X(np.float16),
        X(np.int64),
        X(np.uint8),
        X() > 4,
        jnp.asarray(X()),
        jnp.asarray(X(), jnp.bfloat16),
        np.arange(ROWS),
        np.ones((ROWS, 2, 4)),
        scipy.sparse.csr_matrix(X(np.float64)),
        scipy.sparse.csr_array(X(np.int64)),
    ],
)
@pytest.mark.parametrize("indices", [[0, 2, 2, 5], [], [3]])
def test_rows_are_those_that_jax_would_see(array, indices):
    indices = np.array(indices, dtype=np.int64)
    dense = array.toarray() if scipy.sparse.issparse(array) else array
    expected = jnp.asarray(dense)[indices]
    arguments = bind(array)
    rows, row = arguments.take(indices)["X"], arguments.row_shapes()["X"]
    assert isinstance(rows, np.ndarray)
    np.testing.assert_array_equal(rows, np.asarray(expected))
    assert rows.dtype == row.dtype == expected.dtype
    assert row.shape == rows.shape[1:] == expected.shape[1:]


def test_dtypes_follow_x64():
    arguments = bind(X(np.float64), np.arange(ROWS))
    with jax.enable_x64(True):
        rows = arguments.take(np.array([1]))
        assert {name: r.dtype for name, r in rows.items()} == {
            "X": np.float64,
            "y": np.int64,
        }
        assert arguments.row_shapes()["X"].dtype == np.float64
    assert arguments.take(np.array([1]))["X"].dtype == np.float32


def test_only_the_rows_asked_for_are_made_dense():
    # A dense copy of all rows would take 4 GB.
    ones, columns, starts = np.ones(300), np.arange(300) * 1000, np.arange(101) * 3
    wide = scipy.sparse.csr_array((ones, columns, starts), shape=(100, 10_000_000))
    tracemalloc.start()
    arguments = bind(wide)
    assert arguments.row_shapes()["X"].shape == (10_000_000,)
    rows: Any = arguments.take(np.array([7]))["X"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * 8 * 10_000_000
    np.testing.assert_array_equal(rows.nonzero()[1], [21_000, 22_000, 23_000])


def test_a_damaged_sparse_row_neither_crashes_nor_touches_others():
    """SciPy would write beyond the array: a crash that tells what the row holds."""
    clean = scipy.sparse.csr_array(X(np.float64))
    everyone = np.arange(ROWS)
    expected: Any = bind(clean).take(everyone)["X"]
    for column in (X().shape[1], 10**8, 2**31 - 1, -1, -(2**31)):
        matrix = clean.copy()
        place = matrix.indptr[1]
        was = matrix.indices[place]
        matrix.indices[place] = column
        rows = bind(matrix).take(everyone)["X"]
        left_out = expected.copy()
        left_out[1, was] = 0.0
        np.testing.assert_array_equal(rows, left_out)
    for pointer in (10**8, -5, 2**31 - 1):
        matrix = clean.copy()
        matrix.indptr[2] = pointer
        rows: Any = bind(matrix).take(everyone)["X"]
        assert rows.shape == expected.shape
        np.testing.assert_array_equal(rows[3:], expected[3:])


@pytest.mark.parametrize("value", [1e300, -1e300, 1e-300])
def test_numbers_beyond_their_new_dtype_are_silent(value):
    """A warning or an exception would tell that such a number is there."""
    array = X(np.float64)
    array[2, 0] = value
    with warnings.catch_warnings(action="error"), np.errstate(all="raise"):
        rows: Any = bind(array).take(np.array([2]))["X"]
    with np.errstate(all="ignore"):
        assert rows[0, 0] == np.float32(value)


def test_duplicate_entries_of_a_sparse_matrix_add_up():
    matrix = scipy.sparse.csr_array(
        (np.array([1.0, 2.0]), np.array([1, 1]), np.array([0, 2, 2])), shape=(2, 3)
    )
    rows = bind(matrix).take(np.array([0]))["X"]
    np.testing.assert_array_equal(rows, [[0.0, 3.0, 0.0]])


def test_the_call_is_rebuilt_around_the_rows():
    vocab, point = np.ones(4), Visit(np.ones(ROWS), (X(), {"topics": 3}))
    arguments = bind_arguments(
        private(any_model, unit="N", public=("vocab",)),
        (X(), None, vocab, point),
        {"batch": {"a": np.zeros(ROWS), "k": 2}, "flag": True},
    )
    rows = {name: f"rows of {name}" for name in arguments.private}
    args, kwargs = arguments.call(rows)
    assert args[:2] == ("rows of X", None)
    assert np.shares_memory(args[2], vocab)
    assert args[3] == Visit(
        "rows of more.0.age", ("rows of more.0.weight.0", {"topics": 3})
    )
    assert isinstance(args[3], Visit)
    assert kwargs == {"batch": {"a": "rows of batch.a", "k": 2}, "flag": True}
    with pytest.raises(ValueError, match=r"Expected rows for 'X', .* got 'X'"):
        arguments.call({"X": X()})


def test_the_call_may_be_rebuilt_while_jax_traces():
    arguments = bind({"a": X(), "scale": 3.0}, np.ones(2), public=("y",))

    @jax.jit
    def total(rows):
        (batch, public), _ = arguments.call(rows)
        return (batch["a"] * batch["scale"]).sum() + public.sum()

    indices = np.array([0, 4])
    actual = total(arguments.take(indices))
    np.testing.assert_allclose(actual, 3.0 * X()[indices].sum() + 2.0, rtol=1e-6)


# Refusals -----------------------------------------------------------------------

SECRET = 31415926


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0, 2.0], r"is a list.*np\.asarray"),
        ([np.ones(ROWS), np.ones(ROWS)], "a tuple or a dict"),
        (range(ROWS), "is a range"),
        ((np.ones(ROWS), 3), r"'y\.1' is a Python int inside a tuple"),
        (("a", "b"), r"'y\.0' is a Python str inside a tuple"),
        (Visit(np.ones(ROWS), 3), r"'y\.weight' is a Python int inside a tuple"),
        ({"a": [1, 2]}, r"'y\.a' is a list"),
        (np.array(SECRET), r"single int64.*y\.item\(\)"),
        (jnp.array(1.0), r"single float32.*y\.item\(\)"),
        (np.float64(SECRET), r"single float64.*y\.item\(\)"),
        (np.array(["a"] * ROWS), "array of dtype str_.*public list of categories"),
        (np.array([None] * ROWS), r"dtype object.*y\.astype\(float\)"),
        (np.array(["a"] * ROWS, dtype="S1"), "array of dtype"),
        (np.zeros(ROWS, "datetime64[D]"), "dates or durations.*public date"),
        (np.zeros(ROWS, "timedelta64[D]"), "dates or durations"),
        (np.zeros(ROWS, complex), "is complex"),
        (np.zeros(ROWS, ">f4"), r"byte order.*newbyteorder"),
        (np.zeros(ROWS, [("a", int)]), r"fields 'a'.*\{key: y\[key\] for key in"),
        (np.zeros(ROWS, np.longdouble), "Expected booleans, integers"),
        (pd.DataFrame({"a": np.ones(ROWS)}), r"pandas\.DataFrame.*Schema.*to_numpy"),
        (pd.Series(np.ones(ROWS)), r"pandas\.Series.*encode\(table\).*y\.to_numpy\(\)"),
        (pd.Categorical(["a"] * ROWS), r"pandas\.Categorical"),
        (jax.random.key(0), "random key"),
        (jax.random.split(jax.random.key(0), ROWS), "random key"),
        (np.ma.masked_array(np.ones(ROWS)), r"masked array.*filled"),
        (jnp.exp, "functools.partial"),
        (Record(np.ones(ROWS)), r"dataclass \(age\).*vars\(y\).*NamedTuple"),
        (Slotted(np.ones(ROWS)), r"dataclass \(age\).*dataclasses\.asdict\(y\)"),
        (Holder(np.ones(ROWS)), r"arrays that it holds.*vars\(y\)"),
        (types.MappingProxyType({"a": X}), r"mappingproxy.*dict\(y\)"),
        (iter([1.0, 2.0]), r"iterator.*np\.asarray\(list\(y\)\)"),
        (object(), "has type object.*functools.partial"),
        (b"text", "has type bytes"),
    ],
)
def test_what_is_neither_rows_nor_a_constant_is_refused(value, message):
    for public in ((), ("y",)):
        with pytest.raises(TypeError, match=message) as caught:
            bind(X(), value, public=public)
        assert str(SECRET) not in str(caught.value)


def test_some_rows_are_at_even_distances_or_the_first_ones():
    """By these processes see whether they have the same rows."""

    class Stream:
        row = np.empty((), np.float32)

        def __len__(self) -> int:
            return 40

        def scan(self, start: int, stop: int) -> Iterator[np.ndarray]:
            yield np.arange(start, stop, dtype=np.float32)

    matrix = scipy.sparse.csr_matrix(np.arange(2.0 * 40).reshape(40, 2))

    def model(X, y, z): ...

    given = (matrix, nv.ArrayRows(np.arange(40.0)), Stream())
    arguments = bind_arguments(nv.private(model, unit="rows"), given, {})
    found = arguments.some_rows(4)
    assert list(found) == ["X", "y", "first of z"]
    np.testing.assert_array_equal(found["X"], matrix.toarray()[[0, 13, 26, 39]])
    np.testing.assert_array_equal(found["y"], [0, 13, 26, 39])
    np.testing.assert_array_equal(found["first of z"], range(4))
    assert np.shape(arguments.some_rows(64)["first of z"]) == (40,)


def test_arrow_is_told_how_its_numbers_are_passed():
    pa: Any = pytest.importorskip("pyarrow")
    numbers, missing = [1.0] * (ROWS - 1), [None]
    table = pa.table({"a": numbers + missing})
    decimals = pa.array([decimal.Decimal("1.5")] * ROWS)
    for value in (table, table["a"], table["a"].combine_chunks(), decimals):
        with pytest.raises(TypeError, match=r"pyarrow\..*ArrowRows\(y, .*float\)"):
            bind(X(), value)
        if value is not table:
            column = bind(X(), np.asarray(value, float)).private["y"]
            assert column.dtype == float and column.shape == (ROWS,)


@pytest.mark.parametrize("kind", [str, bytes])
def test_a_refusal_does_not_say_how_long_the_longest_text_is(kind):
    messages = set()
    for text in ("a", "a long answer"):
        column = np.array(["b"] * (ROWS - 1) + [text]).astype(kind)
        with pytest.raises(TypeError) as caught:
            bind(X(), column)
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_columns_in_an_object_are_taken_as_the_refusal_says():
    arguments = bind(X(), vars(Record(np.ones(ROWS))))
    assert list(arguments.private) == ["X", "y.age"]


def test_tracers_are_refused():
    with pytest.raises(TypeError, match=r"cannot run inside jax\.jit"):
        jax.eval_shape(lambda y: bind(X(), y).num_rows, np.ones(ROWS))


@pytest.mark.parametrize("kind", ["csc", "coo", "bsr"])
def test_private_sparse_matrices_must_be_csr(kind):
    with pytest.raises(TypeError, match=rf"{kind.upper()}.*y\.tocsr\(\)"):
        bind(X(), scipy.sparse.csr_array(X()).asformat(kind))


def test_public_sparse_matrices_are_refused():
    with pytest.raises(TypeError, match=r"vocab.*toarray"):
        bind(X(), None, scipy.sparse.csr_array(np.eye(3)), public=("vocab",))


def test_lengths_that_disagree_are_named():
    with pytest.raises(ValueError, match=r"X has 6, y has 5.*public="):
        bind(X(), np.ones(ROWS - 1))


@pytest.mark.parametrize(
    ("args", "public", "message"),
    [
        ((), (), "No argument holds private data.*'N'"),
        ((X(),), ("X",), "No argument holds private data"),
        ((None, 3), (), "No argument holds private data"),
        ((X()[:0], np.ones(0)), (), "'X', 'y'. have no rows"),
        ((X()[:, :0], np.ones(ROWS)), (), r"row .* 'X' has shape \(0,\).*Leave the"),
    ],
)
def test_there_must_be_private_rows(args, public, message):
    def model(X=None, y=None):
        pass

    with pytest.raises(ValueError, match=message):
        bind(*args, public=public, fn=model)


@pytest.mark.parametrize(
    ("public", "message"),
    [
        (("vocabb",), "Did you mean 'vocab'"),
        (("batch.vocabs",), r"Did you mean 'batch\.vocab'"),
        (("something",), "The arguments are 'X'"),
    ],
)
def test_a_public_name_that_names_nothing_is_an_error(public, message):
    with pytest.raises(ValueError, match=message):
        bind(X(), batch={"vocab": np.ones(ROWS)}, public=public)


def test_a_public_name_may_belong_to_a_constant_or_to_an_argument_left_out():
    arguments = bind(X(), 3, public=("y", "vocab", "batch.vocab"))
    assert arguments.constants == {"y": 3}


def test_arguments_that_do_not_fit_the_model():
    def model(X, y):
        pass

    with pytest.raises(TypeError, match="missing a required argument: 'y'") as caught:
        bind(X(), fn=model)
    assert str(caught.value).endswith("Its parameters are X, y.")
    with pytest.raises(TypeError, match=r"key is given to run\(\) alone"):
        bind(jax.random.key(0), X(), np.ones(ROWS), fn=model)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        bind(X(), np.ones(ROWS), z=1, fn=model)
    with pytest.raises(TypeError, match="holds no model"):
        bind_arguments(private(unit="N"), (X(),), {})


def test_names_that_collide_are_refused():
    def model(X, /, **rest):
        pass

    with pytest.raises(ValueError, match="both named 'X'"):
        bind(X(), X=np.ones(ROWS), fn=model)
    with pytest.raises(ValueError, match=r"both named 'X\.a\.b'"):
        bind({"a": {"b": X()}, "a.b": X()})


def test_the_representation_tells_shapes_and_not_values():
    arguments = bind(
        np.full((ROWS, 2), SECRET), 3, np.full(4, SECRET), public=("vocab",)
    )
    assert repr(arguments) == (
        "ModelArguments(X: private int64[6, 2], vocab: public int64[4], y: 3)"
    )


def test_public_indices_serve_in_single_and_in_double_precision():
    index = np.array([0, 2, 2])

    def picked(table, index):
        return table[index]

    arguments = bind(X(), index, fn=picked, public=("index",))

    def of_rows(rows):
        args, kwargs = arguments.call(rows)
        return picked(*args, **kwargs)

    # Kept alive, as the program of a prepared fit is.
    single = jax.make_jaxpr(of_rows)({"table": X()})
    with jax.enable_x64(True):
        double = jax.jit(of_rows)({"table": X(np.float64)})
    assert single.out_avals[0].dtype == np.float32
    np.testing.assert_array_equal(double, X(np.float64)[index])


@pytest.mark.parametrize("kind", [argparse.Namespace, types.SimpleNamespace])
def test_a_namespace_holds_public_constants(kind):
    settings = kind(hidden=3, name="a", rate=0.5, prior=None, flag=True)
    arguments = bind(X(), batch=settings)
    assert arguments.constants["batch.hidden"] == 3
    assert len(arguments.constants) == 5
    settings.hidden = 4
    _, kwargs = arguments.call({"X": X()})
    assert kwargs["batch"].hidden == 3


@pytest.mark.parametrize("part", [X(), [1, 2], np.float64(0.5), {"a": 1}])
def test_a_namespace_of_anything_else_is_refused(part):
    with pytest.raises(TypeError, match=r"'batch\.part' is of type"):
        bind(X(), batch=argparse.Namespace(part=part, hidden=3))


def test_the_number_of_numbers_is_that_of_all_public_rows() -> None:
    rows = np.zeros((ROWS, 3)), np.zeros(ROWS)
    model = private(lambda X, y: None, unit="rows")
    assert bind_arguments(model, rows, {}).num_numbers == 4 * ROWS
    assert bind_arguments(model, rows, {}, num_rows=10).num_numbers == 40
