"""JAX's settings that are its caller's to choose, as this package computes with them.

A caller may have JAX raise where ranks or types of arrays differ, where a number is not
finite, where a tracer outlives its function or where arrays go to a device unasked, or
have it run programs operation by operation. That is for the caller's own code. The code
of NumPyro and of this package relies on the rules that JAX starts with, and an error in
the middle of a fit would take away what was paid for, or tell that a private row is not
finite.
"""

import contextlib
from collections.abc import Iterator

import jax

# What JAX then writes to cannot be mapped over rows, and these settings are the same
# in all threads, so that no fit may set them for itself.
_OF_ALL_THREADS = tuple(
    f"jax_error_checking_behavior_{kind}" for kind in ("nan", "divide", "oob")
)


def check_arrays_can_be_mapped() -> None:
    """Refuses settings under which JAX maps no function over arrays.

    Raises:
      RuntimeError: One of them is chosen.
    """
    for name in _OF_ALL_THREADS:
        if getattr(jax.config, name, "ignore") != "ignore":
            raise RuntimeError(
                f"JAX cannot map functions over arrays while {name} is "
                f"{getattr(jax.config, name)!r}, as fits do over rows. Set it back by "
                f'jax.config.update("{name}", "ignore").'
            )


@contextlib.contextmanager
def usual_settings() -> Iterator[None]:
    """In this context, and in this thread, JAX has the settings that it starts with.

    Those that decide what numbers are, such as `jax_enable_x64`, stay the caller's.

        >>> import jax.numpy as jnp
        >>> with jax.numpy_rank_promotion("raise"):
        ...     with usual_settings():
        ...         (jnp.ones(2) + jnp.ones((2, 2))).shape
        (2, 2)
    """
    with (
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.disable_jit(False),
        jax.check_tracer_leaks(False),
        jax.transfer_guard("allow"),
    ):
        yield
