"""Nodes and weights of Gauss-Hermite quadrature, in one or a few dimensions."""

import itertools

import numpy as np
from jaxtyping import Float


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
