"""Rows that get into a model or guide otherwise than as arguments, end to end."""

import array
import builtins
import collections
import collections.abc
import contextvars
import ctypes
import dataclasses
import datetime
import decimal
import fractions
import functools
import io
import itertools
import json
import math
import mmap
import operator
import queue
import re
import sys
import types
import typing
import unittest.mock
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import scipy.spatial
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.model.references import references

NUM_ROWS = 23
X = np.linspace(-0.7, 0.7, NUM_ROWS).astype(np.float32)
# As many numbers as there are rows are refused; fewer are listed.
FEWER = 11


def numbers(size: int) -> list[float]:
    return [float(v) for v in np.random.default_rng(size).uniform(size=size).round(4)]


def by_name(values: list[float]) -> dict[str, float]:
    return {f"p{i}": value for i, value in enumerate(values)}


def holding(value: Any) -> Callable[..., Any]:
    """A model that holds something, whatever it does with it."""

    def model(x):
        held = value
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(w, 1.0), obs=x)
        return held

    return model


def explained(model: Any, **options: Any) -> str:
    vi = nv.PrivateVI(
        nv.private(model, unit="people"),
        budget=nv.PrivacyBudget(1.0, 1e-5),
        # Norms and steps that are left to the package take most of a plan's time.
        clipping_norm=1.0,
        num_steps=1,
        **options,
    )
    return str(vi.explain(X))


class Record(typing.NamedTuple):
    name: str
    age: float


@dataclasses.dataclass
class Person:
    name: str
    age: float


class Named(dict):
    pass


class Mangled:
    def __init__(self, values):
        self.__values = values

    def total(self):
        return sum(self.__values)


class MangledSlot:
    __slots__ = ("__values",)

    def __init__(self, values):
        self.__values = values


class OwnMapping(collections.abc.Mapping):
    def __init__(self, values):
        self._values = dict(enumerate(values))

    def __getitem__(self, key):
        raise AssertionError("the search must not run the caller's code")

    __iter__ = __len__ = __getitem__  # type: ignore[assignment]


class OwnDistribution(dist.Normal):
    def __init__(self, values):
        super().__init__(0.0, 1.0)
        self._values = values


class WithData(type):
    pass


def nested(value, depth=40):
    for _ in range(depth):
        value = {"inner": value}
    return value


def with_default(values):
    variable = contextvars.ContextVar("variable", default=values)
    return variable


def set_in_context(values):
    variable = contextvars.ContextVar("variable")
    variable.set(values)
    return variable


def in_context(values):
    context = contextvars.Context()
    context.run(contextvars.ContextVar("variable").set, values)
    return context


def in_memory_map(values):
    data = np.asarray(values).tobytes()
    found = mmap.mmap(-1, len(values))
    found.write(data[: len(values)])
    return found


def with_attrs(values):
    table = pd.DataFrame({"a": [1.0]})
    table.attrs["values"] = values
    return table.attrs.get


def generator(values):
    def each():
        yield from values

    return each()


def in_module(values):
    module = types.ModuleType("some_rows")
    module.values = values  # type: ignore[attr-defined]
    return module


def in_queue(values, kind: Any = queue.SimpleQueue):
    found = kind()
    for value in values:
        found.put(value)
    return found


class OwnQueue(queue.SimpleQueue):
    """One with attributes too."""


def in_context_one_by_one(values):
    context = contextvars.Context()
    for number, value in enumerate(values):
        context.run(contextvars.ContextVar(f"p{number}").set, value)
    return context


def left_by_the_other(values):
    one, other = itertools.tee(iter(values))
    collections.deque(one, 0)
    return other


def in_cache(values):
    given = iter(values)
    found = functools.lru_cache(lambda number: next(given))
    for number in range(len(values)):
        found(number)
    next(given, None)  # It holds the list no more.
    return found


