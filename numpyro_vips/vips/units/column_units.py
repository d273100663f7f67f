"""Units of columns, from priors and from what has been released of them.

Noise is equal in all coordinates of a released vector, but columns are not equally
large: a rare category has a hundredth of a common one's sum of squares. Where residuals
are released step by step, see `conjugacy.structure.centring`, their curvature comes
first, and its noisy diagonal says how large columns are. Residuals are multiplied by
units D made of it before rows are clipped and noise is added, and divided by them
afterwards: common columns, of which rows say much, then take more of the noise. So is
the curvature the next time, by DDᵀ. Before anything is released, the priors of the
coefficients say in which units columns are; where rows are many, a histogram of each
column then says it better (`fitting.bounds.column_histogram`).

D is a function of public and released numbers, and whatever it is, a row's residual
times D, and its curvature times DDᵀ, are clipped to the norms that the mechanism's
noise is made for.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Array, Float, Float64

from numpyro_vips.model.synthetic.prior_centre import units_of_prior
from numpyro_vips.vips.program.named_arrays import InDouble, as_rows_know
from numpyro_vips.vips.program.program import ConjugateProgram

# Sums of squares that are smaller, in standard deviations of their noise, count as
# that large.
_LEAST = 2.0


def columns_with_squares(program: ConjugateProgram) -> dict[str, str]:
    """By the name of a vector of residuals, the refreshed matrix of their curvature."""
    structure = program.structure
    factor_of = structure.factor_of
    found = {}
    for vector in structure.statistics:
        if vector.release != "adaptive" or len(vector.shape) != 1 or vector.summed:
            continue
        latents = vector.latents
        if len(latents) != 1 or factor_of[latents[0]] not in structure.newton:
            continue
        for matrix in structure.statistics:
            if (
                matrix.release == "refreshed"
                and matrix.matrix is not None
                and matrix.diagonal is None
                and {*matrix.latents} == {*latents}
                and matrix.block_shape == 2 * vector.shape
            ):
                found[vector.name] = matrix.name
    return found


def column_units(
    curvature: Float[np.ndarray, "columns columns"],
    noise_stddev: Float[np.ndarray, " columns"],
    before: Float[np.ndarray, " columns"],
) -> Float[np.ndarray, " columns"]:
    """What each column's residuals are multiplied by.

    In the units of before it is D_j ∝ v_j^(−1/2) with v_j the column's share of the
    curvature, at least twice its noise. The factor is such that Σ_j D_j² v_j stays what
    it was: the norm of a typical row, and with it the clipping norm, does not depend on
    the units.

    Args:
      curvature: Minus a noisy sum over rows of xxᵀ, each with a positive weight.
      noise_stddev: Standard deviations of the noise on its diagonal.
      before: The units in which the curvature was released.
    """
    squares, noise = -np.diagonal(curvature) * before**2, noise_stddev * before**2
    largest = np.maximum(squares, _LEAST * noise)
    if squares.sum() <= _LEAST * math.hypot(*noise):
        return before  # The noise may have made all of it.
    kept = np.sum(squares / largest)
    if kept <= 0:
        return before
    return before * np.sqrt(squares.sum() / kept / largest)


def units_of_priors(
    program: ConjugateProgram,
    squares: Mapping[str, str],
    stddev: Mapping[str, Float[Array | np.ndarray, "..."]],
) -> dict[str, Float64[np.ndarray, "..."]]:
    """By statistic, the units before anything is known of columns.

    Args:
      program: The compiled model.
      squares: See `columns_with_squares`.
      stddev: By factor, standard deviations of its coordinates in the prior.
    """
    found = {}
    for residual, curvature in squares.items():
        factor, place = _coefficients(program, residual)
        mine = np.asarray(stddev[factor], np.float64)
        found |= units_of(residual, curvature, first_column_units(mine[place]))
    return found


def suited_to_sizes(
    program: ConjugateProgram,
    squares: Mapping[str, str],
    units: Mapping[str, Float64[np.ndarray, "..."]],
    moments: InDouble,
    sizes: Mapping[str, Float64[np.ndarray, " _columns"]],
) -> tuple[dict[str, Float64[np.ndarray, "..."]], InDouble]:
    """Units, and moments of the globals at the start, once sizes are known.

    Args:
      program, squares: See `units_of_priors`.
      units, moments: Those before, by statistic and by factor.
      sizes: By vector of residuals, how large each column is in these units, over what
        it would be in rows of unit size.
    """
    found, start = dict(units), dict(moments)
    for residual, of_columns in sizes.items():
        found |= units_of(residual, squares[residual], units[residual] / of_columns)
        factor, place = _coefficients(program, residual)
        start[factor] = narrower(start[factor], place, of_columns)
    return found, start


def narrower(
    moments: Mapping[str, Float64[np.ndarray, "..."]],
    places: slice | Sequence[int],
    sizes: Float64[np.ndarray, " _columns"],
) -> dict[str, Float64[np.ndarray, "..."]]:
    """Moments of coefficients that start more surely, by how large their columns are.

    With the variance of a wide prior logits would be so unsure that rows had no
    curvature.

    Args:
      moments: Of a Gaussian block.
      places: Where the coefficients stand in it.
      sizes: How large each column is, over what it would be in rows of unit size.
    """
    mean = moments["x"]
    factors = np.ones(mean.shape[-1])
    factors[places] = 1.0 / np.maximum(sizes, 1.0)
    square = mean[..., :, None] * mean[..., None, :]
    covariance = np.outer(factors, factors) * (moments["xx"] - square)
    return {"x": mean, "xx": square + covariance}


def _coefficients(program: ConjugateProgram, residual: str) -> tuple[str, slice]:
    """The factor of a vector of residuals, and where its coefficients stand in it."""
    structure = program.structure
    (vector,) = (s for s in structure.statistics if s.name == residual)
    latent = vector.latents[0]
    factor = structure.posterior_factors[structure.factor_of[latent]]
    assert factor.layout is not None
    return factor.name, factor.layout.span(latent)


def first_column_units(
    stddev: Float[np.ndarray, " columns"],
) -> Float[np.ndarray, " columns"]:
    """What columns are multiplied by before anything is known of them.

    Coefficients in units of their priors go with columns in the inverse ones, see
    `units_of_prior`. A flat prior says nothing.

    Args:
      stddev: Prior standard deviations of the columns' coefficients.
    """
    units = units_of_prior(stddev)
    return np.where(np.isfinite(units) & (units > 0), units, 1.0)


def units_of(
    residual: str, curvature: str, of_columns: Float[np.ndarray, " columns"]
) -> dict[str, Float64[np.ndarray, "..."]]:
    """Units of a vector of residuals and of the matrix of their curvature, by name.

    Args:
      residual, curvature: Names of the statistics.
      of_columns: What each column is multiplied by.
    """
    units = as_rows_know(of_columns)
    return {residual: units, curvature: as_rows_know(np.outer(units, units))}
