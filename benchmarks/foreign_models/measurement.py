"""What was measured with error, or not at all."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from foreign_models._foreign import RETHINKING, Arguments, column, foreign, placeholder


@foreign(
    f"{RETHINKING}, m15.1",
    unit="states",
    arguments=lambda rng: {
        "A": column(rng, 500),
        "M": column(rng, 500),
        "D_sd": rng.uniform(0.2, 1.0, 500).astype(np.float32),
        "D_obs": placeholder(500),
    },
    truth={"a": 0.0, "bA": -0.6, "bM": 0.05, "sigma": 0.6},
)
def divorce_with_error(A: Any, M: Any, D_sd: Any, D_obs: Any) -> None:
    """The outcome has known standard errors."""
    a = numpyro.sample("a", dist.Normal(0.0, 0.2))
    bA = numpyro.sample("bA", dist.Normal(0.0, 0.5))
    bM = numpyro.sample("bM", dist.Normal(0.0, 0.5))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("states", D_obs.shape[0]):
        mu = a + bA * A + bM * M
        D_true = numpyro.sample("D_true", dist.Normal(mu, sigma))
        numpyro.sample("D_obs", dist.Normal(D_true, D_sd), obs=D_obs)


@foreign(
    "Stan User's Guide, Bayesian measurement error model",
    unit="N",
    arguments=lambda rng: {
        "x_meas": placeholder(500),
        "tau": rng.uniform(0.2, 0.8, 500).astype(np.float32),
        "y": placeholder(500),
    },
    truth={"mu_x": 0.5, "sigma_x": 1.0, "alpha": 1.0, "beta": 1.5, "sigma": 0.5},
)
def measured_covariate(x_meas: Any, tau: Any, y: Any) -> None:
    """A covariate with known error and a prior of its own."""
    mu_x = numpyro.sample("mu_x", dist.Normal(0.0, 10.0))
    sigma_x = numpyro.sample("sigma_x", dist.HalfCauchy(5.0))
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(5.0))
    with numpyro.plate("N", y.shape[0]):
        x = numpyro.sample("x", dist.Normal(mu_x, sigma_x))
        numpyro.sample("x_meas", dist.Normal(x, tau), obs=x_meas)
        numpyro.sample("y", dist.Normal(alpha + beta * x, sigma), obs=y)


def _milk(rng: np.random.Generator) -> Arguments:
    M, U = column(rng, 600), rng.normal(size=600)
    B = (0.6 * U + 0.8 * rng.normal(size=600)).astype(np.float32)
    K = 0.1 + 0.5 * B - 0.55 * M + rng.normal(0.0, 0.8, 600)
    known = rng.uniform(size=600) > 0.3
    return {
        "M": M,
        "known": known,
        "B": np.where(known, B, 0).astype(np.float32),
        "K": K.astype(np.float32),
    }


@foreign(
    f"{RETHINKING}, m15.5",
    unit="species",
    arguments=_milk,
    truth=None,
)
def milk(M: Any, known: Any, B: Any, K: Any) -> None:
    """A covariate that is missing in some rows, imputed from its own mean."""
    a = numpyro.sample("a", dist.Normal(0.0, 0.5))
    bB = numpyro.sample("bB", dist.Normal(0.0, 0.5))
    bM = numpyro.sample("bM", dist.Normal(0.0, 0.5))
    nu = numpyro.sample("nu", dist.Normal(0.0, 0.5))
    sigma_B = numpyro.sample("sigma_B", dist.Exponential(1.0))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("species", K.shape[0]):
        B_impute = numpyro.sample("B_impute", dist.Normal(nu, sigma_B).mask(~known))
        with numpyro.handlers.mask(mask=known):
            numpyro.sample("B", dist.Normal(nu, sigma_B), obs=B)
        B_merged = jnp.where(known, B, B_impute)
        numpyro.sample("K", dist.Normal(a + bB * B_merged + bM * M, sigma), obs=K)


def _cervix(rng: np.random.Generator) -> Arguments:
    x = rng.binomial(1, 0.5, 1500)
    d = rng.binomial(1, 1 / (1 + np.exp(-(-0.9 + 0.6 * x))))
    phi = np.array([[0.3, 0.2], [0.5, 0.8]])
    seen = rng.uniform(size=1500) < 0.3
    return {
        "x_seen": seen,
        "x": np.where(seen, x, 0),
        "w": rng.binomial(1, phi[x, d]),
        "d": d,
    }


@foreign(
    "BUGS volume 2, Cervix",
    unit="women",
    arguments=_cervix,
    truth=None,
)
def cervix(x_seen: Any, x: Any, w: Any, d: Any) -> None:
    """Exposure x is known for some; w measures it with errors in cases and controls."""
    q = numpyro.sample("q", dist.Uniform(0.0, 1.0))
    beta0C = numpyro.sample("beta0C", dist.Normal(0.0, 300.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 300.0))
    phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0).expand([2, 2]).to_event(2))
    with numpyro.plate("women", d.shape[0]):
        with numpyro.handlers.mask(mask=~x_seen):
            missing = numpyro.sample(
                "x_missing", dist.Bernoulli(q), infer={"enumerate": "parallel"}
            )
        with numpyro.handlers.mask(mask=x_seen):
            numpyro.sample("x", dist.Bernoulli(q), obs=x)
        merged = jnp.where(x_seen, x, missing)
        numpyro.sample("d", dist.Bernoulli(logits=beta0C + beta * merged), obs=d)
        numpyro.sample("w", dist.Bernoulli(phi[merged, d]), obs=w)


@foreign(
    "Stan User's Guide, Rounding",
    unit="N",
    arguments=lambda rng: {
        "z": np.round(rng.normal(10.3, 1.8, 400)).astype(np.float32)
    },
    truth=None,
)
def rounded(z: Any) -> None:
    """Measurements rounded to whole numbers, with the true ones as latents."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 100.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(5.0))
    with numpyro.plate("N", z.shape[0]):
        error = numpyro.sample("error", dist.Uniform(-0.5, 0.5))
        numpyro.factor("y", dist.Normal(mu, sigma).log_prob(z + error))


@foreign(
    "BUGS volume 2, Camel (missing data); Little and Rubin 2002",
    unit="people",
    arguments=lambda rng: {
        "seen": rng.uniform(size=(600, 3)) > 0.25,
        "group": rng.integers(0, 2, 600),
        "y": placeholder(600, 3),
    },
    truth={"mu": jnp.array([[1.0, 0.0, -1.0], [0.5, 0.5, 1.5]]), "tau": 0.8},
)
def missing_scores(seen: Any, group: Any, y: Any) -> None:
    """Scores of three tests with some missing at random."""
    with numpyro.plate("groups", 2, dim=-2), numpyro.plate("tests", 3, dim=-1):
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
    with (
        numpyro.plate("people", y.shape[0], dim=-2),
        numpyro.plate("scores", 3, dim=-1),
        numpyro.handlers.mask(mask=seen),
    ):
        numpyro.sample("y", dist.Normal(mu[group], 1 / jnp.sqrt(tau)), obs=y)
