"""Settings of JAX that a caller may have chosen for code of the caller's own."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax

CHOSEN: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "ranks": lambda: jax.numpy_rank_promotion("raise"),
    "types": lambda: jax.numpy_dtype_promotion("strict"),
    "not a number": lambda: jax.debug_nans(True),
    "infinite": lambda: jax.debug_infs(True),
    "operation by operation": lambda: jax.disable_jit(True),
    "leaks": jax.checking_leaks,
    "transfers": lambda: jax.transfer_guard("disallow"),
}
