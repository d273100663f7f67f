"""Which rows a step sees: exactly the sampling that its event prices.

The sampler takes the accountant's own event, so the two cannot disagree. A batch of any
size is worked through in passes of a fixed public length: nothing is dropped when a
Poisson batch is large, so there is no overflow to price, and an empty batch is a step
like any other.
"""

import math

import numpy as np
from jaxtyping import Int

from numpyro_vips import _validate
from numpyro_vips.accounting import GaussianEvent

_RESOLUTION = 2.0**53
_ROUNDING = 2.0**-51
# Coins that are flipped at a time.
_COINS = 2**20


def select_rows(
    event: GaussianEvent, num_rows: int, rng: np.random.Generator
) -> range | Int[np.ndarray, " batch"]:
    """Draws one step's batch.

    ==================== ==========================================================
    `event.sampling`      rows
    ==================== ==========================================================
    "poisson"             each on its own coin flip of `sampling_rate`; possibly none
    "without_replacement" a uniform subset of `sampling_rate * num_rows` rows
    "full"                all
    ==================== ==========================================================

    Args:
      event: What the accountant priced.
      num_rows: The number of rows that are really present. Under add-or-remove it is
        private; nothing here depends on it but the batch itself.
      rng: Secure generator of the sampling stream.

    Returns:
      Row indices that grow, a range of all rows where they are all.

    Raises:
      ValueError: Sampling without replacement, and the rate does not give a whole
        number of rows.
    """
    if event.sampling == "full":
        return range(num_rows)
    if event.sampling == "without_replacement":
        size = fixed_batch_size(event.sampling_rate, num_rows)
        return np.sort(rng.choice(num_rows, size=size, replace=False, shuffle=False))
    # The generator's uniforms are multiples of 2⁻⁵³. Rounding the rate down to one
    # keeps a row's probability at or below the rate that was priced.
    threshold = math.floor(event.sampling_rate * _RESOLUTION) / _RESOLUTION
    # Some coins at a time, since they take more memory than the rows that are drawn.
    drawn = [
        start + np.flatnonzero(rng.random(min(_COINS, num_rows - start)) < threshold)
        for start in range(0, num_rows, _COINS)
    ]
    return np.concatenate(drawn)


def fixed_batch_size(sampling_rate: float, num_rows: int) -> int:
    """The whole number of rows that `sampling_rate` means without replacement.

    It is that up to the rounding of a quotient and of its product with `num_rows`: a
    rate that is written with fewer digits would be priced for fewer rows than drawn.
    """
    size = round(sampling_rate * num_rows)
    if size < 1 or abs(sampling_rate * num_rows - size) > _ROUNDING * size:
        below = max(1, math.floor(sampling_rate * num_rows))
        above = min(num_rows, below + 1)
        raise ValueError(
            f"Expected the rate {sampling_rate!r} times num_rows={num_rows} to be a "
            "whole number of rows without replacement. Use "
            f"nv.WithoutReplacement({below} / {num_rows}) or ({above} / {num_rows})."
        )
    return size


def split_batch(
    indices: range | Int[np.ndarray, " batch"], chunk_size: int, at_least: int = 1
) -> list[range | Int[np.ndarray, " chunk"]]:
    """Splits a batch into pieces that are worked on in one public shape.

    Args:
      indices: Row indices of the batch, possibly none.
      chunk_size: Public length to which every piece is filled up.
      at_least: Public number of pieces; there are more if the batch does not fit.

    Returns:
      Indices: all pieces but the last that has any are full. An empty batch gives
      pieces without any, so that every step does the same work.
    """
    _validate.positive_integer(chunk_size=chunk_size)
    length = max(at_least * chunk_size, len(indices))
    return [
        indices[start : start + chunk_size] for start in range(0, length, chunk_size)
    ]
