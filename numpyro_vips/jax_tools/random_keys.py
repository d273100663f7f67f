"""Keys whose draws under `jax.vmap` are each row's own.

JAX has several kinds of keys. Under `jax.vmap` only threefry draws for every row what
it would draw for that row alone; with `"rbg"` and `"unsafe_rbg"` the draws of a row
depend on the keys of other rows, which are made from private data. So whatever kind of
key a caller hands in or has made the default, rows draw from threefry keys.
"""

from typing import Any

import jax
import jax.numpy as jnp

FAITHFUL = "threefry2x32"


def threefry_key(seed: int) -> jax.Array:
    """The threefry key of a seed, whatever kind of key is JAX's default."""
    return jax.random.key(seed, impl=FAITHFUL)


def is_threefry(dtype: Any) -> bool:
    """Whether keys of this dtype are threefry keys."""
    return dtype == threefry_key(0).dtype


def as_threefry(rng_key: jax.Array) -> jax.Array:
    """A typed threefry key made from any key.

    A threefry key keeps its value. Of another kind all words are folded into one. So
    the same key always gives the same result, on any platform.

    Args:
      rng_key: A single key, typed or as `uint32` words, of which two are a threefry
        key and any other number is a key of JAX's default kind.
    """
    if not jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key):
        if rng_key.shape == (2,):
            return jax.random.wrap_key_data(rng_key, impl=FAITHFUL)
        rng_key = jax.random.wrap_key_data(rng_key)
    if is_threefry(rng_key.dtype):
        return rng_key
    key = threefry_key(0)
    for word in jax.random.key_data(rng_key):
        key = jax.random.fold_in(key, word)
    return key
