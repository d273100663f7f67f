"""Conjugate models with latents of rows, such as mixtures and chains."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from _cases import (
    Case,
    Cases,
    MakeRows,
    gammas,
    mixed,
    normals,
    observe,
    simplices,
    sticks,
)
from _models import UNIT
from _rows import (
    answers,
    bags,
    coins,
    counts,
    grouped,
    linear,
    numbers,
    points,
    waits,
    words,
)
from numpyro.contrib.control_flow import scan
from numpyro.ops.indexing import Vindex

CASES = Cases()
conjugate = CASES.of


# --- latents of rows ------------------------------------------------------------------


@conjugate(numbers)
def shared_variance(y: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(3)))
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([3]).to_event(1))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi))
        numpyro.sample("y", dist.Normal(mu[z], 1 / jnp.sqrt(tau)), obs=y)


@conjugate(counts)
def poisson_mixture(y: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("components", 3):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    observe(dist.MixtureSameFamily(dist.Categorical(pi), dist.Poisson(rate)), y)


@conjugate(waits)
def exponential_mixture(y: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(2)))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Exponential(rate[z]), obs=y)


@conjugate(answers)
def latent_classes(y: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("classes", 2):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0).expand([5]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi))
        numpyro.sample("y", dist.Bernoulli(p[z]).to_event(1), obs=y)


@conjugate(bags)
def mixture_of_multinomials(y: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(2)))
    beta = numpyro.sample("beta", dist.Dirichlet(jnp.ones((2, 4))).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi))
        numpyro.sample("y", dist.Multinomial(10, probs=beta[z]), obs=y)


@conjugate(linear)
def mixture_of_regressions(X: Any, y: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("components", 2):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate(UNIT, X.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi))
        numpyro.sample("y", dist.Normal((w[z] * X).sum(-1), 0.5), obs=y)


@conjugate(counts)
def zero_inflated_by_hand(y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(p))
        numpyro.sample("y", dist.Poisson(jnp.where(z == 1, rate, 1e-3)), obs=y)


@conjugate(numbers)
def switched_effect(y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(p))
        numpyro.sample("y", dist.Normal(z * mu, 0.5), obs=y)


@conjugate(counts)
def function_of_a_state(y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Poisson(rate * jnp.exp(0.5 * z)), obs=y)


@conjugate(coins)
def noisy_or(y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        a = numpyro.sample("a", dist.Bernoulli(0.3))
        b = numpyro.sample("b", dist.Bernoulli(0.4))
        on = jnp.where((a == 1) | (b == 1), p[0], p[1])
        numpyro.sample("y", dist.Bernoulli(on), obs=y)


@conjugate(numbers)
def index_from_two_states(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([4]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        a = numpyro.sample("a", dist.Categorical(jnp.ones(2) / 2))
        b = numpyro.sample("b", dist.Categorical(jnp.ones(3) / 3))
        numpyro.sample("y", dist.Normal(mu[a + b], 0.5), obs=y)


@conjugate(grouped)
def naive_bayes(x: Any, y: Any, label: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate("labels", 4):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate(UNIT, x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(pi), obs=label)
        numpyro.sample("x", dist.Normal(mu[c], tau[c] ** -0.5), obs=x)
        numpyro.sample("y", dist.Bernoulli(p[c]), obs=y > 0)


@conjugate(grouped)
def latent_naive_bayes(x: Any, y: Any, g: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("labels", 2):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(4)))
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate(UNIT, x.shape[0]):
        c = numpyro.sample("c", dist.Categorical(pi))
        numpyro.sample("x", dist.Normal(mu[c], 1.0), obs=x)
        numpyro.sample("g", dist.Categorical(Vindex(theta)[c, :]), obs=g)
        numpyro.sample("count", dist.Poisson(rate[c]), obs=jnp.round(jnp.abs(y)))


@conjugate(points)
def factor_analysis_by_einsum(y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0).expand([3]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        u = numpyro.sample("u", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        mean = jnp.einsum("dk,nk->nd", W, u)
        numpyro.sample("y", dist.Normal(mean, 1 / jnp.sqrt(tau)).to_event(1), obs=y)


@conjugate(points)
def mixture_of_factor_analysers(y: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(2)))
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2, 3]).to_event(2))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi))
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        mean = mu[z] + u[:, None] * W[z]
        numpyro.sample("y", dist.Normal(mean, 0.5).to_event(1), obs=y)


@conjugate(grouped)
def errors_in_variables(x: Any, y: Any, g: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, x.shape[0]):
        truth = numpyro.sample("truth", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(truth, 0.3), obs=x)
        numpyro.sample("y", dist.Normal(b * truth, 0.5), obs=y)


@conjugate(points)
def random_walk_of_the_row(y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    with numpyro.plate(UNIT, y.shape[0]):
        state = 0.0
        for t in range(y.shape[1]):
            state = numpyro.sample(f"state{t}", dist.Normal(state, tau**-0.5))
            numpyro.sample(f"y{t}", dist.Normal(state, 0.5), obs=y[:, t])


@conjugate(words)
def markov_chain_of_letters(y: Any) -> None:
    A = numpyro.sample("A", dist.Dirichlet(jnp.ones((2, 2))).to_event(1))
    B = numpyro.sample("B", dist.Dirichlet(jnp.ones((2, 4))).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z0", dist.Categorical(jnp.ones(2) / 2))
        for t in range(3):
            if t:
                z = numpyro.sample(f"z{t}", dist.Categorical(A[z]))
            numpyro.sample(f"y{t}", dist.Categorical(B[z]), obs=y[:, t])


@conjugate(words)
def observed_chain(y: Any) -> None:
    A = numpyro.sample("A", dist.Dirichlet(jnp.ones((4, 4))).to_event(1))
    observe(dist.Categorical(A[y[:, :-1]]).to_event(1), y[:, 1:])


@conjugate(words)
def topics_of_log_probabilities(y: Any) -> None:
    beta = numpyro.sample("beta", dist.Dirichlet(jnp.ones((2, 4))).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(2)))
        probs = (theta @ beta)[:, None, :]
        numpyro.sample("y", dist.Categorical(probs=probs).to_event(1), obs=y)


@conjugate(numbers)
def mixture_written_as_factor(y: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(2)))
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        log_each = dist.Normal(mu, 0.5).log_prob(y[:, None])
        numpyro.factor("lik", jax.nn.logsumexp(jnp.log(pi) + log_each, axis=-1))


def _factor_analysis(name: str, mean: Callable[[Any, Any], Any]) -> None:
    def model(y: Any) -> None:
        W, tau = normals("W", 3, 2), gammas("tau")
        with numpyro.plate(UNIT, y.shape[0]):
            u = numpyro.sample("u", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
            noise = dist.Normal(mean(W, u), 1 / jnp.sqrt(tau)).to_event(1)
            numpyro.sample("y", noise, obs=y)

    CASES[name] = Case(model, points)


for _name, _mean in {
    "ppca_by_vmap": lambda W, u: jax.vmap(lambda one: W @ one)(u),
    "ppca_by_tensordot": lambda W, u: jnp.tensordot(u, W, axes=[[1], [1]]),
    "ppca_by_sum": lambda W, u: (u[:, None, :] * W).sum(-1),
    "ppca_column_by_column": lambda W, u: jnp.stack([u @ w for w in W], -1),
    "ppca_with_triangular_loadings": lambda W, u: u @ jnp.tril(W).T,
}.items():
    _factor_analysis(_name, _mean)


@conjugate(points)
def factor_analysis_with_own_variances(y: Any) -> None:
    with numpyro.plate("factors", 2, dim=-2):
        alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
        with numpyro.plate("outcomes", 3, dim=-1):
            W = numpyro.sample("W", dist.Normal(0.0, alpha**-0.5))
    psi = numpyro.sample("psi", dist.InverseGamma(2.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        u = numpyro.sample("u", dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)))
        numpyro.sample("y", dist.Normal(u @ W, jnp.sqrt(psi)).to_event(1), obs=y)


@conjugate(grouped)
def schools(x: Any, y: Any, g: Any) -> None:
    mu, tau = normals("mu", scale=5.0), gammas("tau")
    with numpyro.plate(UNIT, x.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, 1 / jnp.sqrt(tau)))
        numpyro.sample("y", dist.Normal(theta, jnp.exp(0.1 * x)), obs=y)


@conjugate(answers)
def item_response(y: Any) -> None:
    slope, difficulty = normals("slope", 5), normals("difficulty", 5)
    with numpyro.plate(UNIT, y.shape[0]):
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
        logits = slope * (ability[:, None] - difficulty)
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


@conjugate(linear)
def two_experts_with_a_logistic_gate(X: Any, y: Any) -> None:
    gate, w = normals("gate", 3), normals("w", 2, 3)
    with numpyro.plate(UNIT, X.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(logits=X @ gate))
        numpyro.sample("y", dist.Normal((X * w[z]).sum(-1), 0.5), obs=y)


def _hidden_markov(name: str, make_rows: MakeRows, emission: Any) -> None:
    def model(y: Any) -> None:
        start, A = simplices("start", 2), simplices("A", 2, 2)
        given = emission()
        with numpyro.plate(UNIT, y.shape[0]):
            z = numpyro.sample("z0", dist.Categorical(start))
            for t in range(3):
                if t:
                    z = numpyro.sample(f"z{t}", dist.Categorical(A[z]))
                numpyro.sample(f"y{t}", given(z), obs=y[:, t])

    CASES[name] = Case(model, make_rows)


def _gaussian_emission() -> Any:
    mu, tau = normals("mu", 2, scale=3.0), gammas("tau", 2)
    return lambda z: dist.Normal(mu[z], tau[z] ** -0.5)


def _poisson_emission() -> Any:
    rate = gammas("rate", 2)
    return lambda z: dist.Poisson(rate[z])


def _letter_emission() -> Any:
    B = simplices("B", 2, 4)
    return lambda z: dist.Categorical(B[z])


_hidden_markov("gaussian_hidden_markov", points, _gaussian_emission)


_hidden_markov("poisson_hidden_markov", words, _poisson_emission)


_hidden_markov("letters_hidden_markov", words, _letter_emission)


@conjugate(words)
def poisson_hidden_markov_by_scan(y: Any) -> None:
    A, rate, count = simplices("A", 2, 2), gammas("rate", 2), y.shape[0]

    def step(z: Any, now: Any) -> Any:
        with numpyro.plate(UNIT, count):
            z = numpyro.sample("z", dist.Categorical(A[z]))
            numpyro.sample("y", dist.Poisson(rate[z]), obs=now)
        return z, None

    scan(step, jnp.zeros(count, jnp.int32), y.T)


@conjugate(points)
def walk_of_the_row_by_cumsum(y: Any) -> None:
    tau = gammas("tau")
    with numpyro.plate(UNIT, y.shape[0]):
        steps = dist.Normal(0.0, 1.0).expand([3]).to_event(1)
        state = jnp.cumsum(numpyro.sample("steps", steps), axis=-1)
        numpyro.sample("y", dist.Normal(state, tau**-0.5).to_event(1), obs=y)


@conjugate(waits)
def gamma_of_gamma(y: Any) -> None:
    b = gammas("b")
    with numpyro.plate(UNIT, y.shape[0]):
        rate = numpyro.sample("rate", dist.Gamma(2.0, b))
        numpyro.sample("y", dist.Gamma(3.0, rate), obs=y)


@conjugate(bags)
def topics_by_matmul(y: Any) -> None:
    beta = simplices("beta", 3, 4)
    with numpyro.plate(UNIT, y.shape[0]):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(3)))
        probs = jnp.matmul(theta, beta)
        numpyro.sample("y", dist.Multinomial(10, probs=probs), obs=y)


# --- sticks ---------------------------------------------------------------------------


@conjugate(numbers)
def sticks_by_cumprod(y: Any) -> None:
    v = sticks()
    left = jnp.concatenate([jnp.ones(1), jnp.cumprod(1 - v)])
    mixed(jnp.concatenate([v, jnp.ones(1)]) * left, y)


@conjugate(numbers)
def sticks_by_padding(y: Any) -> None:
    v = sticks()
    left = jnp.cumprod(1.0 - v, axis=-1)
    pad = {"mode": "constant", "constant_values": 1}
    mixed(jnp.pad(v, (0, 1), **pad) * jnp.pad(left, (1, 0), **pad), y)


@conjugate(numbers)
def sticks_in_a_loop(y: Any) -> None:
    v, left, weights = sticks(), 1.0, []
    for k in range(2):
        weights.append(v[k] * left)
        left = left * (1 - v[k])
    mixed(jnp.stack([*weights, left]), y)


@conjugate(numbers)
def sticks_in_logarithms(y: Any) -> None:
    v, zero = sticks(), jnp.zeros(1)
    left = jnp.concatenate([zero, jnp.cumsum(jnp.log1p(-v))])
    mu = normals("mu", 3, scale=3.0)
    logits = jnp.concatenate([jnp.log(v), zero]) + left
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(logits=logits))
        numpyro.sample("y", dist.Normal(mu[z], 0.5), obs=y)


@conjugate(numbers)
def sticks_summed_out(y: Any) -> None:
    v = sticks()
    left = jnp.concatenate([jnp.ones(1), jnp.cumprod(1 - v)])
    weights = dist.Categorical(jnp.concatenate([v, jnp.ones(1)]) * left)
    mu = normals("mu", 3, scale=3.0)
    observe(dist.MixtureSameFamily(weights, dist.Normal(mu, 0.5)), y)


@conjugate(coins)
def two_probabilities(y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    observe(dist.Categorical(jnp.array([1 - p, p])), y.astype(jnp.int32))
