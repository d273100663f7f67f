"""Families of an x of which the inverse, or the square, is in another one."""

import abc
import math
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from numpyro_vips.conjugacy.families.family import (
    Family,
    Moments,
    NewMoments,
    Shape,
)


class TransformedFamily(Family):
    """Positive numbers or matrices x with a function f(x) in another family.

    `statistics` are those that the other family has of f(x), in its order. The last of
    both is a logarithm, of a number or of a determinant.

    Attributes:
      _of_function: The family of f(x).
      _power: k of log x = k log f(x).
    """

    _of_function: ClassVar[Family]
    _power: ClassVar[float]

    @abc.abstractmethod
    def _jacobian(self, natural: Moments) -> float:
        """Which power of f(x) is lost to the Jacobian.

        Args:
          natural: Natural parameters of f(x), with it or without.
        """

    # --- to f(x) and back -------------------------------------------------------------

    def _share_of_function(self, share: Moments) -> NewMoments:
        """What a share of natural parameters is of those of f(x); or its noise."""
        names = self._of_function.statistics
        pairs = zip(self.statistics, names, strict=True)
        found = {name: share[mine] for mine, name in pairs if mine in share}
        return {**found, names[-1]: self._power * found[names[-1]]}

    def _share(self, of_function: Moments) -> NewMoments:
        """The inverse of `_share_of_function`."""
        found, log = self._renamed(of_function), self.statistics[-1]
        return {**found, log: found[log] / self._power}

    def _natural_of_function(self, natural: Moments) -> NewMoments:
        found, log = self._share_of_function(natural), self._of_function.statistics[-1]
        return {**found, log: found[log] - self._jacobian(found)}

    def _natural(self, of_function: Moments) -> NewMoments:
        """The inverse of `_natural_of_function`."""
        log, lost = self._of_function.statistics[-1], self._jacobian(of_function)
        return self._share({**of_function, log: of_function[log] + lost})

    def _moments(self, of_function: Moments) -> NewMoments:
        """Moments, from those of f(x)."""
        found, log = self._renamed(of_function), self.statistics[-1]
        return {**found, log: self._power * found[log]}

    def _renamed(self, of_function: Moments) -> NewMoments:
        pairs = zip(self.statistics, self._of_function.statistics, strict=True)
        return {mine: of_function[name] for mine, name in pairs if name in of_function}

    # --- what the family of f(x) answers ----------------------------------------------

    def moment_shapes(self, shape: Shape) -> dict[str, Shape]:
        shapes = self._of_function.moment_shapes(shape)
        return dict(zip(self.statistics, shapes.values(), strict=True))

    def moments(self, natural: Moments) -> NewMoments:
        found = self._of_function.moments(self._natural_of_function(natural))
        return self._moments(found)

    def log_normalizer(self, natural: Moments) -> Float[Array, "..."]:
        of_function = self._natural_of_function(natural)
        return self._of_function.log_normalizer(of_function) + math.log(
            abs(self._power)
        )

    def project(self, prior: Moments, data: Moments, noise: Moments) -> NewMoments:
        shares = map(self._share_of_function, (prior, data, noise))
        return self._share(self._of_function.project(*shares))

    def widened(self, data: Moments, noise: Moments) -> NewMoments:
        shares = map(self._share_of_function, (data, noise))
        return self._share(self._of_function.widened(*shares))

    def project_to_widen(self, data: Moments, noise: Moments) -> NewMoments:
        shares = map(self._share_of_function, (data, noise))
        return self._share(self._of_function.project_to_widen(*shares))

    def share_under_noise(
        self, prior: Moments, data: Moments, noise: Moments
    ) -> NewMoments:
        shares = map(self._share_of_function, (data, noise))
        own = self._natural_of_function(prior)
        return self._share(self._of_function.share_under_noise(own, *shares))

    def num_below_noise(self, data: Moments, noise: Moments) -> Int[Array, ""]:
        shares = map(self._share_of_function, (data, noise))
        return self._of_function.num_below_noise(*shares)

    def neutral(self, shape: Shape) -> NewMoments:
        return self._natural(self._of_function.neutral(shape))

    def neutral_moments(self, shape: Shape) -> NewMoments:
        return self._moments(self._of_function.neutral_moments(shape))

    def perturb(self, natural: Moments, key: PRNGKeyArray) -> NewMoments:
        of_function = self._natural_of_function(natural)
        return self._natural(self._of_function.perturb(of_function, key))

    def starting_moments(self, natural: Moments) -> NewMoments:
        of_function = self._natural_of_function(natural)
        return self._moments(self._of_function.starting_moments(of_function))

    def parameters(self, natural: Moments) -> NewMoments:
        """The standard parameters of the distribution of f(x)."""
        return self._of_function.parameters(self._natural_of_function(natural))

    def from_parameters(self, parameters: Moments) -> NewMoments:
        return self._natural(self._of_function.from_parameters(parameters))


class Inverse(TransformedFamily):
    """Positive numbers or matrices whose inverse has a Gamma's or a Wishart's density.

    `statistics` are the inverse, and the logarithm of x or of its determinant.
    """

    _power = -1.0

    def _jacobian(self, natural: Moments) -> float:
        """dx⁻¹ = |x|^-(size + 1) dx."""
        size = next(iter(natural.values())).shape[-1] if self.event_dim else 1
        return 1.0 + size

    def beside_flat_prior(self, natural: Moments, shape: Shape) -> NewMoments:
        # A flat prior counts like less than no observation, and one makes up for it.
        found = super().beside_flat_prior(natural, shape)
        _, log = self.statistics
        return {**found, log: jnp.minimum(found[log], 0.5 - self._jacobian(found))}
