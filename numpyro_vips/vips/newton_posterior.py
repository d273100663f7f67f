"""The posterior of factors that take Newton steps, which knows of the noise.

Residuals R̄, averaged over places with the average m̄, say of the coordinates w

    R̄ = I (w − m̄) + N(0, I) + N(0, V),

I being the rows' information, of which there is a noisy release, and V the variance of
the noise in R̄. See `noisy_information` for what that is worth. Where noise hides the
information the posterior's mean stays at m̄, where new residuals have led in every step,
and its width is nearly the prior's: nothing is taken off a matrix that is noise.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64

from numpyro_vips.vips.newton_steps import Target
from numpyro_vips.vips.noisy_information import (
    Information,
    rows_information,
    share_known,
)

# Natural parameters of a Gaussian, with the batch axes of its factor in front.
Natural = dict[str, Float64[np.ndarray, "..."]]


def natural_under_noise(
    target: Target, centre: Float64[np.ndarray, "..."], *, knows_noise: bool
) -> Natural:
    """Natural parameters of one factor.

    Args:
      target: From the averages of all steps.
      centre: m̄.
      knows_noise: Otherwise the posterior is that of the same information without noise
        in the residuals.
    """
    batch = centre.shape[:-1]
    natural = {"x": np.zeros(centre.shape), "xx": np.zeros(target.covariance.shape)}
    for index in np.ndindex(*batch):
        one = Target(*(np.asarray(field)[index] for field in target))
        x, precision = _of_one(one, centre[index], knows_noise)
        natural["x"][index], natural["xx"][index] = x, -0.5 * precision
    return natural


def _of_one(
    target: Target, centre: Float64[np.ndarray, " size"], knows_noise: bool
) -> tuple[Float64[np.ndarray, " size"], Float64[np.ndarray, "size size"]]:
    """Linear natural parameter and precision of one vector."""
    # Of the others, such as the mean of effects, rows know through the prior alone.
    read = np.flatnonzero(target.noise_stddev > 0)
    block = np.ix_(read, read)
    # In these units noise is as large in every entry of the information's diagonal.
    noise = np.diag(target.curvature_noise)[read]
    units = np.sqrt(np.where(noise > 0, noise, 1.0))
    information = Information(
        target.curvature[block] / np.outer(units, units),
        target.curvature_noise[block] / np.outer(units, units),
    )
    variance = (target.noise_stddev[read] / units) ** 2
    prior = np.diag(target.prior_precision)[read] / units**2
    found = rows_information(information, prior, variance)
    matrix = found.matrix(found.values)
    prior_slope = target.prior_linear - target.prior_precision @ centre
    residual = target.residual[read] / units
    hidden = found.matrix(1.0 - share_known(found, information))
    if knows_noise:
        kept = matrix @ np.linalg.pinv(matrix + np.diag(variance), hermitian=True)
        matrix, residual = kept @ matrix, kept @ residual
        matrix = 0.5 * (matrix + matrix.T)
    residual = residual - hidden @ (residual + prior_slope[read] / units)
    total, slope = target.prior_precision.copy(), prior_slope.copy()
    total[block] += matrix * np.outer(units, units)
    slope[read] += residual * units
    return total @ centre + slope, total


def all_under_noise(
    targets: Mapping[str, Target],
    centres: Mapping[str, Float64[np.ndarray, "..."]],
    *,
    knows_noise: bool,
) -> dict[str, Natural]:
    """`natural_under_noise` of every factor whose prior is proper."""
    return {
        name: natural_under_noise(target, centres[name], knows_noise=knows_noise)
        for name, target in targets.items()
        if np.all(np.linalg.eigvalsh(target.prior_precision) > 0)
    }
