"""Keys whose draws under `jax.vmap` are each row's own.

JAX has several kinds of keys. Under `jax.vmap` only threefry draws for every row what
it would draw for that row alone; with `"rbg"` and `"unsafe_rbg"` the draws of a row
depend on the keys of other rows, which are made from private data. So whatever kind of
key a caller hands in or has made the default, rows draw from threefry keys.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FAITHFUL = "threefry2x32"


def threefry_key(seed: int) -> jax.Array:
    """The threefry key of a seed, whatever kind of key is JAX's default.

    It is `jax.random.key(seed)`, made of its words, for which nothing is compiled.

    Args:
      seed: From 0 to 2^64 - 1; JAX's own key takes the lower half alone, unless
        double precision is on.
    """
    words: Any = np.array(divmod(seed, 2**32), np.uint32)
    return jax.random.wrap_key_data(words, impl=FAITHFUL)


def is_key(array: Any) -> bool:
    """Whether an array, or a variable of a program, holds typed keys."""
    dtype = getattr(array, "dtype", None)
    if dtype is None or isinstance(dtype, np.dtype):
        return False
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def numbers_of(array: Any) -> np.ndarray:
    """The numbers of an array, or those that its typed keys are made of."""
    return np.asarray(jax.random.key_data(array) if is_key(array) else array)


def is_threefry(dtype: Any) -> bool:
    """Whether keys of this dtype are threefry keys."""
    return dtype == threefry_key(0).dtype


def typed_key(rng_key: Any) -> jax.Array:
    """The key as a typed one, with the same draws.

    Keys of callers become typed where they come in, so that what is behind knows one
    kind of array alone: words of a key are two or four numbers.

    Args:
      rng_key: A single key, typed or as `uint32` words, of which two are a threefry
        key and any other number is a key of JAX's default kind.
    """
    if is_key(rng_key):
        return rng_key
    kind = FAITHFUL if rng_key.shape == (2,) else None
    return jax.random.wrap_key_data(jnp.asarray(rng_key), impl=kind)


def as_threefry(rng_key: jax.Array) -> jax.Array:
    """A typed threefry key made from any key.

    A threefry key keeps its value. Of another kind all words are folded into one. So
    the same key always gives the same result, on any platform.

    Args:
      rng_key: A single key, as for `typed_key`.
    """
    rng_key = typed_key(rng_key)
    if is_threefry(rng_key.dtype):
        return rng_key
    key = threefry_key(0)
    for word in jax.random.key_data(rng_key):
        key = jax.random.fold_in(key, word)
    return key


def single_key(rng_key: Any, call: str) -> jax.Array:
    """The first argument of a method, a single key, as a typed one.

    Args:
      rng_key: What was given.
      call: How the method is called, such as `"run(rng_key, X, y)"`.

    Raises:
      TypeError: It is no single key.
    """
    is_typed = isinstance(rng_key, jax.Array) and is_key(rng_key)
    if is_typed and rng_key.shape != ():
        raise TypeError(
            f"Expected a single key, got an array of keys of shape {rng_key.shape}. "
            "Pass one of them, such as keys[0]."
        )
    is_words = (
        isinstance(rng_key, jax.Array | np.ndarray)
        and rng_key.dtype == np.uint32
        and rng_key.shape in ((2,), jax.random.key_data(jax.random.key(0)).shape)
    )
    if not (is_typed or is_words):
        method, _, _ = call.partition("(")
        raise TypeError(
            f"Expected the first argument of {method} to be a key such as "
            f"jax.random.key(0), got {type(rng_key).__name__}. The other arguments "
            f"follow it: {call}."
        )
    return typed_key(rng_key)


def platforms(rng_key: Any) -> str:
    """Where JAX works on rows: on its default device, or where the key lies.

    Returns:
      JAX's names of the platforms, separated by commas.
    """
    arrays = jax.device_put(np.zeros(())), jnp.asarray(rng_key)
    return ", ".join(sorted({d.platform for x in arrays for d in x.devices()}))
