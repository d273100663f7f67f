"""Blocks of jointly Gaussian coordinates."""

import math

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from numpyro_vips.conjugacy.families import positive_matrices
from numpyro_vips.conjugacy.families.family import (
    Family,
    Moments,
    NewMoments,
    Requirements,
    Shape,
)
from numpyro_vips.conjugacy.families.positive_matrices import (
    denoised,
    symmetric_part,
    times,
)

# Which part of the noise's spectral norm is added to the precision of the posterior at
# which rows are asked next: a step that is too long there leads away. Half of it is
# safe, and slow. With a quarter a whole step by the largest precision that noise of
# this size can hide (half of the norm; Benaych-Georges and Nadakuditi, 2011) is at most
# twice as long as it should be, where steps just do not lead away.
_ROOM = 0.25

# Precisions that are smaller than so many standard deviations of the noise in them
# count less than half.
_HIDDEN = 2.0

Vector = Float[Array, "*batch dim"]
Matrix = Float[Array, "*batch dim dim"]


class Normal(Family):
    """A block of jointly Gaussian coordinates, on the last axis.

    The natural parameter of "xx" is minus half the precision matrix.
    """

    name = "Normal"
    statistics = ("x", "xx")
    event_dim = 1
    is_gaussian = True
    has_covariances = True

    def _mean_and_covariance(self, natural: Moments) -> tuple[Vector, Matrix]:
        precision = -2.0 * symmetric_part(natural["xx"])
        if precision.shape[-1] == 1:
            covariance = 1.0 / precision
            return natural["x"] * covariance[..., 0], covariance
        # The Cholesky factor of a scaled matrix is accurate when columns of the
        # design differ by orders of magnitude.
        scale = jnp.sqrt(jnp.diagonal(precision, axis1=-2, axis2=-1))
        scaled = precision / scale[..., None] / scale[..., None, :]
        inverse = positive_matrices.inverse(scaled)
        covariance = symmetric_part(inverse / scale[..., None] / scale[..., None, :])
        mean = times(covariance, natural["x"])
        return mean, covariance

    def moments(self, natural: Moments) -> NewMoments:
        return _second_moments(*self._mean_and_covariance(natural))

    def log_normalizer(self, natural: Moments) -> Float[Array, "*batch"]:
        mean, _ = self._mean_and_covariance(natural)
        precision = -2.0 * symmetric_part(natural["xx"])
        size = mean.shape[-1]
        return (
            0.5 * (natural["x"] * mean).sum(-1)
            - 0.5 * positive_matrices.log_det(precision)
            + 0.5 * size * math.log(2 * math.pi)
        )

    def at(self, value: Vector) -> NewMoments:
        return {"x": value, "xx": value[..., None] * value[..., None, :]}

    def moment_shapes(self, shape: Shape) -> dict[str, Shape]:
        return {"x": shape, "xx": (*shape, shape[-1])}

    def project(self, prior: Moments, data: Moments, noise: Moments) -> NewMoments:
        return self._projected(prior, data, noise, room=_ROOM)

    def project_for_step(
        self, data: Moments, noise: Moments, gain: float | Float[Array, ""]
    ) -> NewMoments:
        """The released share moved to where it is legal, for a part of a Newton step.

        `project` adds a ridge lest a step be too long. Where only a part of it is
        taken, the ridge is smaller by the same factor.

        Args:
          data: The share of the released statistics.
          noise: Standard deviations of the noise in it, entry by entry.
          gain: The part of the step that is taken, in (0, 1].
        """
        nothing = {s: jnp.zeros_like(value) for s, value in data.items()}
        return self._projected(nothing, data, noise, room=_ROOM * gain)

    def project_to_widen(self, data: Moments, noise: Moments) -> NewMoments:
        """The released share moved to where it is legal, without a ridge.

        `project` has one for directions in which rows say less than noise, and it draws
        every coefficient towards zero. `widened` knows of these directions, and leaves
        them to the prior.
        """
        prior = {s: jnp.zeros_like(value) for s, value in data.items()}
        return self._projected(prior, data, noise, room=0.0)

    def project_either(
        self, data: Moments, noise: Moments, to_widen: Bool[Array, ""]
    ) -> NewMoments:
        """`project_to_widen`, or `project` without a prior, as an array says.

        The two differ in their ridge alone, so eigenvalues are compiled once for both.

        Args:
          data: The share of the released statistics.
          noise: Standard deviations of the noise in it, entry by entry.
          to_widen: True for `project_to_widen`.
        """
        nothing = {s: jnp.zeros_like(value) for s, value in data.items()}
        return self._projected(nothing, data, noise, jnp.where(to_widen, 0.0, _ROOM))

    def _projected(
        self,
        prior: Moments,
        data: Moments,
        noise: Moments,
        room: float | Float[Array, ""],
    ) -> NewMoments:
        precision = -2.0 * symmetric_part(data["xx"])
        deviation = 2.0 * symmetric_part(jnp.abs(noise["xx"]))
        if precision.shape[-1] == 1:
            precision = jnp.maximum(precision, deviation)
        else:
            precision = denoised(precision, deviation, room)
        return {"x": prior["x"] + data["x"], "xx": prior["xx"] - 0.5 * precision}

    def widened(self, data: Moments, noise: Moments) -> NewMoments:
        """Returns `data` with its precision A replaced by A (A + T)⁻¹ A.

        T is the noise's variance in the linear statistic. That is A x + N(0, A) of the
        rows and N(0, T) of the noise, so this is the information about x that the two
        leave. Eigenvalues of A that may be noise in A itself count less.
        """
        precision = -2.0 * symmetric_part(data["xx"])
        variance = noise["x"] ** 2
        if precision.shape[-1] == 1:
            total = precision[..., 0] + variance
            kept = precision[..., 0] / jnp.where(total > 0, total, 1.0)
            kept = jnp.where(variance > 0, kept, 1.0)
            return {"x": kept * data["x"], "xx": kept[..., None] * data["xx"]}

        def with_noise() -> NewMoments:
            """The rows' share widened, in the case that some coordinate has noise."""
            # By eigenvalues, in units of the noise: a product of three matrices would
            # leave a direction of which rows say nothing a negative precision, where
            # others are large. Room for rounding, where coordinates have no noise.
            rounding = 1e-12 * jnp.abs(precision).max((-2, -1))[..., None]
            unit = jnp.sqrt(variance + rounding)
            unit = jnp.where(unit > 0, unit, 1.0)
            values, vectors = positive_matrices.eigh(
                precision / unit[..., None] / unit[..., None, :]
            )
            values = jnp.maximum(values, 0.0)
            deviation = 2.0 * symmetric_part(jnp.abs(noise["xx"]))
            hidden = _HIDDEN * positive_matrices.noise_along(
                vectors, deviation / unit[..., None] / unit[..., None, :]
            )
            square = values**2 + hidden**2
            sure = values**2 / jnp.where(square > 0, square, 1.0)
            kept = sure * values / (values + 1.0)
            across = jnp.swapaxes(vectors, -1, -2)
            weighted = vectors * (values * kept)[..., None, :]
            information = jnp.matmul(weighted, across, precision="highest")
            linear = times(vectors, kept * times(across, data["x"] / unit))
            return {
                "x": unit * linear,
                "xx": -0.5
                * symmetric_part(information * unit[..., None] * unit[..., None, :]),
            }

        return jax.lax.cond(jnp.any(variance > 0), with_noise, lambda: dict(data))

    def neutral(self, shape: Shape) -> NewMoments:
        precision = jnp.broadcast_to(jnp.eye(shape[-1]), (*shape, shape[-1]))
        return {"x": jnp.zeros(shape), "xx": -0.5 * precision}

    def perturb(self, natural: Moments, key: PRNGKeyArray) -> NewMoments:
        _, covariance = self._mean_and_covariance(natural)
        deviation = jnp.sqrt(jnp.diagonal(covariance, axis1=-2, axis2=-1))
        shift = deviation * jax.random.normal(key, deviation.shape)
        precision = -2.0 * symmetric_part(natural["xx"])
        moved = natural["x"] + times(precision, shift)
        return {"x": moved, "xx": natural["xx"]}

    def parameters(self, natural: Moments) -> NewMoments:
        mean, covariance = self._mean_and_covariance(natural)
        return {"loc": mean, "covariance_matrix": covariance}

    def from_parameters(self, parameters: Moments) -> NewMoments:
        covariance = symmetric_part(parameters["covariance_matrix"])
        precision = positive_matrices.inverse(covariance)
        mean = parameters["loc"]
        return {
            "x": times(precision, mean),
            "xx": -0.5 * symmetric_part(precision),
        }

    def moments_of(self, parameters: Moments) -> NewMoments:
        return _second_moments(parameters["loc"], parameters["covariance_matrix"])

    def distribution(self, parameters: Moments) -> dist.Distribution:
        # Not validated: it is symmetric and positive by construction, up to rounding,
        # for which the factor of the correlations has room.
        covariance = parameters["covariance_matrix"]
        scale = jnp.sqrt(jnp.diagonal(covariance, axis1=-2, axis2=-1))[..., None]
        size = covariance.shape[-1]
        room = size * jnp.finfo(covariance.dtype).eps
        room = room * jnp.eye(size, dtype=covariance.dtype)
        correlation = covariance / scale / jnp.swapaxes(scale, -1, -2)
        return dist.MultivariateNormal(
            parameters["loc"],
            scale_tril=scale * jnp.linalg.cholesky(correlation + room),
            validate_args=False,
        )

    def requirements(self, parameters: Moments) -> Requirements:
        found = super().requirements(parameters)
        variance = self.distribution(parameters).variance
        problem = "its covariance is not positive definite"
        found[problem] = jnp.isfinite(variance).all()
        return found


