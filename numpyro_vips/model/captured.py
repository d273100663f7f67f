"""The arrays that a model holds itself, rather than being given them as arguments.

Such arrays are neither clipped nor subsampled, so they count as public. They hide in
closures, globals, default values, partials, bound methods, callable objects, containers
and the data of effect handlers; `captured_arrays` finds them and gives them readable
names. What a program holds however it got hold of it is found in
`jax_tools/program_constants.py`.
"""

import builtins
import collections
import contextvars
import datetime
import decimal
import dis
import fractions
import functools
import gc
import hashlib
import importlib
import inspect
import io
import logging
import os
import re
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import numpyro
import scipy.sparse
from jax.core import AbstractValue, Tracer
from numpyro.distributions import Distribution
from numpyro.primitives import _PYRO_STACK, Messenger

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.jax_tools.program_constants import constants_of

# Functions of these packages hold no data of the caller. Their closures are still
# searched, since `jax.vmap(f)` keeps `f` in one, but their globals are not.
_LIBRARIES = sys.stdlib_module_names | {
    *("IPython", "_pytest", "arviz", "beartype", "equinox", "flax", "haiku"),
    *("jax", "jaxlib", "jaxtyping", "joblib", "matplotlib", "multipledispatch"),
    *("numpy", "numpyro", "numpyro_vips", "optax", "pandas", "polars", "pyarrow"),
    *("pytest", "scipy", "sklearn", "torch", "tqdm", "xarray"),
}
# What refers to nothing, or to nothing of the model's.
_ATOMS = (
    *(bool, int, float, complex, np.generic, np.dtype, type(None), range),
    *(decimal.Decimal, fractions.Fraction, datetime.date, datetime.time),
    *(datetime.timedelta, datetime.tzinfo, np.ufunc),
    *(type(Ellipsis), type(NotImplemented)),
    *(np.random.Generator, np.random.RandomState, np.random.BitGenerator),
    *(jex_core.Jaxpr, jax.ShapeDtypeStruct, AbstractValue),
    *(types.GenericAlias, types.UnionType, types.TracebackType),
    *(logging.Logger, logging.Handler),
)
_NUMBERS = (
    *(bool, int, float, complex, np.generic, decimal.Decimal, fractions.Fraction),
    *(datetime.date, datetime.time, datetime.timedelta),
)
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
# Attributes that every function, class or instance has.
_ORDINARY = {
    *("__doc__", "__module__", "__name__", "__qualname__", "__dict__", "__weakref__"),
    *("__annotations__", "__slots__", "__match_args__", "__dataclass_fields__"),
    *("__dataclass_params__", "__orig_bases__", "__parameters__", "__file__"),
    *("__path__", "__conditional_annotations__", "_jit_info"),
    *("__abstractmethods__", "_abc_impl", "__firstlineno__", "__static_attributes__"),
    *("__builtins__", "__loader__", "__spec__", "__package__", "__cached__"),
    *("__type_params__", "__annotate__", "__annotate_func__", "__orig_class__"),
}
# A few numbers in text, in code or among the attributes of an object are a shape, a
# date or settings; more of them may be data.
_FEW = 4
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w])", re.ASCII
)
_DIGITS = re.compile(r"[\s\d.,:;+\-/()eETZ]*\d[\s\d.,:;+\-/()eETZ]*", re.ASCII)
# What separates the columns of a line of text.
_MARKS = (",", ";", ":", "\t", "|", "=")
# Longer words are no words, but perhaps bytes written as text.
_LONGEST_WORD = 100
# How deep lists in lists, and records in lists, are looked into for their shape. Only
# the shape: the search itself goes to any depth.
_MAX_DEPTH = 12
_MAX_OBJECTS = 100_000
# Names of modules or of their contents that are looked up while the code runs.
_LOOKUPS = (
    *(globals, eval, exec, __import__, importlib.import_module, sys.modules),
    vars(builtins),
)
# With these a model could read the variables of whoever calls it, the rows among them.
_INSPECTION = (
    *(sys._getframe, sys._current_frames, inspect.currentframe, inspect.stack),
    *(inspect.trace, gc.get_objects, gc.get_referrers),
)


