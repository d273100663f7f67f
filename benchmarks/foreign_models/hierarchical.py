"""Groups, subjects with several rows, growth curves and variance components."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from foreign_models._foreign import GELMAN_HILL, RETHINKING, foreign, placeholder


@foreign(
    "Gelman et al. 2013, section 5.5; posteriordb eight_schools_centered",
    unit="schools",
    arguments=lambda rng: {
        "sigma": np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
        "y": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
    },
    truth=None,
    rows="Rubin 1981, table 1",
    licence="published figures",
)
def eight_schools(sigma: Any, y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", y.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


@foreign(
    "Stan User's Guide, Meta-analysis; eight_schools_noncentered",
    unit="studies",
    arguments=lambda rng: {
        "sigma": rng.uniform(0.3, 2.0, 600).astype(np.float32),
        "y": placeholder(600),
    },
    truth={"mu": 0.8, "tau": 1.2},
)
def meta_analysis(sigma: Any, y: Any) -> None:
    """Many studies with known standard errors, not centred."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("studies", y.shape[0]):
        theta_tilde = numpyro.sample("theta_tilde", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * theta_tilde)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


@foreign(
    f"{GELMAN_HILL}, section 12.6; posteriordb radon_hierarchical_intercept",
    unit="houses",
    arguments=lambda rng: {
        "county": rng.integers(0, 20, 1000),
        "floor": rng.binomial(1, 0.17, 1000).astype(np.float32),
        "u": np.linspace(-1.5, 1.5, 20).astype(np.float32),
        "log_radon": placeholder(1000),
    },
    public=("u",),
    truth={
        "gamma_0": 1.5,
        "gamma_1": 0.7,
        "sigma_alpha": 0.3,
        "sigma_y": 0.75,
        "beta": -0.65,
    },
)
def radon(county: Any, floor: Any, u: Any, log_radon: Any) -> None:
    """Counties with intercepts that depend on their uranium."""
    gamma_0 = numpyro.sample("gamma_0", dist.Normal(0.0, 10.0))
    gamma_1 = numpyro.sample("gamma_1", dist.Normal(0.0, 10.0))
    sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0))
    with numpyro.plate("counties", u.shape[0]):
        alpha = numpyro.sample("alpha", dist.Normal(gamma_0 + gamma_1 * u, sigma_alpha))
    with numpyro.plate("houses", log_radon.shape[0]):
        mu = alpha[county] + beta * floor
        numpyro.sample("log_radon", dist.Normal(mu, sigma_y), obs=log_radon)


@foreign(
    f"{GELMAN_HILL}, section 13.1; posteriordb "
    "radon_variable_intercept_slope_noncentered",
    unit="houses",
    arguments=lambda rng: {
        "county": rng.integers(0, 20, 1000),
        "floor": rng.binomial(1, 0.3, 1000).astype(np.float32),
        "log_radon": placeholder(1000),
    },
    truth={
        "mu_alpha": 1.4,
        "sigma_alpha": 0.4,
        "mu_beta": -0.7,
        "sigma_beta": 0.3,
        "sigma_y": 0.75,
    },
)
def radon_slopes(county: Any, floor: Any, log_radon: Any) -> None:
    """Intercepts and slopes of 20 counties, not centred."""
    mu_alpha = numpyro.sample("mu_alpha", dist.Normal(0.0, 10.0))
    sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(1.0))
    mu_beta = numpyro.sample("mu_beta", dist.Normal(0.0, 10.0))
    sigma_beta = numpyro.sample("sigma_beta", dist.HalfNormal(1.0))
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
    with numpyro.plate("counties", 20):
        alpha_raw = numpyro.sample("alpha_raw", dist.Normal(0.0, 1.0))
        beta_raw = numpyro.sample("beta_raw", dist.Normal(0.0, 1.0))
    alpha = mu_alpha + sigma_alpha * alpha_raw
    beta = mu_beta + sigma_beta * beta_raw
    with numpyro.plate("houses", log_radon.shape[0]):
        mu = alpha[county] + beta[county] * floor
        numpyro.sample("log_radon", dist.Normal(mu, sigma_y), obs=log_radon)


