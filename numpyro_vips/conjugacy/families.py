"""Exponential families, found by a latent's support and the statistics it occurs in.

A family knows its natural parameters, one array per statistic, and from them its
moments, its log normaliser and its standard parameters. All of them are functions of
arrays with one entry per independent factor of the posterior.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.core
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln, multigammaln
from numpyro.distributions import constraints

from numpyro_vips import polya_gamma
from numpyro_vips.conjugacy import positive_matrices
from numpyro_vips.conjugacy.digamma import digamma

Moments = Mapping[str, jax.Array]


class Family(abc.ABC):
    """An exponential family with density ∝ exp Σ_s ⟨natural_s, s(x)⟩.

    Attributes:
      name: As `explain` prints it.
      statistics: Names of the statistics: "x", "1/x", "x²", "log", "log1m", "is"...
      event_dim: Number of trailing axes of the latent's value that one factor of the
        posterior covers.
      neutral: Natural parameters, where they are not 0, of some proper member. It
        stands in for an auxiliary variable whose observation does not count.
      neutral_moment: Where an auxiliary variable's moments start.
    """

    name: ClassVar[str]
    statistics: ClassVar[tuple[str, ...]]
    event_dim: ClassVar[int] = 0
    neutral: ClassVar[Mapping[str, float]] = {}
    neutral_moment: ClassVar[float] = 1.0

    @staticmethod
    @abc.abstractmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        """Expectations of the statistics."""

    @staticmethod
    @abc.abstractmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        """One value per factor; its gradient is `moments`."""

    @staticmethod
    @abc.abstractmethod
    def project(prior: Moments, data: Moments, noise: Moments) -> dict[str, jax.Array]:
        """Natural parameters prior + data, with noisy data moved to where it is legal.

        Args:
          prior: The prior's share of the natural parameters.
          data: The share of the released statistics. Without noise it lies in the cone
            of sums of row statistics and comes back unchanged.
          noise: Standard deviations of the noise in `data`, entry by entry.
        """

    @staticmethod
    @abc.abstractmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        """Standard parameters, named as NumPyro names them."""

    @staticmethod
    @abc.abstractmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Natural parameters, the inverse of `parameters`."""

    @classmethod
    def moments_of(cls, parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Expectations of the statistics, from standard parameters."""
        return cls.moments(cls.from_parameters(parameters))

    @staticmethod
    @abc.abstractmethod
    def distribution(parameters: Mapping[str, jax.Array]) -> dist.Distribution:
        """The NumPyro distribution with these standard parameters."""

    @staticmethod
    @abc.abstractmethod
    def perturb(natural: Moments, key: jax.Array) -> dict[str, jax.Array]:
        """A random nearby member, to break the symmetry of mixtures at the start."""


class Gamma(Family):
    name = "Gamma"
    statistics = ("x", "log")
    neutral: ClassVar[Mapping[str, float]] = {"x": -1.0}

    @staticmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        concentration, rate = natural["log"] + 1.0, -natural["x"]
        return {
            "x": concentration / rate,
            "log": digamma(concentration) - jnp.log(rate),
        }

    @staticmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        concentration, rate = natural["log"] + 1.0, -natural["x"]
        return gammaln(concentration) - concentration * jnp.log(rate)

    @staticmethod
    def project(prior: Moments, data: Moments, noise: Moments) -> dict[str, jax.Array]:
        return {
            "x": prior["x"] + jnp.minimum(data["x"], 0.0),
            "log": prior["log"] + jnp.maximum(data["log"], 0.0),
        }

    @staticmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        return {"concentration": natural["log"] + 1.0, "rate": -natural["x"]}

    @staticmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {"x": -parameters["rate"], "log": parameters["concentration"] - 1.0}

    @staticmethod
    def distribution(parameters: Mapping[str, jax.Array]) -> dist.Distribution:
        return dist.Gamma(parameters["concentration"], parameters["rate"])

    @staticmethod
    def perturb(natural: Moments, key: jax.Array) -> dict[str, jax.Array]:
        factor = jnp.exp(0.1 * jax.random.normal(key, natural["x"].shape))
        return {"x": natural["x"] * factor, "log": natural["log"]}


class InverseGamma(Family):
    name = "InverseGamma"
    statistics = ("1/x", "log")
    neutral: ClassVar[Mapping[str, float]] = {"1/x": -1.0, "log": -3.0}

    @staticmethod
    def _of_inverse(natural: Moments) -> dict[str, jax.Array]:
        """Natural parameters of 1/x, which is Gamma-distributed."""
        return {"x": natural["1/x"], "log": -natural["log"] - 2.0}

    @staticmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        inverse = Gamma.moments(InverseGamma._of_inverse(natural))
        return {"1/x": inverse["x"], "log": -inverse["log"]}

    @staticmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        return Gamma.log_normalizer(InverseGamma._of_inverse(natural))

    @staticmethod
    def project(prior: Moments, data: Moments, noise: Moments) -> dict[str, jax.Array]:
        return {
            "1/x": prior["1/x"] + jnp.minimum(data["1/x"], 0.0),
            "log": prior["log"] + jnp.minimum(data["log"], 0.0),
        }

    @staticmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        return Gamma.parameters(InverseGamma._of_inverse(natural))

    @staticmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        concentration, rate = parameters["concentration"], parameters["rate"]
        return {"1/x": -rate, "log": -concentration - 1.0}

    @staticmethod
    def distribution(parameters: Mapping[str, jax.Array]) -> dist.Distribution:
        return dist.InverseGamma(parameters["concentration"], parameters["rate"])

    @staticmethod
    def perturb(natural: Moments, key: jax.Array) -> dict[str, jax.Array]:
        factor = jnp.exp(0.1 * jax.random.normal(key, natural["1/x"].shape))
        return {"1/x": natural["1/x"] * factor, "log": natural["log"]}


class Beta(Family):
    name = "Beta"
    statistics = ("log", "log1m")

    @staticmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        a, b = natural["log"] + 1.0, natural["log1m"] + 1.0
        return {
            "log": digamma(a) - digamma(a + b),
            "log1m": digamma(b) - digamma(a + b),
        }

    @staticmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        a, b = natural["log"] + 1.0, natural["log1m"] + 1.0
        return gammaln(a) + gammaln(b) - gammaln(a + b)

    @staticmethod
    def project(prior: Moments, data: Moments, noise: Moments) -> dict[str, jax.Array]:
        return {s: prior[s] + jnp.maximum(data[s], 0.0) for s in ("log", "log1m")}

    @staticmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        return {
            "concentration1": natural["log"] + 1.0,
            "concentration0": natural["log1m"] + 1.0,
        }

    @staticmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {
            "log": parameters["concentration1"] - 1.0,
            "log1m": parameters["concentration0"] - 1.0,
        }

    @staticmethod
    def distribution(parameters: Mapping[str, jax.Array]) -> dist.Distribution:
        return dist.Beta(parameters["concentration1"], parameters["concentration0"])

    @staticmethod
    def perturb(natural: Moments, key: jax.Array) -> dict[str, jax.Array]:
        return {
            s: (natural[s] + 1.0) * (1 + 0.2 * jax.random.uniform(k, natural[s].shape))
            - 1.0
            for s, k in zip(("log", "log1m"), jax.random.split(key), strict=True)
        }


class Dirichlet(Family):
    name = "Dirichlet"
    statistics = ("log",)
    event_dim = 1

    @staticmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        concentration = natural["log"] + 1.0
        total = concentration.sum(-1, keepdims=True)
        return {"log": digamma(concentration) - digamma(total)}

    @staticmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        concentration = natural["log"] + 1.0
        return gammaln(concentration).sum(-1) - gammaln(concentration.sum(-1))

    @staticmethod
    def project(prior: Moments, data: Moments, noise: Moments) -> dict[str, jax.Array]:
        return {"log": prior["log"] + jnp.maximum(data["log"], 0.0)}

    @staticmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        return {"concentration": natural["log"] + 1.0}

    @staticmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {"log": parameters["concentration"] - 1.0}

    @staticmethod
    def distribution(parameters: Mapping[str, jax.Array]) -> dist.Distribution:
        return dist.Dirichlet(parameters["concentration"])

    @staticmethod
    def perturb(natural: Moments, key: jax.Array) -> dict[str, jax.Array]:
        # Hoffman et al. (2010) start topics at Gamma(100, 1/100) draws.
        noise = jax.random.gamma(key, 100.0, natural["log"].shape) / 100.0
        return {"log": natural["log"] + noise}


class Categorical(Family):
    """A discrete latent with finitely many states, one probability for each."""

    name = "Categorical"
    statistics = ("is",)

    @staticmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        return {"is": jax.nn.softmax(natural["is"], axis=-1)}

    @staticmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        return jax.nn.logsumexp(natural["is"], axis=-1)

    @staticmethod
    def project(prior: Moments, data: Moments, noise: Moments) -> dict[str, jax.Array]:
        return {"is": prior["is"] + data["is"]}

    @staticmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        return {"logits": natural["is"]}

    @staticmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {"is": parameters["logits"]}

    @staticmethod
    def distribution(parameters: Mapping[str, jax.Array]) -> dist.Distribution:
        return dist.CategoricalLogits(parameters["logits"])

    @staticmethod
    def perturb(natural: Moments, key: jax.Array) -> dict[str, jax.Array]:
        return dict(natural)


class Normal(Family):
    """A block of jointly Gaussian coordinates, on the last axis.

    The natural parameter of "xx" is minus half the precision matrix.
    """

    name = "Normal"
    statistics = ("x", "xx")

    @staticmethod
    def _mean_and_covariance(natural: Moments) -> tuple[jax.Array, jax.Array]:
        precision = -2.0 * _symmetric(natural["xx"])
        if precision.shape[-1] == 1:
            covariance = 1.0 / precision
            return natural["x"] * covariance[..., 0], covariance
        # The Cholesky factor of a scaled matrix is accurate when columns of the
        # design differ by orders of magnitude.
        scale = jnp.sqrt(jnp.diagonal(precision, axis1=-2, axis2=-1))
        scaled = precision / scale[..., None] / scale[..., None, :]
        inverse = positive_matrices.inverse(scaled)
        covariance = _symmetric(inverse / scale[..., None] / scale[..., None, :])
        mean = jnp.einsum("...ij,...j->...i", covariance, natural["x"])
        return mean, covariance

    @staticmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        mean, covariance = Normal._mean_and_covariance(natural)
        return {"x": mean, "xx": covariance + mean[..., None] * mean[..., None, :]}

    @staticmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        mean, _ = Normal._mean_and_covariance(natural)
        precision = -2.0 * _symmetric(natural["xx"])
        size = mean.shape[-1]
        return (
            0.5 * (natural["x"] * mean).sum(-1)
            - 0.5 * positive_matrices.log_det(precision)
            + 0.5 * size * math.log(2 * math.pi)
        )

    @staticmethod
    def project(prior: Moments, data: Moments, noise: Moments) -> dict[str, jax.Array]:
        precision = -2.0 * _symmetric(data["xx"])
        deviation = 2.0 * _symmetric(jnp.abs(noise["xx"]))
        if precision.shape[-1] == 1:
            precision = jnp.maximum(precision, deviation)
        else:
            precision = _denoised(precision, deviation)
        return {"x": prior["x"] + data["x"], "xx": prior["xx"] - 0.5 * precision}

    @staticmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        mean, covariance = Normal._mean_and_covariance(natural)
        return {"loc": mean, "covariance_matrix": covariance}

    @staticmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        covariance = _symmetric(parameters["covariance_matrix"])
        precision = positive_matrices.inverse(covariance)
        mean = parameters["loc"]
        return {
            "x": jnp.einsum("...ij,...j->...i", precision, mean),
            "xx": -0.5 * _symmetric(precision),
        }

    @classmethod
    def moments_of(cls, parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        mean, covariance = parameters["loc"], parameters["covariance_matrix"]
        return {"x": mean, "xx": covariance + mean[..., None] * mean[..., None, :]}

    @staticmethod
    def distribution(parameters: Mapping[str, jax.Array]) -> dist.Distribution:
        # Not validated: it is symmetric and positive by construction, up to rounding.
        return dist.MultivariateNormal(
            parameters["loc"],
            covariance_matrix=parameters["covariance_matrix"],
            validate_args=False,
        )

    @staticmethod
    def perturb(natural: Moments, key: jax.Array) -> dict[str, jax.Array]:
        _, covariance = Normal._mean_and_covariance(natural)
        deviation = jnp.sqrt(jnp.diagonal(covariance, axis1=-2, axis2=-1))
        shift = deviation * jax.random.normal(key, deviation.shape)
        precision = -2.0 * _symmetric(natural["xx"])
        moved = natural["x"] + jnp.einsum("...ij,...j->...i", precision, shift)
        return {"x": moved, "xx": natural["xx"]}


class FactorizedNormal(Normal):
    """Coordinates with a Gaussian factor each, for `structure={"w": "diag"}`.

    The natural parameters are those of the full block. The best factorised
    approximation of that Gaussian has its mean and the inverse diagonal of its
    precision, which is where coordinate ascent over the factors ends.
    """

    name = "Normal, factorised"

    @staticmethod
    def _mean_and_variance(natural: Moments) -> tuple[jax.Array, jax.Array]:
        mean, _ = Normal._mean_and_covariance(natural)
        precision = -2.0 * jnp.diagonal(natural["xx"], axis1=-2, axis2=-1)
        return mean, 1.0 / precision

    @staticmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        mean, variance = FactorizedNormal._mean_and_variance(natural)
        covariance = variance[..., None] * jnp.eye(variance.shape[-1])
        return {"x": mean, "xx": covariance + mean[..., None] * mean[..., None, :]}

    @staticmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        """Entropy plus ⟨natural, moments⟩; the factors are no family of their own."""
        _, variance = FactorizedNormal._mean_and_variance(natural)
        mean = FactorizedNormal.moments(natural)
        entropy = 0.5 * jnp.log(2 * math.pi * math.e * variance).sum(-1)
        linear = (natural["x"] * mean["x"]).sum(-1)
        return entropy + linear + (natural["xx"] * mean["xx"]).sum((-2, -1))

    @staticmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        mean, variance = FactorizedNormal._mean_and_variance(natural)
        return {"loc": mean, "scale": jnp.sqrt(variance)}

    @staticmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        mean, scale = parameters["loc"], parameters["scale"]
        precision = scale**-2
        identity = jnp.eye(precision.shape[-1])
        return {"x": precision * mean, "xx": -0.5 * precision[..., None] * identity}

    @classmethod
    def moments_of(cls, parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return cls.moments(cls.from_parameters(parameters))

    @staticmethod
    def distribution(parameters: Mapping[str, jax.Array]) -> dist.Distribution:
        return dist.Normal(parameters["loc"], parameters["scale"])


def _denoised(precision: jax.Array, deviation: jax.Array) -> jax.Array:
    """Makes a noisy precision matrix positive semidefinite, with room for its noise.

    Negative eigenvalues go to zero, and half the noise's spectral norm (its expected
    size, 2 · max row norm of the standard deviations) is added to the diagonal.
    Without it, directions that the noise has emptied get almost the prior's width, and
    a mean along them that is noise alone.
    """
    spectral_norm = 2.0 * jnp.sqrt((deviation**2).sum(-1).max(-1))

    def denoised() -> jax.Array:
        values, vectors = positive_matrices.eigh(precision)
        clipped = (vectors * jnp.maximum(values, 0.0)[..., None, :]) @ jnp.swapaxes(
            vectors, -1, -2
        )
        ridge = 0.5 * spectral_norm[..., None, None] * jnp.eye(precision.shape[-1])
        return jnp.where(spectral_norm[..., None, None] > 0, clipped + ridge, precision)

    # Without noise the matrix is left alone to the last digit.
    return jax.lax.cond(jnp.any(spectral_norm > 0), denoised, lambda: precision)


def _symmetric(matrix: jax.Array) -> jax.Array:
    return 0.5 * (matrix + jnp.swapaxes(matrix, -1, -2))


class Wishart(Family):
    """A random positive definite matrix; its natural parameters are half of
    (concentration - size - 1) and minus half the rate matrix."""

    name = "Wishart"
    statistics = ("x", "logdet")
    event_dim = 2

    @staticmethod
    def _standard(natural: Moments) -> tuple[jax.Array, jax.Array]:
        rate = -2.0 * _symmetric(natural["x"])
        return 2.0 * natural["logdet"] + rate.shape[-1] + 1.0, rate

    @staticmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        concentration, rate = Wishart._standard(natural)
        size = rate.shape[-1]
        halves = 0.5 * (concentration[..., None] - jnp.arange(size))
        return {
            "x": concentration[..., None, None]
            * _symmetric(positive_matrices.inverse(rate)),
            "logdet": digamma(halves).sum(-1)
            + size * math.log(2.0)
            - positive_matrices.log_det(rate),
        }

    @staticmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        concentration, rate = Wishart._standard(natural)
        size = rate.shape[-1]
        return (
            multigammaln(0.5 * concentration, size)
            + 0.5 * concentration * size * math.log(2.0)
            - 0.5 * concentration * positive_matrices.log_det(rate)
        )

    @staticmethod
    def project(prior: Moments, data: Moments, noise: Moments) -> dict[str, jax.Array]:
        rate = -2.0 * _symmetric(data["x"])
        deviation = 2.0 * _symmetric(jnp.abs(noise["x"]))
        return {
            "x": prior["x"] - 0.5 * _denoised(rate, deviation),
            "logdet": prior["logdet"] + jnp.maximum(data["logdet"], 0.0),
        }

    @staticmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        concentration, rate = Wishart._standard(natural)
        return {"concentration": concentration, "rate_matrix": rate}

    @staticmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        concentration, rate = parameters["concentration"], parameters["rate_matrix"]
        return {
            "x": -0.5 * rate,
            "logdet": 0.5 * (concentration - rate.shape[-1] - 1.0),
        }

    @staticmethod
    def distribution(parameters: Mapping[str, jax.Array]) -> dist.Distribution:
        return dist.Wishart(
            parameters["concentration"],
            rate_matrix=parameters["rate_matrix"],
            validate_args=False,
        )

    @staticmethod
    def perturb(natural: Moments, key: jax.Array) -> dict[str, jax.Array]:
        factor = jnp.exp(0.1 * jax.random.normal(key, natural["logdet"].shape))
        return {**natural, "x": natural["x"] * factor[..., None, None]}


class InverseWishart(Family):
    """A random positive definite matrix whose inverse is Wishart-distributed."""

    name = "InverseWishart"
    statistics = ("inv", "logdet")
    event_dim = 2

    @staticmethod
    def _of_inverse(natural: Moments) -> dict[str, jax.Array]:
        size = natural["inv"].shape[-1]
        return {"x": natural["inv"], "logdet": -natural["logdet"] - size - 1.0}

    @staticmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        inverse = Wishart.moments(InverseWishart._of_inverse(natural))
        return {"inv": inverse["x"], "logdet": -inverse["logdet"]}

    @staticmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        return Wishart.log_normalizer(InverseWishart._of_inverse(natural))

    @staticmethod
    def project(prior: Moments, data: Moments, noise: Moments) -> dict[str, jax.Array]:
        inverse = Wishart.project(
            {"x": prior["inv"], "logdet": -prior["logdet"]},
            {"x": data["inv"], "logdet": -data["logdet"]},
            {"x": noise["inv"], "logdet": noise["logdet"]},
        )
        return {"inv": inverse["x"], "logdet": -inverse["logdet"]}

    @staticmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        of_inverse = Wishart.parameters(InverseWishart._of_inverse(natural))
        return {
            "concentration": of_inverse["concentration"],
            "scale_matrix": of_inverse["rate_matrix"],
        }

    @staticmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        concentration, scale = parameters["concentration"], parameters["scale_matrix"]
        return {
            "inv": -0.5 * scale,
            "logdet": -0.5 * (concentration + scale.shape[-1] + 1.0),
        }

    @staticmethod
    def distribution(parameters: Mapping[str, jax.Array]) -> dist.Distribution:
        return dist.InverseWishart(
            parameters["concentration"],
            scale_matrix=parameters["scale_matrix"],
            validate_args=False,
        )

    @staticmethod
    def perturb(natural: Moments, key: jax.Array) -> dict[str, jax.Array]:
        factor = jnp.exp(0.1 * jax.random.normal(key, natural["logdet"].shape))
        return {**natural, "inv": natural["inv"] * factor[..., None, None]}


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


@dataclasses.dataclass(frozen=True)
class Match:
    """Which statistics of which support a family is for."""

    family: type[Family]
    statistics: frozenset[str]
    supports: tuple[Any, ...]


POSITIVE = (constraints.positive, constraints.nonnegative)

# A latent gets the first family whose support it has and whose statistics include all
# those in which it occurs.
FAMILIES: list[Match] = [
    Match(Normal, frozenset({"x", "xx"}), (constraints.real, constraints.real_vector)),
    Match(Gamma, frozenset({"x", "log"}), POSITIVE),
    Match(InverseGamma, frozenset({"1/x", "log"}), POSITIVE),
    Match(Beta, frozenset({"log", "log1m"}), (constraints.unit_interval,)),
    Match(Dirichlet, frozenset({"log"}), (constraints.simplex,)),
    Match(Categorical, frozenset({"is"}), ()),
    Match(PolyaGamma, frozenset({"x"}), ()),
    Match(Tangent, frozenset({"x"}), ()),
    Match(Wishart, frozenset({"x", "logdet"}), (constraints.positive_definite,)),
    Match(
        InverseWishart, frozenset({"inv", "logdet"}), (constraints.positive_definite,)
    ),
]


def register_family(match: Match) -> None:
    """Adds a family, behind those that need fewer statistics."""
    FAMILIES.append(match)


def family_named(name: str) -> type[Family]:
    return next(match.family for match in FAMILIES if match.family.name == name)


def find_family(support: Any, statistics: set[str]) -> type[Family] | None:
    """The family with this support in which all of these statistics occur."""
    support = _elementwise(support)
    for match in FAMILIES:
        fits = any(_same_support(support, known) for known in match.supports)
        if fits and statistics <= match.statistics:
            return match.family
    return None


def is_positive(support: Any) -> bool:
    """Whether no value with this support has a negative entry."""
    support = _elementwise(support)
    known = (*POSITIVE, constraints.unit_interval, constraints.simplex)
    return any(_same_support(support, other) for other in known)


def is_nonnegative(support: Any) -> bool:
    """Whether no value with this support, discrete ones included, is negative."""
    support = _elementwise(support)
    if is_positive(support):
        return True
    if isinstance(support, type(constraints.integer_interval(0, 1))):
        lower = support.lower_bound
        return isinstance(lower, int) and lower >= 0
    counts = (
        type(constraints.boolean),
        type(constraints.nonnegative_integer),
        type(constraints.multinomial(1)),
    )
    return isinstance(support, counts)


def upper_bound(support: Any) -> float:
    """The largest entry of a value with this support; infinite where none is known."""
    support = _elementwise(support)
    if isinstance(support, type(constraints.boolean)):
        return 1.0
    if _same_support(support, constraints.unit_interval):
        return 1.0
    if _same_support(support, constraints.simplex):
        return 1.0
    if isinstance(support, type(constraints.integer_interval(0, 1))):
        upper = support.upper_bound
        return float(upper) if isinstance(upper, int) else math.inf
    return math.inf


def _elementwise(support: Any) -> Any:
    while isinstance(support, type(constraints.independent(constraints.real, 1))):
        support = support.base_constraint
    return support


def _same_support(support: Any, known: Any) -> bool:
    if known is constraints.unit_interval:
        bounds = (
            getattr(support, "lower_bound", None),
            getattr(support, "upper_bound", None),
        )
        is_interval = isinstance(support, type(constraints.interval(0.0, 1.0)))
        return support is known or (
            is_interval and not _is_traced(bounds) and bounds == (0.0, 1.0)
        )
    return support is known or type(support) is type(known)


def _is_traced(values: Any) -> bool:
    return any(isinstance(value, jax.core.Tracer) for value in values)
