"""A short series for each person: autoregression, hidden states, random walks."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from foreign_models._foreign import Arguments, Draws, foreign, placeholder


def _autoregression(rng: np.random.Generator, *beta: float) -> Arguments:
    y = np.zeros((300, 40))
    for t in range(2, 40):
        y[:, t] = 0.5 + rng.normal(0.0, 1.0, 300)
        for lag, weight in enumerate(beta, 1):
            y[:, t] += weight * y[:, t - lag]
    return {"y": y[:, 28:].astype(np.float32)}


@foreign(
    "Stan User's Guide, AR(1); posteriordb arK, a series for each person",
    unit="people",
    arguments=lambda rng: _autoregression(rng, 0.6),
    truth=None,
)
def ar1(y: Any) -> None:
    """Each value on the one before; people have series of 12."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    people = numpyro.plate("people", y.shape[0], dim=-2)
    with people, numpyro.plate("times", y.shape[1] - 1, dim=-1):
        mean = alpha + beta * y[:, :-1]
        numpyro.sample("later", dist.Normal(mean, sigma), obs=y[:, 1:])


@foreign(
    "Stan User's Guide, AR(K); RxInfer example Autoregressive models",
    unit="people",
    arguments=lambda rng: _autoregression(rng, 0.5, 0.2),
    truth=None,
)
def ar2(y: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    with numpyro.plate("people", y.shape[0]):
        mean = alpha + beta[0] * y[:, 1:-1] + beta[1] * y[:, :-2]
        numpyro.sample("later", dist.Normal(mean, sigma).to_event(1), obs=y[:, 2:])


@foreign(
    "BayesPy documentation, Linear state-space model (one dimension); "
    "Durbin and Koopman 2012",
    unit="people",
    arguments=lambda rng: {"y": placeholder(400, 5)},
    truth={"sigma_level": 0.6, "sigma_y": 0.8, "mu0": 1.5},
)
def local_level(y: Any) -> None:
    """A random walk of a person, seen with noise."""
    sigma_level = numpyro.sample("sigma_level", dist.HalfNormal(1.0))
    sigma_y = numpyro.sample("sigma_y", dist.HalfNormal(1.0))
    mu0 = numpyro.sample("mu0", dist.Normal(0.0, 5.0))
    with numpyro.plate("people", y.shape[0]):
        level = numpyro.sample("level_0", dist.Normal(mu0, 1.0))
        numpyro.sample("y_0", dist.Normal(level, sigma_y), obs=y[:, 0])
        for t in range(1, 5):
            level = numpyro.sample(f"level_{t}", dist.Normal(level, sigma_level))
            numpyro.sample(f"y_{t}", dist.Normal(level, sigma_y), obs=y[:, t])


def _states_sorted(draws: Draws) -> Draws:
    """The state that shows the first symbol less comes first."""
    emit, move = np.asarray(draws["emit"]), np.asarray(draws["move"])
    order = np.argsort(emit[..., 0], -1)
    rows = np.take_along_axis(move, order[..., None], -2)
    return {
        "start": np.take_along_axis(np.asarray(draws["start"]), order, -1),
        "move": np.take_along_axis(rows, order[..., None, :], -1),
        "emit": np.take_along_axis(emit, order[..., None], -2),
    }


@foreign(
    "Stan User's Guide, Hidden Markov models; BayesPy Hidden Markov model",
    unit="people",
    arguments=lambda rng: {"y": np.zeros((600, 6), np.int32)},
    truth={
        "start": jnp.array([0.7, 0.3]),
        "move": jnp.array([[0.8, 0.2], [0.3, 0.7]]),
        "emit": jnp.array([[0.1, 0.3, 0.6], [0.7, 0.2, 0.1]]),
    },
    identified=_states_sorted,
)
def hmm(y: Any) -> None:
    """Two states and three symbols, six steps for each person."""
    start = numpyro.sample("start", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("states", 2):
        move = numpyro.sample("move", dist.Dirichlet(jnp.ones(2)))
        emit = numpyro.sample("emit", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("people", y.shape[0]):
        x = numpyro.sample(
            "x_0", dist.Categorical(start), infer={"enumerate": "parallel"}
        )
        numpyro.sample("y_0", dist.Categorical(emit[x]), obs=y[:, 0])
        for t in range(1, 6):
            x = numpyro.sample(
                f"x_{t}", dist.Categorical(move[x]), infer={"enumerate": "parallel"}
            )
            numpyro.sample(f"y_{t}", dist.Categorical(emit[x]), obs=y[:, t])


def _moves(rng: np.random.Generator) -> Arguments:
    theta = 0.6 * np.eye(4) + 0.1
    states = rng.integers(0, 4, (400, 9))
    for t in range(1, 9):
        u = rng.uniform(size=400)[:, None]
        states[:, t] = (u > np.cumsum(theta[states[:, t - 1]], -1)).sum(-1)
    return {"first": states[:, :1], "y": states[:, 1:]}


@foreign(
    "BayesPy documentation, Categorical Markov chain; Stan User's Guide, "
    "Supervised parameter estimation",
    unit="people",
    arguments=_moves,
    truth=None,
)
def markov_chain(first: Any, y: Any) -> None:
    """Moves between four states that are seen."""
    with numpyro.plate("states", 4):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate("people", y.shape[0], dim=-2):
        before = jnp.concatenate([first, y[:, :-1]], 1)
        with numpyro.plate("times", y.shape[1], dim=-1):
            numpyro.sample("y", dist.Categorical(theta[before]), obs=y)


@foreign(
    "Stan User's Guide, Change point models (at a known time)",
    unit="people",
    arguments=lambda rng: {"y": placeholder(300, 8)},
    truth={"before": 1.0, "jump": 2.0, "spread": 0.7, "sigma": 1.0},
)
def jumps(y: Any) -> None:
    """Changepoint: a person's mean jumps at a time known to all, by an own amount."""
    before = numpyro.sample("before", dist.Normal(0.0, 10.0))
    jump = numpyro.sample("jump", dist.Normal(0.0, 10.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(2.5))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    after = (jnp.arange(8) >= 4).astype(jnp.float32)
    with numpyro.plate("people", y.shape[0]):
        own = numpyro.sample("own", dist.Normal(jump, spread))
        mean = before + own[..., None] * after
        numpyro.sample("y", dist.Normal(mean, sigma).to_event(1), obs=y)


@foreign(
    "PyMC and Stan User's Guide, Coal mining disasters",
    unit="reports",
    arguments=lambda rng: {
        "t": rng.uniform(1851.0, 1962.0, 600).astype(np.float32),
        "y": np.zeros(600, np.int32),
    },
    truth={"early_rate": 3.0, "late_rate": 0.9, "switch": 1890.0},
)
def changepoint(t: Any, y: Any) -> None:
    """Counts at times t with a rate that changes at an unknown one."""
    early_rate = numpyro.sample("early_rate", dist.Exponential(1.0))
    late_rate = numpyro.sample("late_rate", dist.Exponential(1.0))
    switch = numpyro.sample("switch", dist.Uniform(1851.0, 1962.0))
    with numpyro.plate("reports", y.shape[0]):
        rate = jnp.where(t < switch, early_rate, late_rate)
        numpyro.sample("y", dist.Poisson(rate), obs=y)
