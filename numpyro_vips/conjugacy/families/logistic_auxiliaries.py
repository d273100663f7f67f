"""The auxiliary variables of `logistic_bounds`."""

import abc
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
    NewElementwise,
    Range,
    Shape,
)

# Half logits below which a series stands for a quotient of differences.
_SMALL = 0.1


class LogitsAuxiliary(Family):
    """What makes a logistic likelihood quadratic in its logits, as a bound.

    With F the log normaliser and η the natural parameter that is best for some logits,
    the bound at η loses `divergence(η, δ)` where η + δ would be best.
    """

    bounds_logits = True

    @abc.abstractmethod
    def divergence(
        self, natural: Elementwise, change: Elementwise
    ) -> Float[Array, "*batch"]:
        """F(η + δ) - F(η) - δ F'(η), which is not negative.

        Its rounding error is in proportion to δ, not to F: a row may have so many
        trials that F's own would be larger than what is lost.

        Args:
          natural: η.
          change: δ.
        """

    @abc.abstractmethod
    def variance(self, natural: Elementwise) -> Float[Array, "*batch"]:
        """F'' at the natural parameter."""


class PolyaGamma(LogitsAuxiliary):
    """PG(b, c) with natural parameter -c²/2; b is a constant of the model.

    Polson, Scott and Windle (2013). Its natural parameters are those of one trial,
    b = 1, and it is never released: a row's is private, and one of a site outside the
    unit plate is no part of the user's posterior.
    """

    name = "PolyaGamma"
    statistics = ("x",)
    augmentation: ClassVar[str | None] = "Pólya-Gamma"
    # tanh(c/2)/(2c) is largest at c = 0.
    moment_range: ClassVar[Range] = (0.0, 0.25)

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

    def divergence(
        self, natural: Elementwise, change: Elementwise
    ) -> Float[Array, "*batch"]:
        square = jnp.maximum(-2.0 * natural["x"], 0.0)
        rise = jnp.maximum(-2.0 * change["x"], -square)
        half = jnp.sqrt(square) / 2.0
        both = half + jnp.sqrt(square + rise) / 2.0
        step = 0.25 * rise / jnp.where(both > 0, both, 1.0)
        lost = 0.5 * self.moments(natural)["x"] * rise - _log_cosh_change(half, step)
        return jnp.maximum(lost, 0.0)

    def variance(self, natural: Elementwise) -> Float[Array, "*batch"]:
        half = jnp.sqrt(jnp.maximum(-2.0 * natural["x"], 0.0)) / 2.0
        small = half < _SMALL
        safe = jnp.where(small, 1.0, half)
        slope = jnp.tanh(safe)
        quotient = (slope - safe * (1.0 - slope**2)) / safe**3
        return jnp.where(small, 2.0 / 3.0 - 8.0 / 15.0 * half**2, quotient) / 16.0

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
        """Parameters of the sum of independent copies, from those of one of them.

        PG(b, c) is the sum of b variables that are PG(1, c).

        Args:
          parameters: `"b"` and `"c"` of one copy.
          copies: How many there are; None for one.
        """
        return {**parameters, "b": parameters["b"] if copies is None else copies}


class Tangent(LogitsAuxiliary):
    """Where the fixed-curvature bound touches: a point, not a random variable.

    Conjugate to it is f(ψ) = ψ²/8 - log(2 cosh(ψ/2)), in the place of a log normaliser:
    the natural parameter is the point E[ψ], the moment the slope there.
    """

    name = "Tangent"
    statistics = ("x",)
    augmentation: ClassVar[str | None] = "fixed curvature"
    is_tangent = True

    def moments(self, natural: Elementwise) -> NewElementwise:
        return {"x": 0.25 * natural["x"] - 0.5 * jnp.tanh(0.5 * natural["x"])}

    def log_normalizer(self, natural: Elementwise) -> Float[Array, "*batch"]:
        half = 0.5 * natural["x"]
        return 0.5 * half**2 - jnp.logaddexp(half, -half)

    def divergence(
        self, natural: Elementwise, change: Elementwise
    ) -> Float[Array, "*batch"]:
        half, step = 0.5 * natural["x"], 0.5 * change["x"]
        risen = _log_cosh_change(half, step) - jnp.tanh(half) * step
        return jnp.maximum(0.5 * step**2 - risen, 0.0)

    def variance(self, natural: Elementwise) -> Float[Array, "*batch"]:
        return 0.25 * jnp.tanh(0.5 * natural["x"]) ** 2

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


def _log_cosh_change(
    half: Float[Array, "*batch"], step: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """log cosh(h + d) - log cosh(h), with an error in proportion to d."""
    before, after = jnp.abs(half), jnp.abs(half + step)
    rise = jnp.where(half * (half + step) > 0.0, jnp.sign(half) * step, after - before)
    # From the smaller to the larger, so that nothing is large that is not in the end.
    share = jax.nn.sigmoid(-2.0 * jnp.minimum(before, after))
    length = jnp.abs(rise)
    change = length + jnp.log1p(share * jnp.expm1(-2.0 * length))
    return jnp.where(rise >= 0.0, change, -change)
