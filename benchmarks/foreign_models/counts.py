"""Counts and proportions: Poisson, binomial, and what spreads more than these."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import expit

from foreign_models._foreign import (
    GELMAN_HILL,
    RETHINKING,
    column,
    foreign,
    placeholder,
)


@foreign(
    "BUGS volume 1, Pumps",
    unit="pumps",
    arguments=lambda rng: {
        "t": rng.uniform(1.0, 20.0, 500).astype(np.float32),
        "x": placeholder(500),
    },
    truth={"alpha": 0.7, "beta": 0.9},
)
def pumps(t: Any, x: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Exponential(1.0))
    beta = numpyro.sample("beta", dist.Gamma(0.1, 1.0))
    with numpyro.plate("pumps", x.shape[0]):
        theta = numpyro.sample("theta", dist.Gamma(alpha, beta))
        numpyro.sample("x", dist.Poisson(theta * t), obs=x)


@foreign(
    "BUGS volume 1, Seeds",
    unit="plates",
    arguments=lambda rng: {
        "x1": rng.binomial(1, 0.5, 500).astype(np.float32),
        "x2": rng.binomial(1, 0.5, 500).astype(np.float32),
        "n": rng.integers(4, 80, 500),
        "r": placeholder(500),
    },
    truth={
        "alpha0": -0.55,
        "alpha1": 0.08,
        "alpha2": 1.35,
        "alpha12": -0.82,
        "tau": 12.0,
    },
)
def seeds(x1: Any, x2: Any, n: Any, r: Any) -> None:
    alpha0 = numpyro.sample("alpha0", dist.Normal(0.0, 1000.0))
    alpha1 = numpyro.sample("alpha1", dist.Normal(0.0, 1000.0))
    alpha2 = numpyro.sample("alpha2", dist.Normal(0.0, 1000.0))
    alpha12 = numpyro.sample("alpha12", dist.Normal(0.0, 1000.0))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("plates", r.shape[0]):
        b = numpyro.sample("b", dist.Normal(0.0, 1 / jnp.sqrt(tau)))
        logits = alpha0 + alpha1 * x1 + alpha2 * x2 + alpha12 * x1 * x2 + b
        numpyro.sample("r", dist.Binomial(n, logits=logits), obs=r)


@foreign(
    "BUGS volume 1, Surgical",
    unit="hospitals",
    arguments=lambda rng: {
        "n": rng.integers(40, 400, 500),
        "r": placeholder(500),
    },
    truth={"mu": -2.5, "tau": 6.0},
)
def surgical(n: Any, r: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1000.0))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("hospitals", r.shape[0]):
        b = numpyro.sample("b", dist.Normal(mu, 1 / jnp.sqrt(tau)))
        numpyro.sample("r", dist.Binomial(n, logits=b), obs=r)


@foreign(
    "BUGS volume 1, Blocker",
    unit="trials",
    arguments=lambda rng: {
        "nc": rng.integers(40, 400, 400),
        "nt": rng.integers(40, 400, 400),
        "rc": placeholder(400),
        "rt": placeholder(400),
    },
    truth={"d": -0.25, "tau": 40.0, "mu": np.linspace(-3.2, -1.2, 400)},
)
def blocker(nc: Any, nt: Any, rc: Any, rt: Any) -> None:
    """Trials with a control and a treated arm."""
    d = numpyro.sample("d", dist.Normal(0.0, 1000.0))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("trials", rc.shape[0]):
        mu = numpyro.sample("mu", dist.Normal(0.0, 300.0))
        delta = numpyro.sample("delta", dist.Normal(d, 1 / jnp.sqrt(tau)))
        numpyro.sample("rc", dist.Binomial(nc, logits=mu), obs=rc)
        numpyro.sample("rt", dist.Binomial(nt, logits=mu + delta), obs=rt)


@foreign(
    "BUGS volume 1, Salm",
    unit="plates",
    arguments=lambda rng: {
        "x": rng.choice([0.0, 10.0, 33.0, 100.0, 333.0, 1000.0], 600),
        "y": placeholder(600),
    },
    truth={"alpha": 2.2, "beta": 0.31, "gamma": -0.97, "tau": 14.0},
)
def salm(x: Any, y: Any) -> None:
    """Colonies at doses x; x is divided by 1,000 beside its logarithm."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 1000.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1000.0))
    gamma = numpyro.sample("gamma", dist.Normal(0.0, 1000.0))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("plates", y.shape[0]):
        lam = numpyro.sample("lambda", dist.Normal(0.0, 1 / jnp.sqrt(tau)))
        log_mu = alpha + beta * jnp.log(x + 10.0) + gamma * x / 1000.0 + lam
        numpyro.sample("y", dist.Poisson(jnp.exp(log_mu)), obs=y)