def in_local_variables(values):
    """A generator that has started, with each value in a variable of its own."""
    names = [f"p{i}" for i in range(len(values))]
    code = f"def each({', '.join(names)}):\n    yield\n    yield {', '.join(names)}"
    scope: dict[str, Any] = {}
    exec(code, scope)
    found = scope["each"](*values)
    next(found)
    return found


KEPT: list[Any] = []  # What only weak references would hold.


def kept(value: Any) -> Any:
    KEPT.append(value)
    return value


CONTAINERS: dict[str, Callable[[list[float]], Any]] = {
    "deque": collections.deque,
    "set": set,
    "frozenset": frozenset,
    "dict": by_name,
    "keys of a dict": lambda v: dict.fromkeys(v, "x"),
    "dict of tuples": lambda v: {f"p{i}": (x, "a") for i, x in enumerate(v)},
    "OrderedDict": lambda v: collections.OrderedDict(enumerate(v)),
    "defaultdict": lambda v: collections.defaultdict(float, enumerate(v)),
    "default of a defaultdict": lambda v: collections.defaultdict(lambda: v),
    "Counter": lambda v: collections.Counter(by_name(v)),
    "ChainMap": lambda v: collections.ChainMap({}, dict(enumerate(v))),
    "mapping proxy": lambda v: types.MappingProxyType(dict(enumerate(v))),
    "UserDict": lambda v: collections.UserDict(enumerate(v)),
    "own mapping": OwnMapping,
    "subclass of dict": lambda v: Named(enumerate(v)),
    "keys view": lambda v: dict.fromkeys(v).keys(),
    "values view": lambda v: dict(enumerate(v)).values(),
    "items view": lambda v: dict(enumerate(v)).items(),
    "iterator": iter,
    "reversed": reversed,
    "generator": generator,
    "generator expression": lambda v: (x for x in v),
    "chain": lambda v: itertools.chain([], v),
    "chain of tuples": lambda v: itertools.chain(tuple(v)),
    "zip": lambda v: zip(v, v, strict=True),
    "map": lambda v: map(float, v),
    "filter": lambda v: filter(None, v),
    "enumerate": enumerate,
    "cycle": itertools.cycle,
    "islice": lambda v: itertools.islice(v, 3),
    "product": itertools.product,
    "tee": lambda v: itertools.tee(v)[1],
    "iterator of an array": lambda v: iter(np.asarray(v)),
    "flat": lambda v: np.asarray(v).flat,
    "mixed with None": lambda v: [None, *v[1:]],
    "with a heading": lambda v: ["age", *v],
    "records": lambda v: [Record("a", x) for x in v],
    "dicts": lambda v: [{"name": "a", "age": x} for x in v],
    "objects": lambda v: [Person("a", x) for x in v],
    "0-d arrays": lambda v: {i: np.array(x) for i, x in enumerate(v)},
    "decimals": lambda v: [decimal.Decimal(str(x)) for x in v],
    "fractions": lambda v: [fractions.Fraction(x) for x in v],
    "dates": lambda v: [datetime.date.fromordinal(int(1e5 * x) + 1) for x in v],
    "numbers as text": lambda v: [str(x) for x in v],
    "text": lambda v: ", ".join(map(str, v)),
    "table as text": lambda v: "\n".join(f"{x},{x}" for x in v),
    "lines of text": lambda v: [f"name,{x},x" for x in v],
    "namespaces": lambda v: types.SimpleNamespace(
        **{f"p{i}": types.SimpleNamespace(age=x) for i, x in enumerate(v)}
    ),
    "nditer": lambda v: np.nditer(np.asarray(v)),
    "attributes of a table": with_attrs,
    "pattern": lambda v: re.compile("|".join(map(str, v))),
    "tree of neighbours": lambda v: scipy.spatial.KDTree(np.asarray(v)[:, None]),
    "text in a buffer": lambda v: io.StringIO(json.dumps(v)),
    "bytes": lambda v: bytes(int(200 * x) for x in v),
    "bytearray": lambda v: bytearray(int(200 * x) for x in v),
    "bytes in a buffer": lambda v: io.BytesIO(bytes(int(200 * x) for x in v)),
    "memoryview": lambda v: memoryview(array.array("d", v)),
    "array.array": lambda v: array.array("d", v),
    "ctypes": lambda v: (ctypes.c_double * len(v))(*v),
    "memory map": in_memory_map,
    "object array": lambda v: np.array([np.array(v), None], object)[:1].item,
    "record of an array": lambda v: np.zeros(1, [("x", float, (len(v),))])[0],
    "attributes": lambda v: types.SimpleNamespace(
        **{f"p{i}": x for i, x in enumerate(v)}
    ),
    "attributes of a class": lambda v: type(
        "C", (), {f"p{i}": x for i, x in enumerate(v)}
    ),
    "mangled attribute": Mangled,
    "mangled slot": MangledSlot,
    "metaclass": lambda v: type("Meta", (WithData,), {"values": v})("C", (), {}),
    "weak reference": lambda v: weakref.ref(kept(np.asarray(v))),
    "itemgetter": lambda v: operator.itemgetter(tuple(v)),
    "methodcaller": lambda v: operator.methodcaller("__add__", v),
    "bound builtin": lambda v: v.__getitem__,
    "get of a dict": lambda v: dict(enumerate(v)).get,
    "bound method of an array": lambda v: np.asarray(v).take,
    "wrapper of an array": lambda v: np.asarray(v).__matmul__,
    "slice": lambda v: slice(tuple(v)),
    "cell": types.CellType,
    "exception": ValueError,
    "module": in_module,
    "default of a ContextVar": with_default,
    "ContextVar": set_in_context,
    "Context": in_context,
    "queue": in_queue,
    "queue with a lock": lambda v: in_queue(v, queue.Queue),
    "queue by priority": lambda v: in_queue(v, queue.PriorityQueue),
    "queue of pairs": lambda v: in_queue([("a", x) for x in v]),
    "own queue": lambda v: in_queue(v, OwnQueue),
    "Context of single numbers": in_context_one_by_one,
    "tee of an iterator": left_by_the_other,
    "cache": in_cache,
    "local variables": in_local_variables,
    "own distribution": OwnDistribution,
    "deeply nested": nested,
    "code": lambda v: compile(f"rows = {tuple(v)}", "", "exec"),
}


