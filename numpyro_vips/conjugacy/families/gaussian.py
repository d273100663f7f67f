"""Blocks of jointly Gaussian coordinates."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from numpyro_vips.conjugacy.families import positive_matrices
from numpyro_vips.conjugacy.families.family import Family, Moments
from numpyro_vips.conjugacy.families.positive_matrices import (
    denoised,
    symmetric_part,
    times,
)


class Normal(Family):
    """A block of jointly Gaussian coordinates, on the last axis.

    The natural parameter of "xx" is minus half the precision matrix.
    """

    name = "Normal"
    statistics = ("x", "xx")

    @staticmethod
    def _mean_and_covariance(natural: Moments) -> tuple[jax.Array, jax.Array]:
        precision = -2.0 * symmetric_part(natural["xx"])
        if precision.shape[-1] == 1:
            covariance = 1.0 / precision
            return natural["x"] * covariance[..., 0], covariance
        # The Cholesky factor of a scaled matrix is accurate when columns of the
        # design differ by orders of magnitude.
        scale = jnp.sqrt(jnp.diagonal(precision, axis1=-2, axis2=-1))
        scaled = precision / scale[..., None] / scale[..., None, :]
        inverse = positive_matrices.inverse(scaled)
        covariance = symmetric_part(inverse / scale[..., None] / scale[..., None, :])
        mean = times(covariance, natural["x"])
        return mean, covariance

    @staticmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        mean, covariance = Normal._mean_and_covariance(natural)
        return {"x": mean, "xx": covariance + mean[..., None] * mean[..., None, :]}

    @staticmethod
    def log_normalizer(natural: Moments) -> jax.Array:
        mean, _ = Normal._mean_and_covariance(natural)
        precision = -2.0 * symmetric_part(natural["xx"])
        size = mean.shape[-1]
        return (
            0.5 * (natural["x"] * mean).sum(-1)
            - 0.5 * positive_matrices.log_det(precision)
            + 0.5 * size * math.log(2 * math.pi)
        )

    @staticmethod
    def project(prior: Moments, data: Moments, noise: Moments) -> dict[str, jax.Array]:
        precision = -2.0 * symmetric_part(data["xx"])
        deviation = 2.0 * symmetric_part(jnp.abs(noise["xx"]))
        if precision.shape[-1] == 1:
            precision = jnp.maximum(precision, deviation)
        else:
            precision = denoised(precision, deviation)
        return {"x": prior["x"] + data["x"], "xx": prior["xx"] - 0.5 * precision}

    @staticmethod
    def parameters(natural: Moments) -> dict[str, jax.Array]:
        mean, covariance = Normal._mean_and_covariance(natural)
        return {"loc": mean, "covariance_matrix": covariance}

    @staticmethod
    def from_parameters(parameters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        covariance = symmetric_part(parameters["covariance_matrix"])
        precision = positive_matrices.inverse(covariance)
        mean = parameters["loc"]
        return {
            "x": times(precision, mean),
            "xx": -0.5 * symmetric_part(precision),
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
        precision = -2.0 * symmetric_part(natural["xx"])
        moved = natural["x"] + times(precision, shift)
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
