"""The integral over one or two latents of a row, by Gauss-Hermite quadrature.

The nodes lie about a Gaussian that is close to the latents' posterior, here the one of
the conjugacy layer (adaptive quadrature; Naylor and Smith, 1982). What the bound behind
that Gaussian loses is thereby made up for.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.jax_tools.gauss_hermite import grid_of_nodes, root_of
from numpyro_vips.vips.e_step.coordinates import LocalFactor

# Nodes per dimension, by the number of dimensions. With five binary answers of logits
# around 3θ the error is below 2e-6 with one latent, and below 2e-4 with two
# (`tests/dpvi/row_latents/test_quadrature.py`).
NUM_NODES = {1: 21, 2: 13}
# Bounds make posteriors too narrow, and nodes too near miss the tails; nodes somewhat
# too far apart lose little.
_WIDENED = 1.25

# The log density at values of the latents, and whether the row may count.
Density = Callable[[Mapping[str, Any]], tuple[Float[Array, ""], Bool[Array, ""]]]


def num_coordinates(factors: Mapping[str, PosteriorFactor]) -> int:
    """How many numbers the latents of some factors are."""
    return sum(math.prod(factor.shape) for factor in factors.values())


def log_integral(
    density: Density,
    factors: Mapping[str, PosteriorFactor],
    found: Mapping[str, LocalFactor],
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """log ∫ exp density over the latents of Gaussian factors.

    Args:
      density: The log density of a row and of its latents.
      factors: Gaussian factors, of one or two coordinates together.
      found: About where the nodes lie, which have no derivative.

    Returns:
      The integral's logarithm, and whether the row may count.
    """
    size = num_coordinates(factors)
    nodes, log_weights = grid_of_nodes(NUM_NODES[size], size)

    def at(
        node: Float[Array, " coordinates"],
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        values, log_volume, start = {}, jnp.zeros(()), 0
        for name, factor in factors.items():
            stop = start + math.prod(factor.shape)
            mine = node[start:stop].reshape(factor.shape)
            parameters = factor.family.parameters(found[name][1])
            root = _WIDENED * root_of(parameters["covariance_matrix"])
            moved = parameters["loc"] + (root * mine[..., None, :]).sum(-1)
            assert factor.layout is not None
            values |= factor.layout.sites(jax.lax.stop_gradient(moved))
            diagonal = jnp.diagonal(root, axis1=-2, axis2=-1)
            log_volume += jax.lax.stop_gradient(jnp.log(diagonal).sum())
            start = stop
        total, is_valid = density(values)
        return total + log_volume, is_valid

    totals, are_valid = jax.vmap(at)(jnp.asarray(nodes, jnp.result_type(float)))
    return jax.nn.logsumexp(totals + log_weights), jnp.all(are_valid)