@pytest.mark.parametrize("place", CONTAINERS)
def test_rows_inside_an_object_are_refused(place):
    model = holding(CONTAINERS[place](numbers(NUM_ROWS)))
    with pytest.raises(nv.UnsafeModelError, match="axis of the length of the data"):
        explained(model)


@pytest.mark.quick_with(
    "deque",
    "generator expression",
    "zip",
    "bytearray",
    "weak reference",
    "cell",
    "dict",
)
@pytest.mark.parametrize("place", CONTAINERS)
def test_fewer_numbers_inside_an_object_are_listed(place):
    model = holding(CONTAINERS[place](numbers(FEWER)))
    assert "Treated as public because the model holds them: " in explained(model)


def test_a_model_that_holds_nothing_is_neither_refused_nor_said_to_hold_anything():
    harmless = {
        "words": ["the", "of", "and"] * 8,
        "index": {f"word {i}": i for i in range(NUM_ROWS)},
        "activation": jax.nn.relu,
        "name": "experiment 12, 2024-01-31",
        "rng": np.random.default_rng(0),
        "rate": 0.5,
        "range": range(NUM_ROWS),
        "shape": jax.ShapeDtypeStruct((NUM_ROWS,), float),
    }
    assert "Treated as public" not in explained(holding(harmless))


def test_an_object_that_makes_its_attributes_on_demand_ends_the_search():
    held = unittest.mock.MagicMock()
    # There is nothing to list, so the plan says no more than for a model without it.
    assert explained(holding(held)) == explained(holding(None))
    assert not held.mock_calls


def test_more_objects_than_can_be_searched_are_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(references, "_MAX_OBJECTS", 10_000)
    explained(holding([{"a": (str(i), {})} for i in range(50)]))
    model = holding([{"a": (str(i), {})} for i in range(5_000)])
    with pytest.raises(nv.UnsafeModelError, match="more than 10,000 objects"):
        explained(model)


