"""The posterior that VIPS releases: a product of exponential-family factors."""

import functools
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Float64, PRNGKeyArray, Shaped

from numpyro_vips.conjugacy.families import family_named
from numpyro_vips.conjugacy.families.family import (
    Family,
    NewMoments,
    Requirements,
)
from numpyro_vips.conjugacy.structure.gaussian_layout import GaussianLayout
from numpyro_vips.jax_tools.double_precision import trace_in_double
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.row_queries import RowQuery
from numpyro_vips.posterior import MeanAndStddev, register_posterior
from numpyro_vips.uncertainty import VarianceParts
from numpyro_vips.vips.posterior.row_queries import RowQueryProgram
from numpyro_vips.vips.program.named_arrays import NewMomentsByFactor

KIND = "conjugate"
_MOMENT_DRAWS = 200
# What a site's standard deviations would be without noise and clipping are called.
_WITHOUT_PRIVACY = "stddev_without_privacy"

# Standard parameters, named `{factor}/{parameter}`.
Parameters = Mapping[str, Float[Array, "..."]]


class ConjugatePosterior:
    """Independent factors, each of a known family, over the global latents.

    Attributes:
      params: Standard parameters, named `{factor}/{parameter}`, for example
        `w/loc` and `w/covariance_matrix`; and by site, what `variance_parts` needs.
      specification: The family and layout of every factor.
    """

    def __init__(
        self,
        specification: Mapping[str, Any],
        params: Parameters,
    ):
        self.specification = dict(specification)
        self.params = dict(params)

    @classmethod
    def from_specification(
        cls,
        specification: Mapping[str, Any],
        params: Parameters,
    ) -> "ConjugatePosterior":
        return cls(specification, params)

    def beside(self, without_privacy: "ConjugatePosterior") -> "ConjugatePosterior":
        """Returns this posterior with the widths that it would have without privacy.

        Where noise leaves sums of which nothing can be made as they are, such as
        squares below zero, none of a site's width is due to the data.
        """
        known = without_privacy._moments_but_for(without_privacy.problems())
        found = {}
        for site, moments in self._moments_but_for(self.problems()).items():
            nothing = np.zeros(np.shape(moments.stddev))
            alone = known[site].stddev if site in known else nothing
            found[f"{site}/{_WITHOUT_PRIVACY}"] = jax.device_put(np.asarray(alone))
        return ConjugatePosterior(self.specification, {**self.params, **found})

    def variance_parts(self) -> dict[str, VarianceParts]:
        """By site, the parts of its variance that are due to data and to privacy.

        Without noise all of it is due to the data.
        """
        found = {}
        for site, moments in self.moments().items():
            total = np.square(np.asarray(moments.stddev, np.float64))
            alone = self.params.get(f"{site}/{_WITHOUT_PRIVACY}")
            data = total if alone is None else np.square(np.asarray(alone, np.float64))
            # Where noise is a matter of rounding it may come out larger.
            data = np.minimum(data, total)
            found[site] = VarianceParts(data=data, privacy=total - data)
        return found

    def problems(self) -> dict[str, str]:
        """Why sites have no usable posterior, by site; empty if all have one."""
        factors = {f["name"]: self._family(f) for f in self.specification["blocks"]}
        parameters = {name: self._parameters(name) for name in factors}
        requirements = _requirements(tuple(factors.items()), parameters)
        problems = {
            name: [problem for problem, holds in found.items() if not bool(holds)]
            for name, found in requirements.items()
        }
        return {name: found[0] for name, found in problems.items() if found}

    def moments(self) -> dict[str, MeanAndStddev]:
        """Mean and standard deviation by site; of draws where there is no formula."""
        found = self._moments_but_for(())
        return {name: found[name] for name in self.specification["site_dims"]}

    def _moments_but_for(self, left_out: Container[str]) -> dict[str, MeanAndStddev]:
        """`moments` of the sites of all other factors than these."""
        found: dict[str, MeanAndStddev] = {}
        for factor in self.specification["blocks"]:
            if factor["name"] in left_out:
                continue
            if "layout" not in factor:
                if factor["name"] in self.specification["site_dims"]:
                    found[factor["name"]] = self._moments_of_factor(factor)
                continue
            moments = self._moments_of_factor(factor)
            layout = GaussianLayout.from_dict(factor["layout"])
            means, stddevs = (layout.sites(numbers) for numbers in moments)
            for name in means:
                found[name] = MeanAndStddev(mean=means[name], stddev=stddevs[name])
        return found

    def _moments_of_factor(self, factor: Mapping[str, Any]) -> MeanAndStddev:
        family, parameters = self._family(factor), self._parameters(factor["name"])
        described = {name: (p.shape, p.dtype) for name, p in parameters.items()}
        formulas = _mean_and_stddev(family, tuple(described.items()))
        if formulas is not None:
            mean, stddev = formulas(parameters)
            return MeanAndStddev(mean=mean, stddev=stddev)
        distribution = family.distribution(parameters)
        draws = np.asarray(
            distribution.sample(threefry_key(0), (_MOMENT_DRAWS,)), np.float64
        )
        return MeanAndStddev(mean=draws.mean(0), stddev=draws.std(0))

    def local_posterior(self, query: RowQuery) -> dict[str, dist.Distribution]:
        """The posterior of the latents of rows that the caller may see."""
        program = query.program(KIND, lambda: RowQueryProgram(query))
        return program.local_posterior(query.arguments, self._moments_by_factor())

    def elbo(self, query: RowQuery) -> Float[np.ndarray, " rows"]:
        """The bound on the log density of each row that the caller may see."""
        query = query.sparse()
        program = query.program(KIND, lambda: RowQueryProgram(query))
        return program.elbo(query.arguments, self._moments_by_factor())

    def _moments_by_factor(self) -> NewMomentsByFactor:
        return {
            factor["name"]: self._family(factor).moments_of(
                self._parameters(factor["name"])
            )
            for factor in self.specification["blocks"]
        }

    def _family(self, factor: Mapping[str, Any]) -> Family:
        return _family_named(factor["family"], factor.get("num_states"))

    def _parameters(self, factor: str) -> NewMoments:
        """Standard parameters of a factor, by their names in its family."""
        prefix = f"{factor}/"
        return {
            name.removeprefix(prefix): jnp.asarray(value)
            for name, value in self.params.items()
            if name.startswith(prefix) and name != f"{prefix}{_WITHOUT_PRIVACY}"
        }

    @property
    def site_dims(self) -> dict[str, tuple[str, ...]]:
        return {k: tuple(v) for k, v in self.specification["site_dims"].items()}

    def sample(
        self, rng_key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()
    ) -> dict[str, Shaped[Array, "..."]]:
        """Draws of every latent, with the axes of `sample_shape` in front."""
        return self._sample(rng_key, sample_shape)[0]

    def weighable(
        self, rng_key: PRNGKeyArray, count: int
    ) -> tuple[dict[str, Shaped[Array, "draws ..."]], Float[Array, " draws"]]:
        """Draws of every latent, and the logarithm of their joint density."""
        draws, parts = self._sample(rng_key, (count,))
        log_densities = [part.reshape(count, -1).sum(1) for part in parts]
        return draws, sum(log_densities, jnp.zeros(count))

    def _sample(
        self, rng_key: PRNGKeyArray, sample_shape: tuple[int, ...]
    ) -> tuple[dict[str, Shaped[Array, "..."]], Iterator[Float[Array, "..."]]]:
        """Draws, and the log densities of each factor's, made only if asked for."""
        draws, made = {}, []
        factors = self.specification["blocks"]
        for key, factor in zip(
            jax.random.split(rng_key, len(factors)), factors, strict=True
        ):
            parameters = self._parameters(factor["name"])
            distribution = self._family(factor).distribution(parameters)
            draw = jnp.asarray(distribution.sample(key, sample_shape))
            made.append((distribution, draw))
            if "layout" not in factor:
                draws[factor["name"]] = draw
            else:
                layout = GaussianLayout.from_dict(factor["layout"])
                draws.update(layout.sites(draw, len(sample_shape)))
        log_densities = (jnp.asarray(each.log_prob(draw)) for each, draw in made)
        return {k: draws[k] for k in self.specification["site_dims"]}, log_densities


