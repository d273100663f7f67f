"""Models that are not conjugate, and models that no engine may run.

Every model here was judged by hand, by what it means. One that is not conjugate must
be left to DPVI with a reason that names what is in the way: compiling it would be the
worst outcome. Those that mix rows are refused whichever the engine. What must be
compiled is in `test_conjugate_models.py`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _cases import (
    Case,
    Cases,
    MakeRows,
    chance,
    factor_model,
    gammas,
    inverse_wishart,
    mixed,
    normals,
    observe,
    observed_model,
    simplices,
    sticks,
    weights_of,
    wide_normals,
)
from _models import UNIT
from _rows import (
    bags,
    binary,
    coins,
    count_regression,
    counts,
    events,
    fractions,
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

import numpyro_vips as nv
from numpyro_vips.vips.compile.certificate import check_rows_are_separate

NOT_CONJUGATE, UNSAFE = Cases(), Cases()
# The reason is the site that is in the way, in quotes, or what is said about it.
not_conjugate, unsafe = NOT_CONJUGATE.of, UNSAFE.of


# --- functions of a weight ------------------------------------------------------------


def _link(name: str, function: Callable[[Any], Any]) -> None:
    """A Normal whose mean is a function of a scalar weight, times a feature."""

    def model(x: Any, y: Any, g: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        observe(dist.Normal(function(w) * x, 0.5), y)

    NOT_CONJUGATE[name] = Case(model, grouped, "'w'")


for _name, _function in {
    "cube": lambda w: w**3,
    "square_link": lambda w: w**2,
    "sine": jnp.sin,
    "tangent": jnp.tanh,
    "exponential_link": jnp.exp,
    "softplus": jax.nn.softplus,
    "relu": jax.nn.relu,
    "maximum": lambda w: jnp.maximum(w, 0.0),
    "leaky": lambda w: jnp.where(w > 0, w, 0.1 * w),
    "elu": jax.nn.elu,
    "gelu": jax.nn.gelu,
    "clip": lambda w: jnp.clip(w, -10.0, 10.0),
    "absolute": jnp.abs,
    "root_of_square": lambda w: jnp.sqrt(w**2),
    "root_of_product": lambda w: jnp.sqrt(w * w),
    "power_of_square": lambda w: (w**2) ** 0.5,
    "fourth_root_of_fourth_power": lambda w: (w**4) ** 0.25,
    "exponential_of_log": lambda w: jnp.exp(0.5 * jnp.log(w**2)),
    "sign_by_division": lambda w: jnp.sqrt(w**2) / w,
    "signed_square": lambda w: w * jnp.sqrt(w**2),
    "cube_root_of_square": lambda w: (w**2) ** (1 / 3),
    "sign": jnp.sign,
    "step": lambda w: jnp.heaviside(w, 0.5),
    "comparison": lambda w: 1.0 * (w > 0),
    "rounded": jnp.round,
    "floor": jnp.floor,
    "as_integer": lambda w: w.astype(jnp.int32),
    "as_boolean": lambda w: w.astype(bool),
    "remainder": lambda w: w % 1.0,
    "logistic_link": jax.nn.sigmoid,
    "log_of_sum": lambda w: jnp.log1p(jnp.exp(w)),
    "reciprocal": lambda w: 1 / (1 + w**2),
    "normalised": lambda w: w / jnp.sqrt(1 + w**2),
    "error_function": jax.scipy.special.erf,
    "logaddexp": lambda w: jnp.logaddexp(w, 0.0),
    "double_precision_trick": lambda w: w * jnp.where(jnp.abs(w) < 100.0, 1.0, 0.0),
    "cumulative_maximum": lambda w: jnp.maximum.accumulate(jnp.stack([w, 0 * w]))[1],
}.items():
    _link(_name, _function)


def _vector_link(name: str, function: Callable[[Any], Any]) -> None:
    """The same with a function from a vector of weights to a number."""

    def model(x: Any, y: Any, g: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        observe(dist.Normal(function(w) * x, 0.5), y)

    NOT_CONJUGATE[name] = Case(model, grouped, "'w'")


for _name, _function in {
    "largest": jnp.max,
    "smallest": jnp.min,
    "sorted_first": lambda w: jnp.sort(w)[0],
    "norm": jnp.linalg.norm,
    "centred_at_the_largest": lambda w: (w - jnp.max(w)).sum(),
    "past_the_largest": lambda w: (w - w.max() + w[0]).sum(),
    "quotient": lambda w: w[0] / w[1],
    "product_of_all": jnp.prod,
    "softmax_weight": lambda w: jax.nn.softmax(w)[0],
    "logsumexp_link": logsumexp,
    "variance_of": jnp.var,
    "pick_by_largest": lambda w: w[jnp.argmax(w)],
    "product_of_three": lambda w: w[0] * w[1] * w[2],
    "inner_product_with_itself": lambda w: w @ w,
    "median": jnp.median,
    "root_of_squares": lambda w: jnp.sqrt(w[0] ** 2 * w[1] ** 2),
    "triangular": lambda w: jnp.tril(jnp.outer(w, w))[1, 0],
}.items():
    _vector_link(_name, _function)


# --- likelihoods and priors -----------------------------------------------------------


@not_conjugate(words, "'W'")
def softmax_regression(y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([4, 4]).to_event(2))
    observe(dist.Categorical(logits=y[:, :-1] @ W), y[:, -1])


@not_conjugate(words, "'W'")
def softmax_probabilities(y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([4, 4]).to_event(2))
    observe(dist.Categorical(probs=jax.nn.softmax(y[:, :-1] @ W)), y[:, -1])


@not_conjugate(letters, "'g'")
def unnormalised_logits(y: Any) -> None:
    g = numpyro.sample("g", dist.Gamma(2.0, 1.0).expand([4]).to_event(1))
    observe(dist.Categorical(logits=jnp.log(g)), y)


@not_conjugate(letters, "'g'")
def normalised_gammas(y: Any) -> None:
    g = numpyro.sample("g", dist.Gamma(2.0, 1.0).expand([4]).to_event(1))
    observe(dist.Categorical(probs=g / g.sum()), y)


@not_conjugate(letters, "'theta'")
def tempered_simplex(y: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(4)))
    observe(dist.Categorical(logits=0.5 * jnp.log(theta)), y)


@not_conjugate(letters, "'theta'")
def product_of_experts(y: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(4)))
    phi = numpyro.sample("phi", dist.Dirichlet(jnp.ones(4)))
    observe(dist.Categorical(logits=jnp.log(theta) + jnp.log(phi)), y)


@not_conjugate(binary, "'w'")
def probit(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(jax.scipy.stats.norm.cdf(X @ weights_of(X))), y)


@not_conjugate(binary, "'w'")
def complementary_log_log(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(1 - jnp.exp(-jnp.exp(X @ weights_of(X)))), y)


@not_conjugate(binary, "'w'")
def label_noise(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(0.05 + 0.9 * jax.nn.sigmoid(X @ weights_of(X))), y)


@not_conjugate(binary, "'w'")
def clipped_logits(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(logits=jnp.clip(X @ weights_of(X), -5.0, 5.0)), y)


@not_conjugate(coins, "'p'")
def product_of_probabilities(y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    q = numpyro.sample("q", dist.Beta(1.0, 1.0))
    observe(dist.Bernoulli(p * q), y)


@not_conjugate(coins, "'p'")
def squared_probability(y: Any) -> None:
    observe(dist.Bernoulli(numpyro.sample("p", dist.Beta(1.0, 1.0)) ** 2), y)


@not_conjugate(coins, "'rate'")
def detection_probability(y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    observe(dist.Bernoulli(1 - jnp.exp(-rate)), y)


@not_conjugate(count_regression, "'w'")
def poisson_regression(X: Any, y: Any) -> None:
    observe(dist.Poisson(jnp.exp(X @ weights_of(X))), y)


@not_conjugate(counts, "'rate'")
def squared_rate(y: Any) -> None:
    observe(dist.Poisson(numpyro.sample("rate", dist.Gamma(2.0, 1.0)) ** 2), y)


@not_conjugate(counts, "'rate'")
def squared_rate_with_half_normal_prior(y: Any) -> None:
    observe(dist.Poisson(numpyro.sample("rate", dist.HalfNormal(2.0)) ** 2), y)


@not_conjugate(counts, "'rate'")
def rate_with_lognormal_prior(y: Any) -> None:
    observe(dist.Poisson(numpyro.sample("rate", dist.LogNormal(0.0, 1.0))), y)


@not_conjugate(numbers, "'sd'")
def noise_with_uniform_sd(y: Any) -> None:
    observe(dist.Normal(0.0, numpyro.sample("sd", dist.Uniform(0.0, 10.0))), y)


@not_conjugate(numbers, "'a'")
def sum_of_variances(y: Any) -> None:
    a = numpyro.sample("a", dist.InverseGamma(2.0, 1.0))
    b = numpyro.sample("b", dist.InverseGamma(2.0, 1.0))
    observe(dist.Normal(0.0, jnp.sqrt(a + b)), y)


@not_conjugate(numbers, "'tau'")
def variance_with_floor(y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
    observe(dist.Normal(0.0, jnp.sqrt(1 / tau + 0.01)), y)


@not_conjugate(linear, "'w'")
def log_linear_noise(X: Any, y: Any) -> None:
    observe(dist.Normal(0.0, jnp.exp(X @ weights_of(X))), y)


@not_conjugate(numbers, "'mu'")
def noise_as_large_as_the_mean(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Gamma(2.0, 1.0))
    observe(dist.Normal(mu, mu), y)


@not_conjugate(numbers, "'s'")
def scaled_effect(y: Any) -> None:
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    observe(dist.Normal(s * z, 0.5), y)


@not_conjugate(numbers, "'s'")
def positive_mean(y: Any) -> None:
    observe(dist.Normal(numpyro.sample("s", dist.Exponential(1.0)), 0.5), y)


@not_conjugate(numbers, "'mu'")
def truncated_prior(y: Any) -> None:
    mu = numpyro.sample("mu", dist.TruncatedNormal(0.0, 1.0, low=0.0))
    observe(dist.Normal(mu, 0.5), y)


@not_conjugate(numbers, "'mu'")
def bounded_mean(y: Any) -> None:
    observe(dist.Normal(numpyro.sample("mu", dist.Uniform(-1.0, 1.0)), 0.5), y)


@not_conjugate(coins, "'p'")
def probability_on_half_the_interval(y: Any) -> None:
    observe(dist.Bernoulli(numpyro.sample("p", dist.Uniform(0.0, 0.5))), y)


@not_conjugate(waits, "'shape'")
def gamma_of_latent_shape(y: Any) -> None:
    observe(dist.Gamma(numpyro.sample("shape", dist.Gamma(2.0, 1.0)), 1.0), y)


@not_conjugate(fractions, "'a'")
def beta_of_latent_shape(y: Any) -> None:
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
    observe(dist.Beta(a, 2.0), y)


@not_conjugate(fractions, "'a'")
def beta_mixture(y: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(2)))
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi))
        numpyro.sample("y", dist.Beta(a[z], 2.0), obs=y)


@not_conjugate(letters, "'alpha'")
def latent_concentration(y: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Gamma(2.0, 1.0))
    theta = numpyro.sample("theta", dist.Dirichlet(alpha * jnp.ones(4)))
    observe(dist.Categorical(theta), y)


@not_conjugate(numbers, "'nu'")
def latent_degrees_of_freedom(y: Any) -> None:
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    observe(dist.StudentT(nu, 0.0, 1.0), y)


@not_conjugate(counts, "'r'")
def latent_dispersion(y: Any) -> None:
    r = numpyro.sample("r", dist.Gamma(2.0, 1.0))
    observe(dist.NegativeBinomialProbs(r, probs=0.4), y)


@not_conjugate(count_regression, "'w'")
def zero_inflated_regression(X: Any, y: Any) -> None:
    observe(dist.ZeroInflatedPoisson(0.3, jnp.exp(X @ weights_of(X))), y)


@not_conjugate(letters, "'w'")
def ordered_logit(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    cut = jnp.array([-1.0, 0.0, 1.0])
    observe(dist.OrderedLogistic(w * jnp.ones(y.shape), cut), y)


@not_conjugate(linear, "'W'")
def hidden_layer(X: Any, y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([3, 4]).to_event(2))
    v = numpyro.sample("v", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    observe(dist.Normal(jax.nn.relu(X @ W) @ v, 0.5), y)


@not_conjugate(numbers, "'w'")
def quartic_factor(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.factor("fit", -((y - w) ** 4))


@not_conjugate(numbers, "'w'")
def absolute_factor(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.factor("fit", -jnp.abs(y - w))


@not_conjugate(numbers, "public number ('k') of numpyro.factor")
def weibull_factor(y: Any) -> None:
    k = numpyro.sample("k", dist.Gamma(2.0, 2.0))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.factor("fit", -(jnp.exp(y) ** k))


@not_conjugate(numbers, "'mu'")
def mixture_counted_twice(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        log_each = dist.Normal(mu, 0.5).log_prob(y[:, None])
        numpyro.factor("lik", -logsumexp(log_each, axis=-1))


@not_conjugate(numbers, "'mu'")
def mixture_without_its_maximum(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        log_each = dist.Normal(mu, 0.5).log_prob(y[:, None])
        log_each = log_each - log_each.max(-1, keepdims=True)
        numpyro.factor("lik", jnp.log(jnp.exp(log_each).sum(-1)))


@not_conjugate(points, "'W'")
def covariance_of_loadings(y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    covariance = jnp.outer(W, W) + jnp.eye(3)
    observe(dist.MultivariateNormal(jnp.zeros(3), covariance), y)


@not_conjugate(points, "'L'")
def latent_correlation(y: Any) -> None:
    L = numpyro.sample("L", dist.LKJCholesky(3, 1.0))
    observe(dist.MultivariateNormal(jnp.zeros(3), scale_tril=L), y)


@not_conjugate(points, "'a'")
def nonlinear_latent_of_the_row(y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        numpyro.sample(
            "y", dist.Normal(jnp.sin(u[:, None] * a), 0.5).to_event(1), obs=y
        )


@not_conjugate(points, "'u'")
def squared_latent_of_the_row(y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        mean = u[:, None] ** 2 * a
        numpyro.sample("y", dist.Normal(mean, 0.5).to_event(1), obs=y)


@not_conjugate(coins, "'w'")
def noisy_xor_of_weights(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        logits = jnp.where(z == 1, w, jnp.tanh(w))
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


# Synthetic floats lie in (0.1, 0.9), where the next ones look conjugate: their rules,
# not the numbers that they are tried on, must refuse them.


@not_conjugate(points, "'theta'")
def categories_from_two_simplices(x: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(3)))
    phi = numpyro.sample("phi", dist.Dirichlet(jnp.ones(3)))
    logits = jnp.where(x > 0, jnp.log(theta), jnp.log(phi))
    observe(dist.Categorical(logits=logits), (x[:, 0] > 1).astype(jnp.int32))


@not_conjugate(points, "'theta'")
def tempered_where_negative(x: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(3)))
    log_theta = jnp.log(theta)
    logits = jnp.where(x[:, :1] > 0, log_theta, log_theta + log_theta)
    observe(dist.Categorical(logits=logits), (x[:, 0] > 1).astype(jnp.int32))


@not_conjugate(grouped, "'w'")
def maximum_where_negative(x: Any, y: Any, g: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    observe(dist.Normal(jnp.where(x < 0, w[0] - jnp.max(w), w[0]), 0.5), y)


@not_conjugate(grouped, "'w'")
def maximum_added_where_negative(x: Any, y: Any, g: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    observe(dist.Normal(jnp.where(x < 0, w[0] + jnp.max(w), w[0]), 0.5), y)


@not_conjugate(grouped, "'w'")
def integer_where_negative(x: Any, y: Any, g: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    whole = w.astype(jnp.int32).astype(w.dtype)
    observe(dist.Normal(jnp.where(x < 0, whole, w), 0.5), y)


@not_conjugate(points, "'mu'")
def mixture_without_its_maximum_where_negative(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        each = dist.Normal(mu, 0.5).log_prob(y[:, :1])
        largest = each.max(-1, keepdims=True)
        shifted = jnp.log(jnp.exp(each - largest).sum(-1))
        added = jnp.where(y[:, 0] < 0, 0.0, 1.0) * largest[:, 0]
        numpyro.factor("lik", shifted + added)


@not_conjugate(points, "'mu'")
def mixture_with_twice_its_maximum(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        each = dist.Normal(mu, 0.5).log_prob(y[:, :1])
        largest = each.max(-1, keepdims=True)
        shifted = jnp.log(jnp.exp(each - 0.0 * largest).sum(-1))
        numpyro.factor("lik", jnp.where(y[:, 0] < 0, shifted + largest[:, 0], shifted))


# --- values that are no latents -------------------------------------------------------


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


# --- sticks ---------------------------------------------------------------------------


@not_conjugate(numbers, "a softmax of 'v'")
def sticks_that_lose_a_piece(y: Any) -> None:
    v = sticks()
    left = jnp.concatenate([jnp.ones(1), jnp.cumprod(1 - v)])
    mixed(jnp.concatenate([v, jnp.full(1, 0.5)]) * left, y)


# --- covariances ----------------------------------------------------------------------


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


# --- likelihoods ----------------------------------------------------------------------


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


# --- what rows could switch, which rules have to refuse -------------------------------


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


# --- factors that no posterior may follow from ----------------------------------------


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


# --- what is not ----------------------------------------------------------------------


def _student_parts(y: Any) -> Any:
    parts = dist.StudentT(4.0, wide_normals("mu", 2), 0.5)
    return dist.MixtureSameFamily(dist.Categorical(simplices("pi", 2)), parts)


def _sqrt_of_square(y: Any) -> Any:
    return dist.Normal(jnp.exp(0.5 * jnp.log(wide_normals("w") ** 2)), 0.5)


for _name, (_make_rows, _density, _reason) in {
    "Weibull of latent shape": (
        waits,
        lambda y: dist.Weibull(1.0, gammas("k")),
        "'k' of Weibull",
    ),
    "truncated": (
        numbers,
        lambda y: dist.TruncatedNormal(wide_normals("mu"), 1.0, low=-5.0),
        "LeftTruncatedDistribution ('mu')",
    ),
    "parts with auxiliaries": (numbers, _student_parts, "sample which component"),
    "concentrations": (
        numbers,
        lambda y: dist.Normal(
            numpyro.sample("v", dist.Beta(2.0, gammas("alpha"))), 0.5
        ),
        "'alpha' of Beta",
    ),
    "neighbours with a latent correlation": (
        points,
        lambda y: dist.CAR(jnp.zeros(3), chance("rho"), 1.0, 1.0 - np.eye(3)),
        "'rho' of CAR",
    ),
    "magnitude by its logarithm": (numbers, _sqrt_of_square, "'w'"),
    "covariance plus a ridge": (
        points,
        lambda y: dist.MultivariateNormal(
            jnp.zeros(3), inverse_wishart(3) + jnp.eye(3)
        ),
        "the inverse of a sum",
    ),
    "precision in place of a covariance": (
        points,
        lambda y: dist.MultivariateNormal(
            jnp.zeros(3), precision_matrix=inverse_wishart(3)
        ),
        "[inv, logdet, x]",
    ),
}.items():
    NOT_CONJUGATE[_name] = Case(observed_model(_density), _make_rows, _reason)


def _waits_with_any_sign(t: Any, event: Any) -> Any:
    return jnp.where(event, jnp.log(rate := gammas("rate")), 0.0) - rate * t


NOT_CONJUGATE["a factor needs its sign from the program"] = Case(
    factor_model(_waits_with_any_sign), events, "say that a number has a sign"
)


# --- unsafe whatever the engine -------------------------------------------------------


@unsafe(linear)
def centred_by_the_batch(X: Any, y: Any) -> None:
    observe(dist.Normal((X - X.mean(0)) @ weights_of(X), 0.5), y)


@unsafe(grouped)
def ranked_rows(x: Any, y: Any, g: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    observe(dist.Normal(b * jnp.argsort(jnp.argsort(x)), 0.5), y)


@unsafe(numbers)
def prior_from_the_rows(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, y.std()))
    observe(dist.Normal(mu, 0.5), y)


@unsafe(numbers)
def total_of_the_rows(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("total", dist.Normal(mu, 1.0), obs=y.sum())
    observe(dist.Normal(mu, 0.5), y)


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


# --- the tests ------------------------------------------------------------------------


def test_there_are_enough_models() -> None:
    assert len(NOT_CONJUGATE) >= 140
    assert len(UNSAFE) >= 12


@pytest.mark.quick_with("network")
@pytest.mark.parametrize("name", NOT_CONJUGATE)
def test_other_model_is_refused_with_its_reason(name: str) -> None:
    case = NOT_CONJUGATE[name]
    reasons = case.reasons_against_vips()
    assert reasons, "a model that is not conjugate was compiled"
    text = " ".join(f"'{site}' {reason}" for site, reason in reasons.items())
    assert case.reason in text


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_model_is_refused(name: str) -> None:
    case = UNSAFE[name]
    with pytest.raises(nv.UnsafeModelError):
        check_rows_are_separate(case.graph)
