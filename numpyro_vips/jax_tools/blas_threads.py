"""Keeps the linear algebra library to one thread while JAX computes.

On a CPU, XLA calls LAPACK's routines from threads of its own. Where the library behind
them, such as OpenBLAS, then starts threads too, the two get in each other's way, and a
fit with many small matrices becomes several times slower.
"""

import contextlib
import functools
from collections.abc import Iterator

# XLA takes LAPACK from SciPy; what is not loaded yet cannot be limited.
import scipy.linalg  # noqa: F401
import threadpoolctl


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """In this context BLAS is limited to one thread, and as it was before afterwards.

    JAX returns before its arrays are there: they are waited for within.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _libraries() -> threadpoolctl.ThreadpoolController:
    """The libraries that are loaded, which takes as long to find as a step takes."""
    return threadpoolctl.ThreadpoolController()
