"""What is known of a latent before any term is looked at."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _models import graph_of
from numpyro.distributions import constraints

from numpyro_vips.conjugacy.families.dirichlet import Categorical
from numpyro_vips.conjugacy.families.gamma import Gamma
from numpyro_vips.conjugacy.structure.latents import (
    Latent,
    known_family,
    model_latents,
)


def model(y: Any) -> None:
    numpyro.sample("flat", dist.ImproperUniform(constraints.positive, (), ()))
    w = numpyro.sample("w", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.ones(3) / 3))
        numpyro.sample("b", dist.Bernoulli(0.5).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(w[z], 1.0), obs=y)


def test_latents_are_those_of_the_model_with_their_states_and_roles() -> None:
    found = model_latents(graph_of(model, (np.zeros(4, np.float32),))[1])
    assert list(found) == ["flat", "w", "z", "b"]
    assert [latent.role for latent in found.values()] == [
        *("global", "global", "local", "local")
    ]
    assert [latent.shape for latent in found.values()] == [(), (3,), (1,), (1, 2)]
    states = {n: s.states.tolist() for n, s in found.items() if s.states is not None}
    assert states == {"z": [0, 1, 2], "b": [0, 1]}
    assert [name for name, latent in found.items() if latent.is_flat] == ["flat"]


def test_a_family_is_known_of_discrete_and_of_auxiliary_variables() -> None:
    plain = Latent(name="w", role="global", shape=(3,), support=constraints.real)
    assert known_family(plain) is None
    found = known_family(
        Latent(name="z", role="local", shape=(), support=None, states=np.arange(4))
    )
    assert isinstance(found, Categorical) and found.moment_shapes(()) == {"is": (4,)}
    mixing = Latent(
        name="y:scale", role="local", shape=(), support=None, family="Gamma"
    )
    assert isinstance(known_family(mixing), Gamma)
