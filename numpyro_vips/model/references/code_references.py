"""What the code of functions refers to: globals, imports and literals.

Functions and attributes that show the variables of callers, rows among them, are
refused, also where texts that the code has name them. Such a list cannot be complete: a
name can be put together while the code runs, and C extensions need none. It stops what
somebody writes without a thought, or copies. A model is code, and its author answers
for what it does; to run one that nobody has read is to show it the rows.
"""

import builtins
import dis
import gc
import importlib
import inspect
import logging
import re
import sys
import threading
import traceback
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.model.references import python_objects as objects
from numpyro_vips.model.references.array_likes import FEW

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
IDS_OF_INSPECTION = frozenset(map(id, _INSPECTION))
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

# What something refers to, each with the name to add to its own.
Parts = Iterator[tuple[str, Any]]


def parts_of_function(fn: types.FunctionType) -> Parts:
    """A function's attributes, closure, default values, and globals that it loads."""
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
        yield from globals_of(fn.__code__, fn.__globals__)


def globals_of(code: types.CodeType, scope: Mapping[str, Any]) -> Parts:
    """The globals that the code loads, and what it loads from modules (`data.X`)."""
    for name in sorted(_FRAMES.intersection(code.co_names)):
        raise inspecting(name)
    for text in _texts_in(code.co_consts):
        check_text(text)
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
            raise inspecting(path)
        elif _is_among(value, _LOOKUPS):
            yield from _looked_up(code, scope)
        elif value is not None:
            yield path, value
    for name in sorted(_INSPECTORS.intersection(code.co_names)):
        raise inspecting(name)
    if "__globals__" in code.co_names:
        yield from _looked_up(code, scope)
    yield from literals_of(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from globals_of(constant, scope)


def inspecting(name: str) -> UnsafeModelError:
    """What is raised where a model uses a function that shows callers' variables."""
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


def check_text(text: str) -> None:
    """Refuses what getattr(), str.format() or eval() could read frames with."""
    if found := _IN_TEXTS.search(text):
        raise inspecting(found[0])


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
        if id(vars(module).get(name)) in IDS_OF_INSPECTION:
            raise inspecting(f"{path}.{name}")
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


def literals_of(code: types.CodeType) -> Parts:
    """Numbers that stand in the code itself, in a tuple, a list, a text or bytes."""
    for number, constant in enumerate(code.co_consts):
        in_function = code.co_flags & inspect.CO_OPTIMIZED
        is_docstring = number == 0 and in_function and isinstance(constant, str)
        if is_docstring or not isinstance(constant, (tuple, frozenset, str, bytes)):
            continue
        if len(constant) > FEW:
            yield "literal", constant
