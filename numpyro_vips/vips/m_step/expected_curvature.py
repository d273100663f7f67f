"""The curvature of a logistic likelihood at any place, from its release at zero.

Noise may hide the curvature I(m) = Σ σ'(ψ) xxᵀ, ψ = xᵀm, where effects are strong:
along m it is a twentieth there of what it is at zero, where it is Σ xxᵀ / 4. But what
was released at zero says in which directions to expect less. With features that have
the mean μ and the covariance Σ over rows of the total weight W, and ψ ~ Normal(a, s²)
with a = μᵀm, s² = mᵀv and v = Σm, as of Gaussian features, and nearly so of sums of
many,

    I(m) = W [c₀ (μμᵀ + Σ − vvᵀ/s²) + c₁ (μvᵀ + vμᵀ)/s² + c₂ vvᵀ/s⁴],

c_k being the mean of σ'(ψ) (ψ − a)ᵏ (by Stein's lemma). This is not taken for the
curvature. A noisy release at m₂ is read in units in which I(m₂) is the identity, so
that noise in it does not hide that some directions have less, and what is read is that
at m in units in which I(m) is; see `newton_posterior`.

It is made of released numbers alone.
"""

import math

import numpy as np
from jaxtyping import Float64

from numpyro_vips.vips.m_step.noisy_information import Information, hidden_along

# Nodes and weights of the mean over a standard Normal.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(64)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
# The least mean of the eigenvalues that is thought of, in standard deviations of the
# noise.
_LEAST_MEAN = 0.05
# Logits beyond which σ' is nothing.
_LARGEST_LOGIT = 600.0


def expected_curvatures(
    curvature: Float64[np.ndarray, "*batch size size"],
    noise_stddev: Float64[np.ndarray, "*batch size size"],
    places: Float64[np.ndarray, "*batch size"],
    *,
    constant: tuple[int, ...],
    num_rows: float,
) -> Float64[np.ndarray, "*batch size size"]:
    """The curvature to expect at some coefficients; positive semi-definite.

    Args:
      curvature: That of coefficients of zero, Σ xxᵀ / 4, with noise.
      noise_stddev: Standard deviation of the noise in each entry.
      places: The coefficients m.
      constant: The coordinates of intercepts: every row has one of these, times 1.
      num_rows: How many rows count, their weight W unless intercepts show more.
    """
    found = np.empty_like(curvature)
    for index in np.ndindex(*places.shape[:-1]):
        squares = 4.0 * _expected_of_release(curvature[index], noise_stddev[index])
        found[index] = _expected(squares, places[index], constant, num_rows)
    return found


def _expected(
    squares: Float64[np.ndarray, "size size"],
    place: Float64[np.ndarray, " size"],
    constant: tuple[int, ...],
    num_rows: float,
) -> Float64[np.ndarray, "size size"]:
    """I(m), of one vector of coefficients.

    Args:
      squares: Σ xxᵀ over rows, positive semi-definite.
      place, constant, num_rows: See `expected_curvatures`.
    """
    weight, means = float(num_rows), np.zeros(len(place))
    if constant:
        # Of several trials in a row there are more.
        chosen = list(constant)
        weight = max(weight, float(squares[np.ix_(chosen, chosen)].sum()))
        means = squares[chosen].sum(0) / weight
    second = squares / weight
    v = (second - np.outer(means, means)) @ place
    variance = float(place @ v)
    stddev = math.sqrt(max(variance, 0.0))
    halves = np.abs(means @ place + stddev * _NODES) / 2.0
    slopes = _WEIGHTS / (4.0 * np.cosh(np.minimum(halves, _LARGEST_LOGIT)) ** 2)
    # Of the standardised logit (ψ − a)/s, and v/s.
    c0, c1, c2 = (float(slopes @ _NODES**k) for k in range(3))
    along = v / stddev if stddev > 0 else np.zeros_like(v)
    across = np.outer(means, along)
    found = c0 * second + c1 * (across + across.T) + (c2 - c0) * np.outer(along, along)
    return _positive_part(weight * found)


def _expected_of_release(
    curvature: Float64[np.ndarray, "size size"],
    noise_stddev: Float64[np.ndarray, "size size"],
) -> Float64[np.ndarray, "size size"]:
    """What is expected of a matrix that was released with noise.

    Eigenvalues are compared where noise is equal in all entries of the diagonal.

    Args:
      curvature: The matrix.
      noise_stddev: Standard deviation of the noise in each entry.
    """
    own = np.diag(noise_stddev)
    if not np.any(own > 0):
        return _positive_part(curvature)
    units = np.sqrt(np.where(own > 0, own, 1.0))
    units = np.outer(units, units)
    released = Information(curvature / units, noise_stddev / units)
    found = released.spectrum
    hidden = hidden_along(found, released, least=_LEAST_MEAN)
    return found.matrix(hidden.mean) * units


def _positive_part(
    matrix: Float64[np.ndarray, "size size"],
) -> Float64[np.ndarray, "size size"]:
    values, axes = np.linalg.eigh(matrix)
    return (axes * np.maximum(values, 0.0)) @ axes.T