def captured_arrays(
    fn: Callable[..., Any], *, with_traced: bool = True
) -> dict[str, np.ndarray]:
    """Finds the arrays with at least one axis that `fn` would use by itself.

    Searched are, recursively: closures and the globals that the code names, default
    values, `functools.partial`, bound methods, callable objects and their classes,
    effect handlers inside `fn` (`condition`, `substitute`) and those active around
    the call, and the containers, iterators and wrappers found there, without using
    an iterator up. Tables, sparse matrices and whatever holds numbers or arrays, such
    as a list, a set, a dict, a buffer of bytes or a text, count as arrays. Where the
    code looks names up (`globals()`, `sys.modules`, `getattr` of a module), all that
    the module holds is searched.

    The search follows references, not what the code does with them, so it may list
    an array that is never used. It cannot see what a function reads from a file or
    makes when it is called, nor single numbers.

    Args:
      fn: A model, with or without handlers around it.
      with_traced: Whether arrays count that JAX is tracing at the time.

    Returns:
      The arrays by dotted name, such as `"vocabulary"` for a variable or
      `"condition.data.y"` for the data of a handler. Arrays of NumPy and JAX are
      given as they are; of anything else only the shape is right, and of a list of
      arrays of different shapes the shape is its length.

    Raises:
      UnsafeModelError: `fn` refers to more objects than can be searched, or uses
        functions that read the variables of its callers.
    """
    search = _Search(with_traced=with_traced)
    search.visit(fn)
    for handler in _PYRO_STACK:
        search.visit(handler)
    return search.found


class Fingerprint(NamedTuple):
    """What some objects are made of, to be compared.

    Attributes:
      digest: Equal for objects that refer to equal numbers, texts and arrays by equal
        code, through closures, globals, attributes and containers. Instances of the
        caller's classes, and what cannot be looked into, also count by identity.
      referents: All that was looked at. As long as these are kept, an identity in the
        digest cannot come to mean another object.
    """

    digest: bytes
    referents: tuple[Any, ...]


def fingerprint(*values: Any) -> Fingerprint:
    """Hashes what `captured_arrays` searches, for all of some objects.

    Not seen is what no object refers to, such as files, the time, and the state inside
    a generator of random numbers.

    Raises:
      UnsafeModelError: As `captured_arrays`.
    """
    search = _Search(with_traced=True, hashed=hashlib.sha256())
    for value in (*values, *_PYRO_STACK):
        search.visit(value)
    assert search.hashed is not None
    referents = (*search.seen.values(), *search.identified)
    return Fingerprint(search.hashed.digest(), referents)