# --- what the code looks up while it runs ---------------------------------------------

LOOKUPS = {
    "globals": 'globals()["HIDDEN"]',
    "a computed name": 'globals()["HID" + "DEN"]',
    "an alias of globals": 'everything()["HIDDEN"]',
    "eval": 'eval("HIDDEN")',
    "getattr of a module": 'getattr(some_data, "HIDDEN")',
    "vars of a module": 'vars(some_data)["HIDDEN"]',
    "globals of a function": 'imported.__globals__["HIDDEN"]',
    "a module in a container": "modules[0].HIDDEN",
    "sys.modules": 'sys.modules["some_data"].HIDDEN',
    "import_module": 'importlib.import_module("some_data").HIDDEN',
    "__import__": '__import__("some_data").HIDDEN',
    "import": "(lambda: [m := imported(), m.HIDDEN][1])()",
    "from import": "from_imported()",
    "a library's module": "math.HIDDEN",
    "builtins": "HIDDEN_AMONG_BUILTINS",
}
SOURCE = """
import importlib, math, sys
import numpyro
import numpyro.distributions as dist
import some_data

everything = globals
modules = [some_data]

def imported():
    import some_data
    return some_data

def from_imported():
    from some_data import HIDDEN
    return HIDDEN

def model(x):
    w = numpyro.sample("w", dist.Normal(sum({expression}), 1.0))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("x", dist.Normal(w, 1.0), obs=x)
"""


def looking_up(monkeypatch, expression: str, values: list[float]) -> Any:
    module = types.ModuleType("some_data")
    module.HIDDEN = values  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_data", module)
    monkeypatch.setattr(math, "HIDDEN", values, raising=False)
    monkeypatch.setattr(builtins, "HIDDEN_AMONG_BUILTINS", values, raising=False)
    scope: dict[str, Any] = {"__name__": "a_model"}
    if "globals" in expression or "eval" in expression or "everything" in expression:
        scope["HIDDEN"] = values
    exec(SOURCE.format(expression=expression), scope)
    return scope["model"]


@pytest.mark.parametrize("way", LOOKUPS)
def test_rows_that_the_code_looks_up_are_refused(way, monkeypatch):
    model = looking_up(monkeypatch, LOOKUPS[way], numbers(NUM_ROWS))
    with pytest.raises(nv.UnsafeModelError, match="axis of the length of the data"):
        explained(model)


@pytest.mark.quick_with("import_module", "eval", "builtins", "a computed name")
@pytest.mark.parametrize("way", LOOKUPS)
def test_fewer_numbers_that_the_code_looks_up_are_listed(way, monkeypatch):
    model = looking_up(monkeypatch, LOOKUPS[way], numbers(FEWER))
    assert "Treated as public because the model holds them: " in explained(model)


def test_a_script_may_be_called_like_a_module_of_the_standard_library(monkeypatch):
    script = types.ModuleType("profile")
    script.__file__ = "/home/someone/profile.py"
    scope = vars(script)
    monkeypatch.setitem(sys.modules, "profile", script)
    monkeypatch.setitem(sys.modules, "some_data", types.ModuleType("some_data"))
    scope["ROWS"] = numbers(NUM_ROWS)
    exec(SOURCE.format(expression="ROWS"), scope)
    with pytest.raises(nv.UnsafeModelError, match="captures 'ROWS'"):
        explained(scope["model"])


def reads_its_caller(x):
    return sys._getframe(3).f_locals


def test_a_model_that_reads_the_variables_of_its_callers_is_refused():
    with pytest.raises(
        nv.UnsafeModelError, match=r"(sys\._getframe|f_locals).*Take the call out"
    ):
        explained(holding(reads_its_caller))


