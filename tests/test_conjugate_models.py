"""Conjugate models, in the spellings and combinations that strangers come up with.

Every model here was judged by hand, by what it means: it is conjugate, after
augmentation at most, and must be compiled to that. Each is compared with NumPyro's log
density on rows with every index, both signs and every label, which the certificate
cannot know of. What must be refused is in `test_refused_models.py`.
"""

import functools
import math
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
from _fits import fit_to
from _full_batch import FullBatch
from _models import UNIT, graph_of
from _rows import (
    Rows,
    annotations,
    answers,
    bags,
    binary,
    by_group,
    coins,
    count_regression,
    counts,
    events,
    fractions,
    games,
    grouped,
    grouped_twice,
    letters,
    linear,
    numbers,
    points,
    waits,
    words,
)
from _slow import some_fast
from jax.scipy.special import logsumexp
from numpyro.contrib.control_flow import scan
from numpyro.handlers import mask, reparam, scale
from numpyro.infer.reparam import LocScaleReparam
from numpyro.ops.indexing import Vindex

from numpyro_vips.vips.compile.certificate import certify, check_rows_are_separate
from numpyro_vips.vips.compile.compiler import compile_model, interpreted

CONJUGATE = Cases()
conjugate = CONJUGATE.of


def observed(name: str, make_rows: MakeRows, density: Callable[..., Any]) -> None:
    """A model whose last argument is observed; `density` makes its distribution."""
    CONJUGATE[name] = Case(observed_model(density), make_rows)


def factor(name: str, make_rows: MakeRows, function: Callable[..., Any]) -> None:
    CONJUGATE[name] = Case(factor_model(function), make_rows)


# --- regressions in many spellings ----------------------------------------------------


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


# --- groups ---------------------------------------------------------------------------


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


# --- one distribution each ------------------------------------------------------------


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


# --- values that are no latents -------------------------------------------------------


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


# --- covariances ----------------------------------------------------------------------


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


NEIGHBOURS = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0.0]])


def _shared_covariance(y: Any) -> Any:
    S = inverse_wishart(3)
    mu = numpyro.sample("mu", dist.MultivariateNormal(jnp.zeros(3), S / 0.1))
    return dist.MultivariateNormal(mu, S)


def of_vector(*args: Any, **spread: Any) -> Any:
    return dist.MultivariateNormal(*args, **spread)


for _name, _density in {
    "normal inverse Wishart": _shared_covariance,
    "diagonal precision": lambda y: of_vector(
        wide_normals("mu", 3), precision_matrix=jnp.diag(gammas("t", 3))
    ),
    "diagonal covariance": lambda y: of_vector(
        jnp.zeros(3), covariance_matrix=jnp.diag(1 / gammas("t", 3))
    ),
    "diagonal Cholesky factor": lambda y: of_vector(
        jnp.zeros(3), scale_tril=jnp.diag(gammas("t", 3) ** -0.5)
    ),
    "scaled rows of the identity": lambda y: of_vector(
        jnp.ones(3), precision_matrix=gammas("t", 3)[:, None] * jnp.eye(3)
    ),
    "low rank": lambda y: dist.LowRankMultivariateNormal(
        wide_normals("mu", 3), jnp.ones((3, 1)), 0.5 * jnp.ones(3)
    ),
    "multivariate t": lambda y: dist.MultivariateStudentT(
        4.0, wide_normals("mu", 3), 0.7 * jnp.eye(3)
    ),
    "random walk": lambda y: dist.Normal(
        numpyro.sample("w", dist.GaussianRandomWalk(gammas("t") ** -0.5, 3)), 0.5
    ).to_event(1),
}.items():
    observed(_name, points, _density)


@conjugate(grouped)
def areas_with_neighbours(x: Any, y: Any, g: Any) -> None:
    prior = dist.CAR(0.3, 0.5, gammas("t"), NEIGHBOURS)
    phi = numpyro.sample("phi", prior)
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample("y", dist.Normal(phi[g], 0.5), obs=y)


@conjugate(points)
def gaussian_mixture_with_covariances(y: Any) -> None:
    pi, mu, S = simplices("pi", 2), wide_normals("mu", 2, 3), inverse_wishart(3, 2)
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi))
        numpyro.sample("y", dist.MultivariateNormal(mu[z], S[z]), obs=y)


# --- indices and updates --------------------------------------------------------------


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


# --- likelihoods ----------------------------------------------------------------------


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


# --- terms that a row switches off ----------------------------------------------------


def feature_and_count(rng: np.random.Generator, n: int) -> Rows:
    return rng.normal(size=n), rng.poisson(3.0, n).astype(float)


