"""Secret random bits for single rows, such as for what is drawn in a row's place.

What a row contributes may depend on bits of its own that nobody knows. Let r be the
bits of all rows of a batch, independent and uniform. For every r, leaving a row out
changes the sum by no more than that row's bound, if each other row keeps its bits. And
each may: which row has which of the bits makes no difference to their distribution. So
both releases are mixtures over r, of pairs whose privacy loss is that of the mechanism,
and δ(ε) of mixtures is at most the largest one of a pair, as the hockey-stick
divergence is jointly convex.

This holds for bits that are used once and for one row, and known to nobody. A key that
the caller gives, or one made of a row's number by a generator for simulation, would not
do: to whoever knows it, leaving a row out changes what all later rows contribute.
"""

import numpy as np
from jaxtyping import UInt32

from numpyro_vips.privacy.secure_random import chacha20

_KEY_BYTES = 32


class RowKeys:
    """Bits for the places of one batch; every batch needs keys of its own."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Draws the key of ChaCha20 that the bits come from.

        Args:
          rng: Secure generator of the sampling stream, which processes share.
        """
        self._key = int.from_bytes(rng.bytes(_KEY_BYTES), "little")

    def of_places(self, start: int, count: int) -> UInt32[np.ndarray, "count 2"]:
        """64 bits for each of some places, the same however a batch is split.

        Args:
          start: The first place.
          count: How many places there are.
        """
        numbers = chacha20(self._key, start=start).random_raw(count)
        halves = np.asarray(numbers, "<u8").view("<u4")
        return halves.reshape(count, 2).astype(np.uint32)

    def __reduce__(self) -> str:
        raise TypeError("RowKeys cannot be copied or pickled: each is used once.")
