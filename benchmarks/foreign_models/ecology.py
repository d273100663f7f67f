"""Capture and recapture, occupancy, and counts that are not perfect."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import expit

from foreign_models._foreign import Arguments, column, foreign


@foreign(
    "Kéry and Schaub 2012, section 6.2.1; posteriordb M0_model",
    name="M0",
    unit="animals",
    arguments=lambda rng: {"y": np.zeros((500, 3), np.int32)},
    truth={"omega": 0.6, "p": 0.45},
)
def m0(y: Any) -> None:
    """Captures in three visits; many rows are animals that may not exist."""
    omega = numpyro.sample("omega", dist.Uniform(0.0, 1.0))
    p = numpyro.sample("p", dist.Uniform(0.0, 1.0))
    with numpyro.plate("animals", y.shape[0], dim=-2):
        z = numpyro.sample("z", dist.Bernoulli(omega), infer={"enumerate": "parallel"})
        with numpyro.plate("visits", y.shape[1], dim=-1):
            numpyro.sample("y", dist.Bernoulli(z * p), obs=y)


@foreign(
    "Kéry and Schaub 2012, section 6.2.2; posteriordb Mt_model",
    name="Mt",
    unit="animals",
    arguments=lambda rng: {"y": np.zeros((500, 4), np.int32)},
    truth={"omega": 0.6, "p": jnp.array([0.3, 0.5, 0.4, 0.6])},
)
def mt(y: Any) -> None:
    """The same with a chance for each visit."""
    omega = numpyro.sample("omega", dist.Uniform(0.0, 1.0))
    with numpyro.plate("visits", y.shape[1], dim=-1):
        p = numpyro.sample("p", dist.Uniform(0.0, 1.0))
    with numpyro.plate("animals", y.shape[0], dim=-2):
        z = numpyro.sample("z", dist.Bernoulli(omega), infer={"enumerate": "parallel"})
        with numpyro.plate("occasions", y.shape[1], dim=-1):
            numpyro.sample("y", dist.Bernoulli(z * p), obs=y)


def _trap_happy(rng: np.random.Generator) -> Arguments:
    z = rng.uniform(size=500) < 0.6
    y, before = np.zeros((500, 5), np.int32), np.zeros((500, 5), np.float32)
    for t in range(5):
        before[:, t] = y[:, :t].any(1)
        y[:, t] = z & (rng.uniform(size=500) < np.where(before[:, t] > 0, 0.6, 0.3))
    return {"y": y, "caught_before": before}


@foreign(
    "Kéry and Schaub 2012, section 6.2.3; posteriordb Mb_model",
    name="Mb",
    unit="animals",
    arguments=_trap_happy,
    truth=None,
)
def mb(y: Any, caught_before: Any) -> None:
    """The chance changes after the first capture."""
    omega = numpyro.sample("omega", dist.Uniform(0.0, 1.0))
    p = numpyro.sample("p", dist.Uniform(0.0, 1.0))
    c = numpyro.sample("c", dist.Uniform(0.0, 1.0))
    with numpyro.plate("animals", y.shape[0], dim=-2):
        z = numpyro.sample("z", dist.Bernoulli(omega), infer={"enumerate": "parallel"})
        with numpyro.plate("visits", y.shape[1], dim=-1):
            p_eff = (1 - caught_before) * p + caught_before * c
            numpyro.sample("y", dist.Bernoulli(z * p_eff), obs=y)


@foreign(
    "MacKenzie et al. 2002; Kéry and Schaub 2012, section 13.3",
    unit="sites",
    arguments=lambda rng: {"y": np.zeros(600, np.int32)},
    truth={"psi": 0.6, "p": 0.5},
)
def occupancy(y: Any) -> None:
    """Sites with or without the species, and five visits; occupancy summed out."""
    psi = numpyro.sample("psi", dist.Uniform(0.0, 1.0))
    p = numpyro.sample("p", dist.Uniform(0.0, 1.0))
    with numpyro.plate("sites", y.shape[0]):
        numpyro.sample(
            "y", dist.ZeroInflatedDistribution(dist.Binomial(5, p), gate=1 - psi), obs=y
        )


@foreign(
    "Kéry and Schaub 2012, section 13.4",
    unit="sites",
    arguments=lambda rng: {"x": column(rng, 600), "y": np.zeros(600, np.int32)},
    truth={"alpha": 0.2, "beta": 1.0, "p": 0.5},
)
def site_occupancy(x: Any, y: Any) -> None:
    """Occupancy by a logit of a covariate, with the site's state."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 2.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0))
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("sites", y.shape[0]):
        z = numpyro.sample(
            "z",
            dist.Bernoulli(logits=alpha + beta * x),
            infer={"enumerate": "parallel"},
        )
        numpyro.sample("y", dist.Binomial(5, z * p), obs=y)


@foreign(
    "NumPyro example Capture recapture (model 1); Kéry and Schaub 2012, 7.3",
    unit="animals",
    arguments=lambda rng: {"y": np.zeros((500, 5), np.int32)},
    truth={"phi": 0.8, "p": 0.5},
)
def cjs(y: Any) -> None:
    """Survival between five occasions after a first capture, and recapture."""
    phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
    p = numpyro.sample("p", dist.Uniform(0.0, 1.0))
    with numpyro.plate("animals", y.shape[0]):
        z = jnp.ones(y.shape[0], int)
        for t in range(5):
            z = numpyro.sample(
                f"z_{t}", dist.Bernoulli(phi * z), infer={"enumerate": "parallel"}
            )
            numpyro.sample(f"y_{t}", dist.Bernoulli(p * z), obs=y[:, t])


@foreign(
    "Buckland et al. 2001, Distance sampling: half-normal detection",
    unit="decoys",
    arguments=lambda rng: {
        "x": rng.uniform(0.0, 3.0, 800).astype(np.float32),
        "seen": np.zeros(800, np.int32),
    },
    truth={"log_sigma": 0.2, "a": 2.0},
)
def distance_sampling(x: Any, seen: Any) -> None:
    """Distance sampling: a half-normal chance of being seen at a known distance."""
    log_sigma = numpyro.sample("log_sigma", dist.Normal(0.0, 1.0))
    a = numpyro.sample("a", dist.Normal(0.0, 1.5))
    with numpyro.plate("decoys", seen.shape[0]):
        p = expit(a) * jnp.exp(-(x**2) / (2 * jnp.exp(log_sigma) ** 2))
        numpyro.sample("seen", dist.Bernoulli(p), obs=seen)