def with_gaps(rng: np.random.Generator, n: int) -> Rows:
    x = rng.normal(size=n)
    x[::3] = np.nan
    return x, rng.normal(size=n)


def _one_coin(y: Any) -> Any:
    right, same = chance("right"), jnp.eye(4)
    confusion = right * same + (1 - right) * (1 - same) / 3
    return dist.Categorical(confusion[1])


for _name, _rows, _density in (
    (
        "a signal in a window that synthetic rows never leave",
        feature_and_count,
        lambda x, y: dist.Poisson(jnp.where(x < 0.95, gammas("a"), 0.0) + gammas("c")),
    ),
    (
        "one of two signals and a background",
        feature_and_count,
        lambda x, y: dist.Poisson(
            jnp.where(x < 0.95, gammas("a") * jnp.sqrt(0.96 - x), gammas("b"))
            + gammas("c")
        ),
    ),
    ("errors that share what is left", lambda r, n: (r.integers(0, 4, n),), _one_coin),
    (
        "a mean where the feature is missing",
        with_gaps,
        lambda x, y: dist.Normal(
            jnp.where(jnp.isnan(x), wide_normals("m"), wide_normals("b") * x), 0.5
        ),
    ),
):
    observed(_name, _rows, _density)


@conjugate(counts)
def one_rate_of_a_one_hot_and_a_background(y: Any) -> None:
    a, c = gammas("a", 3), gammas("c")
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.ones(3) / 3))
        rate = (jax.nn.one_hot(z, 3) * a)[:, 1] + c
        numpyro.sample("y", dist.Poisson(rate), obs=y)


@conjugate(answers)
def knowledge_tracing(y: Any) -> None:
    known, learn, guess, slip = map(chance, ("known", "learn", "guess", "slip"))
    with numpyro.plate(UNIT, y.shape[0]):
        k = numpyro.sample("k0", dist.Bernoulli(known))
        for t in range(3):
            p = jnp.where(k == 1, 1 - slip, guess)
            numpyro.sample(f"y{t}", dist.Bernoulli(p), obs=y[:, t])
            if t < 2:
                stays = jnp.where(k == 1, 0.95, learn)
                k = numpyro.sample(f"k{t + 1}", dist.Bernoulli(stays))


@conjugate(words)
def second_order_chain(y: Any) -> None:
    A, rate = simplices("A", 2, 2, 2), gammas("rate", 2)
    with numpyro.plate(UNIT, y.shape[0]):
        before = last = 0
        for t in range(3):
            z = numpyro.sample(f"z{t}", dist.Categorical(A[before, last]))
            numpyro.sample(f"y{t}", dist.Poisson(rate[z]), obs=y[:, t])
            before, last = last, z


# --- chances that a binary latent switches off ----------------------------------------


def _seen_where_present(chances: Callable[[Any], Any]) -> Callable[..., None]:
    """Whether each row is seen, occasion by occasion, if it is there at all."""

    def model(y: Any) -> None:
        share, p = chance("share"), chances(y)
        with numpyro.plate(UNIT, y.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(share))
            seen = dist.Bernoulli(p * z[..., None]).expand([y.shape[0], 5])
            numpyro.sample("y", seen.to_event(1), obs=y)

    return model


def _after_the_first_time(y: Any) -> Any:
    before = jnp.concatenate([jnp.zeros_like(y[:, :1]), y[:, :-1]], -1)
    return jnp.where(before > 0, chance("again"), chance("first"))


def _chosen(z_at: Callable[[Any, Any], Any]) -> Callable[..., None]:
    """The same, where a choice writes the zero."""

    def model(y: Any) -> None:
        share, p = chance("share"), chance("p")
        with numpyro.plate(UNIT, y.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(share))
            seen = dist.Bernoulli(z_at(z[..., None], p)).expand([y.shape[0], 5])
            numpyro.sample("y", seen.to_event(1), obs=y)

    return model


CONJUGATE["a choice between a chance and none"] = Case(
    _chosen(lambda z, p: jnp.where(z == 1, p, 0.0)), answers
)
CONJUGATE["a choice between none and a chance"] = Case(
    _chosen(lambda z, p: jnp.where(z == 0, 0.0, p)), answers
)
CONJUGATE["one chance of being seen"] = Case(
    _seen_where_present(lambda y: chance("p")), answers
)


CONJUGATE["a chance on each occasion"] = Case(
    _seen_where_present(
        lambda y: numpyro.sample("p", dist.Beta(1.0, 2.0).expand([5]).to_event(1))
    ),
    answers,
)


CONJUGATE["a chance that changes once seen"] = Case(
    _seen_where_present(_after_the_first_time), answers
)


