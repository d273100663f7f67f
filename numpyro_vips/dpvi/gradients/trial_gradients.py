"""Gradients of synthetic rows at random places, on which structure is tried.

What holds of these rows' gradients at several random places holds everywhere, but for a
coincidence that never happens. No private value is read.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from numpyro_vips.jax_tools.jaxprs import equations_of
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized

_GATHERS = frozenset(("gather", "dynamic_slice"))


def picks_entries(program: jex_core.ClosedJaxpr) -> bool:
    """Whether a row takes entries of arrays by their numbers, as that of its group."""
    return any(e.primitive.name in _GATHERS for e in equations_of(program))


def trial_gradients(
    density: Callable[[Mapping[str, Any], Mapping[str, Any]], Float[Array, ""]],
    start: Mapping[str, Any],
    rows: Mapping[str, Any],
    *,
    number: int,
    seed: int,
    values: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Tries a row's log density at places that are drawn about a start.

    Args:
      density: Of globals, as `values` gives them, and of a row.
      start: Unconstrained globals.
      rows: Synthetic rows.
      number: How many places are tried.
      seed: Of the places.
      values: From unconstrained globals to what the density takes.

    Yields:
      The place as the density takes it, and by global the gradient of each row there.
    """
    rng, dtype = np.random.default_rng(seed), jnp.result_type(float)
    gradients = jit_unoptimized(jax.vmap(jax.grad(density), in_axes=(None, 0)))
    for _ in range(number):
        free = {n: v + rng.normal(size=np.shape(v)) for n, v in start.items()}
        place = values({n: jnp.asarray(v, dtype) for n, v in free.items()})
        yield place, gradients(place, rows)
