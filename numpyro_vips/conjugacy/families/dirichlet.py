"""Probabilities, and the discrete latents that have them."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln

from numpyro_vips.conjugacy.families.digamma import digamma
from numpyro_vips.conjugacy.families.family import Family, Moments


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