# One object for a discrete family, too, so that what is kept by family is found again.
_family_named = functools.cache(family_named)


@functools.lru_cache(maxsize=256)
def _mean_and_stddev(
    family: Family, parameters: tuple[tuple[str, tuple[Any, Any]], ...]
) -> Callable[[NewMoments], tuple[Float64[np.ndarray, "..."], ...]] | None:
    """A family's mean and standard deviation in double precision, traced once.

    Every result asks for them, more than once, and tracing takes far longer than NumPy.

    Args:
      family: The family of the factor.
      parameters: Shape and type of each of its standard parameters, by name.

    Returns:
      A function of the parameters; None where the distribution has no formula.
    """

    def formulas(parameters: NewMoments) -> tuple[Float[Array, "..."], ...]:
        distribution = family.distribution(parameters)
        mean, variance = distribution.mean, distribution.variance
        return jnp.asarray(mean), jnp.sqrt(jnp.asarray(variance))

    shapes = {name: jax.ShapeDtypeStruct(*of) for name, of in parameters}
    try:
        return trace_in_double(formulas, shapes)
    except NotImplementedError:
        return None


@functools.partial(jit_unoptimized, static_argnums=0)
def _requirements(
    factors: tuple[tuple[str, Family], ...], parameters: NewMomentsByFactor
) -> dict[str, Requirements]:
    """What the parameters of each factor must fulfil, as one program."""
    return {name: family.requirements(parameters[name]) for name, family in factors}


register_posterior(KIND, ConjugatePosterior)
