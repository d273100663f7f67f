"""Sums plus Gaussian noise, as real numbers, rounded once to a public grid.

The guarantee of the Gaussian mechanism is about s + σZ, a real number. Adding in
floating point rounds in a way that depends on s: an adversary who sees all bits may
read from the last ones which s is possible (Mironov 2012). Here the real number s + σZ
is rounded to the nearest multiple of the grid's spacing. What it is rounded to is a
function of s + σZ alone, so the guarantee covers every bit and costs no δ.

Z is found from its tail probability T/2, where the binary digits of T in [0, 1) are
fair coins, and a fair sign. The first 63 digits come with the sign as one word of the
generator. They nearly always decide the grid point, in double precision and with a
bound on the error; where they do not, further digits are drawn and the quantile is
found with as many. No digits are left undecided, so there is no largest |Z|.
"""

import math
from fractions import Fraction

import numpy as np
from jaxtyping import Float64
from scipy import special

from numpyro_vips.privacy import normal_quantile

# The grid is finer than 1/1000 of the noise, so that rounding adds less than a ten
# millionth to the variance, which nobody needs to count: at most 2⁻²⁰/12.
_FINENESS = 10
_DIGITS = 63  # Of T, in the first word.
_WORD = 64
# Bound on the error of Z, and on what the roundings of its tail's probability (4 units
# of 2⁻⁵⁴), of scale · Z and of the sum with the mean (9.1 units of 2⁻⁵³ each, as |Z| is
# below 9.1) come to, all in units of the scale.
_ERROR = normal_quantile.ERROR + 2.0**-48
_PIECE = 2**13  # Numbers that are drawn together.
# Outside, a sum in units of the grid may not be a floating-point number.
_LEAST, _MOST = 1e-200, 1e200


def grid_spacing(stddev: float) -> float:
    """Spacing of the grid that noise of this standard deviation is rounded to.

    It is a power of two, and between 1/2048 and 1/1024 of the standard deviation.

    Raises:
      ValueError: The standard deviation is not between 1e-200 and 1e200.
    """
    if not _LEAST < stddev < _MOST:
        raise ValueError(
            f"Expected a standard deviation of the noise between {_LEAST:g} and "
            f"{_MOST:g}, got {stddev!r}. Scale the rows by public factors."
        )
    _, exponent = math.frexp(stddev)
    return math.ldexp(1.0, exponent - 1 - _FINENESS)


def rounded_gaussian(
    mean: Float64[np.ndarray, "*shape"],
    stddev: Float64[np.ndarray, "*#shape"] | float,
    spacing: float,
    rng: np.random.Generator,
) -> Float64[np.ndarray, "*shape"]:
    """Draws from Gaussian distributions, exactly, and rounds to multiples of `spacing`.

    Guarantees:
      With all digits of its tail probability drawn, each Z has the standard normal
      distribution, and the result is mean + stddev · Z, of real numbers, rounded to the
      nearest multiple of `spacing`; above 2⁵³ · spacing to the floating-point number
      nearest to this multiple, which is a function of it. Nothing else depends on the
      mean but the time taken and how many further words are drawn.

    Args:
      mean: Finite numbers, taken as the real numbers that they are.
      stddev: Positive numbers, of the same shape or broadcast to it.
      spacing: A power of two.
      rng: Secure generator of the noise stream.
    """
    means = mean.reshape(-1)
    stddevs = np.broadcast_to(stddev, mean.shape).reshape(-1)
    result = np.empty(means.shape)
    # Pieces that stay near the processor take half the time of everything at once.
    for start in range(0, len(means), _PIECE):
        piece = slice(start, start + _PIECE)
        result[piece] = _rounded_piece(means[piece], stddevs[piece], spacing, rng)
    return result.reshape(mean.shape)


