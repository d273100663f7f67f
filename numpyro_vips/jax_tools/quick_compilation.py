"""Compiling what takes no time to run: XLA does not optimise it.

Most of the time that XLA takes for a program it spends on making it fast, which pays
for sums over rows. What is run on a few synthetic rows, or once on a posterior's
parameters, is done sooner without. Results differ by rounding alone.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax

_UNOPTIMIZED = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
}


def jit_unoptimized(function: Callable[..., Any], **options: Any) -> Any:
    """As `jax.jit`, quicker to compile and slower to run; not while JAX is tracing.

    Args:
      function: What to compile, never a sum over private rows: that what a row adds
        does not depend on the others is tested of optimised programs.
      **options: Those of `jax.jit`.
    """

    @functools.cache
    def compiled() -> Any:
        # Not before the first call: asking XLA starts JAX's backends.
        return jax.jit(function, compiler_options=_known_options(), **options)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return compiled()(*args, **kwargs)

    return run


@functools.cache
def _known_options() -> dict[str, Any]:
    """The options above; none where this XLA does not know them."""
    try:
        jax.jit(lambda: 0, compiler_options=_UNOPTIMIZED).lower().compile()
    except jax.errors.JaxRuntimeError:
        return {}
    return dict(_UNOPTIMIZED)
