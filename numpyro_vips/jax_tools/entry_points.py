"""What the functions that users call run under, where these compute with JAX."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

from numpyro_vips.jax_tools.blas_threads import one_blas_thread
from numpyro_vips.jax_tools.usual_settings import (
    check_arrays_can_be_mapped,
    usual_settings,
)

P = ParamSpec("P")
T = TypeVar("T")


def computing(function: Callable[P, T]) -> Callable[P, T]:
    """The function, under `usual_settings` and with `one_blas_thread`, also for what it
    has started.

    Raises:
      RuntimeError: When it is called; see `check_arrays_can_be_mapped`.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        check_arrays_can_be_mapped()
        with usual_settings(), one_blas_thread():
            # JAX returns before its arrays are there.
            return jax.block_until_ready(function(*args, **kwargs))

    return run
