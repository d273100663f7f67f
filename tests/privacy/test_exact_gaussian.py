"""Noise is added as real numbers are, and rounded once, to the last bit."""

import math
from collections import deque
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from numpyro_vips.privacy import exact_gaussian
from numpyro_vips.privacy.exact_gaussian import (
    grid_spacing,
    quantile,
    rounded_gaussian,
)
from numpyro_vips.privacy.gaussian_mechanism import Block, GaussianMechanism
from numpyro_vips.privacy.secure_random import SecureRandom

WORD = 64


class Words:
    """A generator of chosen words."""

    def __init__(self, words: Iterable[int]) -> None:
        self.left = deque(words)

    def integers(self, high: Any, size: Any = None, **_: Any) -> Any:
        if size is None:
            return np.uint64(self.left.popleft())
        count = math.prod(size)
        words = [self.left.popleft() for _ in range(count)]
        return np.array(words, dtype=np.uint64).reshape(size)


def word_of(tail: int, negative: bool = False) -> int:
    """A first word, with the leading 63 digits of a tail probability."""
    return 2 * tail + negative


def exact_normal(digits: int, num_digits: int, negative: bool = False) -> Any:
    """Z whose |Z| is exceeded with half the probability 0.digits, in 300 bits."""
    with mpmath.workprec(300):
        log_tail = mpmath.log(mpmath.mpf(digits)) - (num_digits + 1) * mpmath.log(2)
        start = -float(special.ndtri_exp(float(log_tail)))
        z = mpmath.findroot(
            lambda z: mpmath.log(mpmath.erfc(z / mpmath.sqrt(2)) / 2) - log_tail,
            start,
            tol=1e-150,
        )
        return -z if negative else z


def exact_point(mean: float, stddev: float, spacing: float, z: Any) -> Any:
    """(mean + stddev · z)/spacing in 300 bits."""
    with mpmath.workprec(300):
        return (mpmath.mpf(mean) + mpmath.mpf(stddev) * z) / mpmath.mpf(spacing)


def nearest(point: Any) -> int:
    with mpmath.workprec(300):
        return int(mpmath.floor(point + mpmath.mpf(0.5)))


def one(mean: float, stddev: float, spacing: float, words: Any) -> float:
    return float(rounded_gaussian(np.array(mean), stddev, spacing, words))


# --- the grid -------------------------------------------------------------------------


@pytest.mark.parametrize("stddev", [1e-150, 0.7, 1.0, math.nextafter(2, 0), 3e90])
def test_the_grid_is_a_power_of_two_far_finer_than_the_noise(stddev):
    spacing = grid_spacing(stddev)
    assert math.frexp(spacing)[0] == 0.5
    assert 1024 <= stddev / spacing < 2048
    assert spacing**2 / 12 < 1e-7 * stddev**2


@pytest.mark.parametrize("stddev", [0.0, 1e-250, 1e250, math.inf, math.nan])
def test_noise_without_a_grid_is_refused(stddev):
    with pytest.raises(ValueError, match="standard deviation"):
        grid_spacing(stddev)


def test_released_numbers_are_grid_points_to_the_last_bit():
    blocks = (
        Block(name="vector", shape=(500,), scale=0.3),
        Block(name="matrices", shape=(7, 6, 6), symmetric=True),
        Block(name="hollow", shape=(9, 9), symmetric=True, hollow=True),
        Block(name="number", shape=()),
    )
    mechanism = GaussianMechanism(
        blocks=blocks, clipping_norm=1.7, noise_multiplier=2.3, relation="replace_one"
    )
    rng = np.random.default_rng(0)
    sums = {block.name: 1e3 * rng.standard_normal(block.shape) for block in blocks}
    noisy = mechanism.add_noise(sums, SecureRandom().noise)
    for block in blocks:
        stddev = mechanism.block_noise_stddev(block.name)
        least = stddev / math.sqrt(2) if block.symmetric else stddev
        value = noisy[block.name] / grid_spacing(least)
        np.testing.assert_array_equal(value, np.rint(value))
        # They are not all on a coarser one.
        assert block.shape == () or np.any(value % 2 == 1)
        assert noisy[block.name].shape == block.shape
        if block.symmetric:
            np.testing.assert_array_equal(value, np.swapaxes(value, -1, -2))


