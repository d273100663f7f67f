"""Mappings of arrays, by what their keys name.

"New" is what a function returns: a dictionary of its own. Axis names say the same in
all of this folder: `rows` of a minibatch, `entries` that a row stores, `batch` of a
factor's independent elements and `states` of a discrete one.
"""

from collections.abc import Mapping

import jax
import numpy as np
from jaxtyping import Array, Float, Float64, PyTree, Shaped

from numpyro_vips.conjugacy.families.family import Moments, NewMoments

# n̄ or a sum of rows' statistics by name, in the statistic's own shape or its block's.
ByStatistic = Mapping[str, Float[Array, "..."]]
NewByStatistic = dict[str, Float[Array, "..."]]
# What blocks are multiplied by before they are clipped together.
Scales = Mapping[str, float | Float[Array, ""]]
# Such sums outside of JAX, in double precision.
Sums = Mapping[str, Float[np.ndarray, "..."]]
NewSums = dict[str, Float[np.ndarray, "..."]]

# One array for each of a family's statistics, in JAX or in NumPy.
AnyMoments = Mapping[str, Float[Array | np.ndarray, "..."]]
# By posterior factor, one array for each of the family's statistics: moments, or
# natural parameters.
MomentsByFactor = Mapping[str, Moments]
NewMomentsByFactor = dict[str, NewMoments]
# The same outside of JAX, in double precision.
InDouble = dict[str, dict[str, Float64[np.ndarray, "..."]]]
# Moments and natural parameters of one factor of a row's latents.
LocalFactor = tuple[NewMoments, NewMoments]

# By private argument, what one row or each of several holds: an array, or `Entries`.
Row = Mapping[str, PyTree[Shaped[Array | np.ndarray, "..."]]]
Rows = Mapping[str, PyTree[Shaped[Array | np.ndarray, "rows ..."]]]
# By token, what the slots of a row's terms stand for; see `RowConstants`.
Numbers = Mapping[int, Shaped[Array, "..."]]
# By latent, its value.
Values = Mapping[str, Shaped[Array | np.ndarray, "..."]]
# By global latent, the point about which rows' statistics are taken, with the batch
# axes of its factor in front.
Points = Mapping[str, Float[Array, "..."]]
# By global latent, its posterior mean.
Means = Mapping[str, Float64[np.ndarray, "..."]]
NewMeans = dict[str, Float64[np.ndarray, "..."]]
NewValues = dict[str, Shaped[np.ndarray, "..."]]


def as_rows_know(array: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """The array rounded to the precision in which programs of rows run."""
    return array.astype(jax.dtypes.canonicalize_dtype(np.float64)).astype(np.float64)
