"""Looks into Python objects without running any code of the caller's."""

import collections
import contextvars
import functools
import gc
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from typing import Any

# Functions of these packages hold no data of the caller. Their closures are still
# searched, since `jax.vmap(f)` keeps `f` in one, but their globals are not.
_LIBRARIES = sys.stdlib_module_names | {
    *("IPython", "_pytest", "arviz", "beartype", "equinox", "flax", "haiku"),
    *("jax", "jaxlib", "jaxtyping", "joblib", "matplotlib", "multipledispatch"),
    *("numpy", "numpyro", "numpyro_vips", "optax", "pandas", "polars", "pyarrow"),
    *("pytest", "scipy", "sklearn", "torch", "tqdm", "xarray"),
}
_STANDARD_LIBRARY = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    | {os.path.dirname(os.__file__)}
)
# Attributes that every function, class or instance has.
ORDINARY = {
    *("__doc__", "__module__", "__name__", "__qualname__", "__dict__", "__weakref__"),
    *("__annotations__", "__slots__", "__match_args__", "__dataclass_fields__"),
    *("__dataclass_params__", "__orig_bases__", "__parameters__", "__file__"),
    *("__path__", "__conditional_annotations__", "_jit_info"),
    *("__abstractmethods__", "_abc_impl", "__firstlineno__", "__static_attributes__"),
    *("__builtins__", "__loader__", "__spec__", "__package__", "__cached__"),
    *("__type_params__", "__annotate__", "__annotate_func__", "__orig_class__"),
}
SEQUENCES = (list, tuple, set, frozenset, collections.deque)
METHODS = (types.FunctionType, property, staticmethod, classmethod)
CODE = (
    *(*METHODS, types.MethodType, types.BuiltinFunctionType, types.CodeType),
    *(types.MethodWrapperType, functools.partial),
)


def is_library(module: Any) -> bool:
    """Whether a module of this name is of the libraries that hold no data."""
    return isinstance(module, str) and _is_library_root(module.split(".")[0])


@functools.cache
def _is_library_root(root: str) -> bool:
    if root not in sys.stdlib_module_names:
        return root in _LIBRARIES
    # A script of the caller's may well be called profile.py or queue.py.
    path = getattr(sys.modules.get(root), "__file__", None)
    return path is None or path.startswith(_STANDARD_LIBRARY)


def package_of(cls: type) -> str:
    """The package that a class says it is of; "" where its module is no name.

    Metaclasses that Cython makes have a descriptor in its place.
    """
    module: Any = cls.__module__
    return module.split(".")[0] if isinstance(module, str) else ""


def is_of_library(value: Any) -> bool:
    """Whether the object's class is a library's."""
    return is_library(type(value).__module__)


def is_of_standard_library(value: Any) -> bool:
    """Whether the object's class is Python's own."""
    return package_of(type(value)) in sys.stdlib_module_names


def is_foreign_mapping(value: Any) -> bool:
    """Whether it is a mapping of another library, such as a data set of xarray."""
    is_foreign = is_of_library(value) and not is_of_standard_library(value)
    return is_foreign and isinstance(value, Mapping)


def items_of(sequence: Any) -> list[Any]:
    """What is in a sequence or set, by the method of Python's own class."""
    kind: Any = next(kind for kind in SEQUENCES if isinstance(sequence, kind))
    return list(kind.__iter__(sequence))


def attribute(value: Any, name: str) -> Any:
    """An attribute; None where there is none, or only one made on demand."""
    try:
        # Such as a mock's.
        if inspect.getattr_static(value, name, None) is None:
            return None
        return getattr(value, name, None)
    except Exception:  # A property of someone else's class may raise anything.
        return None


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes that an object itself has, of its `__dict__` and its slots."""
    try:
        attributes = dict(vars(value))
    except TypeError:  # It has no __dict__.
        attributes = {}
    for cls in type(value).__mro__:
        kinds: Any = types.MemberDescriptorType
        if package_of(cls) in ("scipy", "sklearn"):
            kinds = (types.MemberDescriptorType, types.GetSetDescriptorType)
        for name, descriptor in vars(cls).items():
            if isinstance(descriptor, kinds) and name not in ORDINARY:
                try:
                    attributes.setdefault(name, descriptor.__get__(value))
                except Exception:  # It has not been assigned yet, for one.
                    continue
    return attributes


def held_inside(value: Any) -> list[Any]:
    """What an object holds by no name, as some queues and iterators do their items.

    Which of Python's own types keep them in a list, and which by themselves, is
    another matter in each version of Python.
    """
    if isinstance(value, contextvars.Context):
        return list(value.values())
    if not gc.get_referents(value) or not may_be_opened(value):
        return []
    held = referents_of(value)
    known = [type(value), *attributes_of(value).values()]
    for part in held:
        if isinstance(part, dict):  # A cache holds what it was called with twice.
            known += dict.keys(part)
    counts = collections.Counter(map(id, known))
    found = []
    for part in held:
        if counts[id(part)]:
            counts[id(part)] -= 1
        else:
            found.append(part)
    return found


def may_be_opened(value: Any) -> bool:
    """Whether it is Python's own or the caller's, and no memory of a library's.

    Such a memory is filled by others than the model.
    """
    if is_of_library(value) and not is_of_standard_library(value):
        return False
    function = attribute(value, "__wrapped__")
    return not is_library(attribute(function, "__module__"))


def referents_of(value: Any) -> list[Any]:
    """What an object refers to in whatever way, but for the dict of its attributes.

    Of types written in C this is the only way to see what is inside.
    """
    own = getattr(value, "__dict__", None)
    return [part for part in gc.get_referents(value) if part is not own]


def named(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The attributes but for ordinary ones; what a wrapper wraps keeps its name."""
    for name, value in list(attributes.items()):
        if name == "__wrapped__":
            yield "", value
        elif name not in ORDINARY:
            yield name, value