def _rounded_piece(
    mean: Float64[np.ndarray, " piece"],
    stddev: Float64[np.ndarray, " piece"],
    spacing: float,
    rng: np.random.Generator,
) -> Float64[np.ndarray, " piece"]:
    """`rounded_gaussian` of a piece, its numbers drawn together.

    Double precision decides nearly all of them, with a bound on its error. What it
    leaves undecided goes to `nearest_point`, one number after the other.
    """
    words = rng.integers(
        np.iinfo(np.uint64).max, size=mean.shape, dtype=np.uint64, endpoint=True
    )
    tails = words >> np.uint64(1)
    # ±1 by the last digit.
    sign = 1.0 - 2.0 * (words & np.uint64(1)).astype(np.float64)
    leading = tails.astype(np.float64)
    # Between the tail probabilities that the missing digits leave open.
    normal = sign * normal_quantile.upper_quantile(
        (leading + 0.5) * 2.0 ** -(_DIGITS + 1)
    )
    # No warning may depend on the mean.
    with np.errstate(all="ignore"):
        # Divided by a power of two, numbers keep all their digits.
        scale = stddev / spacing
        units = mean / spacing
        whole = np.rint(units)
        # So does what is left of a number without its whole part.
        moved = (units - whole) + scale * normal
        steps = np.rint(moved)
        # The missing digits move log T by at most 1/(2 · leading) to either side, and Z
        # by at most √(π/2) times as much (Mills' ratio).
        error = scale * (_ERROR + 1.0 / leading) + 2.0**-52
        # The sum of two whole numbers is rounded correctly, should it be above 2⁵³.
        result = (whole + steps) * spacing
        undecided = 0.5 - np.abs(moved - steps) <= error
    for index in np.flatnonzero(undecided):
        point = nearest_point(
            float(mean[index]),
            float(stddev[index]),
            spacing,
            int(sign[index]),
            int(tails[index]),
            rng,
        )
        result[index] = point * spacing
    return result


def nearest_point(
    mean: float,
    stddev: float,
    spacing: float,
    sign: int,
    tail: int,
    rng: np.random.Generator,
) -> float:
    """The multiple of the spacing nearest to mean + stddev · Z, divided by it.

    Args:
      mean, stddev, spacing, rng: As of `rounded_gaussian`, for one number.
      sign: Of Z.
      tail: The first digits of T as a whole number.
    """
    num_digits = _DIGITS
    while True:
        word = rng.integers(np.iinfo(np.uint64).max, dtype=np.uint64, endpoint=True)
        tail = (tail << _WORD) + int(word)
        num_digits += _WORD
        if tail == 0:
            continue  # Z may be as large as one likes.
        _, largest = quantile(tail, num_digits)
        least, _ = quantile(tail + 1, num_digits)
        points = {
            _nearest((Fraction(mean) + sign * Fraction(stddev) * z) / Fraction(spacing))
            for z in (least, largest)
        }
        if len(points) == 1:
            # Rounded to even where it has too many digits, as a sum would be.
            return float(points.pop())


def _nearest(x: Fraction) -> int:
    return math.floor(x + Fraction(1, 2))


def quantile(tail: int, num_digits: int) -> tuple[Fraction, Fraction]:
    """Two numbers with the z between them at which P(Z > z) = tail/2^(num_digits + 1).

    They are about 2^-num_digits apart. That z lies between them is checked with the
    complementary error function in more digits than this can turn on.
    """
    import mpmath  # Needed about once in 10¹⁰ draws.

    # A context of its own: precision is a setting of the process otherwise.
    context = mpmath.MPContext()
    context.prec = 2 * num_digits + _WORD
    probability = context.ldexp(context.mpf(tail), -(num_digits + 1))

    def tail_of(z: mpmath.mpf) -> mpmath.mpf:
        return context.erfc(z / context.sqrt(2)) / 2

    log_probability = math.log(tail) - (num_digits + 1) * math.log(2)
    z = -context.mpf(float(special.ndtri_exp(log_probability)))
    width = context.ldexp(context.mpf(1), -num_digits)
    step = context.mpf(1)
    while abs(step) > width:
        # Newton's method on a convex function, from 15 correct digits.
        step = (tail_of(z) - probability) / context.npdf(z)
        z = z + step
    while not tail_of(z - width) > probability > tail_of(z + width):
        width = width * 2
    unit = 2**num_digits

    def floor(x: mpmath.mpf) -> int:
        return int(context.floor(context.ldexp(x, num_digits)))

    return Fraction(floor(z - width), unit), Fraction(floor(z + width) + 1, unit)
