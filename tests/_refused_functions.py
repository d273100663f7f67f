"""Models in which a function of a weight is in the way."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from _cases import Case, Cases, observe
from _rows import grouped
from jax.scipy.special import logsumexp

CASES = Cases()
refused = CASES.of


def _link(name: str, function: Callable[[Any], Any]) -> None:
    """A Normal whose mean is a function of a scalar weight, times a feature."""

    def model(x: Any, y: Any, g: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        observe(dist.Normal(function(w) * x, 0.5), y)

    CASES[name] = Case(model, grouped, "'w'")


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

    CASES[name] = Case(model, grouped, "'w'")


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
