"""Random positive definite matrices."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import multigammaln

from numpyro_vips.conjugacy.families import positive_matrices
from numpyro_vips.conjugacy.families.digamma import digamma
from numpyro_vips.conjugacy.families.family import Family, Moments
from numpyro_vips.conjugacy.families.positive_matrices import denoised, symmetric_part


class Wishart(Family):
    """A random positive definite matrix; its natural parameters are half of
    (concentration - size - 1) and minus half the rate matrix."""

    name = "Wishart"
    statistics = ("x", "logdet")
    event_dim = 2

    @staticmethod
    def _standard(natural: Moments) -> tuple[jax.Array, jax.Array]:
        rate = -2.0 * symmetric_part(natural["x"])
        return 2.0 * natural["logdet"] + rate.shape[-1] + 1.0, rate

    @staticmethod
    def moments(natural: Moments) -> dict[str, jax.Array]:
        concentration, rate = Wishart._standard(natural)
        size = rate.shape[-1]
        halves = 0.5 * (concentration[..., None] - jnp.arange(size))
        return {
            "x": concentration[..., None, None]
            * symmetric_part(positive_matrices.inverse(rate)),
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
        rate = -2.0 * symmetric_part(data["x"])
        deviation = 2.0 * symmetric_part(jnp.abs(noise["x"]))
        return {
            "x": prior["x"] - 0.5 * denoised(rate, deviation),
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
