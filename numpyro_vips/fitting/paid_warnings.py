"""What is warned of after a fit was paid for ends nothing.

Where the caller has warnings raised, as by `warnings.simplefilter("error")` or
`python -W error`, one of them would take away a result that the budget has paid for.
They are shown in place of that; the result holds its own, too.
"""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from numpyro_vips.model.handler_stack import alone_with_handlers


class _Fits:
    """Fits under way in which warnings would raise; all threads have the same filters.

    Attributes:
      number: How many.
      filters: What puts the caller's filters back after the last of them.
    """

    number = 0
    filters = contextlib.ExitStack()


@contextlib.contextmanager
def shown_not_raised() -> Iterator[None]:
    """Warnings that the caller has raised are shown; all others are as they were."""
    with alone_with_handlers():
        would_raise = any(action == "error" for action, *_ in warnings.filters)
        if would_raise:
            _Fits.filters.enter_context(warnings.catch_warnings())
            filters: Any = warnings.filters
            filters[:] = [
                ("default" if action == "error" else action, *rest)
                for action, *rest in filters
            ]
        is_one_of_them = would_raise or _Fits.number > 0
        _Fits.number += is_one_of_them
    try:
        yield
    finally:
        with alone_with_handlers():
            _Fits.number -= is_one_of_them
            if _Fits.number == 0:
                _Fits.filters.close()
