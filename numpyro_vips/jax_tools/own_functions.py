"""Functions of this package that may be trusted with more than a model may."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

_PACKAGE = __name__.partition(".")[0]
_Function = TypeVar("_Function", bound=Callable[..., Any])


class OwnFunctions:
    """Functions that the modules of this package define, known by identity.

    A model can import whatever this package has, names of modules can be given to any
    function, and an object may claim to equal another. So a function is noted while the
    module is imported that defines it, and never later.
    """

    def __init__(self) -> None:
        self._known: list[Any] = []

    def note(self, function: _Function) -> _Function:
        """A decorator of functions at the top level of a module.

        Raises:
          TypeError: It was not used in a module of this package.
        """
        frame = sys._getframe(1)
        scope, code = frame.f_globals, frame.f_code
        name = str(scope.get("__name__"))
        is_module = (
            name.startswith(f"{_PACKAGE}.")
            and scope is vars(sys.modules.get(name, sys))
            and code.co_name == "<module>"
            # Folders may change after a module was compiled.
            and Path(code.co_filename).stem == Path(str(scope.get("__file__"))).stem
        )
        if not is_module:
            raise TypeError(f"Only the modules of {_PACKAGE} may note functions.")
        self._known.append(function)
        return function

    def __contains__(self, function: object) -> bool:
        return any(function is known for known in self._known)
