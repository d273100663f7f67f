"""Models in which a likelihood or a prior is in the way."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from _cases import Cases, gammas, normals, observe, simplices, weights_of
from _models import UNIT
from _rows import (
    bags,
    binary,
    coins,
    count_regression,
    counts,
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

CASES = Cases()
refused = CASES.of


# --- likelihoods and priors -----------------------------------------------------------


@refused(words, "'W'")
def softmax_regression(y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([4, 4]).to_event(2))
    observe(dist.Categorical(logits=y[:, :-1] @ W), y[:, -1])


@refused(words, "'W'")
def softmax_probabilities(y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([4, 4]).to_event(2))
    observe(dist.Categorical(probs=jax.nn.softmax(y[:, :-1] @ W)), y[:, -1])


@refused(letters, "'g'")
def unnormalised_logits(y: Any) -> None:
    g = numpyro.sample("g", dist.Gamma(2.0, 1.0).expand([4]).to_event(1))
    observe(dist.Categorical(logits=jnp.log(g)), y)


@refused(letters, "'g'")
def normalised_gammas(y: Any) -> None:
    g = numpyro.sample("g", dist.Gamma(2.0, 1.0).expand([4]).to_event(1))
    observe(dist.Categorical(probs=g / g.sum()), y)


@refused(letters, "'theta'")
def tempered_simplex(y: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(4)))
    observe(dist.Categorical(logits=0.5 * jnp.log(theta)), y)


@refused(letters, "'theta'")
def product_of_experts(y: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(4)))
    phi = numpyro.sample("phi", dist.Dirichlet(jnp.ones(4)))
    observe(dist.Categorical(logits=jnp.log(theta) + jnp.log(phi)), y)


@refused(binary, "'w'")
def probit(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(jax.scipy.stats.norm.cdf(X @ weights_of(X))), y)


@refused(binary, "'w'")
def complementary_log_log(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(1 - jnp.exp(-jnp.exp(X @ weights_of(X)))), y)


@refused(binary, "'w'")
def label_noise(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(0.05 + 0.9 * jax.nn.sigmoid(X @ weights_of(X))), y)


@refused(binary, "'w'")
def clipped_logits(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(logits=jnp.clip(X @ weights_of(X), -5.0, 5.0)), y)


@refused(coins, "'p'")
def product_of_probabilities(y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    q = numpyro.sample("q", dist.Beta(1.0, 1.0))
    observe(dist.Bernoulli(p * q), y)


@refused(coins, "'p'")
def squared_probability(y: Any) -> None:
    observe(dist.Bernoulli(numpyro.sample("p", dist.Beta(1.0, 1.0)) ** 2), y)


@refused(coins, "'rate'")
def detection_probability(y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    observe(dist.Bernoulli(1 - jnp.exp(-rate)), y)


@refused(count_regression, "'w'")
def poisson_regression(X: Any, y: Any) -> None:
    observe(dist.Poisson(jnp.exp(X @ weights_of(X))), y)


@refused(counts, "'rate'")
def squared_rate(y: Any) -> None:
    observe(dist.Poisson(numpyro.sample("rate", dist.Gamma(2.0, 1.0)) ** 2), y)


@refused(counts, "'rate'")
def squared_rate_with_half_normal_prior(y: Any) -> None:
    observe(dist.Poisson(numpyro.sample("rate", dist.HalfNormal(2.0)) ** 2), y)


@refused(counts, "'rate'")
def rate_with_lognormal_prior(y: Any) -> None:
    observe(dist.Poisson(numpyro.sample("rate", dist.LogNormal(0.0, 1.0))), y)


@refused(numbers, "'sd'")
def noise_with_uniform_sd(y: Any) -> None:
    observe(dist.Normal(0.0, numpyro.sample("sd", dist.Uniform(0.0, 10.0))), y)


@refused(numbers, "'a'")
def sum_of_variances(y: Any) -> None:
    a = numpyro.sample("a", dist.InverseGamma(2.0, 1.0))
    b = numpyro.sample("b", dist.InverseGamma(2.0, 1.0))
    observe(dist.Normal(0.0, jnp.sqrt(a + b)), y)


@refused(numbers, "'tau'")
def variance_with_floor(y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
    observe(dist.Normal(0.0, jnp.sqrt(1 / tau + 0.01)), y)


@refused(linear, "'w'")
def log_linear_noise(X: Any, y: Any) -> None:
    observe(dist.Normal(0.0, jnp.exp(X @ weights_of(X))), y)


@refused(numbers, "'mu'")
def noise_as_large_as_the_mean(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Gamma(2.0, 1.0))
    observe(dist.Normal(mu, mu), y)


@refused(numbers, "'s'")
def scaled_effect(y: Any) -> None:
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    observe(dist.Normal(s * z, 0.5), y)


@refused(numbers, "'s'")
def positive_mean(y: Any) -> None:
    observe(dist.Normal(numpyro.sample("s", dist.Exponential(1.0)), 0.5), y)


@refused(numbers, "'mu'")
def truncated_prior(y: Any) -> None:
    mu = numpyro.sample("mu", dist.TruncatedNormal(0.0, 1.0, low=0.0))
    observe(dist.Normal(mu, 0.5), y)


@refused(numbers, "'mu'")
def bounded_mean(y: Any) -> None:
    observe(dist.Normal(numpyro.sample("mu", dist.Uniform(-1.0, 1.0)), 0.5), y)


@refused(coins, "'p'")
def probability_on_half_the_interval(y: Any) -> None:
    observe(dist.Bernoulli(numpyro.sample("p", dist.Uniform(0.0, 0.5))), y)


@refused(waits, "'shape'")
def gamma_of_latent_shape(y: Any) -> None:
    observe(dist.Gamma(numpyro.sample("shape", dist.Gamma(2.0, 1.0)), 1.0), y)


@refused(fractions, "'a'")
def beta_of_latent_shape(y: Any) -> None:
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
    observe(dist.Beta(a, 2.0), y)


@refused(fractions, "'a'")
def beta_mixture(y: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(2)))
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi))
        numpyro.sample("y", dist.Beta(a[z], 2.0), obs=y)


@refused(letters, "'alpha'")
def latent_concentration(y: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Gamma(2.0, 1.0))
    theta = numpyro.sample("theta", dist.Dirichlet(alpha * jnp.ones(4)))
    observe(dist.Categorical(theta), y)


@refused(numbers, "'nu'")
def latent_degrees_of_freedom(y: Any) -> None:
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    observe(dist.StudentT(nu, 0.0, 1.0), y)


@refused(counts, "'r'")
def latent_dispersion(y: Any) -> None:
    r = numpyro.sample("r", dist.Gamma(2.0, 1.0))
    observe(dist.NegativeBinomialProbs(r, probs=0.4), y)


@refused(count_regression, "'w'")
def zero_inflated_regression(X: Any, y: Any) -> None:
    observe(dist.ZeroInflatedPoisson(0.3, jnp.exp(X @ weights_of(X))), y)


@refused(letters, "'w'")
def ordered_logit(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    cut = jnp.array([-1.0, 0.0, 1.0])
    observe(dist.OrderedLogistic(w * jnp.ones(y.shape), cut), y)


@refused(linear, "'W'")
def hidden_layer(X: Any, y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([3, 4]).to_event(2))
    v = numpyro.sample("v", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    observe(dist.Normal(jax.nn.relu(X @ W) @ v, 0.5), y)


@refused(numbers, "'w'")
def quartic_factor(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.factor("fit", -((y - w) ** 4))


@refused(numbers, "'w'")
def absolute_factor(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.factor("fit", -jnp.abs(y - w))


@refused(numbers, "public number ('k') of numpyro.factor")
def weibull_factor(y: Any) -> None:
    k = numpyro.sample("k", dist.Gamma(2.0, 2.0))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.factor("fit", -(jnp.exp(y) ** k))


@refused(numbers, "'mu'")
def mixture_counted_twice(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        log_each = dist.Normal(mu, 0.5).log_prob(y[:, None])
        numpyro.factor("lik", -logsumexp(log_each, axis=-1))


@refused(numbers, "'mu'")
def mixture_without_its_maximum(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        log_each = dist.Normal(mu, 0.5).log_prob(y[:, None])
        log_each = log_each - log_each.max(-1, keepdims=True)
        numpyro.factor("lik", jnp.log(jnp.exp(log_each).sum(-1)))


@refused(points, "'W'")
def covariance_of_loadings(y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    covariance = jnp.outer(W, W) + jnp.eye(3)
    observe(dist.MultivariateNormal(jnp.zeros(3), covariance), y)


@refused(points, "'L'")
def latent_correlation(y: Any) -> None:
    L = numpyro.sample("L", dist.LKJCholesky(3, 1.0))
    observe(dist.MultivariateNormal(jnp.zeros(3), scale_tril=L), y)


@refused(points, "'a'")
def nonlinear_latent_of_the_row(y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        numpyro.sample(
            "y", dist.Normal(jnp.sin(u[:, None] * a), 0.5).to_event(1), obs=y
        )


@refused(points, "'u'")
def squared_latent_of_the_row(y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        mean = u[:, None] ** 2 * a
        numpyro.sample("y", dist.Normal(mean, 0.5).to_event(1), obs=y)


@refused(coins, "'w'")
def noisy_xor_of_weights(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        logits = jnp.where(z == 1, w, jnp.tanh(w))
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


# Synthetic floats lie in (0.1, 0.9), where the next ones look conjugate: their rules,
# not the numbers that they are tried on, must refuse them.


@refused(points, "'theta'")
def categories_from_two_simplices(x: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(3)))
    phi = numpyro.sample("phi", dist.Dirichlet(jnp.ones(3)))
    logits = jnp.where(x > 0, jnp.log(theta), jnp.log(phi))
    observe(dist.Categorical(logits=logits), (x[:, 0] > 1).astype(jnp.int32))


@refused(points, "'theta'")
def tempered_where_negative(x: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(3)))
    log_theta = jnp.log(theta)
    logits = jnp.where(x[:, :1] > 0, log_theta, log_theta + log_theta)
    observe(dist.Categorical(logits=logits), (x[:, 0] > 1).astype(jnp.int32))


@refused(grouped, "'w'")
def maximum_where_negative(x: Any, y: Any, g: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    observe(dist.Normal(jnp.where(x < 0, w[0] - jnp.max(w), w[0]), 0.5), y)


@refused(grouped, "'w'")
def maximum_added_where_negative(x: Any, y: Any, g: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    observe(dist.Normal(jnp.where(x < 0, w[0] + jnp.max(w), w[0]), 0.5), y)


@refused(grouped, "'w'")
def integer_where_negative(x: Any, y: Any, g: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    whole = w.astype(jnp.int32).astype(w.dtype)
    observe(dist.Normal(jnp.where(x < 0, whole, w), 0.5), y)


@refused(points, "'mu'")
def mixture_without_its_maximum_where_negative(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        each = dist.Normal(mu, 0.5).log_prob(y[:, :1])
        largest = each.max(-1, keepdims=True)
        shifted = jnp.log(jnp.exp(each - largest).sum(-1))
        added = jnp.where(y[:, 0] < 0, 0.0, 1.0) * largest[:, 0]
        numpyro.factor("lik", shifted + added)


@refused(points, "'mu'")
def mixture_with_twice_its_maximum(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        each = dist.Normal(mu, 0.5).log_prob(y[:, :1])
        largest = each.max(-1, keepdims=True)
        shifted = jnp.log(jnp.exp(each - 0.0 * largest).sum(-1))
        numpyro.factor("lik", jnp.where(y[:, 0] < 0, shifted + largest[:, 0], shifted))


# --- likelihoods ----------------------------------------------------------------------


@refused(linear, "a softmax of 'gate'")
def mixture_of_experts(X: Any, y: Any) -> None:
    gate, w = normals("gate", 3, 2), normals("w", 2, 3)
    weights = dist.Categorical(logits=X @ gate)
    observe(dist.MixtureSameFamily(weights, dist.Normal(X @ w.T, 0.5)), y)


@refused(labelled, "a softmax of 'W'")
def multinomial_regression(X: Any, y: Any) -> None:
    observe(dist.Categorical(logits=X @ normals("W", 3, 4)), y)


@refused(labelled, "OrderedLogistic")
def ordered_regression(X: Any, y: Any) -> None:
    cuts = jnp.array([-1.0, 0.0, 1.0])
    observe(dist.OrderedLogistic(X @ normals("w", 3), cuts), y)


@refused(binary, "'w'")
def probit_regression(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(jax.scipy.special.ndtr(X @ normals("w", 3))), y)


@refused(binary, "sigmoid of 'w'")
def beta_regression(X: Any, y: Any) -> None:
    mean = jax.nn.sigmoid(X @ normals("w", 3))
    observe(dist.Beta(10.0 * mean, 10.0 * (1 - mean)), 0.1 + 0.8 * y)


@refused(count_regression, "exp of 'w'")
def gamma_regression(X: Any, y: Any) -> None:
    observe(dist.Gamma(2.0, 2.0 / jnp.exp(X @ normals("w", 3))), y + 0.5)


@refused(binary, "tanh of 'V'")
def network(X: Any, y: Any) -> None:
    hidden = jnp.tanh(X @ normals("V", 3, 4))
    observe(dist.Bernoulli(logits=hidden @ normals("w", 4)), y)


@refused(games, "a power -1 of a sum")
def bradley_terry_of_gammas(i: Any, j: Any, y: Any) -> None:
    skill = gammas("skill", 4)
    observe(dist.Bernoulli(probs=skill[i] / (skill[i] + skill[j])), y)


@refused(bags, "a softmax of 'beta'")
def product_of_topics(y: Any) -> None:
    beta, theta = normals("beta", 3, 4), simplices("theta", 3)
    observe(dist.Multinomial(10, logits=theta @ beta), y)


# --- covariances ----------------------------------------------------------------------


@refused(points, "determinant")
def sum_of_two_precisions(y: Any) -> None:
    a, b = gammas("a"), gammas("b")
    precision = a * jnp.eye(3) + b * jnp.ones((3, 3))
    observe(dist.MultivariateNormal(jnp.zeros(3), precision_matrix=precision), y)


@refused(points, "'length'")
def gaussian_process_length(y: Any) -> None:
    times, length = jnp.arange(3.0), gammas("length")
    kernel = jnp.exp(-0.5 * (times[:, None] - times) ** 2 / length)
    kernel = kernel + 0.01 * jnp.eye(3)
    f = numpyro.sample("f", dist.MultivariateNormal(jnp.zeros(3), kernel))
    observe(dist.Normal(f, 0.5).to_event(1), y)


@refused(points, "LKJCholesky")
def correlations(y: Any) -> None:
    L = numpyro.sample("L", dist.LKJCholesky(3, 2.0))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0).expand([3]).to_event(1))
    noise = dist.MultivariateNormal(jnp.zeros(3), scale_tril=sd[:, None] * L)
    observe(noise, y)