@foreign(
    "BUGS volume 1, Epil (model II, effects of patients)",
    unit="patients",
    arguments=lambda rng: {
        "base": rng.normal(0.0, 0.7, (400, 1)).astype(np.float32),
        "trt": rng.binomial(1, 0.5, (400, 1)).astype(np.float32),
        "age": rng.normal(0.0, 0.2, (400, 1)).astype(np.float32),
        "V4": np.array([0.0, 0.0, 0.0, 1.0], np.float32),
        "y": placeholder(400, 4),
    },
    public=("V4",),
    truth={
        "a0": 1.6,
        "alpha": jnp.array([0.9, -0.3, 0.3, 0.5, -0.1]),
        "tau_b1": 4.0,
    },
)
def epil(base: Any, trt: Any, age: Any, V4: Any, y: Any) -> None:
    """Seizures in four visits; logarithms of base / 4 and age less public means."""
    a0 = numpyro.sample("a0", dist.Normal(0.0, 100.0))
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 100.0).expand([5]).to_event(1))
    tau_b1 = numpyro.sample("tau_b1", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("patients", y.shape[0], dim=-2):
        b1 = numpyro.sample("b1", dist.Normal(0.0, tau_b1**-0.5))
        fixed = a0 + alpha[0] * base + alpha[1] * trt + alpha[2] * base * trt
        with numpyro.plate("visits", 4, dim=-1):
            log_mu = fixed + alpha[3] * age + alpha[4] * V4 + b1
            numpyro.sample("y", dist.Poisson(jnp.exp(log_mu)), obs=y)


@foreign(
    "BUGS volume 1, Litter",
    unit="litters",
    arguments=lambda rng: {
        "group": rng.integers(0, 2, 600),
        "n": rng.integers(6, 14, 600),
        "r": placeholder(600),
    },
    truth={"mu": jnp.array([0.9, 0.75]), "size": jnp.array([20.0, 4.0])},
)
def litters(group: Any, n: Any, r: Any) -> None:
    """Survival in litters of two groups, each with its own Beta distribution."""
    with numpyro.plate("groups", 2):
        mu = numpyro.sample("mu", dist.Beta(1.0, 1.0))
        size = numpyro.sample("size", dist.Gamma(1.0, 0.1))
    with numpyro.plate("litters", r.shape[0]):
        a, b = mu[group] * size[group], (1 - mu[group]) * size[group]
        p = numpyro.sample("p", dist.Beta(a, b))
        numpyro.sample("r", dist.Binomial(n, p), obs=r)


@foreign(
    f"{RETHINKING}, m13.2",
    unit="tanks",
    arguments=lambda rng: {
        "n": rng.choice([10, 25, 35], 500),
        "surv": placeholder(500),
    },
    truth={"a_bar": 1.4, "sigma": 1.6},
)
def reed_frogs(n: Any, surv: Any) -> None:
    a_bar = numpyro.sample("a_bar", dist.Normal(0.0, 1.5))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("tanks", surv.shape[0]):
        a = numpyro.sample("a", dist.Normal(a_bar, sigma))
        numpyro.sample("surv", dist.Binomial(n, logits=a), obs=surv)


@foreign(
    f"{RETHINKING}, m12.1",
    unit="departments",
    arguments=lambda rng: {
        "gid": rng.integers(0, 2, 500),
        "n": rng.integers(20, 600, 500),
        "admit": placeholder(500),
    },
    truth={"a": jnp.array([-0.4, -0.3]), "phi": 1.0},
)
def admissions_beta_binomial(gid: Any, n: Any, admit: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.5).expand([2]))
    phi = numpyro.sample("phi", dist.Exponential(1.0))
    theta = phi + 2.0
    with numpyro.plate("departments", admit.shape[0]):
        pbar = expit(a[gid])
        numpyro.sample(
            "admit", dist.BetaBinomial(pbar * theta, (1 - pbar) * theta, n), obs=admit
        )


