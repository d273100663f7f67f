"""What a model or guide refers to: everything that its code could get hold of.

Followed are closures and the globals that the code names, default values, partials,
bound methods, callable objects and their classes, effect handlers, and the containers,
iterators and wrappers found there, without using an iterator up. Where the code looks
names up (`globals()`, `sys.modules`, `getattr` of a module), all that the module holds
is followed. Nothing of the caller's is run.

Functions and attributes that show the variables of callers, rows among them, are
refused, also where texts that the code has name them. Such a list cannot be complete: a
name can be put together while the code runs, and C extensions need none. It stops what
somebody writes without a thought, or copies. A model is code, and its author answers
for what it does; to run one that nobody has read is to show it the rows.
"""

import builtins
import collections
import contextvars
import datetime
import dis
import functools
import gc
import importlib
import inspect
import logging
import re
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex_core
import numpy as np
import numpyro
from jax.core import AbstractValue
from numpyro.distributions import Distribution
from numpyro.primitives import Messenger

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.jax_tools.program_constants import constants_of
from numpyro_vips.model import python_objects as objects
from numpyro_vips.model.array_likes import (
    FEW,
    NUMBERS,
    as_array,
    num_entries_with_numbers,
    stand_in,
)
from numpyro_vips.model.handler_stack import entered_handlers

# What refers to nothing, or to nothing of the model's.
_ATOMS = (
    *(*NUMBERS, np.dtype, np.ufunc, datetime.tzinfo, range),
    *(type(None), type(Ellipsis), type(NotImplemented)),
    *(np.random.Generator, np.random.RandomState, np.random.BitGenerator),
    *(jex_core.Jaxpr, jax.ShapeDtypeStruct, AbstractValue),
    *(types.GenericAlias, types.UnionType, types.TracebackType),
    *(logging.Logger, logging.Handler),
)
_MAX_OBJECTS = 100_000
# Names of modules or of their contents that are looked up while the code runs.
_LOOKUPS = (
    *(globals, eval, exec, __import__, importlib.import_module, sys.modules),
    vars(builtins),
)
# With these a model could read the variables of whoever calls it, the rows among them.
_INSPECTION = (
    *(sys._getframe, sys._current_frames, inspect.currentframe, inspect.stack),
    *(inspect.trace, inspect.getouterframes, gc.get_objects, gc.get_referrers),
    *(sys.setprofile, sys.settrace, threading.setprofile, threading.settrace),
    *(traceback.walk_stack, traceback.extract_stack, traceback.StackSummary),
    *(traceback.format_stack, traceback.print_stack, logging.currentframe),
)
_IDS_OF_INSPECTION = frozenset(map(id, _INSPECTION))
# The same, by names of attributes.
_FRAMES = frozenset(
    ("tb_frame", "f_back", "f_locals", "gi_frame", "cr_frame", "ag_frame")
)
# Names of some of these functions that nothing else has.
_INSPECTORS = frozenset(
    (
        *("_getframe", "_current_frames", "currentframe", "getouterframes"),
        *("setprofile", "settrace", "setprofile_all_threads", "settrace_all_threads"),
        *("walk_stack", "extract_stack", "StackSummary", "format_stack"),
        *("print_stack", "get_referrers"),
    )
)
_IN_TEXTS = re.compile(rf"(?<!\w)({'|'.join(sorted(_FRAMES | _INSPECTORS))})(?!\w)")
# A text outside of the code counts if it could be given to getattr() or str.format(). A
# document that speaks of frames does not.
_PATH = re.compile(r"[\w.\[\]{}]+")
_SHAPES_OF_DISTRIBUTIONS = {"_batch_shape", "_event_shape", "_indices"}
# Iterators of NumPy, and where they keep their arrays.
_ITERATORS = {np.flatiter: "base", np.nditer: "operands", np.broadcast: "iters"}

Parts = Iterator[tuple[str, Any]]


class Reference(NamedTuple):
    """An object that was met on the way.

    Attributes:
      name: Dotted name, such as `"condition.data.y"` for the data of a handler.
      value: The object.
      array: It as an array, see `array_likes`; None if it is none.
      is_whole: Whether that array stands for all that is in it, so that its entries are
        not met.
      earlier: Its number among all that were met, if it was met before. What it refers
        to does not follow again.
    """

    name: str
    value: Any
    array: np.ndarray | None = None
    is_whole: bool = False
    earlier: int | None = None


