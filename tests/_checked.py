"""What checks annotations of arrays while tests run."""

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Checks arguments and results that are or hold arrays, and leaves the others.

    Those the package checks itself where users give them, which tests look at. Fields
    of dataclasses are left, too: one that is a pytree holds shapes, or whatever else
    JAX maps over, as often as arrays.
    """
    function.__annotations__ = {
        name: annotation
        for name, annotation in function.__annotations__.items()
        if _holds_arrays(annotation)
    }
    checked = _beartype(function)
    if function.__name__ != "__init__":
        return checked

    @functools.wraps(function)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        of_fields = dataclasses.is_dataclass(self)
        return (function if of_fields else checked)(self, *args, **kwargs)

    return initialise


def _holds_arrays(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.PyTree):
        return True
    return any(_holds_arrays(inner) for inner in typing.get_args(annotation))
