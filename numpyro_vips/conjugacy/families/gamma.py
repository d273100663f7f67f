"""Rates, counts per time and precisions; variances that are inverse Gamma."""

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from numpyro_vips.conjugacy.families.digamma import digamma
from numpyro_vips.conjugacy.families.family import Family, Moments


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