def references(*roots: Any, each_number: bool = False) -> Iterator[Reference]:
    """All that some objects, and the effect handlers around the call, refer to.

    Args:
      roots: The objects.
      each_number: Whether the entries of lists and dicts that are arrays in all but
        name are met too.

    Raises:
      UnsafeModelError: They refer to more objects than can be searched, or use
        functions that read the variables of their callers.
    """
    # Objects are kept, since the address of a dead one may be used again.
    met: dict[int, tuple[int, Any]] = {}
    # A stack of its own, so that no depth of nesting ends the search.
    stack = [("", root) for root in reversed((*roots, *entered_handlers()))]
    while stack:
        name, value = stack.pop()
        if id(value) in _IDS_OF_INSPECTION:
            known: Any = value
            raise _inspecting(f"{known.__module__}.{known.__qualname__}")
        if isinstance(value, str) and _PATH.fullmatch(value):
            _check_text(value)
        if id(value) in met or _is_atom(value):
            earlier, _ = met.get(id(value), (None, value))
            yield Reference(name, value, earlier=earlier)
            continue
        if not isinstance(value, str):  # Of which a vocabulary has many.
            met[id(value)] = len(met), value
        if len(met) > _MAX_OBJECTS:
            raise UnsafeModelError(
                f"The model refers to more than {_MAX_OBJECTS:,} objects (the last "
                f"one by the name {name!r}), so they cannot be searched for data. "
                "Let it refer to what it uses alone, and pass data as arguments."
            )
        array = as_array(value)
        is_list = isinstance(value, (*objects.SEQUENCES, dict))
        is_whole = array is not None and not (each_number and is_list)
        if array is None and (count := num_entries_with_numbers(value)):
            array = stand_in((count,))  # One per row, perhaps.
        yield Reference(name, value, array, is_whole)
        parts = _parts_of_array(value) if is_whole else _parts(value)
        stack += [(_join(name, part_name), part) for part_name, part in parts][::-1]


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name and part else name or part


def _is_atom(value: Any) -> bool:
    if isinstance(value, type):
        return objects.is_library(value.__module__) and objects.is_of_library(value)
    if isinstance(value, types.ModuleType):
        return objects.is_library(value.__name__)
    if isinstance(value, (np.void, str, bytes)):
        return False  # Records have fields, and text may hold numbers.
    return isinstance(value, _ATOMS) and objects.is_of_library(value)


def _parts(value: Any) -> Parts:
    """What `value` refers to, each with the name to add to its own."""
    if isinstance(value, dict):
        for key, part in list(dict.items(value)):
            # Names are public, but keys of other kinds may be data.
            yield key if isinstance(key, str) else "value", part
            if not isinstance(key, str):
                yield "key", key
        yield from _parts_of_subclass(value)
    elif isinstance(value, objects.SEQUENCES):
        yield from ((str(i), part) for i, part in enumerate(objects.items_of(value)))
        yield from _parts_of_subclass(value)
    elif objects.is_foreign_mapping(value):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        if not isinstance(value.__self__, (types.ModuleType, type)):
            yield "self", value.__self__
    elif isinstance(value, types.MethodType):
        yield from (("", value.__func__), ("self", value.__self__))
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield from ((f"args.{i}", part) for i, part in enumerate(value.args))
        yield from value.keywords.items()
        yield from objects.named(vars(value))
    elif isinstance(value, property):
        yield from (("", value.fget), ("", value.fset), ("", value.fdel))
    elif isinstance(value, types.CodeType):
        yield from _literals_of(value)
    elif isinstance(value, types.ModuleType):
        yield from objects.named(vars(value))
    elif isinstance(value, jex_core.ClosedJaxpr):
        constants = enumerate(constants_of(value))
        yield from ((f"constants.{number}", array) for number, array in constants)
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
        yield "", objects.attribute(objects.attribute(value, "__repr__"), "__self__")
    elif type(value) not in (str, bytes):
        yield from _parts_of_object(value)


def _parts_of_array(value: Any) -> Parts:
    """What an array has besides its numbers."""
    if isinstance(value, (np.ndarray, np.void)) and value.dtype.hasobject:
        entries = np.asarray(value).ravel().tolist()
        yield from ((str(number), part) for number, part in enumerate(entries))
    if isinstance(value, dict):
        yield from (("key", k) for k in dict.keys(value) if not isinstance(k, str))
    elif not isinstance(value, (np.ndarray, jax.Array, str, *objects.SEQUENCES)):
        yield "attrs", objects.attribute(value, "attrs")  # Of tables.
    yield from _parts_of_subclass(value)


