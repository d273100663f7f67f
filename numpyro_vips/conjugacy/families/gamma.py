"""Rates, counts per time and precisions; variances that are inverse Gamma."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray

from numpyro_vips.conjugacy.families.digamma import digamma
from numpyro_vips.conjugacy.families.family import (
    Elementwise,
    Family,
    NewElementwise,
    Shape,
)
from numpyro_vips.conjugacy.families.noisy_sums import (
    MOST_RATES,
    RateShape,
    information_kept,
    nonnegative,
    rate_of_noisy_sums,
)
from numpyro_vips.conjugacy.families.transformed import Inverse


class Gamma(Family):
    """A positive number."""

    name = "Gamma"
    statistics = ("x", "log")
    nonnegative = ("x",)

    def moments(self, natural: Elementwise) -> NewElementwise:
        concentration, rate = natural["log"] + 1.0, -natural["x"]
        return {
            "x": concentration / rate,
            "log": digamma(concentration) - jnp.log(rate),
        }

    def log_normalizer(self, natural: Elementwise) -> Float[Array, "*batch"]:
        concentration, rate = natural["log"] + 1.0, -natural["x"]
        return gammaln(concentration) - concentration * jnp.log(rate)

    def at(self, value: Float[Array, "*batch"]) -> NewElementwise:
        return {"x": value, "log": jnp.log(value)}

    def project(
        self, prior: Elementwise, data: Elementwise, noise: Elementwise
    ) -> NewElementwise:
        return {
            "x": prior["x"] - nonnegative(-data["x"], noise["x"]),
            "log": prior["log"] + jnp.maximum(data["log"], 0.0),
        }

    def widened(self, data: Elementwise, noise: Elementwise) -> NewElementwise:
        kept = information_kept(data["log"], noise["log"], -data["x"], noise["x"])
        return {s: kept * data[s] for s in self.statistics}

    def project_to_widen(self, data: Elementwise, noise: Elementwise) -> NewElementwise:
        """The released total unchanged, and the share of `log` at least zero.

        A total of the wrong sign is kept: `share_under_noise` reads it together with
        the prior. Of very many rates it does not, and they are moved as in `project`.
        """
        if data["x"].size > MOST_RATES:
            return super().project_to_widen(data, noise)
        return {"x": data["x"], "log": jnp.maximum(data["log"], 0.0)}

    def share_under_noise(
        self, prior: Elementwise, data: Elementwise, noise: Elementwise
    ) -> NewElementwise:
        if data["x"].size > MOST_RATES:
            return self.widened(data, noise)

        def by_quadrature() -> NewElementwise:
            own = RateShape(prior["log"] + 1.0, jnp.maximum(-prior["x"], 0.0))
            sums = data["log"], noise["log"], -data["x"], noise["x"]
            found = rate_of_noisy_sums(own, *sums)
            is_noisy = (noise["x"] > 0) | (noise["log"] > 0)
            share = {"x": own.rate - found.rate}
            share["log"] = found.concentration - own.concentration
            return {s: jnp.where(is_noisy, share[s], data[s]) for s in share}

        is_noisy = jnp.any(noise["x"] > 0) | jnp.any(noise["log"] > 0)
        return jax.lax.cond(is_noisy, by_quadrature, lambda: dict(data))

    def neutral(self, shape: Shape) -> NewElementwise:
        return {"x": jnp.full(shape, -1.0), "log": jnp.zeros(shape)}

    def neutral_moments(self, shape: Shape) -> NewElementwise:
        return self.at(jnp.ones(shape))

    def perturb(self, natural: Elementwise, key: PRNGKeyArray) -> NewElementwise:
        factor = jnp.exp(0.1 * jax.random.normal(key, natural["x"].shape))
        return {"x": natural["x"] * factor, "log": natural["log"]}

    def parameters(self, natural: Elementwise) -> NewElementwise:
        return {"concentration": natural["log"] + 1.0, "rate": -natural["x"]}

    def from_parameters(self, parameters: Elementwise) -> NewElementwise:
        return {"x": -parameters["rate"], "log": parameters["concentration"] - 1.0}

    def distribution(self, parameters: Elementwise) -> dist.Distribution:
        return dist.Gamma(parameters["concentration"], parameters["rate"])


class InverseGamma(Inverse):
    """A positive number whose inverse is Gamma-distributed."""

    name = "InverseGamma"
    statistics = ("1/x", "log")
    _of_function: ClassVar[Family] = Gamma()

    def at(self, value: Float[Array, "*batch"]) -> NewElementwise:
        return {"1/x": 1.0 / value, "log": jnp.log(value)}

    def distribution(self, parameters: Elementwise) -> dist.Distribution:
        return dist.InverseGamma(parameters["concentration"], parameters["rate"])
