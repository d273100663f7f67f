"""The auxiliary variables of `logistic_bounds`."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from numpyro_vips import polya_gamma
from numpyro_vips.conjugacy.families.family import (
    Elementwise,
    Family,
    Interval,
    NewElementwise,
    Shape,
    copies_alike,
    moments_of_known,
    no_covariance,
)


class PolyaGamma(Family):
    """PG(b, c) with natural parameter -c²/2; b is a constant of the model.

    Polson, Scott and Windle (2013). Its natural parameters are those of one trial,
    b = 1, and it is never released: a row's is private, and one of a site outside the
    unit plate is no part of the user's posterior.
    """

    name = "PolyaGamma"
    statistics = ("x",)
    augmentation: ClassVar[str | None] = "Pólya-Gamma"
    bounds_logits = True
    # tanh(c/2)/(2c) is largest at c = 0.
    moment_range: ClassVar[Interval] = (0.0, 0.25)
    wider = no_covariance

    def moments(self, natural: Elementwise) -> NewElementwise:
        half = jnp.sqrt(jnp.maximum(-2.0 * natural["x"], 0.0)) / 2.0
        # tanh(h)/h is 1 - h²/3 near 0, where the quotient and its gradient fail.
        small = half < 1e-3
        safe = jnp.where(small, 1.0, half)
        ratio = jnp.where(small, 1.0 - half**2 / 3.0, jnp.tanh(safe) / safe)
        return {"x": 0.25 * ratio}

    def log_normalizer(self, natural: Elementwise) -> Float[Array, "*batch"]:
        half = jnp.sqrt(jnp.maximum(-2.0 * natural["x"], 0.0)) / 2.0
        return math.log(2.0) - jnp.logaddexp(half, -half)

    def observed_moments(
        self, moments: Elementwise, natural: Elementwise
    ) -> NewElementwise:
        """σ(c)(1 - σ(c)), the logistic likelihood's curvature: E[x] - c² Var[x]."""
        tilt = jnp.sqrt(jnp.maximum(-2.0 * natural["x"], 0.0))
        return {"x": jax.nn.sigmoid(tilt) * jax.nn.sigmoid(-tilt)}

    def at(self, value: Float[Array, "*batch"]) -> NewElementwise:
        return {"x": value}

    def project(
        self, prior: Elementwise, data: Elementwise, noise: Elementwise
    ) -> NewElementwise:
        return {"x": prior["x"] + jnp.minimum(data["x"], 0.0)}

    def widened(self, data: Elementwise, noise: Elementwise) -> NewElementwise:
        """The share as it is: it is never released, and no noise is in it."""
        return dict(data)

    def neutral(self, shape: Shape) -> NewElementwise:
        return {"x": jnp.zeros(shape)}

    def perturb(self, natural: Elementwise, key: PRNGKeyArray) -> NewElementwise:
        factor = jnp.exp(0.1 * jax.random.normal(key, natural["x"].shape))
        return {"x": natural["x"] * factor}

    def parameters(self, natural: Elementwise) -> NewElementwise:
        tilt = jnp.sqrt(jnp.maximum(-2.0 * natural["x"], 0.0))
        return {"b": jnp.ones_like(tilt), "c": tilt}

    def from_parameters(self, parameters: Elementwise) -> NewElementwise:
        return {"x": -0.5 * parameters["c"] ** 2}

    def distribution(self, parameters: Elementwise) -> dist.Distribution:
        return polya_gamma.PolyaGamma(parameters["b"], parameters["c"])

    def of_copies(
        self, parameters: Elementwise, copies: Float[Array, "*batch"] | None
    ) -> NewElementwise:
        """Those of the sum of all copies: PG(b, c) is a sum of b that are PG(1, c)."""
        return {**parameters, "b": parameters["b"] if copies is None else copies}


class Tangent(Family):
    """Where the fixed-curvature bound touches: a point, not a random variable.

    Conjugate to it is f(ψ) = ψ²/8 - log(2 cosh(ψ/2)), in the place of a log normaliser:
    the natural parameter is the point E[ψ], the moment the slope there.
    """

    name = "Tangent"
    statistics = ("x",)
    augmentation: ClassVar[str | None] = "fixed curvature"
    is_tangent = True
    bounds_logits = True
    observed_moments = moments_of_known
    wider = no_covariance
    of_copies = copies_alike

    def moments(self, natural: Elementwise) -> NewElementwise:
        return {"x": 0.25 * natural["x"] - 0.5 * jnp.tanh(0.5 * natural["x"])}

    def log_normalizer(self, natural: Elementwise) -> Float[Array, "*batch"]:
        half = 0.5 * natural["x"]
        return 0.5 * half**2 - jnp.logaddexp(half, -half)

    def at(self, value: Float[Array, "*batch"]) -> NewElementwise:
        return {"x": value}

    def project(
        self, prior: Elementwise, data: Elementwise, noise: Elementwise
    ) -> NewElementwise:
        return {"x": prior["x"] + data["x"]}

    def widened(self, data: Elementwise, noise: Elementwise) -> NewElementwise:
        """The share as it is: it is never released, and no noise is in it."""
        return dict(data)

    def neutral(self, shape: Shape) -> NewElementwise:
        return {"x": jnp.zeros(shape)}

    def perturb(self, natural: Elementwise, key: PRNGKeyArray) -> NewElementwise:
        return {"x": natural["x"] + 0.1 * jax.random.normal(key, natural["x"].shape)}

    def parameters(self, natural: Elementwise) -> NewElementwise:
        return {"v": natural["x"]}

    def from_parameters(self, parameters: Elementwise) -> NewElementwise:
        return {"x": parameters["v"]}

    def distribution(self, parameters: Elementwise) -> dist.Distribution:
        return dist.Delta(parameters["v"])
