"""A block of what is released as a vector, to check norms and noise."""

import functools
import math

import numpy as np

from numpyro_vips.privacy.gaussian_mechanism import Block


def isometric_coordinates(block: Block, value: np.ndarray) -> np.ndarray:
    """The block's part of the joint vector: same norm as the scaled block.

    Args:
      block: Its shape and scale.
      value: One or more contributions, with the block's axes last.

    Returns:
      Array whose last axis has `block.num_coordinates` entries.
    """
    value = block.scale * np.asarray(value, float)
    leading = value.shape[: value.ndim - len(block.shape)]
    if not block.symmetric:
        return value.reshape(*leading, block.num_coordinates)
    rows, columns, factors = _triangle(block.shape[-1], block.hollow)
    return (value[..., rows, columns] * factors).reshape(
        *leading, block.num_coordinates
    )


@functools.cache
def _triangle(order: int, hollow: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the free entries of a symmetric matrix lie, and what each counts.

    Searches ask for it a hundred thousand times.
    """
    rows, columns = np.triu_indices(order, k=int(hollow))
    return rows, columns, np.where(rows == columns, 1.0, math.sqrt(2.0))
