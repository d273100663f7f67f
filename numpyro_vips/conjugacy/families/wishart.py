"""Random positive definite matrices."""

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import multigammaln
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from numpyro_vips.conjugacy.families import positive_matrices
from numpyro_vips.conjugacy.families.digamma import digamma
from numpyro_vips.conjugacy.families.family import (
    Family,
    Moments,
    NewMoments,
    Requirements,
    Shape,
)
from numpyro_vips.conjugacy.families.noisy_sums import (
    MOST_RATES,
    RateShape,
    information_kept,
    rate_of_noisy_sums,
)
from numpyro_vips.conjugacy.families.positive_matrices import (
    along_axes,
    denoised,
    eigh,
    noise_along,
    num_small,
    symmetric_part,
)
from numpyro_vips.conjugacy.families.transformed import Inverse

Matrix = Float[Array, "*batch dim dim"]
_FEW_DEGREES = "concentration is not above the size less one"


def _has_enough_degrees(
    concentration: Float[Array, "*batch"], matrix: Matrix
) -> Bool[Array, ""]:
    """Whether there are as many degrees of freedom as a density needs."""
    return jnp.all(concentration > matrix.shape[-1] - 1.0)


def _rate_and_noise(data: Moments, noise: Moments) -> tuple[Matrix, Matrix]:
    """The rows' sum of products, and the standard deviations of the noise in it."""
    rate = -2.0 * symmetric_part(data["x"])
    return rate, 2.0 * symmetric_part(jnp.abs(noise["x"]))


class Wishart(Family):
    """A random positive definite matrix; its natural parameters are half of
    (concentration - size - 1) and minus half the rate matrix."""

    name = "Wishart"
    statistics = ("x", "logdet")
    event_dim = 2

    def _standard(self, natural: Moments) -> tuple[Float[Array, "*batch"], Matrix]:
        rate = -2.0 * symmetric_part(natural["x"])
        return 2.0 * natural["logdet"] + rate.shape[-1] + 1.0, rate

    def moments(self, natural: Moments) -> NewMoments:
        concentration, rate = self._standard(natural)
        size = rate.shape[-1]
        halves = 0.5 * (
            concentration[..., None] - jnp.arange(size, dtype=concentration.dtype)
        )
        return {
            "x": concentration[..., None, None]
            * symmetric_part(positive_matrices.inverse(rate)),
            "logdet": digamma(halves).sum(-1)
            + size * math.log(2.0)
            - positive_matrices.log_det(rate),
        }

    def log_normalizer(self, natural: Moments) -> Float[Array, "*batch"]:
        concentration, rate = self._standard(natural)
        size = rate.shape[-1]
        return (
            multigammaln(0.5 * concentration, size)
            + 0.5 * concentration * size * math.log(2.0)
            - 0.5 * concentration * positive_matrices.log_det(rate)
        )

    def wider(self, natural: Moments, factor: float) -> NewMoments:
        return {**natural, "x": factor * natural["x"]}

    def at(self, value: Matrix) -> NewMoments:
        return {"x": value, "logdet": jnp.linalg.slogdet(value)[1]}

    def moment_shapes(self, shape: Shape) -> dict[str, Shape]:
        return {"x": shape, "logdet": shape[:-2]}

    def project(self, prior: Moments, data: Moments, noise: Moments) -> NewMoments:
        rate, deviation = _rate_and_noise(data, noise)
        return {
            "x": prior["x"] - 0.5 * denoised(rate, deviation),
            "logdet": prior["logdet"] + jnp.maximum(data["logdet"], 0.0),
        }

    def widened(self, data: Moments, noise: Moments) -> NewMoments:
        rate, deviation = _rate_and_noise(data, noise)
        # As along the axis that is known least: what noise does to the matrix's least
        # eigenvalue it does to the largest one of a precision. The logarithm of its
        # determinant counts half the rows.
        values, axes = eigh(rate)
        least = jnp.finfo(values.dtype).eps * values.max(-1, keepdims=True)
        values = jnp.maximum(values, jnp.where(least > 0, least, 1.0))
        variance = ((noise_along(axes, deviation) / values) ** 2).max(-1)
        ones = jnp.ones_like(variance)
        kept = information_kept(
            data["logdet"], noise["logdet"], ones, jnp.sqrt(variance)
        )
        return {"x": kept[..., None, None] * data["x"], "logdet": kept * data["logdet"]}

    def project_to_widen(self, data: Moments, noise: Moments) -> NewMoments:
        """The released total unchanged, and the share of `logdet` at least zero.

        A total that is not positive is kept: `share_under_noise` reads it together with
        the prior. Of very many matrices it does not, and they are moved as in
        `project`.
        """
        if data["x"].size > MOST_RATES:
            return super().project_to_widen(data, noise)
        return {**data, "logdet": jnp.maximum(data["logdet"], 0.0)}

    def share_under_noise(
        self, prior: Moments, data: Moments, noise: Moments
    ) -> NewMoments:
        if data["x"].size > MOST_RATES:
            return self.widened(data, noise)
        _, deviation = _rate_and_noise(data, noise)
        is_noisy = (deviation > 0).any((-1, -2)) | (noise["logdet"] > 0)

        def by_quadrature() -> NewMoments:
            share = _read_along_axes(prior, data, noise)
            return {
                "x": jnp.where(is_noisy[..., None, None], share["x"], data["x"]),
                "logdet": jnp.where(is_noisy, share["logdet"], data["logdet"]),
            }

        return jax.lax.cond(jnp.any(is_noisy), by_quadrature, lambda: dict(data))

    def num_below_noise(self, data: Moments, noise: Moments) -> Int[Array, ""]:
        rate, deviation = _rate_and_noise(data, noise)
        return num_small(rate, deviation)

    def neutral(self, shape: Shape) -> NewMoments:
        matrix = jnp.broadcast_to(-0.5 * jnp.eye(shape[-1]), shape)
        return {"x": matrix, "logdet": jnp.full(shape[:-2], 0.0)}

    def perturb(self, natural: Moments, key: PRNGKeyArray) -> NewMoments:
        factor = jnp.exp(0.1 * jax.random.normal(key, natural["logdet"].shape))
        return {**natural, "x": natural["x"] * factor[..., None, None]}

    def parameters(self, natural: Moments) -> NewMoments:
        concentration, rate = self._standard(natural)
        return {"concentration": concentration, "rate_matrix": rate}

    def from_parameters(self, parameters: Moments) -> NewMoments:
        concentration, rate = parameters["concentration"], parameters["rate_matrix"]
        return {
            "x": -0.5 * rate,
            "logdet": 0.5 * (concentration - rate.shape[-1] - 1.0),
        }

    def requirements(self, parameters: Moments) -> Requirements:
        concentration, rate = parameters["concentration"], parameters["rate_matrix"]
        found = super().requirements(parameters)
        found[_FEW_DEGREES] = _has_enough_degrees(concentration, rate)
        return found

    def distribution(self, parameters: Moments) -> dist.Distribution:
        return dist.Wishart(
            parameters["concentration"],
            rate_matrix=parameters["rate_matrix"],
            validate_args=False,
        )