@foreign(
    f"{GELMAN_HILL}, section 13.5; posteriordb pilots",
    unit="flights",
    arguments=lambda rng: {
        "group": rng.integers(0, 5, 800),
        "scenario": rng.integers(0, 8, 800),
        "y": placeholder(800),
    },
    truth={
        "mu": 0.4,
        "sigma_gamma": 0.1,
        "sigma_delta": 0.35,
        "sigma_y": 0.25,
    },
)
def pilots(group: Any, scenario: Any, y: Any) -> None:
    """Crossed groups: 5 treatments and 8 scenarios."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    sigma_gamma = numpyro.sample("sigma_gamma", dist.Uniform(0.0, 100.0))
    sigma_delta = numpyro.sample("sigma_delta", dist.Uniform(0.0, 100.0))
    sigma_y = numpyro.sample("sigma_y", dist.Uniform(0.0, 100.0))
    gamma = numpyro.sample("gamma", dist.Normal(0.0, sigma_gamma).expand([5]))
    delta = numpyro.sample("delta", dist.Normal(0.0, sigma_delta).expand([8]))
    with numpyro.plate("flights", y.shape[0]):
        y_hat = mu + gamma[group] + delta[scenario]
        numpyro.sample("y", dist.Normal(y_hat, sigma_y), obs=y)


AGES = np.array([8.0, 15.0, 22.0, 29.0, 36.0], np.float32)


@foreign(
    "BUGS volume 1, Rats",
    unit="rats",
    arguments=lambda rng: {"x": AGES, "Y": placeholder(400, 5)},
    public=("x",),
    truth={
        "alpha_c": 242.0,
        "tau_alpha": 1 / 14.0**2,
        "beta_c": 6.2,
        "tau_beta": 4.0,
        "tau_c": 1 / 6.0**2,
    },
)
def rats(x: Any, Y: Any) -> None:
    """A line for each rat; weights at five ages, less a public mean of 22 days."""
    alpha_c = numpyro.sample("alpha_c", dist.Normal(0.0, 1000.0))
    tau_alpha = numpyro.sample("tau_alpha", dist.Gamma(1e-3, 1e-3))
    beta_c = numpyro.sample("beta_c", dist.Normal(0.0, 1000.0))
    tau_beta = numpyro.sample("tau_beta", dist.Gamma(1e-3, 1e-3))
    tau_c = numpyro.sample("tau_c", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("rats", Y.shape[0], dim=-2):
        alpha = numpyro.sample("alpha", dist.Normal(alpha_c, 1 / jnp.sqrt(tau_alpha)))
        beta = numpyro.sample("beta", dist.Normal(beta_c, 1 / jnp.sqrt(tau_beta)))
        with numpyro.plate("ages", Y.shape[1], dim=-1):
            mu = alpha + beta * (x - 22.0)
            numpyro.sample("Y", dist.Normal(mu, 1 / jnp.sqrt(tau_c)), obs=Y)


@foreign(
    "BUGS volume 2, Birats",
    unit="rats",
    arguments=lambda rng: {"x": AGES, "Y": placeholder(400, 5)},
    public=("x",),
    truth={
        "mu_beta": jnp.array([242.0, 6.2]),
        "R": jnp.linalg.inv(jnp.array([[196.0, 2.5], [2.5, 0.25]])),
        "tau_c": 1 / 6.0**2,
    },
)
def birats(x: Any, Y: Any) -> None:
    """The same rats with correlated intercepts and slopes."""
    mu_beta = numpyro.sample(
        "mu_beta", dist.Normal(0.0, 1000.0).expand([2]).to_event(1)
    )
    R = numpyro.sample(
        "R", dist.Wishart(2.0, rate_matrix=jnp.array([[200.0, 0.0], [0.0, 0.2]]))
    )
    tau_c = numpyro.sample("tau_c", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("rats", Y.shape[0]):
        beta = numpyro.sample(
            "beta", dist.MultivariateNormal(mu_beta, precision_matrix=R)
        )
        mu = beta[..., :1] + beta[..., 1:] * (x - 22.0)
        numpyro.sample("Y", dist.Normal(mu, 1 / jnp.sqrt(tau_c)).to_event(1), obs=Y)


@foreign(
    "BUGS volume 1, Dyes",
    unit="batches",
    arguments=lambda rng: {"y": placeholder(400, 5)},
    truth={"theta": 1527.0, "tau_with": 1 / 2500.0, "tau_btw": 1 / 1800.0},
)
def dyes(y: Any) -> None:
    """Yields of samples from batches: two components of variance."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 1e5))
    tau_with = numpyro.sample("tau_with", dist.Gamma(1e-3, 1e-3))
    tau_btw = numpyro.sample("tau_btw", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("batches", y.shape[0], dim=-2):
        mu = numpyro.sample("mu", dist.Normal(theta, 1 / jnp.sqrt(tau_btw)))
        with numpyro.plate("samples", y.shape[1], dim=-1):
            numpyro.sample("y", dist.Normal(mu, 1 / jnp.sqrt(tau_with)), obs=y)


@foreign(
    "BUGS volume 1, Equiv",
    unit="subjects",
    arguments=lambda rng: {
        "sign": np.where(rng.uniform(size=(400, 1)) < 0.5, 1.0, -1.0)
        * np.array([1.0, -1.0]),
        "Y": placeholder(400, 2),
    },
    truth={"mu": 1.4, "phi": -0.01, "pi": -0.18, "tau1": 80.0, "tau2": 70.0},
)
def equiv(sign: Any, Y: Any) -> None:
    """Two formulations in two periods: a cross-over trial."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 1000.0))
    phi = numpyro.sample("phi", dist.Normal(0.0, 1000.0))
    pi = numpyro.sample("pi", dist.Normal(0.0, 1000.0))
    tau1 = numpyro.sample("tau1", dist.Gamma(1e-3, 1e-3))
    tau2 = numpyro.sample("tau2", dist.Gamma(1e-3, 1e-3))
    period = jnp.array([0.5, -0.5])
    with numpyro.plate("subjects", Y.shape[0], dim=-2):
        delta = numpyro.sample("delta", dist.Normal(0.0, 1 / jnp.sqrt(tau2)))
        with numpyro.plate("periods", 2, dim=-1):
            m = mu + sign * phi / 2 + period * pi + delta
            numpyro.sample("Y", dist.Normal(m, 1 / jnp.sqrt(tau1)), obs=Y)


@foreign(
    f"{RETHINKING}, m14.1",
    unit="cafes",
    arguments=lambda rng: {
        "afternoon": np.array([0.0, 1.0] * 5, np.float32),
        "wait": placeholder(300, 10),
    },
    public=("afternoon",),
    truth={
        "a": 3.5,
        "b": -1.0,
        "sigma_cafe": jnp.array([1.0, 0.5]),
        "sigma": 0.5,
        "Rho": jnp.array([[1.0, -0.7], [-0.7, 1.0]]),
    },
)
def cafes(afternoon: Any, wait: Any) -> None:
    """Ten visits to each café; intercept and slope of a café are correlated."""
    a = numpyro.sample("a", dist.Normal(5.0, 2.0))
    b = numpyro.sample("b", dist.Normal(-1.0, 0.5))
    sigma_cafe = numpyro.sample("sigma_cafe", dist.Exponential(1.0).expand([2]))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    Rho = numpyro.sample("Rho", dist.LKJ(2, concentration=2.0))
    cov = jnp.outer(sigma_cafe, sigma_cafe) * Rho
    with numpyro.plate("cafes", wait.shape[0]):
        ab = numpyro.sample(
            "ab", dist.MultivariateNormal(jnp.stack([a, b]), covariance_matrix=cov)
        )
        mu = ab[..., :1] + ab[..., 1:] * afternoon
        numpyro.sample("wait", dist.Normal(mu, sigma).to_event(1), obs=wait)


@foreign(
    "BUGS volume 2, Orange trees",
    unit="trees",
    arguments=lambda rng: {
        "x": np.array([1.18, 4.84, 6.64, 10.04, 12.31, 13.72, 15.82], np.float32),
        "Y": placeholder(300, 7),
    },
    public=("x",),
    truth={
        "mu": jnp.array([5.25, 2.2, -1.25]),
        "tau": jnp.array([40.0, 50.0, 60.0]),
        "tau_C": 0.02,
    },
)
def orange_trees(x: Any, Y: Any) -> None:
    """Logistic growth of each tree; times in units of 100 days."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 100.0).expand([3]).to_event(1))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3).expand([3]).to_event(1))
    tau_C = numpyro.sample("tau_C", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("trees", Y.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau**-0.5).to_event(1))
        phi1 = jnp.exp(theta[..., :1])
        phi2 = jnp.exp(theta[..., 1:2]) - 1
        phi3 = -jnp.exp(theta[..., 2:])
        eta = phi1 / (1 + phi2 * jnp.exp(phi3 * x))
        numpyro.sample("Y", dist.Normal(eta, tau_C**-0.5).to_event(1), obs=Y)


@foreign(
    "NumPyro tutorial Bayesian hierarchical linear regression",
    unit="patients",
    arguments=lambda rng: {
        "week": rng.uniform(-1.0, 1.0, (400, 6)).astype(np.float32),
        "FVC": placeholder(400, 6),
    },
    truth={
        "mu_alpha": 0.2,
        "sigma_alpha": 1.0,
        "mu_beta": -0.4,
        "sigma_beta": 0.3,
        "sigma": 0.2,
    },
)
def osic(week: Any, FVC: Any) -> None:
    """Decline of lung volume, a line for each patient; units of public scale."""
    mu_alpha = numpyro.sample("mu_alpha", dist.Normal(0.0, 5.0))
    sigma_alpha = numpyro.sample("sigma_alpha", dist.HalfNormal(5.0))
    mu_beta = numpyro.sample("mu_beta", dist.Normal(0.0, 1.0))
    sigma_beta = numpyro.sample("sigma_beta", dist.HalfNormal(1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("patients", FVC.shape[0], dim=-2):
        alpha = numpyro.sample("alpha", dist.Normal(mu_alpha, sigma_alpha))
        beta = numpyro.sample("beta", dist.Normal(mu_beta, sigma_beta))
        with numpyro.plate("visits", FVC.shape[1], dim=-1):
            numpyro.sample("FVC", dist.Normal(alpha + beta * week, sigma), obs=FVC)


@foreign(
    f"{RETHINKING}, m13.4",
    unit="pulls",
    arguments=lambda rng: {
        "actor": rng.integers(0, 7, 1000),
        "block": rng.integers(0, 6, 1000),
        "treatment": rng.integers(0, 4, 1000),
        "pulled_left": np.zeros(1000, np.int32),
    },
    truth={
        "a_bar": 0.6,
        "sigma_a": 1.2,
        "sigma_g": 0.2,
        "b": jnp.array([-0.1, 0.4, -0.5, 0.3]),
    },
)
def chimpanzees(actor: Any, block: Any, treatment: Any, pulled_left: Any) -> None:
    a_bar = numpyro.sample("a_bar", dist.Normal(0.0, 1.5))
    sigma_a = numpyro.sample("sigma_a", dist.Exponential(1.0))
    sigma_g = numpyro.sample("sigma_g", dist.Exponential(1.0))
    a = numpyro.sample("a", dist.Normal(a_bar, sigma_a).expand([7]))
    g = numpyro.sample("g", dist.Normal(0.0, sigma_g).expand([6]))
    b = numpyro.sample("b", dist.Normal(0.0, 0.5).expand([4]))
    with numpyro.plate("pulls", pulled_left.shape[0]):
        logit_p = a[actor] + g[block] + b[treatment]
        numpyro.sample("pulled_left", dist.Binomial(1, logits=logit_p), obs=pulled_left)


@foreign(
    f"{GELMAN_HILL}, section 14.1; posteriordb election88",
    unit="respondents",
    arguments=lambda rng: {
        "state": rng.integers(0, 10, 1500),
        "black": rng.binomial(1, 0.1, 1500).astype(np.float32),
        "female": rng.binomial(1, 0.55, 1500).astype(np.float32),
        "y": np.zeros(1500, np.int32),
    },
    truth={"mu": 0.4, "b": jnp.array([-1.7, -0.1]), "sigma_a": 0.4},
)
def election88(state: Any, black: Any, female: Any, y: Any) -> None:
    """Support by state, sex and ethnicity; ten states."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 100.0))
    b = numpyro.sample("b", dist.Normal(0.0, 100.0).expand([2]))
    sigma_a = numpyro.sample("sigma_a", dist.Uniform(0.0, 100.0))
    with numpyro.plate("states", 10):
        a = numpyro.sample("a", dist.Normal(mu, sigma_a))
    with numpyro.plate("respondents", y.shape[0]):
        logits = a[state] + b[0] * black + b[1] * female
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


@foreign(
    "Stan case study Bradley-Terry; Bradley and Terry 1952",
    unit="games",
    arguments=lambda rng: {
        "first": rng.integers(0, 6, 1500),
        "second": rng.integers(6, 12, 1500),
        "won": np.zeros(1500, np.int32),
    },
    truth={"sigma": 0.8},
)
def bradley_terry(first: Any, second: Any, won: Any) -> None:
    """Who wins, of 12 players."""
    sigma = numpyro.sample("sigma", dist.LogNormal(0.0, 0.5))
    with numpyro.plate("players", 12):
        alpha = numpyro.sample("alpha", dist.Normal(0.0, sigma))
    with numpyro.plate("games", won.shape[0]):
        logits = alpha[first] - alpha[second]
        numpyro.sample("won", dist.Bernoulli(logits=logits), obs=won)
