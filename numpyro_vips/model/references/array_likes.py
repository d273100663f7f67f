"""What counts as an array: whatever may hold one number for each person.

Besides the arrays of NumPy and JAX these are tables and sparse matrices, buffers of
bytes, texts with numbers, and lists, sets, dicts and objects of numbers or of arrays.
"""

import datetime
import decimal
import fractions
import functools
import io
import re
import types
from typing import Any

import jax
import numpy as np
import scipy.sparse
from jax.core import Tracer

from numpyro_vips.jax_tools.random_keys import is_key
from numpyro_vips.model.references import python_objects as objects

NUMBERS = (
    *(bool, int, float, complex, np.generic, decimal.Decimal, fractions.Fraction),
    *(datetime.date, datetime.time, datetime.timedelta),
)
# A few numbers in text, in code, by name in a dict or among the attributes of an object
# are a shape, a date or settings; more of them may be data.
FEW = 4
_CONTAINERS = (*objects.SEQUENCES, dict, types.SimpleNamespace)
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w])", re.ASCII
)
_DIGITS = re.compile(r"[\s\d.,:;+\-/()eETZ]*\d[\s\d.,:;+\-/()eETZ]*", re.ASCII)
# What separates the columns of a line of text.
_MARKS = (",", ";", ":", "\t", "|", "=")
# Longer words are no words, but perhaps bytes written as text.
_LONGEST_WORD = 100
# How deep lists in lists, and records in lists, are looked into for their shape. Only
# the shape: references are followed to any depth.
_MAX_DEPTH = 12


def as_array(value: Any, depth: int = 0) -> np.ndarray | None:
    """Returns `value` as an array, or an array of its shape; None if it is none."""
    if isinstance(value, (np.ndarray, np.void)):
        return _with_inner_axes(np.asanyarray(value))
    if isinstance(value, jax.Array):
        is_abstract = isinstance(value, Tracer) or is_key(value)
        return stand_in(value.shape) if is_abstract else np.asarray(value)
    if scipy.sparse.issparse(value):
        return stand_in(value.shape)
    if isinstance(value, str):
        return _numbers_in_text(value)
    if isinstance(value, (*objects.SEQUENCES, dict)):
        # Lists of numbers, and of arrays of one shape, are arrays in all but name.
        shapes = _shapes(value, depth)
        if len(shapes) > 1 or (isinstance(value, dict) and shapes != {()}):
            return None  # The entries of a dict have names of their own.
        return stand_in((len(value), *shapes.pop())) if shapes else None
    kind: Any  # The methods are those of Python's own classes, not of one derived.
    for kind in (io.BytesIO, io.StringIO):
        if isinstance(value, kind) and not value.closed:
            return as_array(kind.getvalue(value))
    if isinstance(value, (type, types.ModuleType, *objects.CODE)):
        return None
    try:  # Bytes, an `array.array` or a memory map.
        with memoryview(value) as view:
            is_short = isinstance(value, bytes) and len(value) <= FEW
            return None if is_short else stand_in(view.shape or ())
    except (TypeError, ValueError, BufferError):  # No buffer, or one that was closed.
        return None if objects.is_foreign_mapping(value) else _as_foreign_array(value)


def _with_inner_axes(array: np.ndarray) -> np.ndarray:
    """The array itself, or one of its shape if its entries have axes of their own."""
    fields = (array.dtype.fields or {}).values()
    sizes = tuple(size for dtype, *_ in fields for size in dtype.shape)
    return stand_in((*array.shape, *sizes)) if sizes else array


def _as_foreign_array(value: Any) -> np.ndarray | None:
    """The shape of tables, tensors and arrays of other libraries."""
    kind, shape = type(value), objects.attribute(value, "shape")
    has_shape = isinstance(shape, tuple) and all(isinstance(n, int) for n in shape)
    names = ("dtype", "__array__", "__dlpack__")
    if has_shape and any(objects.attribute(value, name) is not None for name in names):
        return stand_in(shape)
    names = ("__array__", "__dlpack__", "__array_interface__", "__arrow_c_array__")
    is_opaque = objects.attribute(value, "__dict__") is None
    if is_opaque and any(hasattr(kind, name) for name in names):
        return stand_in((len(value),)) if hasattr(kind, "__len__") else None
    return None


