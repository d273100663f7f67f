"""Compiling sooner what takes little time to run.

Most of the time that XLA takes for a program it spends on making it fast, which pays
for sums over rows. What is run on a few synthetic rows, or once on a posterior's
parameters, is done sooner without. What is run in every step, on the globals alone, is
optimised, but by XLA's older generators of code: on loops over covariances they took
half the time of the new ones, and made programs as fast. Results differ by rounding.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

_OLDER_GENERATORS = {"xla_cpu_use_fusion_emitters": False}
_UNOPTIMIZED = {"xla_backend_optimization_level": 0, **_OLDER_GENERATORS}


def jit_unoptimized(function: Callable[..., Any], **options: Any) -> Any:
    """As `jax.jit`, quicker to compile and slower to run; not while JAX is tracing.

    Args:
      function: What to compile, never a sum over private rows: that what a row adds
        does not depend on the others is tested of programs with default options.
      **options: Those of `jax.jit`.
    """
    return _jit(function, options, _UNOPTIMIZED)


def jit_of_globals(function: Callable[..., Any], **options: Any) -> Any:
    """As `jit_unoptimized`, in between: nearly as quick to run as that of `jax.jit`."""
    return _jit(function, options, _OLDER_GENERATORS)


def _jit(
    function: Callable[..., Any],
    options: dict[str, Any],
    of_compiler: dict[str, Any],
) -> Any:
    @functools.cache
    def compiled() -> Any:
        # Not before the first call: asking XLA starts JAX's backends.
        known = _known(tuple(of_compiler.items()))
        return jax.jit(function, compiler_options=known, **options)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return compiled()(*args, **kwargs)

    return run


@functools.cache
def _known(options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """The options; none where this XLA does not know them."""
    try:
        jax.jit(lambda: 0, compiler_options=dict(options)).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return dict(options)
