"""Moments to start from, before anything is known of a factor."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure


def neutral_auxiliaries(
    structure: Structure, factors: Sequence[PosteriorFactor]
) -> dict[str, dict[str, jax.Array]]:
    """Moments from which auxiliary variables start."""
    return {
        factor.name: factor.family.neutral_moments(factor.shape)
        for factor in factors
        if structure.latents[factor.latents[0]].family is not None
    }


def zero_moments(factor: PosteriorFactor) -> dict[str, jax.Array]:
    """Zeros in the shapes of a factor's moments."""
    shapes = factor.family.moment_shapes(factor.shape)
    return {statistic: jnp.zeros(shape) for statistic, shape in shapes.items()}
