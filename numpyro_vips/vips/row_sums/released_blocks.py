"""Statistics as the blocks in which they are released, and back."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from numpyro_vips.conjugacy.structure.repeated_diagonals import (
    with_diagonal,
    without_diagonal,
)
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.vips.program.named_arrays import ByStatistic, Sums


def as_block(statistic: Statistic, array: Float[Array, "..."]) -> Float[Array, "..."]:
    """What is released of a statistic: symmetric ones symmetrised, or hollow."""
    if statistic.matrix is None:
        return array
    batch, rows, columns = statistic.matrix
    array = array.transpose(*batch, *rows, *columns)
    array = array.reshape(statistic.block_shape)
    array = 0.5 * (array + jnp.swapaxes(array, -1, -2))
    return array if statistic.diagonal is None else without_diagonal(array)


def with_repeats(
    statistics: Sequence[Statistic],
    blocks: ByStatistic | Sums,
) -> dict[str, Float[Array | np.ndarray, "..."]]:
    """Released blocks, with the diagonals that repeat others put back."""
    found = dict(blocks)
    for statistic in statistics:
        if statistic.diagonal is not None and statistic.name in blocks:
            diagonal = statistic.diagonal.of(blocks[statistic.diagonal.statistic])
            found[statistic.name] = with_diagonal(blocks[statistic.name], diagonal)
    return found


def from_block(statistic: Statistic, block: Float[Array, "..."]) -> Float[Array, "..."]:
    """The statistic in its own shape, from its block with the diagonal."""
    if statistic.matrix is None:
        return block
    order = [axis for part in statistic.matrix for axis in part]
    array = block.reshape([statistic.shape[i] for i in order])
    return array.transpose([order.index(i) for i in range(len(order))])
