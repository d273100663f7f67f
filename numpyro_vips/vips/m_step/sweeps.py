"""Sweeps over the globals, until no moment moves."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from numpyro_vips.vips.program.named_arrays import (
    AnyMoments,
    MomentsByFactor,
    NewMomentsByFactor,
)


class Swept(NamedTuple):
    """What a sweep over the globals leaves.

    Attributes:
      moments, natural, below_noise: See `Solution`.
      beside_rows: Moments that the rows' sums are weighed by in other factors' shares;
        see `hidden_directions`.
    """

    moments: MomentsByFactor
    beside_rows: MomentsByFactor
    natural: NewMomentsByFactor
    below_noise: dict[str, Int[Array, ""]]


# Sweeps come to rest where no moment changes by more of its size.
_TOLERANCE = 1e-9


def swept_until_rest(
    sweep: Callable[[MomentsByFactor, MomentsByFactor], Swept],
    moments: MomentsByFactor,
    max_sweeps: int | Int[Array, ""],
) -> tuple[Swept, Float[Array, ""]]:
    """Sweeps over several factors until no moment moves.

    Single precision never gets to 1e-9, and where a covariance is nearly singular
    rounding keeps the changes far above its resolution. Sweeps that no longer bring the
    globals closer together stop.

    Args:
      sweep: One sweep, see `_sweep`.
      moments: Where to start.
      max_sweeps: When to stop at the latest.

    Returns:
      What the last sweep has left, and the largest relative change in it.
    """
    resolution = 16.0 * float(jnp.finfo(jnp.result_type(float)).eps)
    enough = max(_TOLERANCE, resolution)

    def going(carry: tuple) -> Bool[Array, ""]:
        count, change, _, stalled, _ = carry
        return (count < max_sweeps) & (change > enough) & (stalled < 5)

    def step(carry: tuple) -> tuple:
        count, _, least, stalled, before = carry
        after = sweep(before.moments, before.beside_rows)
        # The first sweep is one in the loop too, so that it is compiled once, but how
        # far it leads says nothing about the distance to the end.
        change = jnp.where(
            count > 0, largest_change(before.moments, after.moments), jnp.inf
        )
        # Far from the end the largest change may well grow for a while.
        stalled = jnp.where((change < least) | (change > 0.01), 0, stalled + 1)
        least = jnp.minimum(least, change)
        return count + 1, change, least, stalled, after

    like = jax.eval_shape(sweep, dict(moments), dict(moments))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
    first = nothing._replace(moments=dict(moments), beside_rows=dict(moments))
    infinite = jnp.asarray(jnp.inf)
    _, change, _, _, found = jax.lax.while_loop(
        going, step, (0, infinite, infinite, 0, first)
    )
    return found, change


def largest_change(
    before: Mapping[str, AnyMoments], after: Mapping[str, AnyMoments]
) -> float | Float[Array | np.ndarray, ""] | np.floating[Any]:
    """The largest change in an array, over the largest of its entries.

    Args:
      before, after: By factor, arrays of the same shapes, either all in NumPy, as the
        result is then, or some in JAX; 0 if there are none.
    """
    pairs = list(zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))
    if not pairs:
        return 0.0
    in_numpy = all(isinstance(x, np.ndarray) for pair in pairs for x in pair)
    xp: Any = np if in_numpy else jnp
    changes = [
        xp.max(xp.abs(x - y)) / (1e-12 + xp.max(xp.abs(y))) for x, y in pairs if x.size
    ]
    return xp.max(xp.stack(changes))
