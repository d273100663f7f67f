"""Quantiles of the standard normal distribution, to a proved error.

SciPy's function is accurate wherever it is tried, and it cannot be tried everywhere.
Here it is asked at 2,016 points alone. Between them z is a Taylor polynomial of the
probability p, whose remainder has a bound: with φ the normal density,

    dᵏz/dpᵏ = (−1)ᵏ Pₖ(z)/φ(z)ᵏ,   P₁ = 1,   Pₖ₊₁ = Pₖ′ + k z Pₖ,

and Pₖ has no negative coefficient, so that for z ≥ 0 a derivative is largest where p is
smallest. `tests/privacy/test_normal_quantile.py` compares each coefficient with more
digits and adds up, for every cell, all errors there are.
"""

import numpy as np
from jaxtyping import Float64, Int64
from numpy.polynomial import polynomial
from scipy import special

# Bound on the error for probabilities between 2⁻⁶⁴ and ½.
ERROR = 2.0**-45
# Of the Taylor polynomials.
_DEGREE = 6
# The floating-point numbers between two powers of two are in 2⁵ cells of equal width.
_CELLS_OF_OCTAVE = 5
_MANTISSA = 52
_SHIFT = np.uint64(_MANTISSA - _CELLS_OF_OCTAVE)
_LEAST, _MOST = 2.0**-64, 0.5


def upper_quantile(p: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """The z with P(Z > z) = p for a standard normal Z, up to `ERROR`.

    Args:
      p: Probabilities between 2⁻⁶⁴ and ½. Of others the result means nothing.
    """
    cell = np.clip(_cell_of(p) - _FIRST, 0, len(_CENTRES) - 1)
    # Exact, as numbers of one cell are.
    away = p - _CENTRES[cell]
    result = _COEFFICIENTS[_DEGREE].take(cell)
    for coefficients in _COEFFICIENTS[-2::-1]:
        result *= away
        result += coefficients.take(cell)
    return result


def _cell_of(p: Float64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """Exponent and first digits of a number, which grow with it, as a whole number."""
    return (p.view(np.uint64) >> _SHIFT).astype(np.int64)


def _edges() -> Float64[np.ndarray, " edges"]:
    """Where cells begin, and where the last one ends."""
    first, end = _cell_of(np.array([_LEAST, _MOST])).tolist()
    starts = np.arange(first, end + 1, dtype=np.uint64) << _SHIFT
    return starts.view(np.float64)


def _taylor(
    centres: Float64[np.ndarray, " cells"],
) -> Float64[np.ndarray, "orders cells"]:
    """Coefficients of z about each centre, by growing powers of p."""
    z = -special.ndtri(centres)
    density = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
    coefficients, of_z = [z], np.ones(1)
    factor = np.ones_like(z)
    for order in range(1, _DEGREE + 1):
        factor = -factor / (order * density)
        coefficients.append(polynomial.polyval(z, of_z) * factor)
        of_z = polynomial.polyadd(
            polynomial.polyder(of_z), order * polynomial.polymulx(of_z)
        )
    return np.stack(coefficients)


_EDGES = _edges()
_FIRST = int(_cell_of(_EDGES[:1])[0])
_CENTRES = 0.5 * (_EDGES[:-1] + _EDGES[1:])
_COEFFICIENTS = _taylor(_CENTRES)
