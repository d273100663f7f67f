"""Errors that name what is special to private inference.

Ordinary bad arguments raise `ValueError` or `TypeError`. No message quotes a
private value: shapes and names only.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


class NotConjugateError(Exception):
    """VIPS was asked for, and the model is not conjugate-exponential.

    The message names the site and the use that is in the way.
    """


class UnsafeModelError(ValueError):
    """No engine may run the model, because the guarantee would not hold.

    The message says what is unsafe and how to change the model. It is a `ValueError`
    because a model, such as one without the unit plate, is an argument like another.
    """


class BudgetExceededError(Exception):
    """A fit would overrun the privacy budget; nothing was spent or read."""


class UnusablePosteriorError(ArithmeticError):
    """A fit ended in what is no posterior; what was charged stays charged.

    Attributes:
      result: The result as it is: its privacy statement, diagnostics and parameters. It
        may be saved; its draws mean nothing.
      released: What the fit released beside it, by name: sums with their noise, or the
        values of the last step.
    """

    def __init__(self, message: str, *, result: Any, released: Mapping[str, Any]):
        super().__init__(message)
        self.result = result
        self.released = dict(released)


def quoted(names: Iterable[str], if_none: str = "none") -> str:
    """Names in quotes, with commas between them; `if_none` where there are none."""
    return ", ".join(map(repr, names)) or if_none


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question after the known name that is nearest, empty if none is near."""
    nearest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"Did you mean {nearest[0]!r}?" if nearest else ""
