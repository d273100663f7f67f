"""Models in the spellings and combinations that strangers come up with.

Every model here is judged by what it means, not by what the package does: a model
that is conjugate (after augmentation) must be compiled, a model that is not must be
left to DPVI with a reason that names what is in the way. Compiling a model that is
not conjugate would be the worst outcome; the second half of the file is about that.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _cases import Case, Cases, observe
from _full_batch import FullBatch
from _models import UNIT, graph_of
from _rows import (
    answers,
    bags,
    binary,
    coins,
    count_regression,
    counts,
    fractions,
    grouped,
    grouped_twice,
    letters,
    linear,
    numbers,
    points,
    waits,
    words,
)
from jax.scipy.special import logsumexp
from numpyro.handlers import mask, reparam, scale
from numpyro.infer.reparam import LocScaleReparam
from numpyro.ops.indexing import Vindex

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.vips.certificate import check_rows_are_separate
from numpyro_vips.vips.compiler import compile_model

CONJUGATE, NOT_CONJUGATE, UNSAFE = Cases(), Cases(), Cases()
# The reason of one that is not conjugate is the latent or site that is in the way.
conjugate, not_conjugate, unsafe = CONJUGATE.of, NOT_CONJUGATE.of, UNSAFE.of


def weights_of(X: Any, name: str = "w") -> Any:
    return numpyro.sample(name, dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))


# --- conjugate: regressions in many spellings -------------------------------------


@conjugate(binary)
def column_of_ones(X: Any, y: Any) -> None:
    X = jnp.concatenate([jnp.ones((X.shape[0], 1)), X], axis=1)
    observe(dist.Bernoulli(logits=X @ weights_of(X)), y)


@conjugate(binary)
def concatenated_coefficients(X: Any, y: Any) -> None:
    b, w = numpyro.sample("b", dist.Normal(0.0, 5.0)), weights_of(X)
    X = jnp.column_stack([jnp.ones(X.shape[0]), X])
    observe(dist.Bernoulli(logits=X @ jnp.concatenate([b[None], w])), y)


@conjugate(binary)
def vmapped_dot(X: Any, y: Any) -> None:
    w = weights_of(X)
    observe(dist.Bernoulli(logits=jax.vmap(lambda x: jnp.dot(x, w))(X)), y)


@conjugate(binary)
def method_dot(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(logits=X.dot(weights_of(X))), y)


@conjugate(linear)
def broadcast_and_sum(X: Any, y: Any) -> None:
    observe(dist.Normal(jnp.sum(weights_of(X)[None] * X, axis=1), 1.0), y)


@conjugate(linear)
def column_vector(X: Any, y: Any) -> None:
    observe(dist.Normal((X @ weights_of(X)[:, None])[:, 0], 0.5), y)


@conjugate(linear)
def squeezed_matmul(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3, 1]).to_event(2))
    observe(dist.Normal(jnp.matmul(X, w).squeeze(-1), 0.5), y)


@conjugate(linear)
def transposed(X: Any, y: Any) -> None:
    observe(dist.Normal(weights_of(X) @ X.T, 0.5), y)


@conjugate(linear)
def tensordot(X: Any, y: Any) -> None:
    observe(dist.Normal(jnp.tensordot(X, weights_of(X), axes=1), 0.5), y)


@conjugate(linear)
def stacked_scalars(X: Any, y: Any) -> None:
    names = ("first", "second", "third")
    w = jnp.stack([numpyro.sample(n, dist.Normal(0.0, 2.0)) for n in names])
    observe(dist.Normal(X @ w, 0.5), y)


@conjugate(linear)
def python_sum(X: Any, y: Any) -> None:
    w = weights_of(X)
    observe(dist.Normal(sum(w[j] * X[:, j] for j in range(X.shape[1])), 0.5), y)


@conjugate(grouped)
def polynomial_trend(x: Any, y: Any, g: Any) -> None:
    a, b, c = (numpyro.sample(n, dist.Normal(0.0, 2.0)) for n in "abc")
    observe(dist.Normal(a + b * x + c * x**2, 0.5), y)


@conjugate(linear)
def features_of_features(X: Any, y: Any) -> None:
    X = jnp.hstack([X, jnp.sin(X), jnp.maximum(X, 0.0)])
    observe(dist.Normal(X @ weights_of(X), 0.5), y)


@conjugate(linear)
def shifted_and_scaled(X: Any, y: Any) -> None:
    w = 1.0 + 2.0 * weights_of(X)
    observe(dist.Normal(X @ w, 0.5), y)


@conjugate(linear)
def reparametrised_by_handler(X: Any, y: Any) -> None:
    with reparam(config={"w": LocScaleReparam(0)}):
        w = numpyro.sample("w", dist.Normal(1.0, 2.0).expand([X.shape[1]]).to_event(1))
    observe(dist.Normal(X @ w, 0.5), y)


@conjugate(linear)
def correlated_by_cholesky(X: Any, y: Any) -> None:
    factor = jnp.array([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.2, -0.3, 1.0]])
    observe(dist.Normal(X @ (factor @ weights_of(X)), 0.5), y)


@conjugate(linear)
def sum_to_zero(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    observe(dist.Normal(X @ jnp.append(w, -jnp.sum(w)), 0.5), y)


@conjugate(linear)
def several_outputs(X: Any, y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0).expand([2]).to_event(1))
    y = jnp.stack([y, 2.0 * y], axis=-1)
    observe(dist.Normal(X @ W, 1 / jnp.sqrt(tau)).to_event(1), y)


@conjugate(linear)
def two_outcomes_of_different_kinds(X: Any, y: Any) -> None:
    w = weights_of(X)
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.sample("size", dist.Normal(X @ w, 1.0), obs=y)
        numpyro.sample("sign", dist.Bernoulli(logits=X @ w), obs=y > 0)


@conjugate(linear)
def lognormal_outcome(X: Any, y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    observe(dist.LogNormal(X @ weights_of(X), tau**-0.5), jnp.exp(y))


@conjugate(linear)
def noise_also_in_the_prior(X: Any, y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    sd = 1 / jnp.sqrt(tau)
    w = numpyro.sample("w", dist.Normal(0.0, 3.0 * sd).expand([3]).to_event(1))
    observe(dist.Normal(X @ w, sd), y)


@conjugate(linear)
def variance_by_name(X: Any, y: Any) -> None:
    variance = numpyro.sample("variance", dist.InverseGamma(3.0, 2.0))
    observe(dist.Normal(X @ weights_of(X), jnp.sqrt(variance)), y)


@conjugate(linear)
def gamma_variance(X: Any, y: Any) -> None:
    variance = numpyro.sample("variance", dist.Gamma(3.0, 2.0))
    observe(dist.Normal(X @ weights_of(X), variance**0.5), y)


@conjugate(linear)
def half_normal_noise(X: Any, y: Any) -> None:
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    observe(dist.Normal(X @ weights_of(X), sd), y)


@conjugate(linear)
def half_cauchy_noise_and_scale(X: Any, y: Any) -> None:
    sd = numpyro.sample("sd", dist.HalfCauchy(1.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(2.0))
    w = numpyro.sample("w", dist.Normal(0.0, spread).expand([3]).to_event(1))
    observe(dist.Normal(X @ w, sd), y)


@conjugate(linear)
def horseshoe(X: Any, y: Any) -> None:
    everywhere = numpyro.sample("everywhere", dist.HalfCauchy(1.0))
    with numpyro.plate("feature", X.shape[1]):
        here = numpyro.sample("here", dist.HalfCauchy(1.0))
        w = numpyro.sample("w", dist.Normal(0.0, everywhere * here))
    observe(dist.Normal(X @ w, 0.5), y)


@conjugate(linear)
def lasso_with_latent_rate(X: Any, y: Any) -> None:
    squared = numpyro.sample("squared", dist.Gamma(1.0, 1.0))
    with numpyro.plate("feature", X.shape[1]):
        w = numpyro.sample("w", dist.Laplace(0.0, 1 / jnp.sqrt(squared)))
    observe(dist.Normal(X @ w, 0.5), y)


@conjugate(linear)
def robust_with_latent_scale(X: Any, y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    observe(dist.StudentT(4.0, X @ weights_of(X), tau**-0.5), y)


@conjugate(linear)
def least_absolute_deviations(X: Any, y: Any) -> None:
    observe(dist.Laplace(X @ weights_of(X), 0.5), y)


@conjugate(linear)
def factor_of_squares(X: Any, y: Any) -> None:
    w = weights_of(X)
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.factor("fit", -0.5 * (y - X @ w) ** 2)


@conjugate(linear)
def missing_by_mask(X: Any, y: Any) -> None:
    w, seen = weights_of(X), ~jnp.isnan(y)
    with numpyro.plate(UNIT, X.shape[0]), mask(mask=seen):
        numpyro.sample("y", dist.Normal(X @ w, 0.5), obs=jnp.where(seen, y, 0.0))


@conjugate(grouped)
def weighted_rows(x: Any, y: Any, g: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, x.shape[0]), scale(scale=1.0 + g):
        numpyro.sample("y", dist.Bernoulli(logits=b * x), obs=y > 0)


@conjugate(binary)
def expit_by_hand(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(1 / (1 + jnp.exp(-(X @ weights_of(X))))), y)


@conjugate(binary)
def expit_of_scipy(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(probs=jax.scipy.special.expit(X @ weights_of(X))), y)


@conjugate(count_regression)
def binomial_trials(X: Any, y: Any) -> None:
    w = weights_of(X)
    observe(dist.Binomial(total_count=40, logits=X @ w), y)


@conjugate(count_regression)
def binomial_trials_per_row(X: Any, y: Any) -> None:
    w = weights_of(X)
    observe(dist.Binomial(total_count=y + 3.0, probs=jax.nn.sigmoid(X @ w)), y)


@conjugate(count_regression)
def negative_binomial_probs(X: Any, y: Any) -> None:
    p = jax.nn.sigmoid(X @ weights_of(X))
    observe(dist.NegativeBinomialProbs(3.0, probs=p), y)


@conjugate(points)
def random_walk_of_weights(y: Any) -> None:
    steps = numpyro.sample("steps", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    observe(dist.Normal(jnp.cumsum(steps), 0.5).to_event(1), y)


@conjugate(count_regression)
def rates_that_add_up(X: Any, y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0).expand([3]).to_event(1))
    observe(dist.Poisson(jnp.maximum(X, 0.0) @ rate), jnp.where(X.max(-1) > 0, y, 0.0))


@conjugate(grouped)
def rates_by_one_hot(x: Any, y: Any, g: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0).expand([4]).to_event(1))
    observe(dist.Poisson(jax.nn.one_hot(g, 4) @ rate), jnp.round(jnp.abs(y)))


# --- conjugate: groups ------------------------------------------------------------


@conjugate(grouped)
def one_hot_groups(x: Any, y: Any, g: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    observe(dist.Normal(jax.nn.one_hot(g, 4) @ a, 0.5), y)


@conjugate(grouped_twice)
def two_factors(x: Any, y: Any, g: Any, h: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    with numpyro.plate("first", 4):
        a = numpyro.sample("a", dist.Normal(0.0, 1 / jnp.sqrt(tau)))
    with numpyro.plate("second", 3):
        b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    observe(dist.Normal(a[g] + b[h], 0.5), y)


@conjugate(grouped_twice)
def table_of_groups(x: Any, y: Any, g: Any, h: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([4, 3]).to_event(2))
    observe(dist.Bernoulli(logits=a[g, h] * x), y > 0)


@conjugate(grouped)
def slopes_by_group(x: Any, y: Any, g: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    with numpyro.plate("groups", 4):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(mean, tau**-0.5))
    observe(dist.Normal(jnp.take(a, g) + b[g] * x, 0.5), y)


@conjugate(grouped)
def non_centred_groups(x: Any, y: Any, g: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    observe(dist.Normal((mean + 0.3 * z)[g], 0.5), y)


@conjugate(grouped)
def three_levels(x: Any, y: Any, g: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    between = numpyro.sample("between", dist.Gamma(2.0, 2.0))
    within = numpyro.sample("within", dist.Gamma(2.0, 2.0))
    with numpyro.plate("regions", 2):
        region = numpyro.sample("region", dist.Normal(mean, between**-0.5))
    with numpyro.plate("schools", 4):
        centre = region[np.array([0, 0, 1, 1])]
        school = numpyro.sample("school", dist.Normal(centre, within**-0.5))
    observe(dist.Normal(school[g], 0.5), y)


@conjugate(grouped)
def noise_by_group(x: Any, y: Any, g: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("groups", 4):
        tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    observe(dist.Normal(mu, 1 / jnp.sqrt(tau[g])), y)


@conjugate(grouped)
def chosen_by_data(x: Any, y: Any, g: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    observe(dist.Normal(jnp.where(g == 1, a, b) * x, 0.5), y)


@conjugate(grouped)
def rates_by_group(x: Any, y: Any, g: Any) -> None:
    with numpyro.plate("groups", 4):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    observe(dist.Bernoulli(p[g]), y > 0)


@conjugate(grouped)
def simplices_by_group(x: Any, y: Any, g: Any) -> None:
    with numpyro.plate("groups", 4):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(2)))
    observe(dist.Categorical(theta[g]), (y > 0).astype(jnp.int32))


@conjugate(points)
def random_effect_of_the_row(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    between = numpyro.sample("between", dist.Gamma(2.0, 2.0))
    within = numpyro.sample("within", dist.Gamma(2.0, 2.0))
    with numpyro.plate(UNIT, y.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Normal(mu, between**-0.5))
        with numpyro.plate("visits", y.shape[1]):
            numpyro.sample("y", dist.Normal(theta, within**-0.5), obs=y)


@conjugate(answers)
def logistic_effect_of_the_row(y: Any) -> None:
    difficulty = numpyro.sample("difficulty", dist.Normal(0.0, 1.0).expand([5]))
    with numpyro.plate(UNIT, y.shape[0]):
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
        logits = ability[:, None] - difficulty
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


@conjugate(answers)
def item_response_with_slopes(y: Any) -> None:
    with numpyro.plate("items", y.shape[1], dim=-1):
        difficulty = numpyro.sample("difficulty", dist.Normal(0.0, 1.0))
        slope = numpyro.sample("slope", dist.Normal(1.0, 0.5))
    with numpyro.plate(UNIT, y.shape[0], dim=-2):
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
        with numpyro.plate("answers", y.shape[1], dim=-1):
            logits = slope * (ability - difficulty)
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


# --- conjugate: one distribution each ---------------------------------------------


@conjugate(counts)
def binomial_beta(y: Any) -> None:
    observe(dist.Binomial(40, numpyro.sample("p", dist.Beta(1.0, 1.0))), y)


@conjugate(bags)
def multinomial_dirichlet(y: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(4)))
    observe(dist.Multinomial(total_count=10, probs=theta), y)


@conjugate(counts)
def poisson_with_exposure(y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    observe(dist.Poisson(rate * (1.0 + y)), y)


@conjugate(counts)
def rates_of_rows(y: Any) -> None:
    inverse_scale = numpyro.sample("inverse_scale", dist.Gamma(2.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        rate = numpyro.sample("rate", dist.Gamma(2.0, inverse_scale))
        numpyro.sample("y", dist.Poisson(rate), obs=y)


@conjugate(waits)
def gamma_of_known_shape(y: Any) -> None:
    observe(dist.Gamma(2.0, numpyro.sample("rate", dist.Gamma(2.0, 1.0))), y)


@conjugate(waits)
def inverse_gamma_of_known_shape(y: Any) -> None:
    observe(dist.InverseGamma(2.0, numpyro.sample("rate", dist.Gamma(2.0, 1.0))), y)


@conjugate(waits)
def exponential_by_its_mean(y: Any) -> None:
    mean = numpyro.sample("mean", dist.InverseGamma(3.0, 2.0))
    observe(dist.Exponential(1 / mean), y)


@conjugate(points)
def known_covariance(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([3]).to_event(1))
    covariance = jnp.eye(3) + 0.3
    observe(dist.MultivariateNormal(mu, covariance), y)


@conjugate(points)
def known_cholesky_factor(y: Any) -> None:
    mu = numpyro.sample("mu", dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3)))
    observe(dist.MultivariateNormal(mu, scale_tril=0.5 * jnp.tril(jnp.ones((3, 3)))), y)


@conjugate(points)
def wishart_precision(y: Any) -> None:
    mu = numpyro.sample("mu", dist.MultivariateNormal(jnp.zeros(3), jnp.eye(3)))
    precision = numpyro.sample("precision", dist.Wishart(5.0, jnp.eye(3)))
    observe(dist.MultivariateNormal(mu, precision_matrix=precision), y)


@conjugate(letters)
def average_of_two_simplices(y: Any) -> None:
    first = numpyro.sample("first", dist.Dirichlet(jnp.ones(4)))
    second = numpyro.sample("second", dist.Dirichlet(jnp.ones(4)))
    observe(dist.Categorical(probs=0.3 * first + 0.7 * second), y)


@conjugate(letters)
def logits_of_a_simplex(y: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(4)))
    observe(dist.Categorical(logits=jnp.log(theta)), y)


@conjugate(numbers)
def product_of_two_globals(y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    observe(dist.Normal(a * b, 0.5), y)


@conjugate(numbers)
def precision_times_precision(y: Any) -> None:
    first = numpyro.sample("first", dist.Gamma(2.0, 1.0))
    second = numpyro.sample("second", dist.Gamma(2.0, 1.0))
    observe(dist.Normal(0.0, 1 / jnp.sqrt(first * second)), y)


@conjugate(points)
def autoregression(y: Any) -> None:
    phi = numpyro.sample("phi", dist.Normal(0.0, 1.0))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
    observe(dist.Normal(phi * y[:, :-1], tau**-0.5).to_event(1), y[:, 1:])


@conjugate(points)
def curve_over_public_times(y: Any) -> None:
    basis = np.vander(np.linspace(0.0, 1.0, 3), 2)
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    observe(dist.Normal(basis @ w, 0.5).to_event(1), y)


# --- conjugate: latents of rows ---------------------------------------------------


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


# --- not conjugate: functions of a weight -----------------------------------------


def _link(name: str, function: Callable[[Any], Any]) -> None:
    """A Normal whose mean is a function of a scalar weight, times a feature."""

    def model(x: Any, y: Any, g: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        observe(dist.Normal(function(w) * x, 0.5), y)

    NOT_CONJUGATE[name] = Case(model, grouped, "w")


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

    NOT_CONJUGATE[name] = Case(model, grouped, "w")


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


# --- not conjugate: likelihoods and priors ----------------------------------------


@not_conjugate(words, "W")
def softmax_regression(y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([4, 4]).to_event(2))
    observe(dist.Categorical(logits=y[:, :-1] @ W), y[:, -1])


@not_conjugate(words, "W")
def softmax_probabilities(y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([4, 4]).to_event(2))
    observe(dist.Categorical(probs=jax.nn.softmax(y[:, :-1] @ W)), y[:, -1])


@not_conjugate(letters, "g")
def unnormalised_logits(y: Any) -> None:
    g = numpyro.sample("g", dist.Gamma(2.0, 1.0).expand([4]).to_event(1))
    observe(dist.Categorical(logits=jnp.log(g)), y)


@not_conjugate(letters, "g")
def normalised_gammas(y: Any) -> None:
    g = numpyro.sample("g", dist.Gamma(2.0, 1.0).expand([4]).to_event(1))
    observe(dist.Categorical(probs=g / g.sum()), y)


@not_conjugate(letters, "theta")
def tempered_simplex(y: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(4)))
    observe(dist.Categorical(logits=0.5 * jnp.log(theta)), y)


@not_conjugate(letters, "theta")
def product_of_experts(y: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(4)))
    phi = numpyro.sample("phi", dist.Dirichlet(jnp.ones(4)))
    observe(dist.Categorical(logits=jnp.log(theta) + jnp.log(phi)), y)


@not_conjugate(binary, "w")
def probit(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(jax.scipy.stats.norm.cdf(X @ weights_of(X))), y)


@not_conjugate(binary, "w")
def complementary_log_log(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(1 - jnp.exp(-jnp.exp(X @ weights_of(X)))), y)


@not_conjugate(binary, "w")
def label_noise(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(0.05 + 0.9 * jax.nn.sigmoid(X @ weights_of(X))), y)


@not_conjugate(binary, "w")
def clipped_logits(X: Any, y: Any) -> None:
    observe(dist.Bernoulli(logits=jnp.clip(X @ weights_of(X), -5.0, 5.0)), y)


@not_conjugate(coins, "p")
def product_of_probabilities(y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    q = numpyro.sample("q", dist.Beta(1.0, 1.0))
    observe(dist.Bernoulli(p * q), y)


@not_conjugate(coins, "p")
def squared_probability(y: Any) -> None:
    observe(dist.Bernoulli(numpyro.sample("p", dist.Beta(1.0, 1.0)) ** 2), y)


@not_conjugate(coins, "rate")
def detection_probability(y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    observe(dist.Bernoulli(1 - jnp.exp(-rate)), y)


@not_conjugate(count_regression, "w")
def poisson_regression(X: Any, y: Any) -> None:
    observe(dist.Poisson(jnp.exp(X @ weights_of(X))), y)


@not_conjugate(counts, "rate")
def squared_rate(y: Any) -> None:
    observe(dist.Poisson(numpyro.sample("rate", dist.Gamma(2.0, 1.0)) ** 2), y)


@not_conjugate(counts, "rate")
def rate_with_lognormal_prior(y: Any) -> None:
    observe(dist.Poisson(numpyro.sample("rate", dist.LogNormal(0.0, 1.0))), y)


@not_conjugate(numbers, "sd")
def noise_with_gamma_sd(y: Any) -> None:
    observe(dist.Normal(0.0, numpyro.sample("sd", dist.Gamma(2.0, 1.0))), y)


@not_conjugate(numbers, "sd")
def noise_with_uniform_sd(y: Any) -> None:
    observe(dist.Normal(0.0, numpyro.sample("sd", dist.Uniform(0.0, 10.0))), y)


@not_conjugate(numbers, "sd")
def noise_with_inverse_gamma_sd(y: Any) -> None:
    observe(dist.Normal(0.0, numpyro.sample("sd", dist.InverseGamma(2.0, 1.0))), y)


@not_conjugate(numbers, "a")
def sum_of_variances(y: Any) -> None:
    a = numpyro.sample("a", dist.InverseGamma(2.0, 1.0))
    b = numpyro.sample("b", dist.InverseGamma(2.0, 1.0))
    observe(dist.Normal(0.0, jnp.sqrt(a + b)), y)


@not_conjugate(numbers, "tau")
def variance_with_floor(y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
    observe(dist.Normal(0.0, jnp.sqrt(1 / tau + 0.01)), y)


@not_conjugate(linear, "w")
def log_linear_noise(X: Any, y: Any) -> None:
    observe(dist.Normal(0.0, jnp.exp(X @ weights_of(X))), y)


@not_conjugate(numbers, "mu")
def noise_as_large_as_the_mean(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Gamma(2.0, 1.0))
    observe(dist.Normal(mu, mu), y)


@not_conjugate(numbers, "s")
def scaled_effect(y: Any) -> None:
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    observe(dist.Normal(s * z, 0.5), y)


@not_conjugate(numbers, "s")
def positive_mean(y: Any) -> None:
    observe(dist.Normal(numpyro.sample("s", dist.Exponential(1.0)), 0.5), y)


@not_conjugate(numbers, "mu")
def truncated_prior(y: Any) -> None:
    mu = numpyro.sample("mu", dist.TruncatedNormal(0.0, 1.0, low=0.0))
    observe(dist.Normal(mu, 0.5), y)


@not_conjugate(numbers, "mu")
def bounded_mean(y: Any) -> None:
    observe(dist.Normal(numpyro.sample("mu", dist.Uniform(-1.0, 1.0)), 0.5), y)


@not_conjugate(coins, "p")
def probability_on_half_the_interval(y: Any) -> None:
    observe(dist.Bernoulli(numpyro.sample("p", dist.Uniform(0.0, 0.5))), y)


@not_conjugate(waits, "shape")
def gamma_of_latent_shape(y: Any) -> None:
    observe(dist.Gamma(numpyro.sample("shape", dist.Gamma(2.0, 1.0)), 1.0), y)


@not_conjugate(fractions, "a")
def beta_of_latent_shape(y: Any) -> None:
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0))
    observe(dist.Beta(a, 2.0), y)


@not_conjugate(fractions, "a")
def beta_mixture(y: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(2)))
    a = numpyro.sample("a", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi))
        numpyro.sample("y", dist.Beta(a[z], 2.0), obs=y)


@not_conjugate(letters, "alpha")
def latent_concentration(y: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Gamma(2.0, 1.0))
    theta = numpyro.sample("theta", dist.Dirichlet(alpha * jnp.ones(4)))
    observe(dist.Categorical(theta), y)


@not_conjugate(numbers, "nu")
def latent_degrees_of_freedom(y: Any) -> None:
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    observe(dist.StudentT(nu, 0.0, 1.0), y)


@not_conjugate(counts, "r")
def latent_dispersion(y: Any) -> None:
    r = numpyro.sample("r", dist.Gamma(2.0, 1.0))
    observe(dist.NegativeBinomialProbs(r, probs=0.4), y)


@not_conjugate(count_regression, "w")
def zero_inflated_regression(X: Any, y: Any) -> None:
    observe(dist.ZeroInflatedPoisson(0.3, jnp.exp(X @ weights_of(X))), y)


@not_conjugate(waits, "y")
def weibull(y: Any) -> None:
    observe(dist.Weibull(numpyro.sample("s", dist.Gamma(2.0, 1.0)), 2.0), y)


@not_conjugate(letters, "w")
def ordered_logit(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    cut = jnp.array([-1.0, 0.0, 1.0])
    observe(dist.OrderedLogistic(w * jnp.ones(y.shape), cut), y)


@not_conjugate(linear, "W")
def hidden_layer(X: Any, y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([3, 4]).to_event(2))
    v = numpyro.sample("v", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    observe(dist.Normal(jax.nn.relu(X @ W) @ v, 0.5), y)


@not_conjugate(numbers, "w")
def quartic_factor(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.factor("fit", -((y - w) ** 4))


@not_conjugate(numbers, "w")
def absolute_factor(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.factor("fit", -jnp.abs(y - w))


@not_conjugate(numbers, "mu")
def mixture_counted_twice(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        log_each = dist.Normal(mu, 0.5).log_prob(y[:, None])
        numpyro.factor("lik", -logsumexp(log_each, axis=-1))


@not_conjugate(numbers, "mu")
def mixture_without_its_maximum(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        log_each = dist.Normal(mu, 0.5).log_prob(y[:, None])
        log_each = log_each - log_each.max(-1, keepdims=True)
        numpyro.factor("lik", jnp.log(jnp.exp(log_each).sum(-1)))


@not_conjugate(points, "W")
def covariance_of_loadings(y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    covariance = jnp.outer(W, W) + jnp.eye(3)
    observe(dist.MultivariateNormal(jnp.zeros(3), covariance), y)


@not_conjugate(points, "L")
def latent_correlation(y: Any) -> None:
    L = numpyro.sample("L", dist.LKJCholesky(3, 1.0))
    observe(dist.MultivariateNormal(jnp.zeros(3), scale_tril=L), y)


@not_conjugate(points, "a")
def nonlinear_latent_of_the_row(y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        numpyro.sample(
            "y", dist.Normal(jnp.sin(u[:, None] * a), 0.5).to_event(1), obs=y
        )


@not_conjugate(points, "u")
def squared_latent_of_the_row(y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        mean = u[:, None] ** 2 * a
        numpyro.sample("y", dist.Normal(mean, 0.5).to_event(1), obs=y)


@not_conjugate(coins, "w")
def noisy_xor_of_weights(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        logits = jnp.where(z == 1, w, jnp.tanh(w))
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


# Synthetic floats lie in (0.1, 0.9), where the next ones look conjugate: their rules,
# not the numbers that they are tried on, must refuse them.


@not_conjugate(points, "theta")
def categories_from_two_simplices(x: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(3)))
    phi = numpyro.sample("phi", dist.Dirichlet(jnp.ones(3)))
    logits = jnp.where(x > 0, jnp.log(theta), jnp.log(phi))
    observe(dist.Categorical(logits=logits), (x[:, 0] > 1).astype(jnp.int32))


@not_conjugate(points, "theta")
def tempered_where_negative(x: Any) -> None:
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(3)))
    log_theta = jnp.log(theta)
    logits = jnp.where(x[:, :1] > 0, log_theta, log_theta + log_theta)
    observe(dist.Categorical(logits=logits), (x[:, 0] > 1).astype(jnp.int32))


@not_conjugate(grouped, "w")
def maximum_where_negative(x: Any, y: Any, g: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    observe(dist.Normal(jnp.where(x < 0, w[0] - jnp.max(w), w[0]), 0.5), y)


@not_conjugate(grouped, "w")
def maximum_added_where_negative(x: Any, y: Any, g: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    observe(dist.Normal(jnp.where(x < 0, w[0] + jnp.max(w), w[0]), 0.5), y)


@not_conjugate(grouped, "w")
def integer_where_negative(x: Any, y: Any, g: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    whole = w.astype(jnp.int32).astype(w.dtype)
    observe(dist.Normal(jnp.where(x < 0, whole, w), 0.5), y)


@not_conjugate(points, "mu")
def mixture_without_its_maximum_where_negative(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        each = dist.Normal(mu, 0.5).log_prob(y[:, :1])
        largest = each.max(-1, keepdims=True)
        shifted = jnp.log(jnp.exp(each - largest).sum(-1))
        added = jnp.where(y[:, 0] < 0, 0.0, 1.0) * largest[:, 0]
        numpyro.factor("lik", shifted + added)


@not_conjugate(points, "mu")
def mixture_with_twice_its_maximum(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        each = dist.Normal(mu, 0.5).log_prob(y[:, :1])
        largest = each.max(-1, keepdims=True)
        shifted = jnp.log(jnp.exp(each - 0.0 * largest).sum(-1))
        numpyro.factor("lik", jnp.where(y[:, 0] < 0, shifted + largest[:, 0], shifted))


# --- unsafe whatever the engine ---------------------------------------------------


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


# --- the tests --------------------------------------------------------------------


def test_there_are_enough_models() -> None:
    assert len(CONJUGATE) >= 60
    assert len(NOT_CONJUGATE) >= 60


@pytest.mark.parametrize("name", CONJUGATE)
def test_conjugate_model_is_compiled(name: str) -> None:
    assert CONJUGATE[name].reasons_against_vips() == {}


@pytest.mark.parametrize("name", NOT_CONJUGATE)
def test_other_model_is_not(name: str) -> None:
    case = NOT_CONJUGATE[name]
    reasons = case.reasons_against_vips()
    assert reasons, "a model that is not conjugate was compiled"
    text = " ".join(f"'{site}' {reason}" for site, reason in reasons.items())
    assert f"'{case.reason}'" in text or "certificate" in reasons


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_model_is_refused(name: str) -> None:
    case = UNSAFE[name]
    with pytest.raises(UnsafeModelError):
        check_rows_are_separate(case.graph)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CONJUGATE)
def test_bound_of_a_compiled_model_never_falls(name: str) -> None:
    case = CONJUGATE[name]
    marked, graph = graph_of(case.fn, case.rows)
    check_rows_are_separate(graph)
    batch = FullBatch(compile_model(marked, graph), graph.arguments.private, 300)
    state = batch.start()
    bounds = []
    for _ in range(8):
        state = batch.step(state)
        bounds.append(batch.bound(state))
    assert np.all(np.isfinite(bounds))
    assert np.all(np.diff(bounds) >= -1e-8 * (1 + np.abs(bounds[1:]))), bounds