@foreign(
    f"{RETHINKING}, m11.10",
    unit="societies",
    arguments=lambda rng: {
        "P": column(rng, 500),
        "cid": rng.integers(0, 2, 500),
        "T": placeholder(500),
    },
    truth={"a": jnp.array([3.2, 3.6]), "b": jnp.array([0.38, 0.2])},
)
def oceanic_tools(P: Any, cid: Any, T: Any) -> None:
    a = numpyro.sample("a", dist.Normal(3.0, 0.5).expand([2]))
    b = numpyro.sample("b", dist.Normal(0.0, 0.2).expand([2]))
    with numpyro.plate("societies", T.shape[0]):
        lambda_ = jnp.exp(a[cid] + b[cid] * P)
        numpyro.sample("T", dist.Poisson(lambda_), obs=T)


@foreign(
    f"{RETHINKING}, m12.3",
    unit="days",
    arguments=lambda rng: {"y": placeholder(800)},
    truth={"ap": -1.4, "al": 0.0},
)
def monks(y: Any) -> None:
    """Manuscripts a day, of monks who sometimes drink."""
    ap = numpyro.sample("ap", dist.Normal(-1.5, 1.0))
    al = numpyro.sample("al", dist.Normal(1.0, 0.5))
    with numpyro.plate("days", y.shape[0]):
        numpyro.sample(
            "y", dist.ZeroInflatedPoisson(expit(ap), rate=jnp.exp(al)), obs=y
        )


@foreign(
    f"{GELMAN_HILL}, section 8.3; rstanarm vignette Count outcomes",
    unit="apartments",
    arguments=lambda rng: {
        "roach1": rng.gamma(0.5, 1.0, 800).astype(np.float32),
        "treatment": rng.binomial(1, 0.6, 800).astype(np.float32),
        "senior": rng.binomial(1, 0.3, 800).astype(np.float32),
        "exposure2": rng.uniform(0.4, 2.0, 800).astype(np.float32),
        "y": placeholder(800),
    },
    truth={"intercept": 1.8, "beta": jnp.array([0.7, -0.6, -0.3]), "phi": 0.5},
)
def roaches(roach1: Any, treatment: Any, senior: Any, exposure2: Any, y: Any) -> None:
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.5).expand([3]).to_event(1))
    phi = numpyro.sample("phi", dist.Exponential(1.0))
    with numpyro.plate("apartments", y.shape[0]):
        eta = beta[0] * roach1 + beta[1] * treatment + beta[2] * senior
        mu = exposure2 * jnp.exp(intercept + eta)
        numpyro.sample("y", dist.NegativeBinomial2(mu, phi), obs=y)


