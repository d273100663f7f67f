"""Moments to start from, before anything is known of a factor."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from numpyro_vips.conjugacy.families.dirichlet import Categorical
from numpyro_vips.conjugacy.families.joint_categorical import JointCategorical
from numpyro_vips.conjugacy.structure.posterior_factors import Group
from numpyro_vips.conjugacy.structure.structure import Structure


def neutral_auxiliaries(
    structure: Structure, groups: Sequence[Group]
) -> dict[str, dict[str, jax.Array]]:
    """Moments from which auxiliary variables start."""
    moments: dict[str, dict[str, jax.Array]] = {}
    for group in groups:
        if structure.latents[group.latents[0]].family is None:
            continue
        if group.family is Categorical:
            moments[group.name] = even(structure, group)
            continue
        assert not isinstance(group.family, JointCategorical)
        value = group.family.neutral_moment
        moments[group.name] = {
            statistic: jnp.full(group.shape, {"log": 0.0}.get(statistic, value))
            for statistic in group.family.statistics
        }
    return moments


def zero_moments(structure: Structure, group: Group) -> dict[str, jax.Array]:
    return {
        statistic: jnp.zeros(moment_shape(structure, group, statistic))
        for statistic in group.family.statistics
    }


def even(structure: Structure, group: Group) -> dict[str, jax.Array]:
    """Every state of a discrete latent equally likely."""
    shape = moment_shape(structure, group, "is")
    return {"is": jnp.full(shape, 1.0 / shape[-1])}


def moment_shape(structure: Structure, group: Group, statistic: str) -> tuple[int, ...]:
    if isinstance(group.family, JointCategorical):
        return (*group.shape, *group.family.table_shape(statistic))
    if statistic == "xx":
        return (*group.shape, group.shape[-1])
    if statistic == "is":
        states = structure.latents[group.name].states
        assert states is not None
        return (*group.shape, len(states))
    if statistic == "logdet":
        return group.shape[:-2]
    return group.shape
