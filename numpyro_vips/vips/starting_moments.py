"""Moments to start from, before anything is known of a factor."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from numpyro_vips.conjugacy.families.dirichlet import Categorical
from numpyro_vips.conjugacy.families.joint_categorical import JointCategorical
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure


def neutral_auxiliaries(
    structure: Structure, factors: Sequence[PosteriorFactor]
) -> dict[str, dict[str, jax.Array]]:
    """Moments from which auxiliary variables start."""
    moments: dict[str, dict[str, jax.Array]] = {}
    for factor in factors:
        if structure.latents[factor.latents[0]].family is None:
            continue
        if factor.family is Categorical:
            moments[factor.name] = even(structure, factor)
            continue
        assert not isinstance(factor.family, JointCategorical)
        value = factor.family.neutral_moment
        moments[factor.name] = {
            statistic: jnp.full(factor.shape, {"log": 0.0}.get(statistic, value))
            for statistic in factor.family.statistics
        }
    return moments


def zero_moments(structure: Structure, factor: PosteriorFactor) -> dict[str, jax.Array]:
    return {
        statistic: jnp.zeros(moment_shape(structure, factor, statistic))
        for statistic in factor.family.statistics
    }


def even(structure: Structure, factor: PosteriorFactor) -> dict[str, jax.Array]:
    """Every state of a discrete latent equally likely."""
    shape = moment_shape(structure, factor, "is")
    return {"is": jnp.full(shape, 1.0 / shape[-1])}


def moment_shape(
    structure: Structure, factor: PosteriorFactor, statistic: str
) -> tuple[int, ...]:
    if isinstance(factor.family, JointCategorical):
        return (*factor.shape, *factor.family.table_shape(statistic))
    if statistic == "xx":
        return (*factor.shape, factor.shape[-1])
    if statistic == "is":
        states = structure.latents[factor.name].states
        assert states is not None
        return (*factor.shape, len(states))
    if statistic == "logdet":
        return factor.shape[:-2]
    return factor.shape