@foreign(
    "NumPyro example Zero inflated Poisson",
    unit="obs",
    arguments=lambda rng: {
        "X": np.column_stack(
            [np.ones(1000), rng.integers(0, 2, 1000), rng.normal(size=1000)]
        ).astype(np.float32),
        "Y": placeholder(1000),
    },
    truth={"b1": jnp.array([-0.8, 0.5, 0.4]), "b2": jnp.array([0.9, -0.6, 0.5])},
)
def fish(X: Any, Y: Any) -> None:
    """Zero-inflated counts, both parts with covariates."""
    b1 = numpyro.sample("b1", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    b2 = numpyro.sample("b2", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("obs", X.shape[0]):
        gate = expit(X @ b1)
        rate = jnp.exp(X @ b2)
        numpyro.sample("Y", dist.ZeroInflatedPoisson(gate, rate=rate), obs=Y)


@foreign(
    f"{GELMAN_HILL}, section 15.1",
    unit="cells",
    arguments=lambda rng: {
        "eth": rng.integers(0, 3, 800),
        "precinct": rng.integers(0, 15, 800),
        "arrests": rng.uniform(5.0, 60.0, 800).astype(np.float32),
        "stops": placeholder(800),
    },
    truth={
        "mu": -1.0,
        "sigma_b": 0.5,
        "sigma_eps": 0.3,
        "b_eth": jnp.array([0.2, 0.1, -0.3]),
    },
)
def stop_and_frisk(eth: Any, precinct: Any, arrests: Any, stops: Any) -> None:
    """Overdispersed counts with an exposure, 3 groups and 15 precincts."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 100.0))
    sigma_b = numpyro.sample("sigma_b", dist.Uniform(0.0, 100.0))
    sigma_eps = numpyro.sample("sigma_eps", dist.Uniform(0.0, 100.0))
    b_eth = numpyro.sample("b_eth", dist.Normal(0.0, 1.0).expand([3]))
    b_precinct = numpyro.sample("b_precinct", dist.Normal(0.0, sigma_b).expand([15]))
    with numpyro.plate("cells", stops.shape[0]):
        epsilon = numpyro.sample("epsilon", dist.Normal(0.0, sigma_eps))
        log_rate = mu + b_eth[eth] + b_precinct[precinct] + epsilon
        numpyro.sample("stops", dist.Poisson(arrests * jnp.exp(log_rate)), obs=stops)


@foreign(
    "Kéry and Schaub 2012, section 3.3; posteriordb GLM_Poisson_model",
    unit="years",
    arguments=lambda rng: {
        "year": rng.uniform(-1.0, 1.0, 400).astype(np.float32),
        "C": placeholder(400),
    },
    truth={"alpha": 4.3, "beta1": 1.2, "beta2": 0.1, "beta3": -0.25},
)
def falcons(year: Any, C: Any) -> None:
    """A cubic of a scaled year."""
    alpha = numpyro.sample("alpha", dist.Uniform(-20.0, 20.0))
    beta1 = numpyro.sample("beta1", dist.Uniform(-10.0, 10.0))
    beta2 = numpyro.sample("beta2", dist.Uniform(-10.0, 10.0))
    beta3 = numpyro.sample("beta3", dist.Uniform(-10.0, 10.0))
    with numpyro.plate("years", C.shape[0]):
        log_lambda = alpha + beta1 * year + beta2 * year**2 + beta3 * year**3
        numpyro.sample("C", dist.Poisson(jnp.exp(log_lambda)), obs=C)


@foreign(
    "Kéry and Schaub 2012, section 4.2; posteriordb GLMM_Poisson_model",
    unit="years",
    arguments=lambda rng: {
        "year": rng.uniform(-1.0, 1.0, 400).astype(np.float32),
        "C": placeholder(400),
    },
    truth={"alpha": 4.3, "beta": jnp.array([1.2, 0.1, -0.25]), "sigma": 0.15},
)
def falcons_overdispersed(year: Any, C: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Uniform(-20.0, 20.0))
    beta = numpyro.sample("beta", dist.Uniform(-10.0, 10.0).expand([3]).to_event(1))
    sigma = numpyro.sample("sigma", dist.Uniform(0.0, 5.0))
    with numpyro.plate("years", C.shape[0]):
        eps = numpyro.sample("eps", dist.Normal(0.0, sigma))
        log_lambda = alpha + beta[0] * year + beta[1] * year**2 + beta[2] * year**3
        numpyro.sample("C", dist.Poisson(jnp.exp(log_lambda + eps)), obs=C)


@foreign(
    "Kéry and Schaub 2012, section 3.5; posteriordb GLM_Binomial_model",
    unit="years",
    arguments=lambda rng: {
        "year": rng.uniform(-1.0, 1.0, 500).astype(np.float32),
        "N": rng.integers(20, 60, 500),
        "C": placeholder(500),
    },
    truth={"alpha": 1.0, "beta1": -0.1, "beta2": -0.9},
)
def falcons_successful(year: Any, N: Any, C: Any) -> None:
    """How many of the pairs bred, by a quadratic of a scaled year."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 100.0))
    beta1 = numpyro.sample("beta1", dist.Normal(0.0, 100.0))
    beta2 = numpyro.sample("beta2", dist.Normal(0.0, 100.0))
    with numpyro.plate("years", C.shape[0]):
        logit_p = alpha + beta1 * year + beta2 * year**2
        numpyro.sample("C", dist.Binomial(N, logits=logit_p), obs=C)


@foreign(
    "NumPyro example Baseball; Efron and Morris 1975",
    unit="players",
    arguments=lambda rng: {"at_bats": np.full(500, 45), "hits": placeholder(500)},
    truth={"m": 0.27, "kappa": 60.0},
)
def baseball(at_bats: Any, hits: Any) -> None:
    """Batters with chances from a common Beta distribution."""
    m = numpyro.sample("m", dist.Uniform(0.0, 1.0))
    kappa = numpyro.sample("kappa", dist.Pareto(1.0, 1.5))
    with numpyro.plate("players", hits.shape[0]):
        phi = numpyro.sample("phi", dist.Beta(m * kappa, (1 - m) * kappa))
        numpyro.sample("hits", dist.Binomial(at_bats, probs=phi), obs=hits)


@foreign(
    "RxInfer examples, Coin toss",
    unit="tosses",
    arguments=lambda rng: {"y": placeholder(500)},
    truth={"theta": 0.75},
)
def coin(y: Any) -> None:
    theta = numpyro.sample("theta", dist.Beta(4.0, 8.0))
    with numpyro.plate("tosses", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(theta), obs=y)
