"""The arrays that a model holds itself, rather than being given them as arguments.

Such arrays are neither clipped nor subsampled, so they count as public. They hide in
closures, globals, default values, partials, bound methods, callable objects and the
data of effect handlers; `captured_arrays` finds them and gives them readable names.
"""

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import scipy.sparse
from jax.core import Tracer
from numpyro.distributions import Distribution
from numpyro.primitives import _PYRO_STACK, Messenger

# Functions of these packages hold no data of the caller. Their closures are still
# searched, since `jax.vmap(f)` keeps `f` in one, but their globals are not.
_LIBRARIES = sys.stdlib_module_names | {
    *("arviz", "beartype", "equinox", "flax", "haiku", "jax", "jaxlib", "jaxtyping"),
    *("matplotlib", "numpy", "numpyro", "numpyro_vips", "optax", "pandas", "polars"),
    *("scipy", "xarray"),
}
# What refers to nothing, or to nothing of the model's.
_ATOMS = (
    *(bool, int, float, complex, str, bytes, np.generic, np.dtype, type(None)),
    *(types.ModuleType, types.BuiltinFunctionType, np.random.Generator),
)
_MAX_DEPTH = 12


def captured_arrays(fn: Callable[..., Any]) -> dict[str, np.ndarray]:
    """Finds the arrays with at least one axis that `fn` would use by itself.

    Searched are, recursively: closures and the globals that the code names, default
    values, `functools.partial`, bound methods, callable objects and their classes,
    effect handlers inside `fn` (`condition`, `substitute`) and those active around
    the call, and the containers found there. Tables, sparse matrices and lists of
    numbers or of arrays count as arrays.

    The search follows references, not what the code does with them, so it may list
    an array that is never used. It cannot see what a function reads from a file or
    makes when it is called.

    Args:
      fn: A model, with or without handlers around it.

    Returns:
      The arrays by dotted name, such as `"vocabulary"` for a variable or
      `"condition.data.y"` for the data of a handler. Arrays of NumPy and JAX are
      given as they are; of anything else only the shape is right, and of a list of
      arrays of different shapes the shape is its length.
    """
    search = _Search()
    search.visit("", fn, depth=0)
    for handler in _PYRO_STACK:
        search.visit("", handler, depth=0)
    return search.found


class _Search:
    """A depth-first walk over everything reachable from a callable."""

    def __init__(self):
        self.found: dict[str, np.ndarray] = {}
        # Objects are kept, since the address of a dead one may be used again.
        self.seen: dict[int, Any] = {}

    def visit(self, name: str, value: Any, *, depth: int) -> None:
        if depth > _MAX_DEPTH or id(value) in self.seen or _is_atom(value):
            return
        self.seen[id(value)] = value
        array = _as_array(value)
        if array is not None:
            self._add(name, array)
            return
        if isinstance(value, (list, tuple)) and _shapes(value):
            self._add(name, _stand_in((len(value),)))  # One array per row, perhaps.
        for part_name, part in _parts(value):
            self.visit(_join(name, part_name), part, depth=depth + 1)

    def _add(self, name: str, array: np.ndarray) -> None:
        if array.ndim == 0:
            return
        name = name or "array"
        unique, count = name, 2
        while unique in self.found:
            unique, count = f"{name} ({count})", count + 1
        self.found[unique] = array


def _is_atom(value: Any) -> bool:
    if isinstance(value, type):
        return _is_library(value.__module__)
    return isinstance(value, _ATOMS)


