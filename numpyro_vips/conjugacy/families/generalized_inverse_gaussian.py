"""Posteriors of variances: the generalised inverse Gaussian (GIG).

A variance with a Gamma prior, the mixing variable of a Laplace density and the scales
of shrinkage priors have the density ∝ x^(p-1) exp(-(a·x + b/x)/2).
"""

import collections
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.distributions import constraints

from numpyro_vips.conjugacy.families.family import (
    Elementwise,
    Family,
    NewElementwise,
    Requirements,
    Shape,
)
from numpyro_vips.conjugacy.families.gig_draws import draws_on_host
from numpyro_vips.conjugacy.families.gig_moments import gig_moments
from numpyro_vips.conjugacy.families.noisy_sums import (
    MOST_RATES,
    RateShape,
    information_kept,
    nonnegative,
    rate_of_noisy_sums,
)
from numpyro_vips.jax_tools.host_calls import call_on_host


class GeneralizedInverseGaussian(Family):
    """A positive number with density ∝ x^(p-1) exp(-(a·x + b/x)/2)."""

    name = "GeneralizedInverseGaussian"
    statistics = ("x", "1/x", "log")
    nonnegative = ("x", "1/x")

    def _standard(
        self, natural: Elementwise
    ) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"], Float[Array, "*batch"]]:
        return natural["log"] + 1.0, -2.0 * natural["x"], -2.0 * natural["1/x"]

    def moments(self, natural: Elementwise) -> NewElementwise:
        found = gig_moments(*self._standard(natural))
        return {s: found[s] for s in self.statistics}

    def log_normalizer(self, natural: Elementwise) -> Float[Array, "*batch"]:
        @jax.custom_jvp
        def normalizer(natural: Elementwise) -> Float[Array, "*batch"]:
            return gig_moments(*self._standard(natural))["log_normalizer"]

        @normalizer.defjvp
        def _slope(
            primals: tuple[Elementwise], tangents: tuple[Elementwise]
        ) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
            found = gig_moments(*self._standard(primals[0]))
            parts = [found[s] * change for s, change in tangents[0].items()]
            return found["log_normalizer"], sum(parts, jnp.zeros_like(parts[0]))

        return normalizer(natural)

    def at(self, value: Float[Array, "*batch"]) -> NewElementwise:
        return {"x": value, "1/x": 1.0 / value, "log": jnp.log(value)}

    def project(
        self, prior: Elementwise, data: Elementwise, noise: Elementwise
    ) -> NewElementwise:
        return {
            "x": prior["x"] - nonnegative(-data["x"], noise["x"]),
            "1/x": prior["1/x"] - nonnegative(-data["1/x"], noise["1/x"]),
            "log": prior["log"] + data["log"],
        }

    def widened(self, data: Elementwise, noise: Elementwise) -> NewElementwise:
        # Of a variance: minus half the number of rows, and of the sum of squares.
        kept = information_kept(
            jnp.abs(data["log"]), noise["log"], -data["1/x"], noise["1/x"]
        )
        return {s: kept * data[s] for s in self.statistics}

    def project_to_widen(self, data: Elementwise, noise: Elementwise) -> NewElementwise:
        """The released share moved to where it is legal, but for the sum of 1/x.

        A sum of the wrong sign is kept: `share_under_noise` reads it together with the
        prior. It is moved, too, where noise is on the sum of x as well, and where there
        are very many latents.
        """
        found = super().project_to_widen(data, noise)
        if data["1/x"].size > MOST_RATES:
            return found
        return {**found, "1/x": jnp.where(noise["x"] > 0, found["1/x"], data["1/x"])}

    def share_under_noise(
        self, prior: Elementwise, data: Elementwise, noise: Elementwise
    ) -> NewElementwise:
        if data["1/x"].size > MOST_RATES:
            return self.widened(data, noise)

        def by_quadrature() -> NewElementwise:
            # Of 1/x, whose powers are those of x with their signs turned round.
            own = RateShape(
                -prior["log"] - 1.0,
                jnp.maximum(-prior["1/x"], 0.0),
                jnp.maximum(-prior["x"], 0.0),
            )
            sums = -data["log"], noise["log"], -data["1/x"], noise["1/x"]
            found = rate_of_noisy_sums(own, *sums)
            assert own.inverse is not None
            assert found.inverse is not None
            share = {
                "x": own.inverse - found.inverse,
                "1/x": own.rate - found.rate,
                "log": own.concentration - found.concentration,
            }
            otherwise = self.widened(data, noise)
            is_read = (noise["x"] == 0) & ((noise["1/x"] > 0) | (noise["log"] > 0))
            return {s: jnp.where(is_read, share[s], otherwise[s]) for s in share}

        is_noisy = jnp.any(noise["1/x"] > 0) | jnp.any(noise["log"] > 0)
        return jax.lax.cond(is_noisy, by_quadrature, lambda: self.widened(data, noise))

    def neutral(self, shape: Shape) -> NewElementwise:
        minus = jnp.full(shape, -1.0)
        return {"x": minus, "1/x": minus, "log": jnp.zeros(shape)}

    def neutral_moments(self, shape: Shape) -> NewElementwise:
        return self.at(jnp.ones(shape))

    def perturb(self, natural: Elementwise, key: PRNGKeyArray) -> NewElementwise:
        factor = jnp.exp(0.1 * jax.random.normal(key, natural["x"].shape))
        return {**natural, "x": natural["x"] * factor}

    def starting_moments(self, natural: Elementwise) -> NewElementwise:
        """Returns the moments with E[1/x] replaced by 1 / E[x], which is finite.

        Under a shrinkage prior a weight with variance x would start at 0 otherwise, and
        E[1/x] at such weights is large again: a trap, not an optimum.
        """
        found = self.moments(natural)
        return {**found, "1/x": 1.0 / found["x"]}

    def parameters(self, natural: Elementwise) -> NewElementwise:
        p, a, b = self._standard(natural)
        return {"p": p, "a": a, "b": b}

    def from_parameters(self, parameters: Elementwise) -> NewElementwise:
        p, a, b = parameters["p"], parameters["a"], parameters["b"]
        return {"x": -0.5 * a, "1/x": -0.5 * b, "log": p - 1.0}

    def distribution(self, parameters: Elementwise) -> dist.Distribution:
        return _GIG(parameters["p"], parameters["a"], parameters["b"])

    def requirements(self, parameters: Elementwise) -> Requirements:
        p, a, b = (parameters[name] for name in ("p", "a", "b"))
        without = (p >= 0) & (a <= 0) | (p <= 0) & (b <= 0)
        found: Requirements = collections.OrderedDict()
        found["it has no density"] = ~jnp.any(without)
        return collections.OrderedDict({**found, **super().requirements(parameters)})