def test_a_cache_that_fills_up_while_the_model_runs(tmp_path):
    path = tmp_path / "values.txt"
    path.write_text(json.dumps(numbers(NUM_ROWS)))

    @functools.cache
    def load():
        return json.loads(path.read_text())

    def model(x):
        w = numpyro.sample("w", dist.Normal(sum(load()), 1.0))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(w, 1.0), obs=x)

    with pytest.raises(nv.UnsafeModelError, match="axis of the length of the data"):
        explained(model)


# --- constants of programs ------------------------------------------------------------


@jax.custom_jvp
def identity(x, values):
    return x + jnp.sum(values)


@identity.defjvp
def _(primals, tangents):
    return identity(*primals), tangents[0]


def by_custom_vjp(x, values):
    @jax.custom_vjp
    def add(x):
        return x + jnp.sum(values)

    add.defvjp(lambda x: (add(x), None), lambda _, g: (g,))
    return add(x)


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "jit": lambda x, v: jax.jit(lambda x: x + jnp.sum(v))(x),
    "jit of jit": lambda x, v: jax.jit(jax.jit(lambda x: x + jnp.sum(v)))(x),
    "jit, as an array of JAX": lambda x, v: jax.jit(
        lambda x: x + jnp.sum(jnp.asarray(v) ** 2)
    )(x),
    "scan": lambda x, v: jax.lax.scan(
        lambda c, _: (jax.jit(lambda c: c + jnp.sum(v))(c), None), x, None, length=2
    )[0],
    "cond": lambda x, v: jax.lax.cond(
        x > 0, jax.jit(lambda x: x + jnp.sum(v)), lambda x: x, x
    ),
    "while": lambda x, v: jax.lax.fori_loop(
        0, 2, lambda i, x: jax.jit(lambda x: x + jnp.sum(v))(x), x
    ),
    "checkpoint": lambda x, v: jax.checkpoint(jax.jit(lambda x: x + jnp.sum(v)))(x),
    "vmap": lambda x, v: jax.vmap(jax.jit(lambda x: x + jnp.sum(v)))(x[None])[0],
    "custom_jvp": lambda x, v: jax.jit(lambda x: identity(x, v))(x),
    "custom_vjp": lambda x, v: jax.jit(lambda x: by_custom_vjp(x, v))(x),
}


@pytest.fixture
def stored(tmp_path) -> Callable[[int], Any]:
    """Stores numbers where only a model that runs can read them."""

    def store(shape: Any) -> Any:
        path = tmp_path / "values.npy"
        np.save(path, np.random.default_rng(0).uniform(size=shape).astype(np.float32))
        return path

    return store


def reading(path: Any, place: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def model(x):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(place(w, np.load(path)), 1.0), obs=x)

    return model


@pytest.mark.parametrize("shape", [(NUM_ROWS,), (2, NUM_ROWS)])
@pytest.mark.parametrize("place", PROGRAMS)
def test_rows_inside_a_program_are_refused(place, shape, stored):
    model = reading(stored(shape), PROGRAMS[place])
    with pytest.raises(nv.UnsafeModelError, match="axis of the length of the data"):
        explained(model)


@pytest.mark.quick_with("custom_vjp", "scan", "jit")
@pytest.mark.parametrize("place", PROGRAMS)
def test_smaller_arrays_inside_a_program_are_listed(place, stored):
    shown = explained(reading(stored((3, 2)), PROGRAMS[place]))
    assert "because the model holds them: an array of shape (3, 2)." in shown


def test_the_statement_lists_what_only_the_programs_show(stored):
    vi = vi_of(
        nv.private(reading(stored((3, 2)), PROGRAMS["jit"]), unit="people"), num_steps=1
    )
    result = vi.run(jax.random.key(0), X)
    assert "an array of shape (3, 2) that the model holds" in result.privacy.public


def test_a_program_that_was_compiled_ahead_is_refused():
    values = np.asarray(numbers(NUM_ROWS), np.float32)
    shape = jax.ShapeDtypeStruct((), np.float32)
    compiled = jax.export.export(jax.jit(lambda x: x + jnp.sum(values)))(shape)
    # As after loading it from a file, which needs another package.
    compiled = dataclasses.replace(compiled, _get_vjp=None)

    def model(x):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        shift = compiled.call(w)
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(shift, 1.0), obs=x)

    with pytest.raises(nv.UnsafeModelError, match="call_exported"):
        explained(model)


