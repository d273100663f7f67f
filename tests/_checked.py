"""What checks annotations of arrays while tests run."""

import typing
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Checks arguments and results that are or hold arrays, and leaves the others.

    Those the package checks itself where users give them, which tests look at.
    """
    function.__annotations__ = {
        name: annotation
        for name, annotation in function.__annotations__.items()
        if _holds_arrays(annotation)
    }
    return _beartype(function)


def _holds_arrays(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(_holds_arrays(inner) for inner in typing.get_args(annotation))
