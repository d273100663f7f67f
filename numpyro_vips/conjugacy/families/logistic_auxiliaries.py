"""The auxiliary variables of `logistic_bounds`."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from numpyro_vips import polya_gamma
from numpyro_vips.conjugacy.families.family import Family, Moments


class PolyaGamma(Family):
    """PG(b, c) with natural parameter -c²/2; b is a constant of the model.

    Polson, Scott and Windle (2013). As a row's auxiliary variable it is not released;
    its parameters are those of one trial, b = 1.
    """

    name = "PolyaGamma"
    statistics = ("x",)
    neutral_moment = 0.25

    @staticmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        half = jnp.sqrt(jnp.maximum(-2.0 * natural["x"], 0.0)) / 2.0
        # tanh(h)/h is 1 - h²/3 near 0, where the quotient and its gradient fail.
        small = half < 1e-3
        safe = jnp.where(small, 1.0, half)
        ratio = jnp.where(small, 1.0 - half**2 / 3.0, jnp.tanh(safe) / safe)
        return {"x": 0.25 * ratio}

    @staticmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        half = jnp.sqrt(jnp.maximum(-2.0 * natural["x"], 0.0)) / 2.0
        return math.log(2.0) - jnp.logaddexp(half, -half)

    @staticmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        tilt = jnp.sqrt(jnp.maximum(-2.0 * natural["x"], 0.0))
        return {"b": jnp.ones_like(tilt), "c": tilt}

    @staticmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {"x": -0.5 * parameters["c"] ** 2}

    @staticmethod
    def distribution(parameters: Mapping[str, jax.Array]) -> dist.Distribution:
        return polya_gamma.PolyaGamma(parameters["b"], parameters["c"])


class Tangent(Family):
    """Where the fixed-curvature bound touches: a point, not a random variable.

    Conjugate to it is f(ψ) = ψ²/8 - log(2 cosh(ψ/2)), in the place of a log normaliser:
    the natural parameter is the point E[ψ], the moment the slope there.
    """

    name = "Tangent"
    statistics = ("x",)
    neutral_moment = 0.0

    @staticmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        return {"x": 0.25 * natural["x"] - 0.5 * jnp.tanh(0.5 * natural["x"])}

    @staticmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        half = 0.5 * natural["x"]
        return 0.5 * half**2 - jnp.logaddexp(half, -half)

    @staticmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        return {"v": natural["x"]}

    @staticmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {"x": parameters["v"]}

    @staticmethod
    def distribution(parameters: Mapping[str, jax.Array]) -> dist.Distribution:
        return dist.Delta(parameters["v"])
