"""How rows are clipped and added up: in double precision, and some at a time.

Both engines work on rows in the precision that the caller has switched on, and add them
in double precision, under `jax.enable_x64(True)`.
"""

from typing import Any

import jax
import jax.numpy as jnp

# By how much rows are clipped below the clipping norm.
_ROOM = 2.0**-20


def clipping_factor(norm: jax.Array, clipping_norm: Any) -> jax.Array:
    """What a row is multiplied by, so that its norm is at most the clipping norm.

    There is room for rounding, also of the norm, and of the clipping norm and the
    scales, which the caller gives in single precision.

    Args:
      norm: Norm of the row's joint vector, finite, in double precision.
      clipping_norm: The bound on it; infinity clips nothing.
    """
    bound = clipping_norm * (1.0 - _ROOM)
    return jnp.minimum(1.0, bound / jnp.maximum(norm, 1e-300))


def in_double(tree: Any) -> Any:
    """Real numbers in double precision, where that is switched on."""

    def converted(x: Any) -> Any:
        is_real = jnp.issubdtype(jnp.result_type(x), jnp.floating)
        return jnp.asarray(x, jnp.result_type(float)) if is_real else x

    return jax.tree.map(converted, tree)


def in_pieces(rows: Any, mask: jax.Array, size: int) -> tuple[Any, jax.Array]:
    """Splits rows into equal pieces of at most `size`, with padding.

    Returns:
      The rows and the mask, with the pieces along a new leading axis.
    """
    count = mask.shape[0]
    number = -(-count // size)
    size = -(-count // number)
    missing = number * size - count

    def split(array: jax.Array) -> jax.Array:
        padding = [(0, missing), *((0, 0) for _ in array.shape[1:])]
        return jnp.pad(array, padding).reshape(number, size, *array.shape[1:])

    return jax.tree.map(split, rows), split(mask)