@conjugate(coins)
def seen_if_there_and_if_awake(y: Any) -> None:
    share, p = chance("share"), chance("p")
    with numpyro.plate(UNIT, y.shape[0]):
        there = numpyro.sample("there", dist.Bernoulli(share))
        awake = numpyro.sample("awake", dist.Bernoulli(0.3 * there))
        numpyro.sample("y", dist.Binomial(4, probs=p * there * awake), obs=4 * y)


# --- loops, and masks on several levels -----------------------------------------------


def _summed(X: Any, y: Any) -> Any:
    w = wide_normals("w", 3)

    def add(j: Any, total: Any) -> Any:
        return total + jnp.asarray(X)[:, j] * w[j]

    return dist.Normal(jax.lax.fori_loop(0, 3, add, jnp.zeros(X.shape[0])), 0.5)


def _branch(g: Any, y: Any) -> Any:
    a = wide_normals("a", 2)

    def of_row(i: Any) -> Any:
        return jax.lax.cond(i == 0, lambda: a[0], lambda: -a[1])

    return dist.Normal(jax.vmap(of_row)(g), 0.5)


def _walk(y: Any) -> Any:
    steps = wide_normals("steps", 3)
    path = jax.lax.scan(lambda at, step: (at + step, at + step), 0.0, steps)[1]
    return dist.Normal(path, 0.5).to_event(1)


for _name, _rows, _density in (
    ("fori_loop", linear, _summed),
    ("scan of a walk", points, _walk),
    (
        "polyval",
        feature_and_count,
        lambda x, y: dist.Normal(jnp.polyval(wide_normals("w", 3), x), 0.5),
    ),
    ("branches by data", lambda r, n: (r.integers(0, 2, n), r.normal(size=n)), _branch),
    (
        "mask inside to_event",
        points,
        lambda y: dist.Normal(wide_normals("mu", 3), 0.5).mask(y > 0).to_event(1),
    ),
    (
        "mask of several entries with constants",
        points,
        lambda y: (
            dist.Normal(wide_normals("mu", 3), gammas("t") ** -0.5)
            .mask(jnp.cumsum(y, -1) > 0)
            .to_event(1)
        ),
    ),
):
    observed(_name, _rows, _density)


@conjugate(points)
def mask_around_an_event_of_the_same_length(y: Any) -> None:
    mu = wide_normals("mu", 3)
    y = jnp.stack([y, 2 * y, -y], 1)
    with (
        numpyro.plate(UNIT, y.shape[0], dim=-2),
        numpyro.plate("repeats", 3, dim=-1),
        mask(mask=y[:, :, 0] > 0),
    ):
        numpyro.sample("y", dist.Normal(mu, 0.5).to_event(1), obs=y)


# --- densities ------------------------------------------------------------------------


def _affine(loc: Any, scale: Any) -> Any:
    shift = dist.transforms.AffineTransform(loc, scale)
    return dist.TransformedDistribution(dist.Normal(0.0, 1.0), shift)


def _exponentiated(y: Any) -> Any:
    normal = dist.Normal(wide_normals("mu"), gammas("t") ** -0.5)
    return dist.TransformedDistribution(normal, dist.transforms.ExpTransform())


def _sticks(y: Any) -> Any:
    v = numpyro.sample("v", dist.Beta(1.0, gammas("alpha")).expand([2]).to_event(1))
    pad = functools.partial(jnp.pad, constant_values=1.0)
    weights = pad(v, (0, 1)) * pad(jnp.cumprod(1 - v), (1, 0))
    components = dist.Normal(wide_normals("mu", 3), 0.5)
    return dist.MixtureSameFamily(dist.Categorical(weights), components)


def _logistic_by_exp(y: Any) -> Any:
    logit = wide_normals("w")
    return dist.Bernoulli(jnp.exp(logit) / (1 + jnp.exp(logit)))


