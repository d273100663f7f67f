"""The posterior that VIPS releases: one exponential-family factor per block."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from numpyro_vips.conjugacy.families import FAMILIES
from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.conjugacy.families.gaussian import FactorizedNormal
from numpyro_vips.conjugacy.structure.gaussian_layout import GaussianLayout
from numpyro_vips.model.row_queries import Query
from numpyro_vips.result import register_posterior
from numpyro_vips.vips.row_queries import VisibleRows

KIND = "conjugate"


class ConjugatePosterior:
    """Independent factors, each of a known family, over the global latents.

    Attributes:
      params: Standard parameters, named `{block}/{parameter}`, for example
        `w/loc` and `w/covariance_matrix`.
      specification: The family and layout of every block.
    """

    def __init__(
        self, specification: Mapping[str, Any], params: Mapping[str, jax.Array]
    ):
        self.specification = dict(specification)
        self.params = dict(params)

    @classmethod
    def from_specification(
        cls, specification: Mapping[str, Any], params: Mapping[str, jax.Array]
    ) -> "ConjugatePosterior":
        return cls(specification, params)

    def local_posterior(self, query: Query) -> dict[str, dist.Distribution]:
        """The posterior of the latents of rows that the caller may see."""
        program = query.program(lambda: VisibleRows(query))
        return program.local_posterior(query.arguments, self._moments())

    def elbo(self, query: Query) -> np.ndarray:
        """The bound on the log density of each row that the caller may see."""
        query = query.told_by_entries()
        program = query.program(lambda: VisibleRows(query))
        return program.elbo(query.arguments, self._moments())

    def _moments(self) -> dict[str, dict[str, jax.Array]]:
        return {
            block["name"]: _FAMILIES[block["family"]].moments_of(
                self._parameters(block["name"])
            )
            for block in self.specification["blocks"]
        }

    def _parameters(self, block: str) -> dict[str, jax.Array]:
        prefix = f"{block}/"
        return {
            name.removeprefix(prefix): value
            for name, value in self.params.items()
            if name.startswith(prefix)
        }

    @property
    def site_dims(self) -> dict[str, tuple[str, ...]]:
        return {k: tuple(v) for k, v in self.specification["site_dims"].items()}

    def sample(
        self, rng_key: jax.Array, sample_shape: tuple[int, ...] = ()
    ) -> dict[str, jax.Array]:
        draws: dict[str, jax.Array] = {}
        blocks = self.specification["blocks"]
        for key, block in zip(
            jax.random.split(rng_key, len(blocks)), blocks, strict=True
        ):
            family = _FAMILIES[block["family"]]
            parameters = self._parameters(block["name"])
            draws_of_block = family.distribution(parameters).sample(key, sample_shape)
            draw = jnp.asarray(draws_of_block)
            if "layout" not in block:
                draws[block["name"]] = draw
            else:
                layout = GaussianLayout.from_dict(block["layout"])
                draws.update(layout.sites(draw, len(sample_shape)))
        return {name: draws[name] for name in self.specification["site_dims"]}


_FAMILIES: dict[str, type[Family]] = {
    family.name: family
    for family in (*(match.family for match in FAMILIES), FactorizedNormal)
}


register_posterior(KIND, ConjugatePosterior)
