"""Compiling sooner what takes little time to run.

Most of the time that XLA takes for a program it spends on making it fast, which pays
for sums over rows. What is run on a few synthetic rows, or once on a posterior's
parameters, is done sooner without. What is run in every step, on the globals alone, is
optimised, but by XLA's older generators of code: on loops over covariances they took
half the time of the new ones, and made programs as fast. On few numbers it is not
optimised either: a whole fit gains less by it than it costs. Results differ by
rounding.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from numpyro_vips.jax_tools.compiling_ahead import ahead_of_calls, jit_ahead

# Several programs are compiled at a time, so threads need not share one.
_OLDER_GENERATORS = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
# For the M-step of a logistic regression of 30 columns, on 4,000 numbers, optimising
# takes a second and saves 0.03 s in all steps together; for that of a mixture of 10
# Gaussians in 20 dimensions, on 15,000 numbers, as long and 4 s.
_FEW = 4096
# With the older generators a topic model took 19 % longer, of 1,000,000 numbers in its
# rows. Where there are few, a whole fit takes less than compiling.
_FEW_OF_ROWS = 2**18
_UNOPTIMIZED = {"xla_backend_optimization_level": 0, **_OLDER_GENERATORS}


def jit_unoptimized(function: Callable[..., Any], **options: Any) -> Any:
    """`jax.jit` without optimisation: quicker to compile and slower to run.

    The result cannot be called while JAX is tracing.

    Args:
      function: What to compile, never a sum over private rows: that what a row adds
        does not depend on the others is tested of optimised programs.
      **options: Those of `jax.jit`.
    """
    jitted = _jitted(function, options, _UNOPTIMIZED)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return jitted()(*args, **kwargs)

    return run


def jit_of_globals(function: Callable[..., Any], **options: Any) -> Any:
    """`jit_unoptimized` for calls on few numbers; programs for many are optimised.

    It can be compiled ahead of the first call, see `compiling_ahead`.

    Args:
      function: What to compile, never a sum over private rows.
      **options: Those of `jax.jit`.
    """
    on_few, on_many = (
        ahead_of_calls(function, _jitted(function, options, of_compiler))
        for of_compiler in (_UNOPTIMIZED, _OLDER_GENERATORS)
    )

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        size = sum(map(np.size, jax.tree.leaves((args, kwargs))))
        return (on_few if size <= _FEW else on_many)(*args, **kwargs)

    return run


def jit_of_rows(function: Callable[..., Any], num_numbers: int, **options: Any) -> Any:
    """`jit_ahead` for sums over private rows, which are always optimised.

    Where there are few numbers, it is by XLA's older generators of code. That what a
    row adds does not depend on the others is tested with them and without.

    Args:
      function: What to compile.
      num_numbers: Public; how many numbers all rows of the fit have, not those of a
        call: all processes, and chunks of any length, must run one program.
      **options: Those of `jax.jit`.
    """
    if num_numbers > _FEW_OF_ROWS:
        return jit_ahead(function, **options)
    return ahead_of_calls(function, _jitted(function, options, _OLDER_GENERATORS))


def _jitted(
    function: Callable[..., Any],
    options: dict[str, Any],
    of_compiler: dict[str, Any],
) -> Callable[[], Any]:
    """Returns what `jax.jit` makes of the function, the same one in every call."""

    @functools.cache
    def jitted() -> Any:
        # Not before the first call: asking XLA starts JAX's backends.
        known = _known(of_compiler)
        return jax.jit(function, compiler_options=known, **options)

    return jitted


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that this XLA knows; one that it does not is an error."""
    # One at a time only where one of them is not known: each program takes a while.
    if _are_known(tuple(options.items())):
        return options
    return {name: of for name, of in options.items() if _are_known(((name, of),))}


@functools.cache
def _are_known(options: tuple[tuple[str, Any], ...]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=dict(options)).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
