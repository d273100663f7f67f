"""Families of an x whose inverse is in another family."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from numpyro_vips.conjugacy.families.family import (
    Family,
    Moments,
    NewMoments,
    Shape,
)


class Inverse(Family):
    """Positive numbers or matrices whose inverse has a Gamma's or a Wishart's density.

    `statistics` are the inverse, and the logarithm of x or of its determinant.
    """

    _of_inverse: ClassVar[Family]

    def _mirrored(self, arrays: Moments) -> NewMoments:
        """What multiplies the statistics of the inverse, or is their moment."""
        (inverse, log), (_, its_log) = self.statistics, self._of_inverse.statistics
        return {"x": arrays[inverse], its_log: -arrays[log]}

    def _mirrored_back(self, arrays: Moments) -> NewMoments:
        (inverse, log), (_, its_log) = self.statistics, self._of_inverse.statistics
        return {inverse: arrays["x"], log: -arrays[its_log]}

    def _jacobian(self, inverse: Float[Array, "..."]) -> float:
        """Which power of |x| is lost to the Jacobian: dx⁻¹ = |x|^-(size + 1) dx."""
        return 1.0 + (inverse.shape[-1] if self.event_dim else 1)

    def _inverse_natural(self, natural: Moments) -> NewMoments:
        """Natural parameters of the inverse."""
        found, log = self._mirrored(natural), self._of_inverse.statistics[1]
        return {**found, log: found[log] - self._jacobian(found["x"])}

    def _natural(self, inverse: Moments) -> NewMoments:
        """Natural parameters, from those of the inverse."""
        found, log = self._mirrored_back(inverse), self.statistics[1]
        return {**found, log: found[log] - self._jacobian(inverse["x"])}

    def moment_shapes(self, shape: Shape) -> dict[str, Shape]:
        shapes = self._of_inverse.moment_shapes(shape)
        return dict(zip(self.statistics, shapes.values(), strict=True))

    def moments(self, natural: Moments) -> NewMoments:
        return self._mirrored_back(
            self._of_inverse.moments(self._inverse_natural(natural))
        )

    def log_normalizer(self, natural: Moments) -> Float[Array, "..."]:
        return self._of_inverse.log_normalizer(self._inverse_natural(natural))

    def beside_flat_prior(self, natural: Moments, shape: Shape) -> NewMoments:
        # A flat prior counts like less than no observation, and one makes up for it.
        found = super().beside_flat_prior(natural, shape)
        inverse, log = self.statistics
        least = 0.5 - self._jacobian(found[inverse])
        return {**found, log: jnp.minimum(found[log], least)}

    def project(self, prior: Moments, data: Moments, noise: Moments) -> NewMoments:
        mirrored = map(self._mirrored, (prior, data, noise))
        return self._mirrored_back(self._of_inverse.project(*mirrored))

    def widened(self, data: Moments, noise: Moments) -> NewMoments:
        mirrored = map(self._mirrored, (data, noise))
        return self._mirrored_back(self._of_inverse.widened(*mirrored))

    def project_to_widen(self, data: Moments, noise: Moments) -> NewMoments:
        mirrored = map(self._mirrored, (data, noise))
        return self._mirrored_back(self._of_inverse.project_to_widen(*mirrored))

    def share_under_noise(
        self, prior: Moments, data: Moments, noise: Moments
    ) -> NewMoments:
        mirrored = map(self._mirrored, (data, noise))
        own = self._inverse_natural(prior)
        return self._mirrored_back(self._of_inverse.share_under_noise(own, *mirrored))

    def num_below_noise(self, data: Moments, noise: Moments) -> Int[Array, ""]:
        mirrored = map(self._mirrored, (data, noise))
        return self._of_inverse.num_below_noise(*mirrored)

    def neutral(self, shape: Shape) -> NewMoments:
        return self._natural(self._of_inverse.neutral(shape))

    def neutral_moments(self, shape: Shape) -> NewMoments:
        return self._mirrored_back(self._of_inverse.neutral_moments(shape))

    def perturb(self, natural: Moments, key: PRNGKeyArray) -> NewMoments:
        inverse = self._inverse_natural(natural)
        return self._natural(self._of_inverse.perturb(inverse, key))

    def parameters(self, natural: Moments) -> NewMoments:
        return self._of_inverse.parameters(self._inverse_natural(natural))

    def from_parameters(self, parameters: Moments) -> NewMoments:
        return self._natural(self._of_inverse.from_parameters(parameters))
