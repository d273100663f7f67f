"""Posteriors of standard deviations, whose squares are in another family.

A standard deviation whose square is generalised inverse Gaussian or inverse Gamma has
the statistics x², 1/x² and log x.
"""

from typing import ClassVar

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float

from numpyro_vips.conjugacy.families.family import (
    Elementwise,
    Family,
    NewElementwise,
    Requirements,
    Shape,
)
from numpyro_vips.conjugacy.families.gamma import InverseGamma
from numpyro_vips.conjugacy.families.generalized_inverse_gaussian import (
    GeneralizedInverseGaussian,
)
from numpyro_vips.conjugacy.families.transformed import TransformedFamily


class _Root(TransformedFamily):
    """A standard deviation whose square is in another family."""

    _power = 0.5

    def _jacobian(self, natural: Elementwise) -> float:
        """dx² = 2x dx."""
        return 0.5

    def at(self, value: Float[Array, "*batch"]) -> NewElementwise:
        return self._moments(self._of_function.at(value**2))

    def beside_flat_prior(self, natural: Elementwise, shape: Shape) -> NewElementwise:
        square = self._natural_of_function(natural)
        return self._natural(self._of_function.beside_flat_prior(square, shape))

    def requirements(self, parameters: Elementwise) -> Requirements:
        return self._of_function.requirements(parameters)

    def distribution(self, parameters: Elementwise) -> dist.Distribution:
        return dist.TransformedDistribution(
            self._of_function.distribution(parameters),
            dist.transforms.PowerTransform(0.5),
            validate_args=False,
        )


class RootInverseGamma(_Root):
    """A standard deviation whose square is inverse Gamma."""

    name = "RootInverseGamma"
    statistics = ("x^-2", "log")
    nonnegative = ("x^-2",)
    _of_function: ClassVar[Family] = InverseGamma()


class RootGeneralizedInverseGaussian(_Root):
    """A standard deviation whose square is generalised inverse Gaussian."""

    name = "RootGeneralizedInverseGaussian"
    statistics = ("x^2", "x^-2", "log")
    nonnegative = ("x^2", "x^-2")
    of_priors = ("x^2",)
    _of_function: ClassVar[Family] = GeneralizedInverseGaussian()

    def project(
        self, prior: Elementwise, data: Elementwise, noise: Elementwise
    ) -> NewElementwise:
        found = super().project(prior, data, noise)
        return {**found, "log": prior["log"] + jnp.minimum(data["log"], 0.0)}
