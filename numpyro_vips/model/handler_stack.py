"""NumPyro's handlers and its validation, of which a process has one state for all.

A model that runs is under every handler that any thread has entered: two fits that
begin in two threads would give each other's sites their values. So one thread at a time
runs a model here. The steps of a fit run programs that were traced, and wait for none.

Nothing else is waited for while a model runs: a thread that waits for this one, such as
for a program that both compile, must not be waited for.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpyro
from numpyro.primitives import _PYRO_STACK

# A model may run another one, as a guide does.
_LOCK = threading.RLock()

# A process that is forked has a copy of the lock, and none of the threads that would
# give it back. So none forks while a model runs in another thread.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_LOCK.acquire,
        after_in_parent=_LOCK.release,
        after_in_child=_LOCK.release,
    )


@contextlib.contextmanager
def alone_with_handlers() -> Iterator[None]:
    """No other thread that enters this context enters or leaves handlers meanwhile."""
    with _LOCK:
        yield


def entered_handlers() -> tuple[Any, ...]:
    """The handlers that a model would run under; none of another thread is here."""
    with _LOCK:
        return tuple(_PYRO_STACK)


@contextlib.contextmanager
def unvalidated() -> Iterator[None]:
    """Distributions check no values; it is as before afterwards, in every thread."""
    with _LOCK, numpyro.validation_enabled(False):
        yield
