"""Compiling several programs at a time, before they are run.

XLA compiles without the interpreter. Tracing needs it, and NumPyro's handlers, of which
a process has one stack. So the thread that asks traces one program after the other, and
other threads compile them.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import jax
import numpy as np

from numpyro_vips.jax_tools.random_keys import is_key

_EXECUTOR: contextvars.ContextVar[Executor | None] = contextvars.ContextVar(
    "executor", default=None
)


@contextlib.contextmanager
def compiled_by(executor: Executor) -> Iterator[None]:
    """In this context functions of `jit_ahead`, `jit_of_rows` and `jit_of_globals` are
    not run: the executor compiles them.

    They return zeros, in the shapes and types of their results; of keys, which have no
    zero, shape and type alone.
    """
    token = _EXECUTOR.set(executor)
    try:
        yield
    finally:
        _EXECUTOR.reset(token)


def jit_ahead(function: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` whose programs can be compiled before they are called.

    Within `compiled_by` a call only starts a compilation in another thread, and a later
    call with such arguments waits for it.

    Args:
      function: What to compile.
      **options: Those of `jax.jit`.
    """
    jitted = jax.jit(function, **options)
    return ahead_of_calls(function, lambda: jitted)


def ahead_of_calls(function: Callable[..., Any], jitted: Callable[[], Any]) -> Any:
    """`jit_ahead` for a function that is compiled in another way than by `jax.jit`.

    Args:
      function: What is compiled.
      jitted: Returns that function as `jax.jit` has it, the same one in every call.
    """
    pending: list[Future[Any]] = []

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        executor = _EXECUTOR.get()
        if executor is not None:
            lowered = jitted().lower(*args, **kwargs)
            pending.append(executor.submit(lowered.compile))
            return jax.tree.map(_zeros, lowered.out_info)
        for compilation in list(pending):
            compilation.exception()  # The call below fails of the same.
        pending.clear()
        return jitted()(*args, **kwargs)

    return run


def _zeros(result: jax.ShapeDtypeStruct) -> np.ndarray | jax.ShapeDtypeStruct:
    if is_key(result):
        return result
    return np.zeros(result.shape, result.dtype)