def _read_along_axes(prior: Moments, data: Moments, noise: Moments) -> NewMoments:
    """What noisy sums of rows add to a Wishart prior, by one precision for each axis.

    Along the axes of the released total the sums are those of one precision each:
    under a Wishart density 1 / (Ω⁻¹)ᵢᵢ has a Gamma's, and `rate_of_noisy_sums` knows
    what noise leaves of it. A Wishart distribution knows all axes equally well. This
    one knows each as well as the one that is known least, and has the mean of
    log (Ω⁻¹)ᵢᵢ of each.

    Args:
      prior, data, noise: See `Family.share_under_noise`.
    """
    axes = along_axes(*_rate_and_noise(data, noise))
    basis, size = axes.basis, axes.values.shape[-1]
    transposed = jnp.swapaxes(basis, -1, -2)
    before = -2.0 * transposed @ symmetric_part(prior["x"]) @ basis
    own = jnp.maximum(jnp.diagonal(before, axis1=-2, axis2=-1), 0.0)
    # Of a precision τ, log τ and τ count half of each row and of its square.
    each = jnp.ones_like(own)
    found = rate_of_noisy_sums(
        RateShape((prior["logdet"] + 1.0)[..., None] * each, 0.5 * own),
        data["logdet"][..., None] * each,
        noise["logdet"][..., None] * each,
        0.5 * axes.values,
        0.5 * axes.noise_stddev,
    )
    least = found.concentration.min(-1)
    lower = digamma(least)[..., None] - digamma(found.concentration)
    rate = 2.0 * found.rate * jnp.exp(lower)
    # An axis on which the prior's rate falls takes its products with others along.
    tiny = jnp.finfo(own.dtype).tiny
    part = jnp.sqrt(jnp.minimum(rate / jnp.maximum(own, tiny), 1.0))
    after = part[..., :, None] * before * part[..., None, :]
    after = after + jnp.maximum(rate - own, 0.0)[..., None] * jnp.eye(size)
    added = jnp.swapaxes(axes.inverse, -1, -2) @ (after - before) @ axes.inverse
    return {
        "x": -0.5 * symmetric_part(added),
        "logdet": least - 1.0 - prior["logdet"],
    }


class InverseWishart(Inverse):
    """A random positive definite matrix whose inverse is Wishart-distributed."""

    name = "InverseWishart"
    statistics = ("inv", "logdet")
    event_dim = 2
    _of_function: ClassVar[Family] = Wishart()

    def wider(self, natural: Moments, factor: float) -> NewMoments:
        return {**natural, "inv": factor * natural["inv"]}

    def at(self, value: Matrix) -> NewMoments:
        return {"inv": jnp.linalg.inv(value), "logdet": jnp.linalg.slogdet(value)[1]}

    def parameters(self, natural: Moments) -> NewMoments:
        inverse = super().parameters(natural)
        return {
            "concentration": inverse["concentration"],
            "scale_matrix": inverse["rate_matrix"],
        }

    def from_parameters(self, parameters: Moments) -> NewMoments:
        concentration, scale = parameters["concentration"], parameters["scale_matrix"]
        return super().from_parameters(
            {"concentration": concentration, "rate_matrix": scale}
        )

    def requirements(self, parameters: Moments) -> Requirements:
        concentration, scale = parameters["concentration"], parameters["scale_matrix"]
        found = super().requirements(parameters)
        found[_FEW_DEGREES] = _has_enough_degrees(concentration, scale)
        return found

    def distribution(self, parameters: Moments) -> dist.Distribution:
        return dist.InverseWishart(
            parameters["concentration"],
            scale_matrix=parameters["scale_matrix"],
            validate_args=False,
        )