class _GIG(dist.Distribution):
    """Draws and density of GIG(p, a, b)."""

    arg_constraints: Any = {  # noqa: RUF012
        "p": constraints.real,
        "a": constraints.nonnegative,
        "b": constraints.nonnegative,
    }
    support: Any = constraints.positive

    def __init__(
        self,
        p: Float[Array, "*batch"],
        a: Float[Array, "*batch"],
        b: Float[Array, "*batch"],
    ):
        self.p, self.a, self.b = p, a, b
        super().__init__(jnp.shape(p), validate_args=False)

    def sample(
        self, key: PRNGKeyArray | None, sample_shape: tuple[int, ...] = ()
    ) -> Float[Array, "..."]:
        assert key is not None
        shape = (*sample_shape, *self.batch_shape)
        seed = jax.random.uniform(key, (4,))
        return call_on_host(draws_on_host, shape, seed, self.p, self.a, self.b)

    def log_prob(self, value: Any, *args: Any, **kwargs: Any) -> Float[Array, "..."]:
        natural = {"x": -self.a / 2.0, "1/x": -self.b / 2.0, "log": self.p - 1.0}
        normalizer = GeneralizedInverseGaussian().log_normalizer(natural)
        return (
            natural["log"] * jnp.log(value)
            + natural["x"] * value
            + natural["1/x"] / value
            - normalizer
        )
