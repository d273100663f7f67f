"""What a model or guide refers to: everything that its code could get hold of.

Followed are closures and the globals that the code names, default values, partials,
bound methods, callable objects and their classes, effect handlers, and the containers,
iterators and wrappers found there, without using an iterator up. Where the code looks
names up (`globals()`, `sys.modules`, `getattr` of a module), all that the module holds
is followed. Nothing of the caller's is run.

Functions that show the variables of callers are refused; see `code_references`.
"""

import collections
import contextvars
import datetime
import functools
import gc
import logging
import re
import types
import weakref
from collections.abc import Iterator
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
from numpyro_vips.model.handler_stack import entered_handlers
from numpyro_vips.model.references import python_objects as objects
from numpyro_vips.model.references.array_likes import (
    NUMBERS,
    as_array,
    num_entries_with_numbers,
    stand_in,
)
from numpyro_vips.model.references.code_references import (
    IDS_OF_INSPECTION,
    Parts,
    check_text,
    globals_of,
    inspecting,
    literals_of,
    parts_of_function,
)

# What refers to nothing, or to nothing of the model's.
_ATOMS = (
    *(*NUMBERS, np.dtype, datetime.tzinfo, range),
    *(type(None), type(Ellipsis), type(NotImplemented)),
    *(np.random.Generator, np.random.RandomState, np.random.BitGenerator),
    *(jex_core.Jaxpr, jax.ShapeDtypeStruct, AbstractValue),
    *(types.GenericAlias, types.UnionType, types.TracebackType),
    *(logging.Logger, logging.Handler),
)
_MAX_OBJECTS = 100_000
# A text outside of the code counts if it could be given to getattr() or str.format(). A
# document that speaks of frames does not.
_PATH = re.compile(r"[\w.\[\]{}]+")
_SHAPES_OF_DISTRIBUTIONS = {"_batch_shape", "_event_shape", "_indices"}
# Iterators of NumPy, and where they keep their arrays.
_ITERATORS = {np.flatiter: "base", np.nditer: "operands", np.broadcast: "iters"}


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
        if id(value) in IDS_OF_INSPECTION:
            known: Any = value
            raise inspecting(f"{known.__module__}.{known.__qualname__}")
        if isinstance(value, str) and _PATH.fullmatch(value):
            check_text(value)
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
        yield from parts_of_function(value)
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
    elif isinstance(value, np.ufunc):  # As `np.frompyfunc` makes of a function.
        yield from (("", part) for part in gc.get_referents(value) if callable(part))
    elif isinstance(value, property):
        yield from (("", value.fget), ("", value.fset), ("", value.fdel))
    elif isinstance(value, types.CodeType):
        yield from literals_of(value)
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
        yield from globals_of(value.gi_code, value.gi_frame.f_globals)
    for kind, where in _ITERATORS.items():
        if isinstance(value, kind):
            yield "", getattr(value, where)
    if objects.may_be_opened(value):
        yield from (("", part) for part in objects.referents_of(value))
    if not objects.is_of_library(value):
        yield "", type(value)