for _name, _rows, _density in (
    ("Geometric", counts, lambda y: dist.Geometric(probs=chance("p"))),
    ("Geometric of logits", counts, lambda y: dist.Geometric(logits=wide_normals("w"))),
    ("Kumaraswamy", fractions, lambda y: dist.Kumaraswamy(2.0, gammas("b"))),
    ("Levy", waits, lambda y: dist.Levy(-0.5, gammas("c"))),
    ("Pareto", waits, lambda y: dist.Pareto(0.001, gammas("a"))),
    ("Weibull", waits, lambda y: dist.Weibull(gammas("rate") ** (-1 / 1.5), 1.5)),
    (
        "Chi2",
        numbers,
        lambda y: dist.Normal(0.0, numpyro.sample("t", dist.Chi2(3.0)) ** -0.5),
    ),
    (
        "shifted and scaled",
        numbers,
        lambda y: _affine(wide_normals("m"), gammas("t") ** -0.5),
    ),
    ("exponentiated", waits, _exponentiated),
    (
        "inflated",
        counts,
        lambda y: dist.ZeroInflatedPoisson(chance("gate"), gammas("rate")),
    ),
    (
        "inflated by name",
        counts,
        lambda y: dist.ZeroInflatedDistribution(
            dist.Binomial(20, chance("p")), gate=0.3
        ),
    ),
    (
        "mixture of different kinds",
        numbers,
        lambda y: dist.MixtureGeneral(
            dist.Categorical(simplices("pi", 2)),
            [
                dist.Normal(wide_normals("mu"), 0.5),
                dist.Normal(0.0, gammas("t") ** -0.5),
            ],
        ),
    ),
    (
        "quantiles",
        linear,
        lambda X, y: dist.AsymmetricLaplaceQuantile(X @ wide_normals("w", 3), 0.5, 0.3),
    ),
    (
        "asymmetric noise",
        linear,
        lambda X, y: dist.AsymmetricLaplace(X @ wide_normals("w", 3), 0.5, 2.0),
    ),
    (
        "rate by its logarithm",
        feature_and_count,
        lambda x, y: dist.Poisson(jnp.exp(jnp.log(gammas("rate")) + x)),
    ),
    ("Dirichlet process with a latent concentration", numbers, _sticks),
    (
        "logistic by its exponential",
        lambda r, n: (r.integers(0, 2, n),),
        _logistic_by_exp,
    ),
):
    observed(_name, _rows, _density)


def _of_two(y: Any) -> tuple[Any, Any]:
    return simplices("pi", 2), dist.Normal(wide_normals("mu", 2), 0.5).log_prob(
        y[:, None]
    )


def _by_einsum(y: Any) -> Any:
    pi, each = _of_two(y)
    return jnp.log(jnp.einsum("nk,k->n", jnp.exp(each), pi))


def _by_matmul(y: Any) -> Any:
    pi, each = _of_two(y)
    return jnp.log(jnp.exp(each) @ pi)


def _survival(t: Any, event: Any) -> Any:
    rate = gammas("rate")
    return jnp.where(event, jnp.log(rate), 0.0) - rate * jnp.maximum(t, 0.0)


for _name, _rows, _function in (
    ("log of an einsum", numbers, _by_einsum),
    ("log of a product", numbers, _by_matmul),
    ("censored waiting times", events, _survival),
):
    factor(_name, _rows, _function)


# --- closed forms ---------------------------------------------------------------------


def _weibull(y: np.ndarray) -> dict[str, Any]:
    return {"rate/concentration": 2 + len(y), "rate/rate": 1 + (y**1.5).sum()}


def _levy(y: np.ndarray) -> dict[str, Any]:
    rate = 1 + (0.5 / (y + 0.5)).sum()
    return {"c/concentration": 2 + len(y) / 2, "c/rate": rate}


def _kumaraswamy(y: np.ndarray) -> dict[str, Any]:
    return {"b/concentration": 2 + len(y), "b/rate": 1 - np.log1p(-(y**2)).sum()}


def _known_mean(y: Any) -> Any:
    return dist.MultivariateNormal(jnp.zeros(3), inverse_wishart(3))


def _scatter(y: np.ndarray) -> dict[str, Any]:
    return {"S/concentration": 5 + len(y), "S/scale_matrix": np.eye(3) + y.T @ y}


observed("known mean", points, _known_mean)


def _pulled_mean(y: Any) -> Any:
    mean = wide_normals("mean")
    numpyro.factor("pull", -2.0 * (mean - 1.0) ** 2)
    return dist.Normal(mean, 1.0)


def _pulled(y: np.ndarray) -> dict[str, Any]:
    precision = 1 / 4 + 4 + len(y)
    return {
        "mean/loc": [(4 + y.sum()) / precision],
        "mean/covariance_matrix": [[1 / precision]],
    }


observed("factor of a global", numbers, _pulled_mean)


def flat(name: str, support: Any = dist.constraints.real) -> Any:
    return numpyro.sample(name, dist.ImproperUniform(support, (), ()))


def _flat_mean(y: np.ndarray) -> dict[str, Any]:
    return {"mean/loc": [y.mean()], "mean/covariance_matrix": [[1 / (4 * len(y))]]}


def _flat_scale(y: np.ndarray) -> dict[str, Any]:
    # Those of its square: p(s) = 1 is p(s²) ∝ 1 / s.
    return {"s/concentration": (len(y) - 1) / 2, "s/rate": (y**2).sum() / 2}


