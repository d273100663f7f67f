"""Where Newton steps lead, from the latest residuals and their noise."""

from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from numpyro_vips.conjugacy.families.family import Moments, NewMoments
from numpyro_vips.conjugacy.families.gaussian import Normal
from numpyro_vips.conjugacy.families.positive_matrices import symmetric_part
from numpyro_vips.vips.m_step.shares import (
    about_zero,
    moments_of,
    released_share,
    share_of_prior,
    total_of_shares,
)
from numpyro_vips.vips.program.named_arrays import ByStatistic, MomentsByFactor
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.units.frames import Frame


def newton_targets(
    program: ConjugateProgram,
    statistics: ByStatistic,
    noise_stddev: Mapping[str, Float[Array, "..."]],
    moments: MomentsByFactor,
    centre: Mapping[str, Float[Array, "..."]],
    gain: float | Float[Array, ""] = 1.0,
    frames: Mapping[str, Frame] | None = None,
) -> dict[str, dict[str, Float[Array, "..."]]]:
    """The fields of a `NewtonTarget` for each factor that takes Newton steps.

    Full steps go by the latest residuals, with the factors' priors given the other
    factors; see `conjugacy.structure.centring`.

    Args:
      program: The compiled model.
      statistics: One sum over all rows per statistic, with the latest residuals.
      noise_stddev: Standard deviation of the noise in each of them.
      moments: Moments of the globals' posterior, by factor.
      centre: By factor, the point about which the latest residuals were taken, and from
        which the step goes.
      gain: Which part of the step will be taken.
      frames: By factor, the coordinates in which its statistics were taken, its centre
        is given and its target is found; those of the model for other factors.
    """
    structure, frames = program.structure, frames or {}
    found = {}
    for name in sorted(structure.newton):
        factor = structure.posterior_factors[name]
        released, noise = released_share(
            structure, factor, statistics, noise_stddev, moments
        )
        assert isinstance(factor.family, Normal)
        share = factor.family.project_for_step(released, noise, gain)
        own = share_of_prior(structure, factor, moments, program.prior_terms)
        own = frames[name].natural_in(own) if name in frames else own
        share = _held_back(share, own, noise["x"])
        share = about_zero(share, centre[name])
        natural = total_of_shares(structure, factor, own, share)
        end = moments_of(structure, factor, natural)
        found[name] = {
            "mean": end["x"],
            "covariance": end["xx"] - factor.family.at(end["x"])["xx"],
            "residual": released["x"],
            "noise_stddev": noise["x"],
            "curvature": -2.0 * symmetric_part(released["xx"]),
            "curvature_noise": 2.0 * symmetric_part(noise["xx"]),
            "prior_linear": own["x"],
            "prior_precision": -2.0 * symmetric_part(own["xx"]),
        }
    return found


def _held_back(
    share: Moments, prior: Moments, noise_stddev: Float[Array, "..."]
) -> NewMoments:
    """A share of rows with a ridge, so that noise does not carry steps off.

    Where rows say less than noise, residuals are a random walk, which the prior alone
    holds back: with few rows it went ten of the prior's standard deviations away, where
    residuals are no longer linear in the coordinates. Steps of noise with standard
    deviation s through a ridge s/σ have the size of the prior's σ. The ridge is about
    the point where rows were asked, so that it moves no optimum.

    Args:
      share: Of a Gaussian factor, about that point.
      prior: Natural parameters of the prior, given the other factors.
      noise_stddev: Of the noise in the residuals of a step.
    """
    precision = -2.0 * jnp.diagonal(prior["xx"], axis1=-2, axis2=-1)
    ridge = noise_stddev * jnp.sqrt(jnp.maximum(precision, 0.0))
    matrix = ridge[..., None] * jnp.eye(ridge.shape[-1])
    return {"x": share["x"], "xx": share["xx"] - 0.5 * matrix}
