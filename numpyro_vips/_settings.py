"""What settings objects share: they can be compared, hashed and written down."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from numpyro_vips import _validate
from numpyro_vips.handlers import name_of

_V = TypeVar("_V")


class FrozenMapping(Mapping[str, _V]):
    """A mapping that cannot change, sorted by name, hashable if its values are."""

    def __init__(self, items: Mapping[str, _V] | None = None):
        self._items = dict(sorted((items or {}).items()))

    def __getitem__(self, name: str) -> _V:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def frozen(value: Any) -> Any:
    """A mapping as one that cannot change; anything else as it is."""
    return FrozenMapping(value) if isinstance(value, Mapping) else value


def keep_integer(settings: Any, name: str) -> None:
    """Checks an optional field of frozen settings, and keeps it as Python's own int.

    Raises:
      TypeError, ValueError: It is neither None nor a positive integer.
    """
    value = getattr(settings, name)
    if value is not None:
        _validate.positive_integer(**{name: value})
        object.__setattr__(settings, name, int(value))


def code_of(settings: Any, **written: str) -> str:
    """The code that makes a settings object, as far as code can say it.

    A function is written as its name. An object that code cannot make is written as its
    type in angle brackets, and never as its own `repr`, which might show data.

    Args:
      settings: An instance of a dataclass. Fields with default values are left out.
      **written: The code of some fields, where it is known better.
    """
    given = [
        f"{field.name}={written.get(field.name) or code_of_value(value)}"
        for field in dataclasses.fields(settings)
        if (value := getattr(settings, field.name)) != field.default
    ]
    return f"{type(settings).__name__}({', '.join(given)})"


def code_of_value(value: Any) -> str:
    """The code that makes a single setting, as far as code can say it; see `code_of`.

    >>> code_of_value(FrozenMapping({"x": 2.0})), code_of_value(math.inf)
    ("{'x': 2.0}", 'math.inf')
    """
    if isinstance(value, float) and math.isinf(value):
        return "math.inf" if value > 0 else "-math.inf"
    if isinstance(value, str | int | float | None | FrozenMapping):
        return repr(value)
    if callable(value):
        return name_of(value).rpartition(".")[2]
    return f"<{type(value).__name__}>"
