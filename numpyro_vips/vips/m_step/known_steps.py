"""How far a step of coefficients is known, from the noisy products of their features.

Least squares divide one noisy sum by another. In directions in which noise hides the
products of features, such a step leads anywhere, and rows that are looked at from there
have residuals of the step's size.
"""

import numpy as np
from jaxtyping import Float64

# Products that are smaller, in standard deviations of their noise, count as that large.
_LEAST = 2.0


def known_part(
    step: Float64[np.ndarray, " size"],
    products: Float64[np.ndarray, "size size"],
    noise_stddev: Float64[np.ndarray, "size size"],
    *,
    margin: float = 1.0,
) -> Float64[np.ndarray, " size"]:
    """A step, shortened in the directions that noise hides.

    Along an eigenvector of the products, each in units of its own size, with value λ it
    is shortened to λ⁴ / (λ⁴ + (m s)⁴). Here s² is the sum over the variances of what
    turns the eigenvector into each of the others: where that is above λ, it is any
    vector (Benaych-Georges and Nadakuditi, 2011).

    Args:
      step: Of coefficients.
      products: Noisy sums over rows of ψψᵀ, in the coordinates of the step, up to a
        positive factor.
      noise_stddev: Standard deviations of the noise in them.
      margin: How many times the noise a direction needs to be half known, m.
    """
    size = np.maximum(np.diagonal(products), _LEAST * np.diagonal(noise_stddev))
    scale = np.sqrt(np.where(size > 0, size, 1.0))
    values, axes = np.linalg.eigh(products / np.outer(scale, scale))
    noise = noise_stddev / np.outer(scale, scale)
    variance = (axes.T**2 @ noise**2 @ axes**2).sum(1)
    values = np.maximum(values, 0.0)
    total = values**4 + margin**4 * variance**2
    known = np.where(total > 0, values**4 / np.where(total > 0, total, 1.0), 1.0)
    return (axes * known) @ (axes.T @ (scale * step)) / scale