def _parts_of_subclass(value: Any) -> Parts:
    """The attributes of an object whose class the caller derived from a container."""
    if not objects.is_of_library(value):
        yield from _parts_of_object(value)
    elif isinstance(value, collections.defaultdict):
        yield "", value.default_factory


def _parts_of_class(cls: type) -> Parts:
    for base in type.mro(cls) if cls is not type else ():
        if not objects.is_library(base.__module__):
            for name, part in vars(base).items():
                if name not in objects.ORDINARY:
                    yield ("" if isinstance(part, objects.METHODS) else name), part
    yield "", type(cls)


def _parts_of_object(value: Any) -> Parts:
    """What an object refers to, by the names of its attributes; none of its code runs.

    Of distributions, plates and handlers only what a model has given them counts, not
    what NumPyro notes for itself.
    """
    attributes = objects.attributes_of(value)
    if isinstance(value, (Distribution, numpyro.plate)):
        # Shapes and indices that they keep for themselves are no data.
        kinds = (np.ndarray, jax.Array, Distribution)
        attributes = {
            k: v
            for k, v in attributes.items()
            if k not in _SHAPES_OF_DISTRIBUTIONS
            and (
                not (objects.is_of_library(value) and k.startswith("_"))
                or isinstance(v, kinds)
            )
        }
    # The function inside a handler or a wrapper such as jax.jit(f) keeps its name.
    yield "", objects.attribute(value, "__wrapped__")
    if isinstance(value, Messenger):
        yield "", attributes.pop("fn", None)
        kind = type(value).__name__
        attributes = {f"{kind}.{k}": v for k, v in attributes.items()}
    yield from objects.named(attributes)
    if isinstance(value, types.GeneratorType) and value.gi_frame is not None:
        yield from _globals_of(value.gi_code, value.gi_frame.f_globals)
    for kind, where in _ITERATORS.items():
        if isinstance(value, kind):
            yield "", getattr(value, where)
    if objects.may_be_opened(value):
        yield from (("", part) for part in objects.referents_of(value))
    if not objects.is_of_library(value):
        yield "", type(value)


# --- what code refers to --------------------------------------------------------------


def _parts_of_function(fn: types.FunctionType) -> Parts:
    # First, so that what a wrapper also has in its closure keeps its plain name.
    yield from objects.named(vars(fn))
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    for variable, cell in cells:
        try:
            yield variable, cell.cell_contents
        except ValueError:  # The variable has not been assigned yet.
            continue
    defaults = fn.__defaults__ or ()
    parameters = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    yield from zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
    yield from (fn.__kwdefaults__ or {}).items()
    if not objects.is_library(fn.__globals__.get("__name__")):
        yield from _globals_of(fn.__code__, fn.__globals__)


