"""The latent variables of a model, and those that an augmentation adds."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpyro.distributions as dist

from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.families import family_named
from numpyro_vips.conjugacy.families.dirichlet import Categorical
from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.model.graph import ModelGraph


@dataclasses.dataclass(frozen=True, kw_only=True)
class Latent:
    """A latent variable of the model, or an auxiliary one of an augmentation.

    `states` are the values of a discrete latent. `weight` is how many independent
    copies each element stands for, as a form with the latent's axes: of an auxiliary
    variable, the trials of a binomial observation; of a discrete latent of the model,
    the scale that it shares with all that depends on it, such as the count of a word.
    `is_flat` says that its prior is improper.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    support: Any
    states: np.ndarray | None = None
    family: str | None = None
    weight: Form | None = None
    is_flat: bool = False


# All latents of a model, by name.
Latents = Mapping[str, Latent]


def known_family(latent: Latent) -> Family | None:
    """The family of a latent for which it does not follow from its statistics."""
    if latent.states is not None:
        return Categorical(len(latent.states))
    return None if latent.family is None else family_named(latent.family)


def model_latents(graph: ModelGraph) -> dict[str, Latent]:
    """The latent variables of the model itself."""
    latents = {}
    for site in graph.sites.values():
        if not site.is_latent:
            continue
        states = None if site.num_states is None else np.arange(site.num_states)
        latents[site.name] = Latent(
            name=site.name,
            role=site.role,
            shape=site.shape,
            support=site.support,
            states=states,
            is_flat=site.distributed.kind is dist.ImproperUniform,
        )
    return latents