def _flat_rate(y: np.ndarray) -> dict[str, Any]:
    return {"r/concentration": 1 + y.sum(), "r/rate": len(y)}


def _flat_variance(y: np.ndarray) -> dict[str, Any]:
    return {"v/concentration": len(y) / 2 - 1, "v/rate": (y**2).sum() / 2}


def _flat_chance(y: np.ndarray) -> dict[str, Any]:
    return {"p/concentration1": 1 + y.sum(), "p/concentration0": 1 + (1 - y).sum()}


POSITIVE = dist.constraints.positive


observed("flat mean", numbers, lambda y: dist.Normal(flat("mean"), 0.5))


observed("flat scale", numbers, lambda y: dist.Normal(0.0, flat("s", POSITIVE)))


observed("flat rate", counts, lambda y: dist.Poisson(flat("r", POSITIVE)))


observed(
    "flat variance",
    numbers,
    lambda y: dist.Normal(0.0, jnp.sqrt(flat("v", POSITIVE))),
)


observed(
    "flat chance",
    coins,
    lambda y: dist.Bernoulli(flat("p", dist.constraints.unit_interval)),
)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "posterior"),
    [
        ("Kumaraswamy", _kumaraswamy),
        ("Levy", _levy),
        ("Weibull", _weibull),
        ("known mean", _scatter),
        ("factor of a global", _pulled),
        ("flat mean", _flat_mean),
        ("flat scale", _flat_scale),
        ("flat rate", _flat_rate),
        ("flat variance", _flat_variance),
        ("flat chance", _flat_chance),
    ],
)
def test_closed_form(name: str, posterior: Callable[..., dict[str, Any]]) -> None:
    case = CONJUGATE[name]
    rows = case.make_rows(np.random.default_rng(0), 50)
    params = fit_to(case.fn, *rows, budget=math.inf).params
    for parameter, value in posterior(*rows).items():
        np.testing.assert_allclose(params[parameter], value, rtol=1e-6)


# --- the tests ------------------------------------------------------------------------


# Between them they take nearly every jump between lines of the compiler that any takes.
FAST = {
    "Chi2",
    "Dirichlet process with a latent concentration",
    "Geometric",
    "Kumaraswamy",
    "Levy",
    "Pareto",
    "Weibull",
    "a choice between none and a chance",
    "areas_with_neighbours",
    "asymmetric noise",
    "censored waiting times",
    "column_of_ones",
    "correlated_intercepts_and_slopes",
    "delta_of_the_row",
    "diagonal precision",
    "errors that share what is left",
    "exponentiated",
    "factor_of_squares",
    "flat chance",
    "flat variance",
    "fori_loop",
    "groups_that_add_up_to_zero",
    "half_cauchy_noise_and_scale",
    "half_normal_noise",
    "improper_mean",
    "index_from_two_states",
    "inflated by name",
    "known mean",
    "known_error_rates",
    "lasso_with_latent_rate",
    "log of an einsum",
    "logaddexp_of_two",
    "logistic by its exponential",
    "logsumexp_keeps_axes",
    "low rank",
    "mask_around_an_event_of_the_same_length",
    "mixture of different kinds",
    "mixture_of_regressions",
    "multinomial_dirichlet",
    "multiple_of_a_covariance",
    "multivariate t",
    "negative_binomial_by_its_mean",
    "negative_binomial_by_one_minus",
    "normal inverse Wishart",
    "one of two signals and a background",
    "one_hot_groups",
    "poisson_hidden_markov_by_scan",
    "ppca_column_by_column",
    "product_of_two_globals",
    "random walk",
    "random_walk_of_the_row",
    "rate by its logarithm",
    "reference_precision",
    "robust_with_latent_scale",
    "scan of a walk",
    "schools",
    "shifted and scaled",
    "sticks_in_logarithms",
    "three_levels",
    "topics_of_log_probabilities",
    "weighted_rows",
}


def test_there_are_enough_models() -> None:
    assert len(CONJUGATE) >= 200
    assert set(CONJUGATE) > FAST


@pytest.mark.thorough
@pytest.mark.parametrize("name", some_fast(CONJUGATE, FAST))
def test_conjugate_model_is_compiled_to_what_it_means(name: str) -> None:
    case = CONJUGATE[name]
    assert case.reasons_against_vips() == {}
    with jax.enable_x64(True):
        graph = case.graph
        check_rows_are_separate(graph)
        # The rows of the test, with every index, in place of synthetic ones.
        certify(interpreted(graph), seed=3)


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
