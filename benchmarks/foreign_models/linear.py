"""Linear regressions and their robust, sparse and censored relatives."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from sklearn import datasets

from foreign_models._foreign import (
    GELMAN_HILL,
    RETHINKING,
    Arguments,
    Draws,
    column,
    columns,
    foreign,
    placeholder,
)


@foreign(
    f"{GELMAN_HILL}, section 3.3; posteriordb kidscore_interaction_c",
    unit="kids",
    arguments=lambda rng: {
        "mom_hs": rng.binomial(1, 0.79, 800).astype(np.float32),
        "mom_iq": column(rng, 800),
        "kid_score": placeholder(800),
    },
    truth={"beta": jnp.array([8.2, 0.5, 1.1, -0.6]), "sigma": jnp.array(1.8)},
)
def kidscore_interaction(mom_hs: Any, mom_iq: Any, kid_score: Any) -> None:
    beta = numpyro.sample("beta", dist.ImproperUniform(constraints.real, (), (4,)))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    with numpyro.plate("kids", kid_score.shape[0]):
        mean = beta[0] + beta[1] * mom_hs + beta[2] * mom_iq
        mean = mean + beta[3] * mom_hs * mom_iq
        numpyro.sample("kid_score", dist.Normal(mean, sigma), obs=kid_score)


@foreign(
    f"{GELMAN_HILL}, section 4.4; posteriordb logearn_interaction_z",
    unit="people",
    arguments=lambda rng: {
        "height": column(rng, 1000),
        "male": rng.binomial(1, 0.4, 1000).astype(np.float32),
        "log_earn": placeholder(1000),
    },
    truth={"beta": jnp.array([9.5, 0.1, 0.4, 0.05]), "sigma": jnp.array(0.9)},
)
def log_earnings(height: Any, male: Any, log_earn: Any) -> None:
    beta = numpyro.sample("beta", dist.ImproperUniform(constraints.real, (), (4,)))
    sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    mu = beta[0] + beta[1] * height + beta[2] * male + beta[3] * height * male
    with numpyro.plate("people", height.shape[0]):
        numpyro.sample("log_earn", dist.Normal(mu, sigma), obs=log_earn)


@foreign(
    f"{RETHINKING}, m4.3",
    unit="people",
    arguments=lambda rng: {
        "weight": rng.normal(45.0, 6.5, 700).astype(np.float32),
        "height": placeholder(700),
    },
    truth={"a": 154.6, "b": 0.9, "sigma": 5.1},
)
def howell(weight: Any, height: Any) -> None:
    """Heights on weights in kg, less a public mean of 45."""
    a = numpyro.sample("a", dist.Normal(178.0, 20.0))
    b = numpyro.sample("b", dist.LogNormal(0.0, 1.0))
    sigma = numpyro.sample("sigma", dist.Uniform(0.0, 50.0))
    with numpyro.plate("people", len(weight)):
        mu = numpyro.deterministic("mu", a + b * (weight - 45.0))
        numpyro.sample("height", dist.Normal(mu, sigma), obs=height)


@foreign(
    f"{RETHINKING}, m5.3; NumPyro tutorial Bayesian regression",
    unit="states",
    arguments=lambda rng: {
        "M": column(rng, 500),
        "A": column(rng, 500),
        "D": placeholder(500),
    },
    truth={"a": 0.0, "bM": -0.07, "bA": -0.6, "sigma": 0.8},
)
def divorce(M: Any, A: Any, D: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 0.2))
    bM = numpyro.sample("bM", dist.Normal(0.0, 0.5))
    bA = numpyro.sample("bA", dist.Normal(0.0, 0.5))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    mu = a + bM * M + bA * A
    with numpyro.plate("states", len(D)):
        numpyro.sample("D", dist.Normal(mu, sigma), obs=D)


@foreign(
    f"{RETHINKING}, m8.5",
    unit="beds",
    arguments=lambda rng: {
        "water_cent": rng.integers(-1, 2, 540).astype(np.float32),
        "shade_cent": rng.integers(-1, 2, 540).astype(np.float32),
        "blooms_std": placeholder(540),
    },
    truth={"a": 0.36, "bw": 0.2, "bs": -0.11, "bws": -0.14, "sigma": 0.14},
)
def tulips(water_cent: Any, shade_cent: Any, blooms_std: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.5, 0.25))
    bw = numpyro.sample("bw", dist.Normal(0.0, 0.25))
    bs = numpyro.sample("bs", dist.Normal(0.0, 0.25))
    bws = numpyro.sample("bws", dist.Normal(0.0, 0.25))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("beds", len(blooms_std)):
        mu = a + bw * water_cent + bs * shade_cent + bws * water_cent * shade_cent
        numpyro.sample("blooms_std", dist.Normal(mu, sigma), obs=blooms_std)


def _hats(x: np.ndarray, knots: int) -> np.ndarray:
    """B-splines of degree one at equally spaced knots of [0, 1]."""
    places = np.linspace(0.0, 1.0, knots)
    distance = np.abs(x[:, None] - places) * (knots - 1)
    return np.maximum(1.0 - distance, 0.0).astype(np.float32)


@foreign(
    f"{RETHINKING}, m4.7",
    unit="years",
    arguments=lambda rng: {
        "B": _hats(rng.uniform(size=900), 6),
        "D": placeholder(900),
    },
    truth={
        "a": 104.0,
        "w": jnp.array([-3.0, 1.0, 5.0, -2.0, 4.0, -7.0]),
        "sigma": 6.0,
    },
)
def cherry_blossoms(B: Any, D: Any) -> None:
    a = numpyro.sample("a", dist.Normal(100.0, 10.0))
    w = numpyro.sample("w", dist.Normal(0.0, 10.0).expand(B.shape[1:]))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("years", B.shape[0]):
        mu = numpyro.deterministic("mu", a + jnp.sum(B * w, -1))
        numpyro.sample("D", dist.Normal(mu, sigma), obs=D)


@foreign(
    "BayesPy documentation, Linear regression",
    unit="points",
    arguments=lambda rng: {"x": column(rng, 400), "y": placeholder(400)},
    truth={"B": jnp.array([2.0, 5.0]), "tau": 0.04},
)
def bayespy_regression(x: Any, y: Any) -> None:
    B = numpyro.sample("B", dist.Normal(0.0, 1e3).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("points", x.shape[0]):
        F = x * B[0] + B[1]
        numpyro.sample("y", dist.Normal(F, tau**-0.5), obs=y)


@foreign(
    "BUGS volume 1, Stacks (double exponential)",
    unit="days",
    arguments=lambda rng: {"z": columns(rng, 500, 3), "Y": placeholder(500)},
    truth={
        "beta0": 17.5,
        "beta": jnp.array([6.5, 2.4, -0.4]),
        "tau": 0.4,
    },
)
def stacks(z: Any, Y: Any) -> None:
    """Double exponential errors around a plane in three standardised covariates."""
    beta0 = numpyro.sample("beta0", dist.Normal(0.0, 300.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 300.0).expand([3]).to_event(1))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("days", z.shape[0]):
        numpyro.sample("Y", dist.Laplace(beta0 + z @ beta, 1 / tau), obs=Y)


@foreign(
    "Stan User's Guide, Robust noise models; prior of Juárez and Steel 2010",
    unit="N",
    arguments=lambda rng: {"x": column(rng, 800), "y": placeholder(800)},
    truth={"nu": 4.0, "alpha": 1.0, "beta": -2.0, "sigma": 1.5},
)
def student_t_regression(x: Any, y: Any) -> None:
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(5.0))
    with numpyro.plate("N", x.shape[0]):
        numpyro.sample("y", dist.StudentT(nu, alpha + beta * x, sigma), obs=y)


@foreign(
    "Kruschke 2013, BEST; PyMC example gallery",
    unit="people",
    arguments=lambda rng: {
        "group": rng.integers(0, 2, 600),
        "y": placeholder(600),
    },
    truth={
        "mean": jnp.array([101.9, 100.5]),
        "std": jnp.array([6.0, 4.7]),
        "nu_minus_one": 4.0,
    },
)
def best(group: Any, y: Any) -> None:
    """Two groups, by t distributions with a common degree of freedom."""
    with numpyro.plate("groups", 2):
        mean = numpyro.sample("mean", dist.Normal(100.0, 20.0))
        std = numpyro.sample("std", dist.Uniform(1.0, 50.0))
    nu_minus_one = numpyro.sample("nu_minus_one", dist.Exponential(1 / 29.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample(
            "y", dist.StudentT(nu_minus_one + 1, mean[group], std[group]), obs=y
        )


def _diabetes(rng: np.random.Generator) -> Arguments:
    """Columns of length 1 there have entries of sd 1 / sqrt(442)."""
    X, y = datasets.load_diabetes(return_X_y=True)
    X, y = np.asarray(X), np.asarray(y)
    return {
        "X": (X * np.sqrt(442.0)).astype(np.float32),
        "y": ((y - 150.0) / 75.0).astype(np.float32),
    }


def diabetes_horseshoe_rows(rng: np.random.Generator) -> Arguments:
    """The same rows under the argument names of the horseshoe."""
    found = _diabetes(rng)
    return {"X": found["X"], "Y": found["y"]}


def _horseshoe_coefficients(draws: Draws) -> Draws:
    scale = draws["lambdas"] * np.asarray(draws["tau"])[:, None]
    return {
        "betas": np.asarray(draws["unscaled_betas"]) * scale,
        "prec_obs": draws["prec_obs"],
    }


@foreign(
    "NumPyro example Horseshoe regression; Carvalho et al. 2009",
    unit="data",
    arguments=diabetes_horseshoe_rows,
    truth=None,
    rows="diabetes of scikit-learn",
    licence="BSD-3-Clause",
    identified=_horseshoe_coefficients,
)
def horseshoe_diabetes(X: Any, Y: Any) -> None:
    lambdas = numpyro.sample("lambdas", dist.HalfCauchy(jnp.ones(X.shape[1])))
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    unscaled_betas = numpyro.sample(
        "unscaled_betas", dist.Normal(0.0, jnp.ones(X.shape[1]))
    )
    betas = numpyro.deterministic("betas", tau * lambdas * unscaled_betas)
    prec_obs = numpyro.sample("prec_obs", dist.Gamma(3.0, 1.0))
    with numpyro.plate("data", X.shape[0]):
        numpyro.sample(
            "Y", dist.Normal(jnp.sum(X * betas, -1), 1 / jnp.sqrt(prec_obs)), obs=Y
        )


@foreign(
    "Park and Casella 2008, The Bayesian lasso",
    unit="people",
    arguments=_diabetes,
    truth=None,
    rows="diabetes of scikit-learn",
    licence="BSD-3-Clause",
)
def bayesian_lasso_diabetes(X: Any, y: Any) -> None:
    sigma2 = numpyro.sample("sigma2", dist.InverseGamma(0.01, 0.01))
    lam = numpyro.sample("lam", dist.Gamma(1.0, 0.1))
    with numpyro.plate("features", X.shape[1]):
        beta = numpyro.sample("beta", dist.Laplace(0.0, jnp.sqrt(sigma2) / lam))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ beta, jnp.sqrt(sigma2)), obs=y)


@foreign(
    "scikit-learn documentation, BayesianRidge; Tipping 2001",
    unit="patients",
    arguments=_diabetes,
    truth=None,
    rows="diabetes of scikit-learn",
    licence="BSD-3-Clause",
)
def bayesian_ridge_diabetes(X: Any, y: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Gamma(1e-6, 1e-6))
    lambda_ = numpyro.sample("lambda_", dist.Gamma(1e-6, 1e-6))
    w = numpyro.sample(
        "w", dist.Normal(0.0, lambda_**-0.5).expand([X.shape[1]]).to_event(1)
    )
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, alpha**-0.5), obs=y)


def _tobit_rows(rng: np.random.Generator) -> Arguments:
    x = column(rng, 600)
    y = (0.7 + 1.1 * x + rng.normal(0.0, 1.3, 600)).astype(np.float32)
    return {"x": x, "censored": y < 0, "y": np.maximum(y, 0)}


@foreign(
    "Stan User's Guide, Censored data",
    unit="N",
    arguments=_tobit_rows,
    truth=None,
)
def tobit(x: Any, censored: Any, y: Any) -> None:
    """What is below 0 is known to be below 0 only."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 5.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 5.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5.0))
    mu = alpha + beta * x
    with numpyro.plate("N", x.shape[0]):
        with numpyro.handlers.mask(mask=~censored):
            numpyro.sample("y", dist.Normal(mu, sigma), obs=y)
        below = dist.Normal(mu, sigma).cdf(0.0)
        with numpyro.handlers.mask(mask=censored):
            numpyro.sample("below", dist.Bernoulli(below), obs=jnp.ones_like(y))


