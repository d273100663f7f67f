"""Conjugate regressions, in many spellings."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from _cases import Cases, observe, weights_of
from _models import UNIT
from _rows import binary, count_regression, grouped, linear, points
from numpyro.handlers import mask, reparam, scale
from numpyro.infer.reparam import LocScaleReparam

CASES = Cases()
conjugate = CASES.of


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
