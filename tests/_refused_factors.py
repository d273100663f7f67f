"""Models in which a factor, or a value that is no latent, is in the way."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
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
    wide_normals,
)
from _models import UNIT
from _rows import bags, events, grouped, letters, numbers, points, waits

CASES = Cases()
refused = CASES.of


# --- values that are no latents -------------------------------------------------------


@refused(numbers, "flat prior of a row's own latent")
def improper_latent_of_a_row(y: Any) -> None:
    flat = dist.ImproperUniform(dist.constraints.real, (), ())
    with numpyro.plate(UNIT, y.shape[0]):
        x = numpyro.sample("x", flat)
        numpyro.sample("y", dist.Normal(x, 0.5), obs=y)


@refused(numbers, "log^2 in 'mu'")
def log_normal_by_transformation(y: Any) -> None:
    base, transform = dist.Normal(0.0, 1.0), dist.transforms.ExpTransform()
    mu = numpyro.sample("mu", dist.TransformedDistribution(base, transform))
    observe(dist.Normal(mu, 0.5), y)


# --- sticks ---------------------------------------------------------------------------


@refused(numbers, "a softmax of 'v'")
def sticks_that_lose_a_piece(y: Any) -> None:
    v = sticks()
    left = jnp.concatenate([jnp.ones(1), jnp.cumprod(1 - v)])
    mixed(jnp.concatenate([v, jnp.full(1, 0.5)]) * left, y)


# --- what rows could switch, which rules have to refuse -------------------------------


@refused(grouped, "a softmax")
def mixing_weights_that_need_not_add_up(x: Any, y: Any, g: Any) -> None:
    gamma, pi, mu = gammas("gamma", 2), simplices("pi", 2), normals("mu", 2)
    weights = dist.Categorical(probs=jnp.where(x[:, None] < 0, gamma, pi))
    observe(dist.MixtureSameFamily(weights, dist.Normal(mu, 1.0)), y)


@refused(grouped, "a softmax")
def mixing_weights_squared_where_negative(x: Any, y: Any, g: Any) -> None:
    pi, mu = simplices("pi", 2), normals("mu", 2)
    weights = dist.Categorical(probs=jnp.where(x[:, None] < 0, pi**2, pi))
    observe(dist.MixtureSameFamily(weights, dist.Normal(mu, 1.0)), y)


@refused(grouped, "a softmax")
def logits_of_gammas_for_one_group(x: Any, y: Any, g: Any) -> None:
    table = jnp.concatenate([simplices("pi", 3, 2), gammas("gamma", 1, 2)])
    label = (x > 0).astype(jnp.int32)
    observe(dist.Categorical(logits=jnp.log(table)[g]), label)


@refused(letters, "do not add up to one")
def probabilities_of_gammas(y: Any) -> None:
    observe(dist.Categorical(probs=gammas("g", 4)), y)


@refused(letters, "do not add up to one")
def squares_of_a_simplex(y: Any) -> None:
    observe(dist.Categorical(probs=simplices("theta", 4) ** 2), y)


# --- factors that no posterior may follow from ----------------------------------------


def _factor(name: str, make_rows: MakeRows, prior: Any, function: Any) -> None:
    def model(*rows: Any) -> None:
        latent = prior()
        with numpyro.plate(UNIT, rows[0].shape[0]):
            numpyro.factor("f", function(latent, *rows))

    CASES[name] = Case(model, make_rows, "a factor that is no log density")


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


@refused(numbers, "a factor that is no log density")
def factor_on_a_latent_of_the_row(y: Any) -> None:
    w = normals("w")
    with numpyro.plate(UNIT, y.shape[0]):
        u = numpyro.sample("u", dist.Normal(w, 1.0))
        numpyro.factor("f", y * u**2)
        numpyro.sample("y", dist.Normal(u, 0.5), obs=y)


@refused(numbers, "negative scale")
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
    CASES[_name] = Case(observed_model(_density), _make_rows, _reason)


def _waits_with_any_sign(t: Any, event: Any) -> Any:
    return jnp.where(event, jnp.log(rate := gammas("rate")), 0.0) - rate * t


CASES["a factor needs its sign from the program"] = Case(
    factor_model(_waits_with_any_sign), events, "say that a number has a sign"
)
