"""Textbook models, each in the spelling that somebody might use.

As in `test_generality`, what is right for each was decided by hand. Those that are
compiled are compared with NumPyro's log density on rows with every index, both signs
and every label, which the certificate cannot know of.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _cases import Case, Cases, MakeRows, gammas, normals, observe, simplices
from _models import UNIT
from _rows import (
    annotations,
    answers,
    bags,
    binary,
    by_group,
    coins,
    count_regression,
    counts,
    events,
    games,
    grouped,
    labelled,
    letters,
    linear,
    numbers,
    points,
    waits,
    words,
)
from jax.scipy.special import logsumexp
from numpyro.contrib.control_flow import scan
from numpyro.handlers import mask
from numpyro.ops.indexing import Vindex

import numpyro_vips as nv
from numpyro_vips.vips.certificate import certify, check_rows_are_separate
from numpyro_vips.vips.compiler import interpreted

CONJUGATE, NOT_CONJUGATE, UNSAFE = Cases(), Cases(), Cases()
conjugate, not_conjugate, unsafe = CONJUGATE.of, NOT_CONJUGATE.of, UNSAFE.of


# --- values that are no latents -----------------------------------------------------


@conjugate(linear)
def delta_of_all_weights(X: Any, y: Any) -> None:
    w = normals("w", 3)
    doubled = numpyro.sample("doubled", dist.Delta(2.0 * w, event_dim=1))
    observe(dist.Normal(X @ doubled, 0.5), y)


@conjugate(linear)
def delta_in_a_plate(X: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("feature", 3):
        same = numpyro.sample("same", dist.Delta(a))
    observe(dist.Normal(X @ same, 0.5), y)


@conjugate(linear)
def delta_of_the_row(X: Any, y: Any) -> None:
    w = normals("w", 3)
    with numpyro.plate(UNIT, X.shape[0]):
        mean = numpyro.sample("mean", dist.Delta(X @ w))
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


@conjugate(letters)
def delta_of_a_state(y: Any) -> None:
    theta = simplices("theta", 2, 4)
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.3))
        other = numpyro.sample("other", dist.Delta(1 - z))
        numpyro.sample("y", dist.Categorical(theta[other]), obs=y)


@conjugate(linear)
def deterministic_everywhere(X: Any, y: Any) -> None:
    w = numpyro.deterministic("w", 2.0 * normals("half", 3))
    with numpyro.plate(UNIT, X.shape[0]):
        mean = numpyro.deterministic("mean", X @ w)
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=y)


@conjugate(numbers)
def improper_mean(y: Any) -> None:
    flat = dist.ImproperUniform(dist.constraints.real, (), ())
    observe(dist.Normal(numpyro.sample("mu", flat), 0.5), y)


@conjugate(numbers)
def improper_scale(y: Any) -> None:
    flat = dist.ImproperUniform(dist.constraints.positive, (), ())
    observe(dist.Normal(0.0, numpyro.sample("sd", flat)), y)


@not_conjugate(numbers, "flat prior of a row's own latent")
def improper_latent_of_a_row(y: Any) -> None:
    flat = dist.ImproperUniform(dist.constraints.real, (), ())
    with numpyro.plate(UNIT, y.shape[0]):
        x = numpyro.sample("x", flat)
        numpyro.sample("y", dist.Normal(x, 0.5), obs=y)


@not_conjugate(numbers, "log^2 in 'mu'")
def log_normal_by_transformation(y: Any) -> None:
    base, transform = dist.Normal(0.0, 1.0), dist.transforms.ExpTransform()
    mu = numpyro.sample("mu", dist.TransformedDistribution(base, transform))
    observe(dist.Normal(mu, 0.5), y)


# --- sticks -------------------------------------------------------------------------


def sticks() -> Any:
    return numpyro.sample("v", dist.Beta(1.0, 2.0).expand([2]).to_event(1))


def mixed(weights: Any, y: Any) -> None:
    mu = normals("mu", 3, scale=3.0)
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(weights))
        numpyro.sample("y", dist.Normal(mu[z], 0.5), obs=y)


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


@not_conjugate(numbers, "a softmax of 'v'")
def sticks_that_lose_a_piece(y: Any) -> None:
    v = sticks()
    left = jnp.concatenate([jnp.ones(1), jnp.cumprod(1 - v)])
    mixed(jnp.concatenate([v, jnp.full(1, 0.5)]) * left, y)


# --- covariances --------------------------------------------------------------------

SHAPE = np.array([[1.0, 0.3, 0.1], [0.3, 2.0, 0.2], [0.1, 0.2, 1.5]])


@conjugate(linear)
def multiple_of_a_precision(X: Any, y: Any) -> None:
    tau = gammas("tau")
    prior = dist.MultivariateNormal(jnp.zeros(3), precision_matrix=tau * SHAPE)
    w = numpyro.sample("w", prior)
    observe(dist.Normal(X @ w, tau**-0.5), y)


@conjugate(linear)
def multiple_of_a_covariance(X: Any, y: Any) -> None:
    variance = numpyro.sample("variance", dist.InverseGamma(2.0, 1.0))
    prior = dist.MultivariateNormal(jnp.zeros(3), variance * jnp.asarray(SHAPE))
    observe(dist.Normal(X @ numpyro.sample("w", prior), 0.5), y)


@conjugate(linear)
def multiple_of_a_cholesky_factor(X: Any, y: Any) -> None:
    factor = jnp.linalg.cholesky(jnp.asarray(SHAPE)) / jnp.sqrt(gammas("tau"))
    prior = dist.MultivariateNormal(jnp.zeros(3), scale_tril=factor)
    observe(dist.Normal(X @ numpyro.sample("w", prior), 0.5), y)


@conjugate(points)
def isotropic_noise(y: Any) -> None:
    mu, tau = normals("mu", 3), gammas("tau")
    observe(dist.MultivariateNormal(mu, covariance_matrix=jnp.eye(3) / tau), y)


@conjugate(points)
def precision_chosen_by_class(y: Any) -> None:
    mu, tau = normals("mu", 2, 3, scale=3.0), gammas("tau", 2)
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.3, 0.7])))
        precision = tau[z][:, None, None] * SHAPE
        noise = dist.MultivariateNormal(mu[z], precision_matrix=precision)
        numpyro.sample("y", noise, obs=y)


@conjugate(points)
def gaussian_process_with_amplitude(y: Any) -> None:
    times = np.arange(3.0)
    kernel = np.exp(-0.5 * (times[:, None] - times) ** 2) + 0.01 * np.eye(3)
    amplitude = numpyro.sample("amplitude", dist.InverseGamma(2.0, 1.0))
    prior = dist.MultivariateNormal(jnp.zeros(3), amplitude * kernel)
    f = numpyro.sample("f", prior)
    observe(dist.Normal(f, 0.5).to_event(1), y)


@not_conjugate(points, "determinant")
def sum_of_two_precisions(y: Any) -> None:
    a, b = gammas("a"), gammas("b")
    precision = a * jnp.eye(3) + b * jnp.ones((3, 3))
    observe(dist.MultivariateNormal(jnp.zeros(3), precision_matrix=precision), y)


@not_conjugate(points, "'length'")
def gaussian_process_length(y: Any) -> None:
    times, length = jnp.arange(3.0), gammas("length")
    kernel = jnp.exp(-0.5 * (times[:, None] - times) ** 2 / length)
    kernel = kernel + 0.01 * jnp.eye(3)
    f = numpyro.sample("f", dist.MultivariateNormal(jnp.zeros(3), kernel))
    observe(dist.Normal(f, 0.5).to_event(1), y)


@not_conjugate(points, "LKJCholesky")
def correlations(y: Any) -> None:
    L = numpyro.sample("L", dist.LKJCholesky(3, 2.0))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0).expand([3]).to_event(1))
    noise = dist.MultivariateNormal(jnp.zeros(3), scale_tril=sd[:, None] * L)
    observe(noise, y)


# --- indices and updates ------------------------------------------------------------


@conjugate(linear)
def first_weight_held_at_zero(X: Any, y: Any) -> None:
    observe(dist.Normal(X @ normals("w", 3).at[0].set(0.0), 0.5), y)


@conjugate(linear)
def weights_put_into_zeros(X: Any, y: Any) -> None:
    w = jnp.zeros(3).at[jnp.array([2, 0])].set(normals("w", 2))
    observe(dist.Normal(X @ w.at[1].add(1.0).at[0].multiply(2.0), 0.5), y)


@conjugate(by_group)
def reference_precision(y: Any, g: Any) -> None:
    tau = gammas("tau", 3).at[0].set(1.0)
    observe(dist.Normal(0.0, tau[g] ** -0.5), y)


@conjugate(by_group)
def reference_group_at_the_end(y: Any, g: Any) -> None:
    observe(dist.Normal(jnp.append(normals("a", 2), 0.0)[g], 0.5), y)


@conjugate(by_group)
def groups_that_add_up_to_zero(y: Any, g: Any) -> None:
    a = normals("a", 2)
    observe(dist.Normal(jnp.append(a, -a.sum())[g], 0.5), y)


@conjugate(by_group)
def padded_groups(y: Any, g: Any) -> None:
    a = jnp.pad(normals("a", 2, 2), ((0, 1), (0, 0)))
    observe(dist.Bernoulli(logits=a[g, 1]), y > 0)


@conjugate(games)
def bradley_terry(i: Any, j: Any, y: Any) -> None:
    skill = normals("skill", 4)
    observe(dist.Bernoulli(logits=skill[i] - skill[j]), y)


@conjugate(games)
def bradley_terry_with_a_reference(i: Any, j: Any, y: Any) -> None:
    skill, home = normals("skill", 4).at[0].set(0.0), normals("home")
    observe(dist.Bernoulli(jax.nn.sigmoid(home + skill[i] - skill[j])), y)


@conjugate(games)
def players_of_two_leagues(i: Any, j: Any, y: Any) -> None:
    skill = jnp.concatenate([normals("first", 2), normals("second", 2)])
    observe(dist.Normal(skill[i] - skill[j], 0.5), y)


@conjugate(games)
def matrix_factorisation(i: Any, j: Any, y: Any) -> None:
    u, v = normals("u", 4, 2), normals("v", 4, 2)
    observe(dist.Normal((u[i] * v[j]).sum(-1), 0.5), y)


@conjugate(annotations)
def dawid_skene_with_ids(y: Any, who: Any) -> None:
    pi, confusion = simplices("pi", 3), simplices("confusion", 5, 3, 3)
    with numpyro.plate(UNIT, y.shape[0]):
        c = numpyro.sample("c", dist.Categorical(pi))
        given = Vindex(confusion)[who, c[:, None], :]
        numpyro.sample("y", dist.Categorical(given).to_event(1), obs=y)


@conjugate(answers)
def sensitivity_and_specificity(y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    hit = numpyro.sample("hit", dist.Beta(2.0, 1.0).expand([5]).to_event(1))
    reject = numpyro.sample("reject", dist.Beta(2.0, 1.0).expand([5]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        ill = numpyro.sample("ill", dist.Bernoulli(p))
        positive = jnp.where(ill[:, None] == 1, hit, 1 - reject)
        numpyro.sample("y", dist.Bernoulli(positive).to_event(1), obs=y)


@conjugate(coins)
def known_error_rates(y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        ill = numpyro.sample("ill", dist.Bernoulli(p))
        numpyro.sample("y", dist.Bernoulli(0.9 * ill + 0.1 * (1 - ill)), obs=y)


@conjugate(grouped)
def intercepts_and_slopes_in_one_array(x: Any, y: Any, g: Any) -> None:
    mean, tau = normals("mean", 2), gammas("tau", 2)
    with numpyro.plate("groups", 4):
        ab = numpyro.sample("ab", dist.Normal(mean, tau**-0.5).to_event(1))
    mine = ab[g]
    observe(dist.Normal(mine[:, 0] + mine[:, 1] * x, 0.5), y)


@conjugate(grouped)
def correlated_intercepts_and_slopes(x: Any, y: Any, g: Any) -> None:
    mean = normals("mean", 2)
    precision = numpyro.sample("precision", dist.Wishart(4.0, jnp.eye(2)))
    with numpyro.plate("groups", 4):
        prior = dist.MultivariateNormal(mean, precision_matrix=precision)
        b = numpyro.sample("b", prior)
    features = jnp.stack([jnp.ones_like(x), x], axis=-1)
    observe(dist.Normal((b[g] * features).sum(-1), 0.5), y)


# --- latents of rows ----------------------------------------------------------------


def _factor_analysis(name: str, mean: Callable[[Any, Any], Any]) -> None:
    def model(y: Any) -> None:
        W, tau = normals("W", 3, 2), gammas("tau")
        with numpyro.plate(UNIT, y.shape[0]):
            u = numpyro.sample("u", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
            noise = dist.Normal(mean(W, u), 1 / jnp.sqrt(tau)).to_event(1)
            numpyro.sample("y", noise, obs=y)

    CONJUGATE[name] = Case(model, points)


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

    CONJUGATE[name] = Case(model, make_rows)


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


# --- likelihoods --------------------------------------------------------------------


@conjugate(count_regression)
def negative_binomial_by_its_mean(X: Any, y: Any) -> None:
    mean = jnp.exp(X @ normals("w", 3) + 0.5)
    observe(dist.NegativeBinomial2(mean=mean, concentration=3.0), y)


@conjugate(count_regression)
def negative_binomial_by_one_minus(X: Any, y: Any) -> None:
    probs = 1 - jax.nn.sigmoid(X @ normals("w", 3))
    observe(dist.NegativeBinomialProbs(total_count=3.0, probs=probs), y)


@conjugate(events)
def censoring_by_mask(t: Any, event: Any) -> None:
    rate = gammas("rate")
    with numpyro.plate(UNIT, t.shape[0]), mask(mask=event):
        numpyro.sample("t", dist.Exponential(rate), obs=t)


@conjugate(events)
def censoring_by_poisson(t: Any, event: Any) -> None:
    observe(dist.Poisson(gammas("rate") * t), event.astype(float))


@conjugate(counts)
def background_and_signal(y: Any) -> None:
    observe(dist.Poisson(gammas("background") + gammas("signal")), y)


def _mixture_factor(name: str, function: Callable[[Any, Any], Any]) -> None:
    def model(y: Any) -> None:
        pi, mu = simplices("pi", 2), normals("mu", 2, scale=3.0)
        with numpyro.plate(UNIT, y.shape[0]):
            each = dist.Normal(mu, 0.5).log_prob(y[:, None])
            numpyro.factor("mixture", function(pi, each))

    CONJUGATE[name] = Case(model, numbers)


for _name, _mean in {
    "logsumexp_keeps_axes": lambda pi, each: jax.nn.logsumexp(
        jnp.log(pi) + each, axis=-1, keepdims=True
    )[:, 0],
    "logsumexp_over_the_first_axis": lambda pi, each: logsumexp(
        jnp.log(pi)[:, None] + each.T, axis=0
    ),
    "logaddexp_of_two": lambda pi, each: jnp.logaddexp(
        jnp.log(pi[0]) + each[:, 0], jnp.log(pi[1]) + each[:, 1]
    ),
    "densities_summed_by_hand": lambda pi, each: jnp.log((pi * jnp.exp(each)).sum(-1)),
}.items():
    _mixture_factor(_name, _mean)


@conjugate(linear)
def factor_with_latent_noise(X: Any, y: Any) -> None:
    w, tau = normals("w", 3), gammas("tau")
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.factor("fit", dist.Normal(X @ w, tau**-0.5).log_prob(y))


@not_conjugate(linear, "a softmax of 'gate'")
def mixture_of_experts(X: Any, y: Any) -> None:
    gate, w = normals("gate", 3, 2), normals("w", 2, 3)
    weights = dist.Categorical(logits=X @ gate)
    observe(dist.MixtureSameFamily(weights, dist.Normal(X @ w.T, 0.5)), y)


@not_conjugate(labelled, "a softmax of 'W'")
def multinomial_regression(X: Any, y: Any) -> None:
    observe(dist.Categorical(logits=X @ normals("W", 3, 4)), y)


@not_conjugate(labelled, "OrderedLogistic")
def ordered_regression(X: Any, y: Any) -> None:
    cuts = jnp.array([-1.0, 0.0, 1.0])
    observe(dist.OrderedLogistic(X @ normals("w", 3), cuts), y)


@not_conjugate(binary, "'w'")
def probit_regression(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(jax.scipy.special.ndtr(X @ normals("w", 3))), y)


@not_conjugate(binary, "sigmoid of 'w'")
def beta_regression(X: Any, y: Any) -> None:
    mean = jax.nn.sigmoid(X @ normals("w", 3))
    observe(dist.Beta(10.0 * mean, 10.0 * (1 - mean)), 0.1 + 0.8 * y)


@not_conjugate(count_regression, "exp of 'w'")
def gamma_regression(X: Any, y: Any) -> None:
    observe(dist.Gamma(2.0, 2.0 / jnp.exp(X @ normals("w", 3))), y + 0.5)


@not_conjugate(binary, "tanh of 'V'")
def network(X: Any, y: Any) -> None:
    hidden = jnp.tanh(X @ normals("V", 3, 4))
    observe(dist.Bernoulli(logits=hidden @ normals("w", 4)), y)


@not_conjugate(games, "a power -1 of a sum")
def bradley_terry_of_gammas(i: Any, j: Any, y: Any) -> None:
    skill = gammas("skill", 4)
    observe(dist.Bernoulli(probs=skill[i] / (skill[i] + skill[j])), y)


@not_conjugate(bags, "a softmax of 'beta'")
def product_of_topics(y: Any) -> None:
    beta, theta = normals("beta", 3, 4), simplices("theta", 3)
    observe(dist.Multinomial(10, logits=theta @ beta), y)


# --- what rows could switch, which rules have to refuse -----------------------------


@not_conjugate(grouped, "a softmax")
def mixing_weights_that_need_not_add_up(x: Any, y: Any, g: Any) -> None:
    gamma, pi, mu = gammas("gamma", 2), simplices("pi", 2), normals("mu", 2)
    weights = dist.Categorical(probs=jnp.where(x[:, None] < 0, gamma, pi))
    observe(dist.MixtureSameFamily(weights, dist.Normal(mu, 1.0)), y)


@not_conjugate(grouped, "a softmax")
def mixing_weights_squared_where_negative(x: Any, y: Any, g: Any) -> None:
    pi, mu = simplices("pi", 2), normals("mu", 2)
    weights = dist.Categorical(probs=jnp.where(x[:, None] < 0, pi**2, pi))
    observe(dist.MixtureSameFamily(weights, dist.Normal(mu, 1.0)), y)


@not_conjugate(grouped, "a softmax")
def logits_of_gammas_for_one_group(x: Any, y: Any, g: Any) -> None:
    table = jnp.concatenate([simplices("pi", 3, 2), gammas("gamma", 1, 2)])
    label = (x > 0).astype(jnp.int32)
    observe(dist.Categorical(logits=jnp.log(table)[g]), label)


@not_conjugate(letters, "do not add up to one")
def probabilities_of_gammas(y: Any) -> None:
    observe(dist.Categorical(probs=gammas("g", 4)), y)


@not_conjugate(letters, "do not add up to one")
def squares_of_a_simplex(y: Any) -> None:
    observe(dist.Categorical(probs=simplices("theta", 4) ** 2), y)


# --- factors that no posterior may follow from --------------------------------------


def _factor(name: str, make_rows: MakeRows, prior: Any, function: Any) -> None:
    def model(*rows: Any) -> None:
        latent = prior()
        with numpyro.plate(UNIT, rows[0].shape[0]):
            numpyro.factor("f", function(latent, *rows))

    NOT_CONJUGATE[name] = Case(model, make_rows, "a factor that is no log density")


for _name, _make_rows, _prior, _function in (
    ("grows_with_the_square", numbers, lambda: normals("w"), lambda w, y: (w - y) ** 2),
    ("curvature_from_the_row", numbers, lambda: normals("w"), lambda w, y: -y * w**2),
    ("rate_from_the_row", numbers, lambda: gammas("w"), lambda w, y: w * y),
    ("rate_that_grows", waits, lambda: gammas("w"), lambda w, y: w * y),
    ("reciprocal_that_grows", waits, lambda: gammas("w"), lambda w, y: y / w),
    (
        "exponent_from_the_row",
        numbers,
        lambda: gammas("w"),
        lambda w, y: y * jnp.log(w) - w,
    ),
    (
        "negative_counts",
        bags,
        lambda: simplices("p", 4),
        lambda p, y: -(y * jnp.log(p)).sum(-1),
    ),
    (
        "counts_that_may_be_negative",
        bags,
        lambda: simplices("p", 4),
        lambda p, y: (y * jnp.log(p)).sum(-1),
    ),
):
    _factor(f"factor_{_name}", _make_rows, _prior, _function)


@not_conjugate(numbers, "a factor that is no log density")
def factor_on_a_latent_of_the_row(y: Any) -> None:
    w = normals("w")
    with numpyro.plate(UNIT, y.shape[0]):
        u = numpyro.sample("u", dist.Normal(w, 1.0))
        numpyro.factor("f", y * u**2)
        numpyro.sample("y", dist.Normal(u, 0.5), obs=y)


@not_conjugate(numbers, "negative scale")
def negative_scale(y: Any) -> None:
    w, minus = normals("w"), -0.5 * jnp.ones(y.shape)
    with numpyro.plate(UNIT, y.shape[0]), numpyro.handlers.scale(scale=minus):
        numpyro.sample("y", dist.Normal(w, 0.5), obs=y)


# --- unsafe -------------------------------------------------------------------------


@unsafe(linear)
def batch_norm(X: Any, y: Any) -> None:
    X = (X - X.mean(0)) / X.std(0)
    observe(dist.Normal(X @ normals("w", 3), 0.5), y)


@unsafe(numbers)
def running_total(y: Any) -> None:
    observe(dist.Normal(normals("w") * jnp.cumsum(y), 0.5), y)


@unsafe(numbers)
def row_before(y: Any) -> None:
    before = jnp.concatenate([jnp.zeros(1), y[:-1]])
    observe(dist.Normal(normals("w") * before, 0.5), y)


@unsafe(numbers)
def rows_reversed(y: Any) -> None:
    observe(dist.Normal(normals("w") * y[::-1], 0.5), y)


@unsafe(numbers)
def prior_from_the_number_of_rows(y: Any) -> None:
    observe(dist.Normal(normals("w", scale=len(y) ** -0.5), 0.5), y)


@unsafe(grouped)
def means_of_groups(x: Any, y: Any, g: Any) -> None:
    totals, sizes = (jax.ops.segment_sum(v, g, 4) for v in (x, jnp.ones_like(x)))
    means = totals / jnp.maximum(sizes, 1.0)
    observe(dist.Normal(normals("w") * means[g], 0.5), y)


@unsafe(numbers)
def every_pair(y: Any) -> None:
    distances = jnp.abs(y[:, None] - y).sum(1)
    observe(dist.Normal(normals("w") * distances, 0.5), y)


@unsafe(numbers)
def delta_with_a_density(y: Any) -> None:
    mu = normals("mu")
    same = numpyro.sample("same", dist.Delta(mu, log_density=-(mu**2)))
    observe(dist.Normal(same, 0.5), y)


# --- the tests ----------------------------------------------------------------------


def test_there_are_enough_models() -> None:
    assert len(CONJUGATE) >= 50
    assert len(NOT_CONJUGATE) >= 30


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CONJUGATE)
def test_conjugate_model_is_compiled_to_what_it_means(name: str) -> None:
    case = CONJUGATE[name]
    assert case.reasons_against_vips() == {}
    graph = case.graph
    check_rows_are_separate(graph)
    # The rows of the test, with every index, in place of synthetic ones.
    certify(interpreted(graph), seed=3)


@pytest.mark.parametrize("name", NOT_CONJUGATE)
def test_other_model_is_refused_with_its_reason(name: str) -> None:
    case = NOT_CONJUGATE[name]
    reasons = case.reasons_against_vips()
    assert reasons, "a model that is not conjugate was compiled"
    assert case.reason in " ".join(reasons.values())


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_model_is_refused(name: str) -> None:
    case = UNSAFE[name]
    with pytest.raises(nv.UnsafeModelError):
        check_rows_are_separate(case.graph)