def _globals_of(code: types.CodeType, scope: Mapping[str, Any]) -> Parts:
    """The globals that the code loads, and what it loads from modules (`data.X`)."""
    for name in sorted(_FRAMES.intersection(code.co_names)):
        raise _inspecting(name)
    for text in _texts_in(code.co_consts):
        _check_text(text)
    module, path = None, ""  # The module that the last instruction loaded.
    for instruction in dis.get_instructions(code):
        opcode, name = instruction.opname, instruction.argval
        if opcode == "EXTENDED_ARG":
            continue
        held, module, value = module, None, None
        is_attribute = opcode in ("LOAD_ATTR", "LOAD_METHOD") and name != "__dict__"
        if held is not None and is_attribute:
            value, path = _of_module(held, name), f"{path}.{name}"
        elif held is not None:
            # It goes somewhere else than to a name in the code, such as to getattr().
            yield from _contents(path, held, code)
        if opcode in ("LOAD_GLOBAL", "LOAD_NAME"):
            value, path = scope.get(name, getattr(builtins, name, None)), name
        if opcode == "IMPORT_NAME":
            yield from _imported(name, code, scope)
        elif isinstance(value, types.ModuleType):
            module = value
        elif _is_among(value, _INSPECTION):
            raise _inspecting(path)
        elif _is_among(value, _LOOKUPS):
            yield from _looked_up(code, scope)
        elif value is not None:
            yield path, value
    for name in sorted(_INSPECTORS.intersection(code.co_names)):
        raise _inspecting(name)
    if "__globals__" in code.co_names:
        yield from _looked_up(code, scope)
    yield from _literals_of(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_of(constant, scope)


def _inspecting(name: str) -> UnsafeModelError:
    return UnsafeModelError(
        f"The model uses {name}, with which it could read the variables of its "
        "callers, private rows among them. Take the call out."
    )


def _texts_in(constants: Iterable[Any]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, tuple | frozenset):
            yield from _texts_in(constant)


def _check_text(text: str) -> None:
    """Refuses what getattr(), str.format() or eval() could read frames with."""
    if found := _IN_TEXTS.search(text):
        raise _inspecting(found[0])


def _is_among(value: Any, known: Iterable[Any]) -> bool:
    return any(value is one for one in known)


def _of_module(module: types.ModuleType, name: str) -> Any:
    """An attribute of a module; of a library only what someone else has put there."""
    contents = vars(module)
    # Without one it is made on demand, by a function that may hold it.
    value = contents.get(name, contents.get("__getattr__"))
    if not objects.is_library(module.__name__) or isinstance(value, types.ModuleType):
        return value
    is_known = _is_among(value, (*_LOOKUPS, *_INSPECTION))
    return value if is_known or _is_foreign(value) else None


def _is_foreign(value: Any) -> bool:
    """Whether it would hold data, as an attribute of a library's module."""
    if isinstance(value, (types.FunctionType, type)):
        return not objects.is_library(value.__module__)
    kinds = (np.ndarray, jax.Array, *objects.SEQUENCES, dict, bytes, bytearray)
    return isinstance(value, kinds) or not objects.is_of_library(value)


def _variables(contents: Mapping[str, Any], prefix: str = "") -> Parts:
    for name, value in objects.named(contents):
        if not isinstance(value, types.ModuleType):
            yield prefix + name, value


def _contents(path: str, module: types.ModuleType, code: types.CodeType) -> Parts:
    """The values that code may reach through a module.

    Args:
      path: How error messages write the module.
      module: The module.
      code: The code that refers to it.

    Returns:
      Paths and values: all that a module of the user's holds. Of a library's module
      only what code names and what is none of the library's own, as where a user has
      put an array there.
    """
    if not objects.is_library(module.__name__):
        yield from _variables(vars(module), f"{path}.")
        return
    for name in (*code.co_names, *code.co_consts):
        if not isinstance(name, str):
            continue
        if id(vars(module).get(name)) in _IDS_OF_INSPECTION:
            raise _inspecting(f"{path}.{name}")
        if _is_foreign(vars(module).get(name, 0)):
            yield f"{path}.{name}", vars(module)[name]


def _imported(name: str, code: types.CodeType, scope: Mapping[str, Any]) -> Parts:
    """What the code may use of a module that it imports itself."""
    package = scope.get("__package__") or ""
    for full_name in dict.fromkeys((name, f"{package}.{name}".strip("."))):
        module = sys.modules.get(full_name)
        if module is None:
            continue
        contents = dict(objects.named(vars(module)))
        used = [part_name for part_name in code.co_names if part_name in contents]
        if objects.is_library(module.__name__) or not used:
            yield from _contents(name, module, code)
            continue
        for part_name in used:
            value = contents[part_name]
            if isinstance(value, types.ModuleType):
                yield from _contents(f"{name}.{part_name}", value, code)
            else:
                yield f"{name}.{part_name}", value


def _looked_up(code: types.CodeType, scope: Mapping[str, Any]) -> Parts:
    """What globals(), eval() or sys.modules may give to the code."""
    yield from _variables(scope)
    for name in dict.fromkeys(c for c in code.co_consts if isinstance(c, str)):
        if name in sys.modules:
            yield from _contents(name, sys.modules[name], code)


def _literals_of(code: types.CodeType) -> Parts:
    """Numbers that stand in the code itself, in a tuple, a list, a text or bytes."""
    for number, constant in enumerate(code.co_consts):
        in_function = code.co_flags & inspect.CO_OPTIMIZED
        is_docstring = number == 0 and in_function and isinstance(constant, str)
        if is_docstring or not isinstance(constant, (tuple, frozenset, str, bytes)):
            continue
        if len(constant) > FEW:
            yield "literal", constant