# --- the distribution -----------------------------------------------------------------


def tail_of_chi_square(
    points: np.ndarray, mean: float, stddev: float, spacing: float
) -> float:
    """How likely counts of grid points are so far from a Gaussian's or farther."""
    inner = np.arange(-8, 9)
    edges = (np.append(inner, 9) - 0.5) * spacing
    below = stats.norm.cdf(edges, mean, stddev)
    expected = len(points) * np.diff([0.0, *below, 1.0])
    index = np.clip(points - inner[0] + 1, 0, len(expected) - 1)
    counts = np.bincount(index.astype(int), minlength=len(expected))
    # Points that are hardly ever met count as one.
    rare = expected < 10
    expected = [*expected[~rare], expected[rare].sum()]
    return stats.chisquare([*counts[~rare], counts[rare].sum()], expected).pvalue


@pytest.mark.parametrize("sum_", [0.3, -1.05, 2.0**40 + 0.3, -(2.0**40) - 1.05])
@pytest.mark.parametrize("ratio", [0.5, 1.9])
def test_grid_points_have_the_exact_probabilities(sum_, ratio):
    """On a coarse grid, which a sum that is far larger moves by a whole number."""
    count, spacing = 200_000, 0.5
    stddev = ratio * spacing
    rng = np.random.default_rng(1)
    drawn = rounded_gaussian(np.full(count, sum_), stddev, spacing, rng)
    offset = float(np.rint(sum_))
    points = (drawn - offset) / spacing
    np.testing.assert_array_equal(points, np.rint(points))
    left = sum_ - offset
    assert tail_of_chi_square(points, left, stddev, spacing) > 1e-3
    assert tail_of_chi_square(points, left + 0.02, stddev, spacing) < 1e-3
    assert tail_of_chi_square(points, left, 1.02 * stddev, spacing) < 1e-3


def test_numbers_of_one_draw_are_independent():
    drawn = rounded_gaussian(
        np.zeros(50_000), 1.0, grid_spacing(1.0), SecureRandom().noise
    )
    for lag in (1, 2, 7):
        correlation = np.corrcoef(drawn[lag:], drawn[:-lag])[0, 1]
        assert abs(correlation) < 5 / math.sqrt(len(drawn))
    signs = np.corrcoef(np.sign(drawn), np.abs(drawn))[0, 1]
    assert abs(signs) < 5 / math.sqrt(len(drawn))


# --- single draws ---------------------------------------------------------------------