@foreign(
    "BUGS volume 2, Stagnant",
    unit="N",
    arguments=lambda rng: {
        "x": rng.uniform(-1.4, 1.1, 400).astype(np.float32),
        "Y": placeholder(400),
    },
    truth={
        "alpha": 0.54,
        "beta": jnp.array([-0.42, -1.01]),
        "sigma": 0.1,
        "x_change": 0.03,
    },
)
def stagnant(x: Any, Y: Any) -> None:
    """Two lines that meet at an unknown place."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 1000.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1000.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.Uniform(0.0, 100.0))
    x_change = numpyro.sample("x_change", dist.Uniform(-1.3, 1.1))
    with numpyro.plate("N", x.shape[0]):
        slope = jnp.where(x > x_change, beta[1], beta[0])
        numpyro.sample("Y", dist.Normal(alpha + slope * (x - x_change), sigma), obs=Y)


@foreign(
    "BUGS volume 2, Dugongs",
    unit="dugongs",
    arguments=lambda rng: {
        "x": rng.uniform(1.0, 30.0, 500).astype(np.float32),
        "Y": placeholder(500),
    },
    truth={"alpha": 2.65, "beta": 0.97, "gamma": 0.86, "tau": 100.0},
)
def dugongs(x: Any, Y: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 1000.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 1000.0))
    gamma = numpyro.sample("gamma", dist.Uniform(0.5, 1.0))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("dugongs", x.shape[0]):
        mu = alpha - beta * gamma**x
        numpyro.sample("Y", dist.Normal(mu, 1 / jnp.sqrt(tau)), obs=Y)


@foreign(
    "MacDougall 2006, Analysis of dose-response studies: Emax model",
    unit="patients",
    arguments=lambda rng: {
        "dose": rng.choice([0.0, 5.0, 25.0, 50.0, 100.0], 800).astype(np.float32),
        "y": placeholder(800),
    },
    truth={"e0": 0.3, "e_max": 2.5, "log_ed50": 3.0, "sigma": 1.0},
)
def emax(dose: Any, y: Any) -> None:
    """A sigmoid curve of response on dose."""
    e0 = numpyro.sample("e0", dist.Normal(0.0, 5.0))
    e_max = numpyro.sample("e_max", dist.Normal(0.0, 10.0))
    log_ed50 = numpyro.sample("log_ed50", dist.Normal(jnp.log(25.0), 1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5.0))
    with numpyro.plate("patients", dose.shape[0]):
        mean = e0 + e_max * dose / (dose + jnp.exp(log_ed50))
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


@foreign(
    "BUGS volume 2, Jaws",
    unit="boys",
    arguments=lambda rng: {
        "age": np.array([8.0, 8.5, 9.0, 9.5], np.float32),
        "Y": placeholder(300, 4),
    },
    public=("age",),
    truth={
        "beta0": 50.0,
        "beta1": 1.9,
        "Omega": jnp.linalg.inv(0.6 * jnp.eye(4) + 5.0),
    },
)
def jaw(age: Any, Y: Any) -> None:
    """Four measurements of a boy, with any covariance, around a line in age."""
    beta0 = numpyro.sample("beta0", dist.Normal(0.0, 30.0))
    beta1 = numpyro.sample("beta1", dist.Normal(0.0, 30.0))
    Omega = numpyro.sample("Omega", dist.Wishart(4.0, jnp.eye(4)))
    mu = beta0 + beta1 * (age - 8.75)
    with numpyro.plate("boys", Y.shape[0]):
        numpyro.sample("Y", dist.MultivariateNormal(mu, precision_matrix=Omega), obs=Y)
