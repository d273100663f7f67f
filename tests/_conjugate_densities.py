"""Conjugate models of one density each, by its name and as a factor."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _cases import (
    Case,
    Cases,
    chance,
    gammas,
    normals,
    observe,
    simplices,
    wide_normals,
)
from _models import UNIT
from _rows import (
    bags,
    count_regression,
    counts,
    events,
    feature_and_count,
    fractions,
    letters,
    linear,
    numbers,
    points,
    waits,
)
from jax.scipy.special import logsumexp
from numpyro.handlers import mask

CASES = Cases()
conjugate, observed, factor = CASES.of, CASES.observed, CASES.factor


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

    CASES[name] = Case(model, numbers)


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