def tails() -> list[int]:
    """Leading digits over the whole range, in the far tail and where SciPy's rational
    functions meet."""
    rng = np.random.default_rng(2)
    whole = 2**63
    found = [1, 2, 3, 1000, 2**20 + 1, 2**40 + 1, whole // 2, whole - 1]
    found += [int(x) for x in rng.integers(whole, size=100)]
    found += [int(whole * 2.0**-x) for x in rng.uniform(1, 60, size=100)]
    for seam in (math.exp(-2), math.exp(-32)):
        found += [int(2 * seam * whole * (1 + x)) for x in rng.normal(0, 1e-9, size=20)]
    return found


def test_draws_are_those_of_mpmath():
    mean, stddev = 1234.5678, 0.37
    spacing = grid_spacing(stddev)
    further = 0x0123456789ABCDEF
    for number, tail in enumerate(tails()):
        negative = number % 2 == 1
        words = Words([word_of(tail, negative), further])
        z = exact_normal((tail << WORD) + further, 63 + WORD, negative)
        expected = nearest(exact_point(mean, stddev, spacing, z))
        assert one(mean, stddev, spacing, words) == expected * spacing


@pytest.mark.parametrize("zeros", [0, 1, 3])
def test_tails_have_no_end(zeros):
    """126 leading zeros are beyond 12 standard deviations, and so on."""
    mean, stddev = -5.0, 1.5
    spacing = grid_spacing(stddev)
    words = [0] * zeros + [1, 2**27]
    digits = (1 << WORD) + 2**27
    z = exact_normal(digits, 63 + (zeros + 2) * WORD, True)
    expected = nearest(exact_point(mean, stddev, spacing, z))
    queue = Words([word_of(0, True), *words])
    assert one(mean, stddev, spacing, queue) == expected * spacing
    assert not queue.left
    assert float(-z) > (12.0, 16.0, 0.0, 20.0)[zeros]


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("tail", [2**30 + 7, 2**45 + 3, 2**62 + 2**61 + 12345])
def test_further_digits_decide_at_a_boundary(tail, negative):
    """The sum is chosen so that the first word leaves two grid points open."""
    stddev = 1.3
    spacing = grid_spacing(stddev)
    middle = exact_normal(2 * tail + 1, 64, negative)
    with mpmath.workprec(300):
        mean = float((mpmath.mpf(0.5) + 7) * spacing - mpmath.mpf(stddev) * middle)
    found = set()
    for further in (0, 2**62, 2**63 - 1, 2**63, 2**64 - 1):
        z = exact_normal((tail << WORD) + further + 1, 63 + WORD, negative)
        expected = nearest(exact_point(mean, stddev, spacing, z))
        # A third word is there should the second leave it open.
        queue = Words([word_of(tail, negative), further, 2**63])
        point = one(mean, stddev, spacing, queue) / spacing
        assert len(queue.left) < 2, "The first word was taken to decide."
        assert point == expected
        found.add(point)
    if tail < 2**50:
        # Before the sum's own last digit, so that either point occurs.
        assert found == {7.0, 8.0}


def test_where_a_word_decides_no_other_is_drawn():
    stddev = 1.3
    spacing = grid_spacing(stddev)
    queue = Words([word_of(2**45 + 3), 0])
    z = exact_normal(2**45 + 3, 63)
    with mpmath.workprec(300):
        mean = float(7 * spacing - mpmath.mpf(stddev) * z)
    assert one(mean, stddev, spacing, queue) == 7 * spacing
    assert len(queue.left) == 1


def test_a_quantile_lies_between_its_bounds():
    for tail, num_digits in [(1, 64), (3, 200), (2**126 + 5, 127), (2**127, 127)]:
        low, high = quantile(tail, num_digits)
        assert 0 < high - low < Fraction(1, 2 ** (num_digits - 3))
        with mpmath.workprec(600):
            target = mpmath.ldexp(mpmath.mpf(tail), -(num_digits + 1))

            def tail_of(z: Fraction) -> Any:
                x = mpmath.mpf(z.numerator) / z.denominator
                return mpmath.erfc(x / mpmath.sqrt(2)) / 2

            assert tail_of(low) > target > tail_of(high)


# --- sums that are far larger than the noise ------------------------------------------


@pytest.mark.parametrize("size", [2.0**20, 1e8, 2.0**43, 2.0**50, 2.0**60, 2.0**90])
def test_no_bit_of_a_large_sum_is_lost(size):
    """What is released is a grid point, or the floating-point number nearest to it."""
    rng = np.random.default_rng(4)
    stddev = 0.9
    spacing = grid_spacing(stddev)
    for tail in rng.integers(2**63, size=20):
        mean = float(size * stddev * (1 + rng.random()))
        z = exact_normal((int(tail) << 1) + 1, 64)
        expected = nearest(exact_point(mean, stddev, spacing, z))
        got = one(mean, stddev, spacing, Words([word_of(int(tail)), 2**63]))
        assert got == float(expected) * spacing


# --- the stream -----------------------------------------------------------------------


def test_the_same_words_make_the_same_noise_however_many_are_drawn_at_once():
    count = 2 * exact_gaussian._PIECE + 100
    means = np.random.default_rng(5).normal(size=count)
    spacing = grid_spacing(1.0)
    at_once = rounded_gaussian(means, 1.0, spacing, np.random.default_rng(6))
    rng = np.random.default_rng(6)
    parts = [rounded_gaussian(x, 1.0, spacing, rng) for x in np.array_split(means, 11)]
    np.testing.assert_array_equal(at_once, np.concatenate(parts))


def test_each_number_has_its_own_standard_deviation():
    stddevs = np.tile([1.0, 3.0, 0.5], 20_000)
    rng = np.random.default_rng(7)
    drawn = rounded_gaussian(np.zeros(60_000), stddevs, 2.0**-12, rng)
    measured = drawn.reshape(-1, 3).std(0)
    np.testing.assert_allclose(measured, [1.0, 3.0, 0.5], rtol=0.03)
