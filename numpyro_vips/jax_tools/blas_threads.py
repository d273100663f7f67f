"""Keeps the linear algebra library to one thread while JAX computes.

On a CPU, XLA calls LAPACK's routines from threads of its own. Where the library behind
them, such as OpenBLAS, then starts threads too, the two get in each other's way, and a
fit with many small matrices becomes several times slower.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

# XLA takes LAPACK from SciPy; what is not loaded yet cannot be limited.
import scipy.linalg  # noqa: F401
import threadpoolctl

P = ParamSpec("P")
T = TypeVar("T")


def one_blas_thread(function: Callable[P, T]) -> Callable[P, T]:
    """Runs a function, and all that it has started, with BLAS limited to one thread.

    Afterwards the limit is what it was before.
    """

    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> T:
        with _libraries().limit(limits=1, user_api="blas"):
            # JAX returns before its arrays are there.
            return jax.block_until_ready(function(*args, **kwargs))

    return limited


@functools.cache
def _libraries() -> threadpoolctl.ThreadpoolController:
    """The libraries that are loaded, which takes as long to find as a step takes."""
    return threadpoolctl.ThreadpoolController()
