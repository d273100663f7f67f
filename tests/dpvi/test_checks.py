"""What DPVI cannot do is refused before anything else, with what to do instead."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import graph_of

from numpyro_vips.dpvi.checks import not_supported


def rows(y: Any, mean: Any, name: str = "y") -> None:
    numpyro.sample(name, dist.Normal(mean, 1.0), obs=y)


def fine(y: Any) -> None:
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        rows(y, m + z)


def discrete_global(y: Any) -> None:
    k = numpyro.sample("k", dist.Poisson(3.0))
    with numpyro.plate("rows", y.shape[0]):
        rows(y, k)


def unknown_states(y: Any) -> None:
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        rows(y, m + numpyro.sample("z", dist.Poisson(3.0)))


def too_many_states(y: Any) -> None:
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample(
            "z", dist.Categorical(jnp.ones(10) / 10).expand([8]).to_event(1)
        )
        rows(y, m + z.sum(-1))


def scaled(y: Any) -> None:
    m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]), numpyro.handlers.scale(scale=2.0):
        rows(y, m + numpyro.sample("z", dist.Bernoulli(0.3)))


def nothing_to_fit(y: Any) -> None:
    with numpyro.plate("rows", y.shape[0]):
        rows(y, 0.0)


def moving_support(y: Any) -> None:
    top = numpyro.sample("top", dist.HalfNormal(1.0))
    m = numpyro.sample("m", dist.Uniform(0.0, 1.0 + top))
    with numpyro.plate("rows", y.shape[0]):
        rows(y, m)


REASONS: dict[Callable[..., None], str | None] = {
    fine: None,
    discrete_global: "no gradient for the discrete latent 'k'",
    unknown_states: "does not know which states 'z'",
    # What sums over its latents, or refuses to, is looked for later.
    too_many_states: None,
    scaled: "cannot sum out the discrete latent 'z' under numpyro.handlers.scale",
    nothing_to_fit: "there is nothing to fit",
    moving_support: "The support of 'm' depends on another latent",
}


@pytest.mark.parametrize("model", REASONS)
def test_models_have_a_reason_and_a_remedy(model: Callable[..., None]) -> None:
    graph = graph_of(model, (np.array([0.5, 1.0], np.float32),))[1]
    found, expected = not_supported(graph), REASONS[model]
    if expected is None:
        assert found is None
    else:
        assert found is not None and expected in found