def _as_array(value: Any, depth: int = 0) -> np.ndarray | None:
    """Returns `value` as an array, or an array of its shape; None if it is none."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, jax.Array):
        is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        if isinstance(value, Tracer) or is_key:
            return _stand_in(value.shape)
        return np.asarray(value)
    if scipy.sparse.issparse(value):
        return _stand_in(value.shape)
    if isinstance(value, (list, tuple)):
        # Lists of numbers, and of arrays of one shape, are arrays in all but name.
        shapes = _shapes(value, depth)
        return _stand_in((len(value), *shapes.pop())) if len(shapes) == 1 else None
    # Tables, tensors and arrays of other libraries.
    if isinstance(value, type) or not _has(value, "shape"):
        return None
    if _has(value, "dtype") or _has(value, "__array__"):
        shape = value.shape
        if isinstance(shape, tuple) and all(isinstance(size, int) for size in shape):
            return _stand_in(shape)
    return None


def _shapes(value: list | tuple, depth: int = 0) -> set[tuple[int, ...]]:
    """The shapes of the entries; none at all if one is neither number nor array."""
    shapes = set()
    for part in value:
        if isinstance(part, (bool, int, float, np.generic)):
            shapes.add(())
            continue
        array = _as_array(part, depth + 1) if depth < _MAX_DEPTH else None
        if array is None:
            return set()
        shapes.add(array.shape)
    return shapes


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What `value` refers to, each with the name to add to its own."""
    if isinstance(value, Mapping):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((str(i), part) for i, part in enumerate(value))
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield "", value.__func__
        yield "self", value.__self__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield from ((f"args.{i}", part) for i, part in enumerate(value.args))
        yield from value.keywords.items()
    elif isinstance(value, (staticmethod, classmethod)):
        yield "", value.__func__
    elif isinstance(value, property):
        yield from (("", f) for f in (value.fget, value.fset) if f is not None)
    elif isinstance(value, type):
        yield from _parts_of_class(value)
    else:
        yield from _parts_of_object(value)


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
    value, path = None, ""
    for instruction in dis.get_instructions(code):
        opcode, name = instruction.opname, instruction.argval
        if opcode == "EXTENDED_ARG":
            continue
        if opcode in ("LOAD_GLOBAL", "LOAD_NAME"):
            value, path = scope.get(name), name
        elif opcode in ("LOAD_ATTR", "LOAD_METHOD") and value is not None:
            value, path = getattr(value, name, None), f"{path}.{name}"
        else:
            value = None
        if isinstance(value, types.ModuleType):
            if _is_library(value.__name__):
                value = None
        elif value is not None:
            yield path, value
            value = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_of(constant, scope)


def _parts_of_class(cls: type) -> Iterator[tuple[str, Any]]:
    for base in cls.__mro__:
        if not _is_library(base.__module__):
            for attribute, part in vars(base).items():
                is_code = isinstance(part, (types.FunctionType, property))
                is_code = is_code or isinstance(part, (staticmethod, classmethod))
                yield ("" if is_code else attribute), part


def _parts_of_object(value: Any) -> Iterator[tuple[str, Any]]:
    attributes = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, slot) and slot not in ("__dict__", "__weakref__"):
                attributes[slot] = getattr(value, slot)
    if isinstance(value, (Distribution, numpyro.plate)):
        # Shapes and indices that they keep for themselves are no data.
        attributes = {k: v for k, v in attributes.items() if not k.startswith("_")}
    # The function inside a handler or a wrapper such as jax.jit(f) keeps its name.
    yield "", getattr(value, "__wrapped__", None)
    if isinstance(value, Messenger):
        yield "", attributes.pop("fn", None)
        kind = type(value).__name__
        attributes = {f"{kind}.{k}": v for k, v in attributes.items()}
    yield from _attributes(attributes)
    if not _is_library(type(value).__module__):
        yield "", type(value)


def _attributes(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in attributes.items():
        if name == "__wrapped__":
            yield "", value
        elif "__" not in name:  # Nor names, annotations and the like.
            yield name, value


def _has(value: Any, attribute: str) -> bool:
    try:
        return hasattr(value, attribute)
    except Exception:  # A property of someone else's class may raise anything.
        return False


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name and part else name or part


def _is_library(module: Any) -> bool:
    return isinstance(module, str) and module.split(".")[0] in _LIBRARIES


def _stand_in(shape: tuple[int, ...]) -> np.ndarray:
    """An array of this shape that takes no memory; its values mean nothing."""
    return np.broadcast_to(np.zeros(()), shape)
