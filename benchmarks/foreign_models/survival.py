"""Times until an event, some of them censored."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from foreign_models._foreign import Arguments, column, foreign, placeholder


def _cats(rng: np.random.Generator) -> Arguments:
    black = rng.integers(0, 2, 800)
    days = rng.exponential(np.where(black == 1, 5.3, 4.2))
    seen = rng.uniform(1.0, 12.0, 800)
    return {
        "black": black,
        "adopted": (days <= seen).astype(np.int32),
        "days_to_event": np.minimum(days, seen).astype(np.float32),
    }


@foreign(
    "McElreath, Rethinking 2020, section 11.4",
    unit="cats",
    arguments=_cats,
    truth=None,
)
def cats(black: Any, adopted: Any, days_to_event: Any) -> None:
    """Days until adoption; where it did not come, it was later."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([2]))
    with numpyro.plate("cats", days_to_event.shape[0]):
        rate = 1 / jnp.exp(a[black])
        with numpyro.handlers.mask(mask=adopted == 1):
            numpyro.sample("days", dist.Exponential(rate), obs=days_to_event)
        with numpyro.handlers.mask(mask=adopted == 0):
            numpyro.factor("later", -rate * days_to_event)


def _mice(rng: np.random.Generator) -> Arguments:
    """Weeks divided by ten."""
    group = rng.integers(0, 4, 600)
    log_rate = np.array([-2.0, -2.6, -2.3, -1.6])[group]
    t = (rng.exponential(size=600) / np.exp(log_rate)) ** (1 / 2.5)
    end = rng.uniform(1.5, 4.0, 600)
    return {
        "group": group,
        "died": (t <= end).astype(np.float32),
        "t": np.minimum(t, end).astype(np.float32),
    }


@foreign(
    "BUGS volume 1, Mice",
    unit="mice",
    arguments=_mice,
    truth=None,
)
def mice(group: Any, died: Any, t: Any) -> None:
    """Weibull times in four groups: t^(r-1) r mu for the hazard."""
    r = numpyro.sample("r", dist.Exponential(1e-3))
    beta = numpyro.sample("beta", dist.Normal(0.0, 100.0).expand([4]))
    with numpyro.plate("mice", t.shape[0]):
        mu = jnp.exp(beta[group])
        log_hazard = jnp.log(r) + (r - 1) * jnp.log(t) + beta[group]
        numpyro.factor("times", died * log_hazard - mu * t**r)


@foreign(
    "Stan User's Guide and Functions Reference, Weibull regression",
    unit="patients",
    arguments=lambda rng: {"x": column(rng, 600), "t": placeholder(600)},
    truth={"mu": 1.0, "beta": 0.5, "shape": 1.6},
)
def weibull_aft(x: Any, t: Any) -> None:
    """Uncensored Weibull times with scale exp(mu + beta x)."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0))
    shape = numpyro.sample("shape", dist.Gamma(1.0, 1.0))
    with numpyro.plate("patients", t.shape[0]):
        numpyro.sample("t", dist.Weibull(jnp.exp(mu + beta * x), shape), obs=t)


@foreign(
    "BUGS volume 1, Kidney (without censoring)",
    unit="patients",
    arguments=lambda rng: {
        "age": rng.normal(0.0, 1.0, (400, 1)).astype(np.float32),
        "sex": rng.binomial(1, 0.7, (400, 1)).astype(np.float32),
        "t": placeholder(400, 2),
    },
    truth={
        "alpha": -1.2,
        "beta_age": 0.1,
        "beta_sex": -1.0,
        "tau": 3.0,
        "r": 1.2,
    },
)
def kidney(age: Any, sex: Any, t: Any) -> None:
    """Two infections of a patient, with a frailty; all of them seen."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 100.0))
    beta_age = numpyro.sample("beta_age", dist.Normal(0.0, 100.0))
    beta_sex = numpyro.sample("beta_sex", dist.Normal(0.0, 100.0))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
    r = numpyro.sample("r", dist.Gamma(1.0, 1e-3))
    with numpyro.plate("patients", t.shape[0], dim=-2):
        b = numpyro.sample("b", dist.Normal(0.0, 1 / jnp.sqrt(tau)))
        with numpyro.plate("infections", 2, dim=-1):
            log_mu = alpha + beta_age * age + beta_sex * sex + b
            numpyro.sample("t", dist.Weibull(jnp.exp(-log_mu / r), r), obs=t)


def _piecewise(rng: np.random.Generator) -> Arguments:
    treated = rng.binomial(1, 0.5, 500).astype(np.float32)
    hazard = np.array([0.1, 0.15, 0.2, 0.2, 0.3, 0.3])
    exposure, events = np.zeros((500, 6)), np.zeros((500, 6), np.int32)
    for n in range(500):
        for j in range(6):
            wait = rng.exponential(1 / (hazard[j] * np.exp(-0.7 * treated[n])))
            exposure[n, j] = min(wait, 1.0)
            events[n, j] = wait < 1.0
            if wait < 1.0:
                break
    return {
        # Where nobody is at risk any more, a time that changes nothing.
        "exposure": np.maximum(exposure, 1e-6).astype(np.float32),
        "treated": treated[:, None],
        "events": events,
    }


@foreign(
    "PyMC example gallery, Bayesian survival analysis; Ibrahim et al. 2001",
    unit="patients",
    arguments=_piecewise,
    truth=None,
)
def piecewise_exponential(exposure: Any, treated: Any, events: Any) -> None:
    """Events in six intervals, as counts with an exposure; hazards of a public grid."""
    with numpyro.plate("intervals", 6, dim=-1):
        lambda0 = numpyro.sample("lambda0", dist.Gamma(0.1, 0.1))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0))
    with (
        numpyro.plate("patients", events.shape[0], dim=-2),
        numpyro.plate("interval", 6, dim=-1),
    ):
        rate = exposure * lambda0 * jnp.exp(beta * treated)
        numpyro.sample("events", dist.Poisson(rate), obs=events)
