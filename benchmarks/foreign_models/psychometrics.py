"""Tests and their items: one and two parameters, and a test of other kinds."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from foreign_models._foreign import foreign


@foreign(
    "BUGS volume 1, LSAT; posteriordb lsat_model",
    unit="students",
    arguments=lambda rng: {"r": np.zeros((1000, 5), np.int32)},
    truth={"alpha": jnp.array([-2.8, -1.0, -0.25, -1.3, -2.1]), "beta": 0.76},
)
def lsat(r: Any) -> None:
    """Five items; abilities have the slope beta."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 100.0).expand([5]).to_event(1))
    beta = numpyro.sample("beta", dist.HalfNormal(100.0))
    with numpyro.plate("students", r.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        logits = beta * theta[..., None] - alpha
        numpyro.sample("r", dist.Bernoulli(logits=logits).to_event(1), obs=r)


@foreign(
    "Stan User's Guide, 1PL (Rasch) model",
    unit="students",
    arguments=lambda rng: {"y": np.zeros((500, 10), np.int32)},
    truth={
        "mu_beta": 0.0,
        "sigma_beta": 1.0,
        "sigma_alpha": 1.3,
        "beta": jnp.linspace(-1.5, 1.5, 10),
    },
)
def rasch(y: Any) -> None:
    """One parameter an item, and a hyperprior of the abilities' spread."""
    mu_beta = numpyro.sample("mu_beta", dist.Cauchy(0.0, 5.0))
    sigma_beta = numpyro.sample("sigma_beta", dist.HalfCauchy(5.0))
    sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfCauchy(5.0))
    with numpyro.plate("items", y.shape[1], dim=-1):
        beta = numpyro.sample("beta", dist.Normal(mu_beta, sigma_beta))
    with numpyro.plate("students", y.shape[0], dim=-2):
        alpha = numpyro.sample("alpha", dist.Normal(0.0, sigma_alpha))
        with numpyro.plate("answers", y.shape[1], dim=-1):
            numpyro.sample("y", dist.Bernoulli(logits=alpha - beta), obs=y)


@foreign(
    "Stan User's Guide, 2PL; posteriordb irt_2pl",
    unit="students",
    arguments=lambda rng: {"y": np.zeros((600, 8), np.int32)},
    truth={
        "sigma_a": 0.5,
        "mu_b": 0.0,
        "sigma_b": 1.0,
        "a": jnp.array([0.7, 0.9, 1.1, 1.3, 1.5, 1.8, 1.0, 1.2]),
        "b": jnp.linspace(-1.5, 1.5, 8),
    },
)
def irt_2pl(y: Any) -> None:
    """Two parameters an item: how steep and how hard."""
    sigma_a = numpyro.sample("sigma_a", dist.HalfCauchy(2.0))
    mu_b = numpyro.sample("mu_b", dist.Normal(0.0, 5.0))
    sigma_b = numpyro.sample("sigma_b", dist.HalfCauchy(2.0))
    a = numpyro.sample("a", dist.LogNormal(0.0, sigma_a).expand([8]).to_event(1))
    b = numpyro.sample("b", dist.Normal(mu_b, sigma_b).expand([8]).to_event(1))
    with numpyro.plate("students", y.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        logits = a * (theta[..., None] - b)
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


@foreign(
    "Joseph, Gyorkos and Coupal 1995, tests without a gold standard",
    unit="people",
    arguments=lambda rng: {"y": np.zeros((800, 6), np.int32)},
    truth={
        "prevalence": 0.35,
        "sensitivity": jnp.array([0.9, 0.8, 0.85, 0.7, 0.75, 0.9]),
        "false_alarm": jnp.array([0.1, 0.05, 0.2, 0.15, 0.1, 0.25]),
    },
)
def latent_class(y: Any) -> None:
    """Two classes of people and six tests with an own rate in each."""
    prevalence = numpyro.sample("prevalence", dist.Beta(1.0, 1.0))
    sensitivity = numpyro.sample(
        "sensitivity", dist.Beta(4.0, 2.0).expand([6]).to_event(1)
    )
    false_alarm = numpyro.sample(
        "false_alarm", dist.Beta(2.0, 4.0).expand([6]).to_event(1)
    )
    with numpyro.plate("people", y.shape[0]):
        ill = numpyro.sample(
            "ill", dist.Bernoulli(prevalence), infer={"enumerate": "parallel"}
        )
        p = jnp.where(ill[..., None] == 1, sensitivity, false_alarm)
        numpyro.sample("y", dist.Bernoulli(p).to_event(1), obs=y)