def _second_moments(mean: Vector, covariance: Matrix) -> NewMoments:
    return {"x": mean, "xx": covariance + mean[..., None] * mean[..., None, :]}


class FactorizedNormal(Normal):
    """Coordinates with a Gaussian factor each, for `structure={"w": "diag"}`.

    The natural parameters are those of the full block. The best factorised
    approximation of that Gaussian has its mean and the inverse diagonal of its
    precision, which is where coordinate ascent over the factors ends.
    """

    name = "Normal, factorised"
    has_covariances = False

    def _mean_and_variance(self, natural: Moments) -> tuple[Vector, Vector]:
        mean, _ = self._mean_and_covariance(natural)
        precision = -2.0 * jnp.diagonal(natural["xx"], axis1=-2, axis2=-1)
        return mean, 1.0 / precision

    def moments(self, natural: Moments) -> NewMoments:
        mean, variance = self._mean_and_variance(natural)
        covariance = variance[..., None] * jnp.eye(variance.shape[-1])
        return _second_moments(mean, covariance)

    def log_normalizer(self, natural: Moments) -> Float[Array, "*batch"]:
        """Entropy plus ⟨natural, moments⟩; the factors are no family of their own."""
        _, variance = self._mean_and_variance(natural)
        mean = self.moments(natural)
        entropy = 0.5 * jnp.log(2 * math.pi * math.e * variance).sum(-1)
        linear = (natural["x"] * mean["x"]).sum(-1)
        return entropy + linear + (natural["xx"] * mean["xx"]).sum((-2, -1))

    def parameters(self, natural: Moments) -> NewMoments:
        mean, variance = self._mean_and_variance(natural)
        return {"loc": mean, "scale": jnp.sqrt(variance)}

    def from_parameters(self, parameters: Moments) -> NewMoments:
        mean, scale = parameters["loc"], parameters["scale"]
        precision = scale**-2
        identity = jnp.eye(precision.shape[-1])
        return {"x": precision * mean, "xx": -0.5 * precision[..., None] * identity}

    def moments_of(self, parameters: Moments) -> NewMoments:
        return self.moments(self.from_parameters(parameters))

    def distribution(self, parameters: Moments) -> dist.Distribution:
        return dist.Normal(parameters["loc"], parameters["scale"])
