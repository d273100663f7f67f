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
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Tries a row's log density at places that are drawn about a start.

    Args:
      density: Of globals and of a row.
      start: The globals.
      rows: Synthetic rows.
      number: How many places are tried.
      seed: Of the places.

    Yields:
      The place, and by global the gradient of each row there.
    """
    rng, dtype = np.random.default_rng(seed), jnp.result_type(float)
    gradients = jit_unoptimized(jax.vmap(jax.grad(density), in_axes=(None, 0)))
    for _ in range(number):
        place = {
            name: jnp.asarray(value + rng.normal(size=np.shape(value)), dtype)
            for name, value in start.items()
        }
        yield place, gradients(place, rows)
