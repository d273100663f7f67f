"""The posterior of factors that take Newton steps, which knows of the noise.

Residuals R̄, averaged over places with the average m̄, say of the coordinates w

    R̄ = I (w − m̄) + N(0, I) + N(0, V),

I being the rows' information, of which there is a noisy release, and V the variance of
the noise in R̄. See `noisy_information` for what that is worth: K = I (I + V)⁻¹ I, about
m̄ + I⁻¹ R̄. What was released of I, at a place before m̄, is read in units in which the
information that is expected there is the identity, and is taken to be the same at m̄ in
units in which that is; see `expected_curvature`.

- The posterior that is handed out stays at m̄ where noise hides the information, where
  new residuals have led in every step, and its width is nearly the prior's there:
  nothing is taken off a matrix that is noise. Where so few rows cannot have led
  anywhere, m̄ is noise as well, and the posterior is the prior. So it is along what the
  releases show that rows say nothing of; see `absent_columns` and `unseen_sums`.
- Other globals, such as a precision α of the weights, are solved for given the Gaussian
  of the prior times that likelihood, without exception. Coordinate ascent on the
  evidence of what was released, q(w) ∝ exp⟨log p(w | α)⟩ p(R̄ | w) and
  q(α) ∝ p(α) exp⟨log p(w | α)⟩, has the expected squares of this q(w) for α. Of a
  direction of which nothing is known they are the prior's, which leaves α as it is. A
  ridge that is taken for information makes them smaller: α grows until the weights are
  shrunk to nothing. A mean at m̄, with the prior's width beside it, counts twice, and α
  falls.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int

from numpyro_vips.vips.m_step.noisy_information import (
    Information,
    Spectrum,
    rows_information,
    share_from_rows,
    share_known,
)
from numpyro_vips.vips.m_step.unseen_sums import without_nothing
from numpyro_vips.vips.steps.newton_steps import NewtonTarget

# What is expected of a direction is no less than that many standard deviations of the
# noise in a coordinate's own entry.
_LEAST_EXPECTED = 0.1

# What is left of a direction in coordinates that it does not have, by rounding.
_ROUNDING = 1e-9

# Natural parameters of a Gaussian, with the batch axes of its factor in front.
Natural = dict[str, Float64[np.ndarray, "..."]]


class _Units(NamedTuple):
    """Units U of coordinates, a matrix M of which is U⁻¹ M U⁻ᵀ in them.

    Attributes:
      root: U.
      inverse: U⁻¹.
    """

    root: Float64[np.ndarray, "read read"]
    inverse: Float64[np.ndarray, "read read"]

    def of_matrix(
        self, matrix: Float64[np.ndarray, "read read"]
    ) -> Float64[np.ndarray, "read read"]:
        """A symmetric matrix of the coordinates, in these units."""
        found = self.inverse @ matrix @ self.inverse.T
        return 0.5 * (found + found.T)


class _Known(NamedTuple):
    """What was released says of one vector, of the coordinates that rows read.

    Attributes:
      read: Which these are. Of the others, such as the mean of effects, rows know
        through the prior alone.
      precision: K, or I for the same information without noise in the residuals.
      slope: K I⁻¹ R̄, or R̄: the likelihood's gradient at m̄.
      units: Those that the fields below are in, see `_units`.
      found: The rows' information.
      information: What was released of it.
      prior: The prior's precision, of each coordinate alone.
      variance: Of the noise in the residuals.
    """

    read: Int[np.ndarray, " read"]
    precision: Float64[np.ndarray, "read read"]
    slope: Float64[np.ndarray, " read"]
    units: _Units
    found: Spectrum
    information: Information
    prior: Float64[np.ndarray, "read read"]
    variance: Float64[np.ndarray, "read read"]

    def away(
        self, slope: Float64[np.ndarray, " read"], limit: float
    ) -> Float64[np.ndarray, " read"]:
        """A gradient's part along directions that noise hides, though rows can have led
        there.

        Args:
          slope: The gradient.
          limit: See `Information.limit`, of this vector.
        """
        information = self.information._replace(limit=limit)
        from_rows = share_from_rows(self.found, information, self.prior, self.variance)
        shares = (1.0 - share_known(self.found, information)) * from_rows
        hidden = self.found.matrix(shares)
        return self.units.root @ (hidden @ (self.units.inverse @ slope))


def natural_under_noise(
    target: NewtonTarget,
    centre: Float64[np.ndarray, "..."],
    *,
    knows_noise: bool,
    limit: float = math.inf,
) -> Natural:
    """Natural parameters of one factor.

    Args:
      target: From the averages of all steps.
      centre: m̄.
      knows_noise: Otherwise the posterior is that of the same information without noise
        in the residuals.
      limit: See `Information.limit`, in standard deviations of the noise in an entry of
        the diagonal. It is shared by the factor's vectors.
    """
    natural = _nothing(target, centre)
    evenly = limit / max(math.prod(centre.shape[:-1]), 1)
    for index in np.ndindex(*centre.shape[:-1]):
        one = target.at(index)
        x, precision = _of_one(one, centre[index], knows_noise, evenly)
        natural["x"][index], natural["xx"][index] = x, -0.5 * precision
    return natural


def share_of_rows(
    target: NewtonTarget,
    centre: Float64[np.ndarray, "..."],
    *,
    knows_noise: bool,
    keeps_squares: bool,
) -> Natural:
    """What rows add to the natural parameters of one factor, for the other globals.

    Args:
      target, centre, knows_noise: See `natural_under_noise`. Without noise these are
        the sums as they are.
      keeps_squares: See `rows_information`.
    """
    share = _nothing(target, centre)
    for index in np.ndindex(*centre.shape[:-1]):
        one = target.at(index)
        if not np.any(one.noise_stddev) and not np.any(one.curvature_noise):
            precision, slope = one.curvature, one.residual
        else:
            known = _known(one, knows_noise, keeps_squares=keeps_squares)
            precision, slope = np.zeros_like(one.curvature), np.zeros_like(one.residual)
            precision[np.ix_(known.read, known.read)] = known.precision
            slope[known.read] = known.slope
        share["x"][index] = precision @ centre[index] + slope
        share["xx"][index] = -0.5 * precision
    return share


def _nothing(target: NewtonTarget, centre: Float64[np.ndarray, "..."]) -> Natural:
    return {"x": np.zeros(centre.shape), "xx": np.zeros(target.covariance.shape)}


def _known(
    target: NewtonTarget, knows_noise: bool, *, keeps_squares: bool = False
) -> _Known:
    """What the release says of one vector; see `_Known`.

    Args:
      target, knows_noise: See `natural_under_noise`.
      keeps_squares: See `rows_information`.
    """
    read = np.flatnonzero(target.noise_stddev > 0)
    block = np.ix_(read, read)
    units = _units(target, target.expected, read)
    there = _units(target, target.expected_there, read)
    information = Information(
        there.of_matrix(target.curvature[block]),
        target.curvature_noise[block],
        silent=_silent(target.silent, read, there.root),
        coordinates=there.inverse.T,
    )
    variance = units.of_matrix(np.diag(target.noise_stddev[read] ** 2))
    prior = units.of_matrix(np.diag(np.diag(target.prior_precision)[read]))
    found = rows_information(information, prior, variance, keeps_squares=keeps_squares)
    matrix = found.matrix(found.values)
    slope = units.inverse @ target.residual[read]
    if knows_noise:
        # I (I + V)⁻¹, V being positive for every coordinate that is read.
        kept = np.linalg.solve(matrix + variance, matrix).T
        matrix, slope = kept @ matrix, kept @ slope
        matrix = 0.5 * (matrix + matrix.T)
    precision, slope = units.root @ matrix @ units.root.T, units.root @ slope
    return _Known(read, precision, slope, units, found, information, prior, variance)


def _units(
    target: NewtonTarget,
    expected: Float64[np.ndarray, "size size"] | None,
    read: Int[np.ndarray, " read"],
) -> _Units:
    """Units by a root U of a matrix UUᵀ that the information is compared with.

    In such units the information's eigenvalues are taken to be alike, as long as noise
    does not show otherwise. So the matrix is the information that is expected, where
    that is known. Otherwise it is that of which noise is as large in every entry of the
    diagonal. Along silent directions,
    where rows have no information, units are of a size with the others: what is left
    there of noise and of shrinking would be a unit of next to nothing, in directions
    that are nearly these, and noise in such units hides everything.

    Args:
      target: What was released.
      expected: The information that is expected.
      read: The coordinates that rows read.
    """
    noise = np.diag(target.curvature_noise)[read]
    alone = np.sqrt(np.where(noise > 0, noise, 1.0))
    if expected is None:
        return _Units(np.diag(alone), np.diag(1.0 / alone))
    matrix = expected[np.ix_(read, read)] / np.outer(alone, alone)
    silent = _silent(target.silent, read, np.diag(alone))
    if silent is not None and silent.shape[1] < len(read):
        projection = np.eye(len(read)) - silent @ silent.T
        matrix = projection @ matrix @ projection
        size = np.trace(matrix) / (len(read) - silent.shape[1])
        matrix = matrix + size * silent @ silent.T
    values, axes = np.linalg.eigh(matrix)
    sizes = np.sqrt(np.maximum(values, _LEAST_EXPECTED))
    return _Units(
        alone[:, None] * ((axes * sizes) @ axes.T), (axes / sizes) @ axes.T / alone
    )


def _silent(
    silent: Float64[np.ndarray, "size directions"] | None,
    read: Int[np.ndarray, " read"],
    root: Float64[np.ndarray, "read read"],
) -> Float64[np.ndarray, "read directions"] | None:
    """Directions among the coordinates that rows read, in units of this root."""
    if silent is None or np.any(abs(np.delete(silent, read, axis=0)) > _ROUNDING):
        return None
    return np.linalg.qr(root.T @ silent[read])[0]


def _of_one(
    target: NewtonTarget,
    centre: Float64[np.ndarray, " size"],
    knows_noise: bool,
    limit: float,
) -> tuple[Float64[np.ndarray, " size"], Float64[np.ndarray, "size size"]]:
    """Linear natural parameter and precision of one vector."""
    found = without_nothing(target, centre)
    posterior = _given(found.sure, centre, knows_noise, limit)
    if found.all is not None:
        without = _given(found.all, centre, knows_noise, limit)
        posterior = posterior.mixed(without, found.chance)
    precision = np.linalg.inv(posterior.covariance)
    precision = 0.5 * (precision + precision.T)
    return precision @ posterior.mean, precision


class _Posterior(NamedTuple):
    """Of one vector."""

    mean: Float64[np.ndarray, " size"]
    covariance: Float64[np.ndarray, "size size"]

    def mixed(self, other: "_Posterior", chance: float) -> "_Posterior":
        """The mean and the covariance of a mixture with another of that weight."""
        away = other.mean - self.mean
        return _Posterior(
            self.mean + chance * away,
            (1.0 - chance) * self.covariance
            + chance * other.covariance
            + chance * (1.0 - chance) * np.outer(away, away),
        )


def _given(
    target: NewtonTarget,
    centre: Float64[np.ndarray, " size"],
    knows_noise: bool,
    limit: float,
) -> _Posterior:
    """The posterior of one vector, given of which directions rows say nothing."""
    known = _known(target, knows_noise)
    read = known.read
    centre = _settled(target, centre, read)
    total = target.prior_precision.copy()
    slope = target.prior_linear - total @ centre
    away = known.away(known.slope + slope[read], limit)
    total[np.ix_(read, read)] += known.precision
    slope[read] += known.slope - away
    covariance = np.linalg.inv(total)
    found = _Posterior(centre + covariance @ slope, covariance)
    return found if target.most_known is None else _as_they_may_be_absent(target, found)


def _as_they_may_be_absent(target: NewtonTarget, known: _Posterior) -> _Posterior:
    """The posterior with what rows say at most of latents.

    Each latent has the mean of both cases, that rows say nothing of it and that they
    do, and no less than the variance of both. If they say nothing it is as the prior
    has it given the others. Those are left as they are: what is taken off a matrix in
    one direction would be a ridge in those that go with it.

    Args:
      target: What was released.
      known: The posterior if no latent is absent.
    """
    axes, absent = target.axes, target.absent
    assert axes is not None and absent is not None and target.most_known is not None
    slope = target.prior_precision @ known.mean - target.prior_linear
    prior, back = axes.T @ target.prior_precision @ axes, np.linalg.inv(axes)
    own, covariance = np.diag(prior), back @ known.covariance @ back.T
    away = axes.T @ slope / own
    # What the prior has of a latent for one more of each other one.
    of_others = np.eye(len(own)) - prior / own[:, None]
    of_prior = np.sum((of_others @ covariance) * of_others, axis=1)
    wider = 1.0 / (own + target.most_known) + absent * of_prior
    wider += absent * (1.0 - absent) * away**2
    added = np.maximum(wider - np.diag(covariance), 0.0)
    return _Posterior(
        known.mean - axes @ (absent * away),
        known.covariance + (axes * added) @ axes.T,
    )


def _settled(
    target: NewtonTarget,
    centre: Float64[np.ndarray, " size"],
    read: Int[np.ndarray, " read"],
) -> Float64[np.ndarray, " size"]:
    """The centre with the coordinates that no row reads where the prior has them.

    The mean of effects may be anywhere else there, as no residual is asked for at it. A
    pull of the prior towards that place would be taken for one that noise hides.
    """
    others = np.setdiff1d(np.arange(len(centre)), read)
    precision = target.prior_precision[np.ix_(others, others)]
    slope = (target.prior_linear - target.prior_precision @ centre)[others]
    settled = centre.copy()
    settled[others] += np.linalg.solve(precision, slope)
    return settled


def all_under_noise(
    targets: Mapping[str, NewtonTarget],
    centres: Mapping[str, Float64[np.ndarray, "..."]],
    *,
    knows_noise: bool,
    limit: float = math.inf,
) -> dict[str, Natural]:
    """`natural_under_noise` of every factor whose prior is proper."""
    return {
        name: natural_under_noise(
            target, centres[name], knows_noise=knows_noise, limit=limit
        )
        for name, target in targets.items()
        if is_proper(target)
    }


def shares_of_rows(
    targets: Mapping[str, NewtonTarget],
    centres: Mapping[str, Float64[np.ndarray, "..."]],
    *,
    knows_noise: bool,
    keeps_squares: bool,
) -> dict[str, Natural]:
    """`share_of_rows` of every factor whose prior is proper."""
    return {
        name: share_of_rows(
            target,
            centres[name],
            knows_noise=knows_noise,
            keeps_squares=keeps_squares,
        )
        for name, target in targets.items()
        if is_proper(target)
    }


def is_proper(target: NewtonTarget) -> bool:
    """Whether the prior of all vectors of a factor is."""
    return bool(np.all(np.linalg.eigvalsh(target.prior_precision) > 0))
