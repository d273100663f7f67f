"""Sums over some rows, dense or still scattered, and how they are added up."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from numpyro_vips.vips.row_sums.scattered import Scattered

# What some rows add to a statistic: an array, or their contributions, still scattered.
PartialSum = Float[Array, "..."] | Scattered
# Of the same, or of what will be the same when a program runs, the shapes alone.
ShapeOfSum = PartialSum | Float[jax.ShapeDtypeStruct, "..."]


def weighted(scattered: Scattered, weights: Float[Array, " rows"]) -> Scattered:
    """Contributions of rows, each multiplied by the weight of its row, (rows,)."""
    values = scattered.values
    each = weights.reshape(-1, *(1,) * (values.ndim - 1))
    return dataclasses.replace(scattered, values=each * values)


def zero_sum(partial_sum: ShapeOfSum, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """The zeros from which partial sums are added up; `shape` is the statistic's."""
    if not isinstance(partial_sum, Scattered):
        return jnp.zeros(shape, partial_sum.dtype)
    picked = [shape[partial_sum.axes.index(i)] for i in range(len(partial_sum.indices))]
    # The values have axes of rows and of each row's entries first.
    return jnp.zeros((*picked, *partial_sum.values.shape[2:]), partial_sum.values.dtype)


def add(total: Float[Array, "*sum"], partial_sum: PartialSum) -> Float[Array, "*sum"]:
    """Adds a partial sum to a total that began as its `zero_sum`."""
    if not isinstance(partial_sum, Scattered):
        return total + partial_sum
    return total.at[partial_sum.indices].add(partial_sum.values, mode="drop")


def in_order(
    total: Float[Array, "..."], partial_sum: ShapeOfSum, shape: tuple[int, ...]
) -> Float[Array, "..."]:
    """A total of partial sums, with the statistic's own axes."""
    if not isinstance(partial_sum, Scattered):
        return total
    axes = partial_sum.axes
    total = total[tuple(slice(shape[axes.index(i)]) for i in range(total.ndim))]
    if len(axes) == total.ndim:
        return jnp.transpose(total, axes)
    entries = jnp.ogrid[tuple(slice(size) for size in total.shape)]
    diagonal = tuple(entries[axis] for axis in axes)
    return jnp.zeros(shape, total.dtype).at[diagonal].set(total)