class _Search:
    """A depth-first walk over everything reachable from a callable.

    With `hashed`, all that is met is added to it.
    """

    def __init__(self, *, with_traced: bool, hashed: "hashlib._Hash | None" = None):
        self.with_traced = with_traced
        self.hashed = hashed
        self.identified: list[Any] = []
        self.found: dict[str, np.ndarray] = {}
        # Objects are kept, since the address of a dead one may be used again.
        self.seen: dict[int, Any] = {}
        self.order: dict[int, int] = {}

    def visit(self, value: Any) -> None:
        # A stack of its own, so that no depth of nesting ends the search.
        stack: list[tuple[str, Any]] = [("", value)]
        while stack:
            name, value = stack.pop()
            if self.hashed is not None:
                self._hash(self.hashed, name, value)
            if id(value) in self.seen or _is_atom(value):
                continue
            if not isinstance(value, str):  # Of which a vocabulary has many.
                self.order[id(value)] = len(self.seen)
                self.seen[id(value)] = value
            if len(self.seen) > _MAX_OBJECTS:
                raise UnsafeModelError(
                    f"The model refers to more than {_MAX_OBJECTS:,} objects (the last "
                    f"one by the name {name!r}), so they cannot be searched for data. "
                    "Let it refer to what it uses alone, and pass data as arguments."
                )
            stack += reversed(list(self._look_at(name, value)))

    def _hash(self, hashed: "hashlib._Hash", name: str, value: Any) -> None:
        """Adds a value, without what it refers to, which is met by itself."""
        content = _content(value)
        if id(value) in self.seen:
            # What it refers to does not follow again, so say which one it is.
            content = f"again {self.order[id(value)]}".encode()
        elif content is None:
            # The identity stands for what cannot be looked into.
            self.identified.append(value)
            content = str(id(value)).encode()
        kind = f"{name} {type(value).__module__}.{type(value).__qualname__}"
        for part in (kind.encode(), content):
            hashed.update(len(part).to_bytes(8, "little") + part)

    def _look_at(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Notes what `value` is as an array; yields what else is to be visited."""
        if isinstance(value, Tracer) and not self.with_traced:
            return
        array = _as_array(value)
        if array is not None:
            self._add(name, array)
            inside: Iterable[tuple[str, Any]] = _parts_of_array(value)
            if self.hashed is not None:
                if isinstance(value, (*_SEQUENCES, dict)):
                    inside = _parts(value)  # The numbers count, not their number.
                elif not isinstance(value, jax.Array) and _content(value) is None:
                    # It may change in place and keep its identity.
                    self.hashed.update(os.urandom(16))
        else:
            count = _num_entries_with_numbers(value)
            if count:
                self._add(name, _stand_in((count,)))  # One per row, perhaps.
            inside = _parts(value)
        for part_name, part in inside:
            yield _join(name, part_name), part

    def _add(self, name: str, array: np.ndarray) -> None:
        if array.ndim == 0:
            return
        name = name or "array"
        unique, count = name, 2
        while unique in self.found:
            unique, count = f"{name} ({count})", count + 1
        self.found[unique] = array


def _content(value: Any) -> bytes | None:
    """What a value is, without what it refers to; None if only its identity tells."""
    if isinstance(value, (*_NUMBERS, str, bytes, range, np.dtype, type(None))):
        # A number of NumPy is printed with all its digits, and its type is known.
        return repr(value).encode()
    if isinstance(value, Tracer):
        return None
    if isinstance(value, np.ndarray) or (
        isinstance(value, jax.Array)
        and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    ):
        array = np.asarray(value)
        head = f"{array.dtype!r} {array.shape} ".encode()
        # What an array of objects refers to is met by itself.
        return head if array.dtype.hasobject else head + array.tobytes()
    if isinstance(value, types.FunctionType):
        return _content_of_code(value.__code__)
    if isinstance(value, types.CodeType):
        return _content_of_code(value)
    if type(value).__module__.split(".")[0] == "numpyro_vips":
        return b""  # Such as settings: their attributes are all there is.
    structural = (*_SEQUENCES, dict, types.CellType, types.MethodType)
    if isinstance(value, (*structural, functools.partial)) and _is_library(
        type(value).__module__
    ):
        has_length = isinstance(value, (*_SEQUENCES, dict))
        return str(len(value)).encode() if has_length else b""
    return None


def _content_of_code(code: types.CodeType) -> bytes:
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    found = [code.co_code, repr(names).encode()]
    for constant in code.co_consts:
        is_code = isinstance(constant, types.CodeType)
        found.append(_content_of_code(constant) if is_code else repr(constant).encode())
    return b"".join(len(part).to_bytes(8, "little") + part for part in found)


def _is_atom(value: Any) -> bool:
    if isinstance(value, type):
        return _is_library(value.__module__) and _is_library(type(value).__module__)
    if isinstance(value, types.ModuleType):
        return _is_library(value.__name__)
    if isinstance(value, (np.void, str, bytes)):
        return False  # Records have fields, and text may hold numbers.
    return isinstance(value, _ATOMS) and _is_library(type(value).__module__)


# --- what counts as an array ----------------------------------------------------------


def _as_array(value: Any, depth: int = 0) -> np.ndarray | None:
    """Returns `value` as an array, or an array of its shape; None if it is none."""
    if isinstance(value, (np.ndarray, np.void)):
        return _with_inner_axes(np.asanyarray(value))
    if isinstance(value, jax.Array):
        is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        if isinstance(value, Tracer) or is_key:
            return _stand_in(value.shape)
        return np.asarray(value)
    if scipy.sparse.issparse(value):
        return _stand_in(value.shape)
    if isinstance(value, str):
        return _numbers_in_text(value)
    if isinstance(value, (*_SEQUENCES, dict)):
        # Lists of numbers, and of arrays of one shape, are arrays in all but name.
        shapes = _shapes(value, depth)
        if len(shapes) > 1 or (isinstance(value, dict) and shapes != {()}):
            return None  # The entries of a dict have names of their own.
        return _stand_in((len(value), *shapes.pop())) if shapes else None
    kind: Any  # The methods are those of Python's own classes, not of one derived.
    for kind in (io.BytesIO, io.StringIO):
        if isinstance(value, kind) and not value.closed:
            return _as_array(kind.getvalue(value))
    buffer = _buffer(value)
    if buffer is not None:
        return None if isinstance(value, bytes) and buffer.size <= _FEW else buffer
    return _as_foreign_array(value)


def _with_inner_axes(array: np.ndarray) -> np.ndarray:
    """The array itself, or one of its shape if its entries have axes of their own."""
    inner: list[tuple[int, ...]] = []
    for dtype, *_ in (array.dtype.fields or {}).values():
        inner.append(dtype.shape)
    sizes = tuple(size for shape in inner for size in shape)
    return _stand_in((*array.shape, *sizes)) if sizes else array


def _buffer(value: Any) -> np.ndarray | None:
    """What lies in a buffer such as bytes, an `array.array` or a memory map."""
    if isinstance(value, type):
        return None
    try:
        with memoryview(value) as view:
            return _stand_in(view.shape or ())
    except (TypeError, ValueError, BufferError):  # It has none, or has been closed.
        return None


def _as_foreign_array(value: Any) -> np.ndarray | None:
    """The shape of tables, tensors and arrays of other libraries."""
    if isinstance(value, (type, types.ModuleType, *_CODE)):
        return None
    if _is_foreign_mapping(value):
        return None
    kind, shape = type(value), _attribute(value, "shape")
    has_shape = isinstance(shape, tuple) and all(isinstance(n, int) for n in shape)
    converts = any(_has(value, name) for name in ("dtype", "__array__", "__dlpack__"))
    if has_shape and converts:
        return _stand_in(shape)
    names = ("__array__", "__dlpack__", "__array_interface__", "__arrow_c_array__")
    if any(hasattr(kind, name) for name in names) and not _has(value, "__dict__"):
        return _stand_in((len(value),)) if hasattr(kind, "__len__") else None
    return None


def _is_foreign_mapping(value: Any) -> bool:
    """Whether it is a mapping of another library, such as a data set of xarray."""
    module = type(value).__module__
    is_standard = module.split(".")[0] in sys.stdlib_module_names
    return isinstance(value, Mapping) and _is_library(module) and not is_standard


def _numbers_in_text(text: str) -> np.ndarray | None:
    """One axis per line and one per number, of a text with more than a few numbers.

    Of a very long word, such as bytes in base64, its length.
    """
    counts = [len(_NUMBER.findall(line)) for line in text.splitlines()]
    counts = [count for count in counts if count]
    if sum(counts) <= _FEW:
        longest = max(map(len, text.split()), default=0)
        return _stand_in((longest,)) if longest > _LONGEST_WORD else None
    if len(counts) == 1:
        return _stand_in((counts[0],))
    if len(set(counts)) == 1:
        return _stand_in((len(counts), counts[0]))
    return _stand_in((len(counts),))


def _shapes(value: Any, depth: int = 0) -> set[tuple[int, ...]]:
    """The shapes of the entries; none at all if one is neither number nor array."""
    shapes = set()
    for part in _entries(value):
        if part is None:
            continue  # A missing number, where there are others.
        if _is_number(part):
            shapes.add(())
            continue
        array = _as_array(part, depth + 1) if depth < _MAX_DEPTH else None
        if array is None or isinstance(part, str):
            return set()
        shapes.add(array.shape)
    return shapes


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return _DIGITS.fullmatch(value) is not None
    return isinstance(value, _NUMBERS)


def _num_entries_with_numbers(value: Any) -> int:
    """How many entries are numbers or arrays, or have some; 0 for a few.

    So a list of arrays of different shapes counts as an array, a table of records, and
    an object with one attribute for every person.
    """
    if isinstance(value, (list, tuple)) and _shapes(value):
        return len(value)
    if not isinstance(value, (*_SEQUENCES, dict, types.SimpleNamespace)):
        kind = value if isinstance(value, type) else type(value)
        if _is_library(kind.__module__) or isinstance(value, _CODE):
            return 0
    count = sum(_has_numbers(part) for part in _entries(value))
    return count if count > _FEW else 0


def _has_numbers(value: Any, depth: int = 0) -> bool:
    if isinstance(value, str):
        has_columns = any(mark in value for mark in _MARKS)
        return _is_number(value) or (has_columns and bool(_NUMBER.search(value)))
    if _is_number(value):
        return True
    if isinstance(value, (types.ModuleType, type, *_CODE)) or depth == 2:
        return False
    if isinstance(value, (np.ndarray, jax.Array)):
        return True
    is_container = isinstance(value, (*_SEQUENCES, dict, types.SimpleNamespace))
    if is_container or not _is_library(type(value).__module__):
        return any(_has_numbers(part, depth + 1) for part in _entries(value))
    return False


def _entries(value: Any) -> list[Any]:
    """The entries of a container, the values of a dict, the attributes of an object."""
    if isinstance(value, dict):
        keys, values = list(dict.keys(value)), list(dict.values(value))
        if _is_index(values):
            return []  # Of words, say: a list of them says as much.
        if any(isinstance(key, _NUMBERS) for key in keys) and not _is_index(keys):
            return values if any(map(_is_number, values)) else keys
        return values
    kind: Any  # The method is that of Python's own class, not of one derived.
    for kind in _SEQUENCES:
        if isinstance(value, kind):
            return list(kind.__iter__(value))
    own = vars(value) if isinstance(value, type) else _instance_attributes(value)
    return [part for name, part in own.items() if name not in _ORDINARY]


def _is_index(values: list[Any]) -> bool:
    """Whether they are the numbers 0, 1, ... or 1, 2, ... in this order."""
    if not all(type(value) is int for value in values):
        return False
    return any(values == list(range(k, k + len(values))) for k in (0, 1))


# --- what an object refers to ---------------------------------------------------------

_CODE = (
    *(types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.CodeType),
    *(types.MethodWrapperType, property, staticmethod, classmethod, functools.partial),
)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What `value` refers to, each with the name to add to its own.

    Nothing of the caller's is run for it, and no iterator is moved.
    """
    if isinstance(value, dict):
        for key, part in list(dict.items(value)):
            # Names are public, but keys of other kinds may be data.
            yield key if isinstance(key, str) else "value", part
            if not isinstance(key, str):
                yield "key", key
        yield from _parts_of_subclass(value)
    elif isinstance(value, _SEQUENCES):
        yield from ((str(i), part) for i, part in enumerate(_entries(value)))
        yield from _parts_of_subclass(value)
    elif _is_foreign_mapping(value):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield "", value.__func__
        yield "self", value.__self__
    elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        if not isinstance(value.__self__, (types.ModuleType, type)):
            yield "self", value.__self__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield from ((f"args.{i}", part) for i, part in enumerate(value.args))
        yield from value.keywords.items()
        yield from _attributes(vars(value))
    elif isinstance(value, (staticmethod, classmethod)):
        yield "", value.__func__
    elif isinstance(value, property):
        functions = (value.fget, value.fset, value.fdel)
        yield from (("", f) for f in functions if f is not None)
    elif isinstance(value, types.CodeType):
        yield from _literals_of(value)
    elif isinstance(value, types.ModuleType):
        yield from _attributes(vars(value))
    elif isinstance(value, jex_core.ClosedJaxpr):
        for number, constant in enumerate(constants_of(value)):
            yield f"constants.{number}", constant
    elif isinstance(value, type):
        yield from _parts_of_class(value)
    elif isinstance(value, contextvars.ContextVar):
        yield "", value.get(None)
        yield from (("", part) for part in gc.get_referents(value))
    elif isinstance(value, contextvars.Context):
        yield from ((variable.name, part) for variable, part in value.items())
    elif isinstance(value, weakref.ref):
        yield "", weakref.ref.__call__(value)
        yield from _parts_of_object(value)
    elif type(value) in (weakref.ProxyType, weakref.CallableProxyType):
        yield "", _attribute(_attribute(value, "__repr__"), "__self__")
    elif type(value) not in (str, bytes):
        yield from _parts_of_object(value)


def _parts_of_array(value: Any) -> Iterator[tuple[str, Any]]:
    """What an array has besides its numbers."""
    if isinstance(value, (np.ndarray, np.void)) and value.dtype.hasobject:
        for number, part in enumerate(np.asarray(value).ravel().tolist()):
            yield str(number), part
    if isinstance(value, dict):
        yield from (("key", k) for k in dict.keys(value) if not isinstance(k, str))
    elif not isinstance(value, (np.ndarray, jax.Array, str, *_SEQUENCES)):
        yield "attrs", _attribute(value, "attrs")  # Of tables.
    yield from _parts_of_subclass(value)


def _parts_of_subclass(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object whose class the caller derived from a container."""
    if not _is_library(type(value).__module__):
        yield from _parts_of_object(value)
    elif isinstance(value, collections.defaultdict):
        yield "", value.default_factory


def _parts_of_function(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    # First, so that what a wrapper also has in its closure keeps its plain name.
    yield from _attributes(vars(fn))
    for variable, cell in zip(
        fn.__code__.co_freevars, fn.__closure__ or (), strict=True
    ):
        try:
            yield variable, cell.cell_contents
        except ValueError:  # The variable has not been assigned yet.
            continue
    defaults = fn.__defaults__ or ()
    parameters = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    yield from zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
    yield from (fn.__kwdefaults__ or {}).items()
    if not _is_library(fn.__globals__.get("__name__")):
        yield from _globals_of(fn.__code__, fn.__globals__)


def _globals_of(
    code: types.CodeType, scope: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """The globals that the code loads, and what it loads from modules (`data.X`)."""
    module, path = None, ""  # The module that the last instruction loaded.
    for instruction in dis.get_instructions(code):
        opcode, name = instruction.opname, instruction.argval
        if opcode in ("EXTENDED_ARG", "CACHE"):
            continue
        value = None
        if opcode in ("LOAD_GLOBAL", "LOAD_NAME"):
            value, path = scope.get(name, getattr(builtins, name, None)), name
        elif (
            opcode in ("LOAD_ATTR", "LOAD_METHOD")
            and module is not None
            and name != "__dict__"
        ):
            value, path = _of_module(module, name, code), f"{path}.{name}"
            module = None
        if module is not None:
            # It goes somewhere else than to a name in the code, such as to getattr().
            yield from _contents(path, module, code)
            module = None
        if opcode == "IMPORT_NAME":
            yield from _imported(name, code, scope)
        elif isinstance(value, types.ModuleType):
            module = value
        elif value is not None:
            _refuse_inspection(value, path)
            if any(value is lookup for lookup in _LOOKUPS):
                yield from _looked_up(code, scope)
            else:
                yield path, value
    if "__globals__" in code.co_names:
        yield from _looked_up(code, scope)
    yield from _literals_of(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_of(constant, scope)


def _of_module(module: types.ModuleType, name: str, code: types.CodeType) -> Any:
    """An attribute of a module; of a library only what someone else has put there."""
    contents = vars(module)
    value = contents.get(name)
    if value is None and name not in contents:
        # Made on demand, by a function that may hold it.
        value = contents.get("__getattr__")
    is_public = any(value is known for known in (*_LOOKUPS, *_INSPECTION))
    if not _is_library(module.__name__) or isinstance(value, types.ModuleType):
        return value
    return value if is_public or _is_foreign(value) else None


def _is_foreign(value: Any) -> bool:
    """Whether it would hold data, as an attribute of a library's module."""
    if isinstance(value, (types.FunctionType, type)):
        return not _is_library(value.__module__)
    if isinstance(value, (np.ndarray, jax.Array, *_SEQUENCES, dict, bytes, bytearray)):
        return True
    return not _is_library(type(value).__module__)


def _contents(
    path: str, module: types.ModuleType, code: types.CodeType
) -> Iterator[tuple[str, Any]]:
    """All that a module holds; of a library what others put there, if code names it."""
    if not _is_library(module.__name__):
        for name, value in _attributes(vars(module)):
            if not isinstance(value, types.ModuleType):
                yield f"{path}.{name}", value
        return
    for name in (*code.co_names, *code.co_consts):
        if isinstance(name, str) and _is_foreign(vars(module).get(name, 0)):
            yield f"{path}.{name}", vars(module)[name]


def _imported(
    name: str, code: types.CodeType, scope: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """What the code may use of a module that it imports itself."""
    package = scope.get("__package__") or ""
    for full_name in dict.fromkeys((name, f"{package}.{name}".strip("."))):
        module = sys.modules.get(full_name)
        if module is None:
            continue
        used = [n for n in code.co_names if n in vars(module) and n not in _ORDINARY]
        if _is_library(module.__name__) or not used:
            yield from _contents(name, module, code)
            continue
        for attribute in used:
            value = vars(module)[attribute]
            if not isinstance(value, types.ModuleType):
                yield f"{name}.{attribute}", value
            else:
                yield from _contents(f"{name}.{attribute}", value, code)


def _looked_up(
    code: types.CodeType, scope: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """What globals(), eval() or sys.modules may give to the code."""
    for name, value in _attributes(scope):
        if not isinstance(value, types.ModuleType):
            yield name, value
    texts = [text for text in code.co_consts if isinstance(text, str)]
    for name in dict.fromkeys(texts):
        if name in sys.modules:
            yield from _contents(name, sys.modules[name], code)


def _refuse_inspection(value: Any, path: str) -> None:
    if any(value is function for function in _INSPECTION):
        raise UnsafeModelError(
            f"The model uses {path}, with which it could read the variables of its "
            "callers, private rows among them. Take the call out."
        )


def _literals_of(code: types.CodeType) -> Iterator[tuple[str, Any]]:
    """Numbers that stand in the code itself, in a tuple, a list, a text or bytes."""
    for number, constant in enumerate(code.co_consts):
        in_function = code.co_flags & inspect.CO_OPTIMIZED
        is_docstring = number == 0 and in_function and isinstance(constant, str)
        if is_docstring or not isinstance(constant, (tuple, frozenset, str, bytes)):
            continue
        if len(constant) > _FEW:
            yield "literal", constant


def _parts_of_class(cls: type) -> Iterator[tuple[str, Any]]:
    for base in type.mro(cls) if cls is not type else ():
        if not _is_library(base.__module__):
            for attribute, part in vars(base).items():
                is_code = isinstance(part, (types.FunctionType, property))
                is_code = is_code or isinstance(part, (staticmethod, classmethod))
                if attribute not in _ORDINARY:
                    yield ("" if is_code else attribute), part
    yield "", type(cls)


def _parts_of_object(value: Any) -> Iterator[tuple[str, Any]]:
    attributes = _instance_attributes(value)
    is_library = _is_library(type(value).__module__)
    if isinstance(value, (Distribution, numpyro.plate)):
        # Shapes and indices that they keep for themselves are no data.
        kinds = (np.ndarray, jax.Array, Distribution)
        attributes = {
            k: v
            for k, v in attributes.items()
            if k not in _SHAPES_OF_DISTRIBUTIONS
            and (not is_library or not k.startswith("_") or isinstance(v, kinds))
        }
    # The function inside a handler or a wrapper such as jax.jit(f) keeps its name.
    yield "", _attribute(value, "__wrapped__")
    if isinstance(value, Messenger):
        yield "", attributes.pop("fn", None)
        kind = type(value).__name__
        attributes = {f"{kind}.{k}": v for k, v in attributes.items()}
    yield from _attributes(attributes)
    if isinstance(value, types.GeneratorType) and value.gi_frame is not None:
        yield from _globals_of(value.gi_code, value.gi_frame.f_globals)
    for kind, attribute in _ITERATORS.items():
        if isinstance(value, kind):
            yield "", getattr(value, attribute)
    is_standard = type(value).__module__.split(".")[0] in sys.stdlib_module_names
    if (is_standard or not is_library) and not _is_cache_of_library(value):
        # Of types written in C this is the only way to see what is inside.
        own = getattr(value, "__dict__", None)
        yield from (("", part) for part in gc.get_referents(value) if part is not own)
    if not is_library:
        yield "", type(value)


_SHAPES_OF_DISTRIBUTIONS = {"_batch_shape", "_event_shape", "_indices"}


# Iterators of NumPy, and where they keep their arrays.
_ITERATORS = {np.flatiter: "base", np.nditer: "operands", np.broadcast: "iters"}


def _is_cache_of_library(value: Any) -> bool:
    """Whether it is a memory of a library's, filled by others than the model."""
    function = _attribute(value, "__wrapped__")
    return function is not None and _is_library(_attribute(function, "__module__"))


def _instance_attributes(value: Any) -> dict[str, Any]:
    """The attributes that an object itself has, of its `__dict__` and its slots."""
    try:
        attributes = dict(vars(value))
    except TypeError:  # It has no __dict__.
        attributes = {}
    for cls in type(value).__mro__:
        kinds: Any = types.MemberDescriptorType
        if cls.__module__.startswith(("scipy.", "sklearn.")):
            kinds = (types.MemberDescriptorType, types.GetSetDescriptorType)
        for name, descriptor in vars(cls).items():
            if isinstance(descriptor, kinds) and name not in _ORDINARY:
                try:
                    attributes.setdefault(name, descriptor.__get__(value))
                except Exception:  # It has not been assigned yet, for one.
                    continue
    return attributes


def _attributes(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in list(attributes.items()):
        if name == "__wrapped__":
            yield "", value
        elif name not in _ORDINARY:
            yield name, value


def _has(value: Any, attribute: str) -> bool:
    return _attribute(value, attribute) is not None


def _attribute(value: Any, attribute: str) -> Any:
    try:
        # An attribute made on demand, such as a mock's, is none.
        if inspect.getattr_static(value, attribute, None) is None:
            return None
        return getattr(value, attribute, None)
    except Exception:  # A property of someone else's class may raise anything.
        return None


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name and part else name or part


def _is_library(module: Any) -> bool:
    return isinstance(module, str) and _is_library_root(module.split(".")[0])


@functools.cache
def _is_library_root(root: str) -> bool:
    if root not in sys.stdlib_module_names:
        return root in _LIBRARIES
    # A script of the caller's may well be called profile.py or queue.py.
    path = getattr(sys.modules.get(root), "__file__", None)
    return path is None or path.startswith(_STANDARD_LIBRARY)


_STANDARD_LIBRARY = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    | {os.path.dirname(os.__file__)}
)


def _stand_in(shape: tuple[int, ...]) -> np.ndarray:
    """An array of this shape that takes no memory; its values mean nothing."""
    return np.broadcast_to(np.zeros(()), shape)
