"""Numbers that tell the draws of rows apart by what a row holds."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, UInt32


def fingerprint_of_row(row: Mapping[str, Any]) -> UInt32[Array, ""]:
    """A number made of the bits of a row, to tell the draws of rows apart.

    Each word of the row is multiplied by an odd number that depends on its place. It
    need not be secure: draws of single rows protect nothing and are not released.
    """
    total = jnp.zeros((), jnp.uint32)
    place = 0
    for leaf in jax.tree.leaves(row):
        bits = jax.lax.bitcast_convert_type(
            jnp.ravel(leaf).astype(jnp.float32), jnp.uint32
        )
        places = jnp.arange(place, place + bits.size, dtype=jnp.uint32)
        total += jnp.sum(bits * (_mixed(places) | 1), dtype=jnp.uint32)
        place += bits.size
    return total


def _mixed(numbers: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """The finaliser of MurmurHash3: 32 bits that depend on all bits of a number."""
    numbers ^= numbers >> 16
    numbers *= jnp.uint32(0x85EBCA6B)
    numbers ^= numbers >> 13
    numbers *= jnp.uint32(0xC2B2AE35)
    return numbers ^ (numbers >> 16)
