"""How large residuals of labels must be, from what has been released of rows.

Where nearly all labels are alike, nearly all residuals y - σ(ψ) are small, and those
of the few others are near 1. The few are hidden by the noise of a histogram of norms,
and a norm that suits all that it shows takes from them what balances the rest, so that
intercepts run away. But a likelihood's information is the expected square of its score
(Bartlett, 1953): residuals (y - σ(ψ))x have squared norms that add up to
Σ σ'(ψ) xᵀx, seen or not. The first curvature that was released is Σ xxᵀ / 4, as logits
are zero at the start, and has the mean square s² of the logits ψ = xᵀw for any weights
w in it. As σ'(√u) is convex in u, the mean of σ'(ψ) is at least σ'(s), and the sum is
taken to be σ'(s) Σ xᵀx. It is less where large rows have large logits; what a histogram
shows is counted at the bins' upper edges, which is more than that.
"""

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64

from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.program.named_arrays import Sums


def expected_squares(
    structure: Structure,
    residuals: frozenset[str],
    first_curvature: Mapping[str, Float64[np.ndarray, "*batch size size"]],
    places: Mapping[str, Float64[np.ndarray, "*batch size"]],
    *,
    units: Sums,
    num_rows: int,
) -> dict[str, float]:
    """By residual statistic, about what the squared norms of all rows add up to.

    Args:
      structure: What was found in the model.
      residuals: Names of the statistics that are residuals, of one latent each.
      first_curvature: By factor, Σ xxᵀ / 4 with noise.
      places: By factor, the weights w.
      units: What a residual statistic's entries are multiplied by, if by anything.
      num_rows: Public number of rows.
    """
    # Of logits that several factors add up to, no more than this is known.
    root_mean_square = sum(
        math.sqrt(_mean_square(curvature, places[name], num_rows))
        for name, curvature in first_curvature.items()
    )
    # σ'(s), relative to 1/4.
    share = 1.0 / math.cosh(min(0.5 * root_mean_square, 300.0)) ** 2
    found = {}
    for statistic in structure.statistics:
        if statistic.name not in residuals:
            continue
        latent = statistic.atoms[0][0]
        name = structure.factor_of[latent]
        layout = structure.posterior_factors[name].layout
        if layout is None or name not in first_curvature:
            continue
        squares = np.diagonal(first_curvature[name], axis1=-2, axis2=-1)
        squares = squares[..., layout.span(latent)]
        if statistic.name in units:
            squares = squares * np.ravel(units[statistic.name]) ** 2
        found[statistic.name] = max(share * float(squares.sum()), 0.0)
    return found


def _mean_square(
    curvature: Float64[np.ndarray, "*batch size size"],
    place: Float64[np.ndarray, "*batch size"],
    num_rows: int,
) -> float:
    """Σ (xᵀw)² over all rows, divided by their number; noise may make it negative."""
    total = np.einsum("...i,...ij,...j->", place, curvature, place)
    return max(4.0 * float(total) / num_rows, 0.0)