@pytest.mark.quick_with("9")
@pytest.mark.parametrize("count", [5, 9, 10])
def test_coefficients_inside_functions_of_jax_are_no_data(count):
    def model(x):
        w = numpyro.sample("w", dist.LeftTruncatedDistribution(dist.Normal(), 0.0))
        tries = numpyro.sample("tries", dist.Beta(1.0, 1.0))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Binomial(20, jnp.multiply(tries, w)), obs=x)

    vi = vi_of(nv.private(model, unit="people"))
    assert "Treated as public" not in str(vi.explain(np.arange(float(count))))


def test_arrays_without_information_and_public_arguments_may_have_any_length():
    def model(x, weights):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        plain = jax.jit(
            lambda w: (
                w
                + jnp.sum(np.zeros(NUM_ROWS))
                + jnp.sum(np.arange(NUM_ROWS))
                + jnp.sum(np.eye(NUM_ROWS))
                + jnp.sum(weights)
            )
        )
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(plain(w), 1.0), obs=x)

    vi = vi_of(nv.private(model, unit="people", public=("weights",)))
    assert "Treated as public" not in str(vi.explain(X, X.copy()))


# --- densities, parameters and guides -------------------------------------------------


def odd(path: Any) -> type[dist.Normal]:
    class Odd(dist.Normal):
        def log_prob(self, value, intermediates=None):
            density: Any = super().log_prob(value)
            return density + jnp.sum(np.load(path))

    return Odd


def test_constants_of_a_density_are_refused_or_listed(stored):
    def model(x):
        w = numpyro.sample("w", odd(path)(0.0, 1.0))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", odd(path)(w, 1.0), obs=x)

    path = stored((3, 2))
    assert "an array of shape (3, 2)" in explained(model, engine="dpvi")
    path = stored(NUM_ROWS)
    with pytest.raises(nv.UnsafeModelError, match="axis of the length of the data"):
        explained(model, engine="dpvi")


def test_the_initial_value_of_a_parameter_is_refused_or_listed(stored):
    def model(x):
        used = jnp.asarray(np.load(path))
        start: Any = numpyro.param("start", lambda key: jnp.sum(used))
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("x", dist.Normal(w + start, 1.0), obs=x)

    path = stored((3, 2))
    assert "an array of shape (3, 2)" in explained(model)
    path = stored(NUM_ROWS)
    with pytest.raises(nv.UnsafeModelError, match="axis of the length of the data"):
        explained(model)


def with_local(x):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(w, 1.0))
        numpyro.sample("x", dist.Normal(jnp.tanh(z), 1.0), obs=x)


def guide_of(path: Any, where: str) -> Callable[..., Any]:
    def extra(place: str) -> Any:
        used: Any = np.load(path) if place == where else np.zeros(1)
        return jax.jit(lambda s: s + jnp.sum(used))(0.0)

    def guide(x):
        loc: Any = numpyro.param("loc", jnp.asarray(extra("parameter")))
        normal = odd(path) if where == "density" else dist.Normal
        numpyro.sample("w", normal(loc + extra("global"), 1.0))
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("z", dist.Normal(loc * x + extra("local"), 1.0))

    return guide


@pytest.mark.quick_with("global")
@pytest.mark.parametrize("where", ["parameter", "global", "local", "density"])
def test_constants_of_a_guide_are_refused_or_listed(where, stored):
    shown = explained(with_local, engine=nv.DPVI(guide=guide_of(stored((3, 2)), where)))
    assert "because the guide holds them: an array of shape (3, 2)." in shown
    with pytest.raises(nv.UnsafeModelError, match=r"In the guide: .*of the length"):
        explained(with_local, engine=nv.DPVI(guide=guide_of(stored(NUM_ROWS), where)))
