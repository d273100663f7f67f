"""Nodes and weights of Gauss-Hermite quadrature, in one or a few dimensions.

`root_of` takes those for a standard Normal to where they belong for another one.
"""

import itertools
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_Pivot = Float[Array, "*batch"]


def grid_of_nodes(
    number: int, dimensions: int
) -> tuple[Float[np.ndarray, "nodes dimensions"], Float[np.ndarray, " nodes"]]:
    """Nodes for a standard Normal, so many in each of the dimensions.

    Also the logarithms of weights for ∫ g(x) dx.
    """
    points, weights = np.polynomial.hermite_e.hermegauss(number)
    log_weights = np.log(weights) + 0.5 * points**2
    grid = np.array(list(itertools.product(points, repeat=dimensions)))
    each = itertools.product(log_weights, repeat=dimensions)
    return grid, np.array([sum(logs) for logs in each])


def root_of(
    covariance: Float[Array, "*batch dim dim"],
    held: Callable[[_Pivot, _Pivot], _Pivot] = lambda left, whole: left,
) -> Float[Array, "*batch dim dim"]:
    """The Cholesky factors R of matrices R Rᵀ of one or two rows.

    They are written out, as it takes long to ask LAPACK for so little.

    Args:
      covariance: The matrices.
      held: What is taken for a number whose root stands on the diagonal. It gets what
        is left of an entry of the matrix's diagonal when the square beside it has been
        taken off, which rounding may have made zero or less; and that entry.
    """
    entry = covariance[..., 0, 0]
    first = jnp.sqrt(held(entry, entry))
    if covariance.shape[-1] == 1:
        return first[..., None, None]
    below, entry = covariance[..., 1, 0] / first, covariance[..., 1, 1]
    last = jnp.sqrt(held(entry - below**2, entry))
    top = jnp.stack([first, jnp.zeros_like(first)], -1)
    return jnp.stack([top, jnp.stack([below, last], -1)], -2)
