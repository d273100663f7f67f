"""Randomness that nobody else can predict: ChaCha20 keyed by the operating system.

Differential privacy is a statement about noise that an adversary cannot guess. The
generators of NumPy and JAX are made for simulation: their state can be recovered from
their output. Minibatches and noise come from here instead.
"""

import hashlib
import numbers
import secrets
import warnings
from typing import Any

import numpy as np
import randomgen

_KEY_BITS = 256
_ROUNDS = 20


class SecureRandom:
    """Two independent streams: one for sampling minibatches, one for noise.

    Attributes:
      sampling: Generator that decides which rows are in a batch.
      noise: Generator of the mechanism's noise.

    Each stream has its own 256-bit key. Keys are never stored, printed or returned, and
    instances refuse to be pickled or copied: a copy would draw the same noise twice.
    """

    def __init__(
        self, *, insecure_seed: int | None = None, sampling_key: str | None = None
    ) -> None:
        """Draws fresh keys from the operating system.

        Args:
          sampling_key: From `fresh_key`, and shared by processes that draw the same
            rows. An `insecure_seed` takes its place.
          insecure_seed: Derives the keys from this number instead, so that a run can be
            repeated. Whoever knows the number can subtract the noise, and whoever has
            two results with the same number has their difference without noise: a
            warning is issued, and `source` says so.
        """
        if insecure_seed is None:
            rows_key = int(sampling_key or fresh_key(), 16)
            noise_key = secrets.randbits(_KEY_BITS)
        else:
            seed = _checked_seed(insecure_seed)
            warnings.warn(
                "insecure_seed makes the noise repeatable, so the result is not "
                "private from anyone who knows or guesses the seed, or has another "
                "result with the same seed. Use it for tests and demonstrations only.",
                UserWarning,
                stacklevel=2,
            )
            rows_key = _key_from_seed(seed, "sampling")
            noise_key = _key_from_seed(seed, "noise")
        self.sampling = _generator(rows_key)
        self.noise = _generator(noise_key)
        self._is_seeded = insecure_seed is not None

    @property
    def source(self) -> str:
        """Where the randomness comes from, for the privacy statement."""
        if self._is_seeded:
            return (
                "INSECURE: ChaCha20 keyed from insecure_seed; whoever knows the seed "
                "can remove the noise"
            )
        return (
            "ChaCha20 with 256-bit keys from the operating system, one for sampling "
            "and one for noise"
        )

    def __reduce__(self) -> str:
        raise TypeError(
            "SecureRandom cannot be copied or pickled: its streams must be used once. "
            "Make a new one."
        )

    def __repr__(self) -> str:
        return f"SecureRandom({self.source})"


def sealed(content: bytes, key: str) -> bytes:
    """Content that only who has the key can read; sealing it again opens it.

    Args:
      content: What is sealed. A key must not seal more than one content.
      key: From `fresh_key`.
    """
    stream = _generator(int(key, 16)).bytes(len(content))
    pair = (np.frombuffer(part, np.uint8) for part in (content, stream))
    return np.bitwise_xor(*pair).tobytes()


def fresh_key() -> str:
    """256 bits from the operating system, in hexadecimal digits."""
    return f"{secrets.randbits(_KEY_BITS):064x}"


def chacha20(key: int, *, start: int = 0) -> np.random.BitGenerator:
    """The stream of a 256-bit key, after the first `start` numbers of 64 bits."""
    # The counter is one of 32-bit words.
    return randomgen.ChaCha(key=key, counter=2 * start, rounds=_ROUNDS)


def _generator(key: int) -> np.random.Generator:
    return np.random.Generator(chacha20(key))


def _checked_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise TypeError(
            "Expected insecure_seed to be an integer or None, got "
            f"{type(seed).__name__}."
        )
    return int(seed)


def _key_from_seed(seed: int, stream: str) -> int:
    digest = hashlib.sha256(f"numpyro_vips insecure {stream} {seed}".encode()).digest()
    return int.from_bytes(digest, "little")
