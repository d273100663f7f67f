"""A sigmoid belief network with either prior, for several tests."""

import math
from typing import Any

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

import numpyro_vips as nv

BIAS_VARIANCE = 4.0
WEIGHT_VARIANCE = 1.0


def belief_network(num_units: int, prior: str) -> Any:
    @nv.private(unit="images")
    def model(y):
        num_pixels = y.shape[1]
        scale = math.sqrt(BIAS_VARIANCE)
        b: Any = numpyro.sample(
            "b", dist.Normal(0.0, scale).expand([num_units]).to_event(1)
        )
        c: Any = numpyro.sample(
            "c", dist.Normal(0.0, scale).expand([num_pixels]).to_event(1)
        )
        shape = (num_pixels, num_units)
        if prior == "tpbn":
            omega: Any = numpyro.sample("omega", dist.Gamma(0.5, 1.0))
            phi: Any = numpyro.sample(
                "phi", dist.Gamma(0.5, omega).expand([num_units]).to_event(1)
            )
            xi: Any = numpyro.sample(
                "xi", dist.Gamma(0.5, jnp.broadcast_to(phi, shape)).to_event(2)
            )
            zeta: Any = numpyro.sample("zeta", dist.Gamma(0.5, xi).to_event(2))
            W: Any = numpyro.sample("W", dist.Normal(0.0, jnp.sqrt(zeta)).to_event(2))
        else:
            W: Any = numpyro.sample(
                "W",
                dist.Normal(0.0, math.sqrt(WEIGHT_VARIANCE)).expand(shape).to_event(2),
            )
        with numpyro.plate("images", y.shape[0]):
            z: Any = numpyro.sample("z", dist.Bernoulli(logits=b).to_event(1))
            numpyro.sample("y", dist.Bernoulli(logits=z @ W.T + c).to_event(1), obs=y)

    return model
