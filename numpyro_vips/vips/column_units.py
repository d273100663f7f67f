"""Units of columns, found in what has been released of them anyway.

Noise is equal in all coordinates of a released vector, but columns are not equally
large: a rare category has a hundredth of a common one's sum of squares. Where residuals
are released step by step, see `conjugacy.structure.centring`, their curvature comes
first, and its noisy diagonal says how large columns are. Residuals are multiplied by
units D made of it before rows are clipped and noise is added, and divided by them
afterwards: common columns, of which rows say much, then take more of the noise.

D is a function of released numbers, so it costs nothing, and whatever it is, a row's
residual times D is clipped to the norm that the mechanism's noise is made for.
"""

import math

import numpy as np
from jaxtyping import Float

from numpyro_vips.vips.program import ConjugateProgram

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
        latents = [latent for latent, *_ in vector.atoms]
        if len(latents) != 1 or factor_of[latents[0]] not in structure.newton:
            continue
        for matrix in structure.statistics:
            if (
                matrix.release == "refreshed"
                and matrix.matrix is not None
                and matrix.diagonal is None
                and {latent for latent, *_ in matrix.atoms} == {latents[0]}
                and matrix.block_shape == 2 * vector.shape
            ):
                found[vector.name] = matrix.name
    return found


def column_units(
    curvature: Float[np.ndarray, "columns columns"], noise_stddev: float
) -> Float[np.ndarray, " columns"]:
    """What each column's residuals are multiplied by.

    It is D_j ∝ v_j^(−1/2) with v_j the column's share of the curvature, at least twice
    its noise. The factor is such that Σ_j D_j² v_j stays what it was: the norm of a
    typical row, and with it the clipping norm, does not depend on the units.

    Args:
      curvature: Minus a noisy sum over rows of xxᵀ, each with a positive weight.
      noise_stddev: Standard deviation of the noise on its diagonal.
    """
    squares = -np.diagonal(curvature)
    equal = np.ones(len(squares))
    largest = np.maximum(squares, _LEAST * noise_stddev)
    if squares.sum() <= _LEAST * noise_stddev * math.sqrt(len(squares)):
        return equal  # The noise may have made all of it.
    kept = np.sum(squares / largest)
    if kept <= 0:
        return equal
    return np.sqrt(squares.sum() / kept / largest)