def _numbers_in_text(text: str) -> np.ndarray | None:
    """One axis per line and one per number, of a text with more than a few numbers.

    Of a very long word, such as bytes in base64, its length.
    """
    counts = [len(_NUMBER.findall(line)) for line in text.splitlines()]
    counts = [count for count in counts if count]
    if sum(counts) <= FEW:
        longest = max(map(len, text.split()), default=0)
        return stand_in((longest,)) if longest > _LONGEST_WORD else None
    if len(counts) == 1:
        return stand_in((counts[0],))
    is_table = len(set(counts)) == 1
    return stand_in((len(counts), counts[0]) if is_table else (len(counts),))


def _shapes(value: Any, depth: int = 0) -> set[tuple[int, ...]]:
    """The shapes of the entries; none at all if one is neither number nor array."""
    shapes = set()
    for part in _entries(value):
        if part is None:
            continue  # A missing number, where there are others.
        if _is_number(part):
            shapes.add(())
            continue
        array = as_array(part, depth + 1) if depth < _MAX_DEPTH else None
        if array is None or isinstance(part, str):
            return set()
        shapes.add(array.shape)
    return shapes


def num_entries_with_numbers(value: Any) -> int:
    """How many entries are numbers or arrays, or have some; 0 for a few.

    So a list of arrays of different shapes counts as an array, a table of records, an
    object with one attribute for every person, a partial or a function with an argument
    for each, and a queue.
    """
    if isinstance(value, (list, tuple)) and _shapes(value):
        return len(value)
    if isinstance(value, _CONTAINERS):
        entries = _entries(value)
    elif isinstance(value, functools.partial):
        entries = [*value.args, *value.keywords.values()]
    elif isinstance(value, types.FunctionType):
        entries = [] if objects.is_library(value.__module__) else _given_to(value)
    elif isinstance(value, (types.ModuleType, *objects.CODE)):
        return 0
    elif isinstance(value, type):
        entries = [] if objects.is_library(value.__module__) else _entries(value)
    else:
        # What Python's own types have by name are settings of theirs.
        is_library = objects.is_of_library(value)
        entries = objects.held_inside(value) if is_library else _entries(value)
    count = sum(map(_has_numbers, entries))
    return count if count > FEW else 0


def _given_to(function: types.FunctionType) -> list[Any]:
    """The default values of its parameters, and its attributes."""
    by_name = {**(function.__kwdefaults__ or {}), **vars(function)}
    return [*(function.__defaults__ or ()), *by_name.values()]


def is_settings(value: Any) -> bool:
    """Whether a dict has a few numbers by name, such as the settings of a model."""
    keys = list(dict.keys(value)) if isinstance(value, dict) else [None]
    return len(keys) <= FEW and all(isinstance(key, str) for key in keys)


def _has_numbers(value: Any, depth: int = 0) -> bool:
    if isinstance(value, str):
        has_columns = any(mark in value for mark in _MARKS)
        return _is_number(value) or (has_columns and bool(_NUMBER.search(value)))
    if _is_number(value):
        return True
    if isinstance(value, (types.ModuleType, type, *objects.CODE)) or depth == 2:
        return False
    if isinstance(value, (np.ndarray, jax.Array)):
        return True
    if isinstance(value, _CONTAINERS) or not objects.is_of_library(value):
        return any(_has_numbers(part, depth + 1) for part in _entries(value))
    return False


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return _DIGITS.fullmatch(value) is not None
    return isinstance(value, NUMBERS)


def _entries(value: Any) -> list[Any]:
    """The entries of a container, the values of a dict, what is inside an object."""
    if isinstance(value, objects.SEQUENCES):
        return objects.items_of(value)
    if not isinstance(value, dict):
        own = vars(value) if isinstance(value, type) else objects.attributes_of(value)
        unnamed = [] if isinstance(value, type) else objects.held_inside(value)
        return [p for name, p in own.items() if name not in objects.ORDINARY] + unnamed
    keys, values = list(dict.keys(value)), list(dict.values(value))
    if _is_index(values):
        return []  # Of words, say: a list of them says as much.
    if any(isinstance(key, NUMBERS) for key in keys) and not _is_index(keys):
        return values if any(map(_is_number, values)) else keys
    return values


def _is_index(values: list[Any]) -> bool:
    """Whether they are the numbers 0, 1, ... or 1, 2, ... in this order."""
    if not all(type(value) is int for value in values):
        return False
    return any(values == list(range(k, k + len(values))) for k in (0, 1))


def stand_in(shape: tuple[int, ...]) -> np.ndarray:
    """An array of this shape that takes no memory; its values mean nothing."""
    return np.broadcast_to(np.zeros(()), shape)
