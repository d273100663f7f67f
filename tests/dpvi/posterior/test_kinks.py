"""Which log densities have kinks that hide their information."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.dpvi.posterior.kinks import hides_information

Density = Callable[[Any, Any, Any], Any]
ROWS = 32
HIDDEN = np.random.default_rng(1).normal(size=(3, 2)).astype(np.float32)


def looked_at(density: Density) -> bool:
    """Of w, two coefficients, the features x of a row and what it observes, y."""
    rng = np.random.default_rng(0)
    rows = {
        "x": rng.normal(size=(ROWS, 2)).astype(np.float32),
        "y": rng.normal(size=ROWS).astype(np.float32),
    }
    start = jnp.zeros(2)
    program = jax.make_jaxpr(density)(start, rows["x"][0], rows["y"][0])
    return hides_information(
        program, 1, lambda w, row: [w, row["x"], row["y"]], start, lambda: rows
    )


def of_residual(loss: Callable[[Any], Any]) -> Density:
    return lambda w, x, y: -loss(y - x @ w)


def of_margin(loss: Callable[[Any], Any]) -> Density:
    return lambda w, x, y: -loss(jnp.sign(y) * (x @ w))


def of_network(density: Callable[[Any, Any], Any]) -> Density:
    """With a mean that is made of rectified linear units."""

    def of_row(w: Any, x: Any, y: Any) -> Any:
        units = jax.nn.relu(HIDDEN @ (w * x) - 0.1)
        return density(jnp.sum(units) - 1.0, y)

    return of_row


def rectified(x: Any) -> Any:
    return jnp.where(x > 0, x, 0.0)


def huber(r: Any) -> Any:
    return jnp.where(abs(r) < 0.7, 0.5 * r**2, 0.7 * (abs(r) - 0.35))


def overflow_guarded(x: Any) -> Any:
    return jnp.maximum(x, 0.0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def laplace_of_scale(w: Any, x: Any, y: Any) -> Any:
    return -jnp.abs(y - x[0] * w[0]) / jnp.exp(w[1]) - w[1]


def many_classes(w: Any, x: Any, y: Any) -> Any:
    scores = jnp.stack([x @ w, -(x @ w), 0.3 * w[0]])
    return scores[0] - jnp.max(scores + jnp.array([0.0, 1.0, 1.0]))


WITH_KINKS = {
    "absolute": of_residual(jnp.abs),
    "Laplace": laplace_of_scale,
    "check by where": of_residual(lambda r: jnp.where(r > 0, 0.9 * r, -0.1 * r)),
    "check by maximum": of_residual(lambda r: jnp.maximum(0.9 * r, -0.1 * r)),
    "check by a truth value": of_residual(lambda r: r * (0.9 - (r < 0))),
    "check by weights": of_residual(lambda r: r * jnp.where(r < 0, -0.1, 0.9)),
    "check by a sign": of_residual(lambda r: r * (0.4 + 0.5 * jnp.sign(r))),
    "check, jitted": of_residual(jax.jit(lambda r: jnp.maximum(0.9 * r, -0.1 * r))),
    "hinge": of_margin(lambda m: jnp.maximum(0.0, 1.0 - m)),
    "hinge by relu": of_margin(lambda m: jax.nn.relu(1.0 - m)),
    "hinge by clip": of_margin(lambda m: jnp.clip(1.0 - m, 0.0)),
    "hinge of classes": many_classes,
    "insensitive": of_residual(lambda r: jnp.maximum(jnp.abs(r) - 0.2, 0.0)),
    "check of a network": of_network(
        lambda mean, y: -jnp.where(y > mean, 0.9, -0.1) * (y - mean)
    ),
}
WITHOUT = {
    "Gaussian": of_residual(lambda r: 0.5 * r**2),
    "Huber": of_residual(huber),
    "features alone": lambda w, x, y: -jnp.abs(x[0]) * w[0] - jnp.exp(w[1]),
    "logaddexp": of_margin(lambda m: jnp.logaddexp(0.0, -m)),
    "softplus": of_margin(lambda m: jax.nn.softplus(-m)),
    "guarded by hand": of_margin(lambda m: overflow_guarded(-m)),
    "logsumexp": lambda w, x, y: w[0] - jax.scipy.special.logsumexp(x * w),
    "where for a guard": of_residual(lambda r: jnp.where(jnp.isnan(r), 0.0, r**2)),
    "linear": lambda w, x, y: x @ w - jnp.exp(w[0]),
    "network, Gaussian": of_network(lambda mean, y: -0.5 * (y - mean) ** 2),
    "network, a product": of_network(lambda mean, y: (mean - y) * (y - mean)),
    "network, Poisson": of_network(lambda mean, y: y * mean - jnp.exp(mean)),
    "network, logistic": of_network(lambda mean, y: y * mean - jax.nn.softplus(mean)),
    "network, logistic density": of_network(
        lambda mean, y: y - mean - 2.0 * jax.nn.softplus(y - mean)
    ),
    "clipped chance": lambda w, x, y: jnp.log(
        jnp.clip(jax.nn.sigmoid(jnp.sign(y) * (x @ w)), 0.05, 0.95)
    ),
    "clipped logit": lambda w, x, y: (
        y * jnp.clip(x @ w, -2, 2) - jax.nn.softplus(jnp.clip(x @ w, -2, 2))
    ),
    "floor of the density": of_residual(lambda r: -jnp.maximum(-0.5 * r**2, -1.0)),
    "knot": of_residual(lambda r: rectified(r - 0.3) ** 2 + (r - rectified(r)) ** 2),
    "step": lambda w, x, y: jnp.where(x[0] > w[0], w[1], -w[1]) - 0.5 * w[1] ** 2,
    "edge of a support": lambda w, x, y: jnp.where(y > w[0], w[0] - y, -jnp.inf),
}


@pytest.mark.parametrize("name", WITH_KINKS)
def test_kinks_at_which_gradients_jump_down_hide_information(name: str) -> None:
    assert looked_at(WITH_KINKS[name])


@pytest.mark.parametrize("name", WITHOUT)
def test_no_other_choice_does(name: str) -> None:
    assert not looked_at(WITHOUT[name])
