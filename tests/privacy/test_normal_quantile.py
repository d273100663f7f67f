"""The error of the normal quantile function, proved cell by cell."""

import functools
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import special

from numpyro_vips.privacy import normal_quantile
from numpyro_vips.privacy.normal_quantile import ERROR, upper_quantile

CONTEXT: Any = mpmath.MPContext()
CONTEXT.prec = 120
ROUNDING = CONTEXT.mpf(2) ** -53
DEGREE = normal_quantile._DEGREE


def exact(p):
    """z with P(Z > z) = p, in 120 bits."""
    p = CONTEXT.mpf(float(p))
    z, steps = CONTEXT.mpf(-float(special.ndtri(float(p)))), []
    for _ in range(2):
        steps.append((CONTEXT.erfc(z / CONTEXT.sqrt(2)) / 2 - p) / CONTEXT.npdf(z))
        z += steps[-1]
    # Newton's method squares the error, up to a factor of z.
    assert abs(steps[-1]) < 1e-24
    return z


@functools.cache
def polynomials(count):
    """P₁, P₂, ..., as lists of whole coefficients by growing powers of z."""
    found = [[1]]
    for order in range(1, count):
        last = found[-1]
        derivative = [power * c for power, c in enumerate(last)][1:]
        raised = [0] + [order * c for c in last]
        derivative += [0] * (len(raised) - len(derivative))
        found.append([a + b for a, b in zip(derivative, raised, strict=True)])
    return found


def derivatives(z, count):
    """dᵏz/dpᵏ for k = 0, 1, ..."""
    density = CONTEXT.npdf(z)
    return [z] + [
        sum(c * z**power for power, c in enumerate(of_z)) / (-density) ** order
        for order, of_z in enumerate(polynomials(count - 1), start=1)
    ]


def errors_in_cell(index):
    """The sum of all errors that there may be in a cell.

    These are errors of coefficients, the Taylor series' remainder, and the rounding of
    Horner's scheme (Higham 2002, section 5.1).
    """
    start, end = normal_quantile._EDGES[index : index + 2]
    half = CONTEXT.mpf(float(end - start)) / 2
    used = normal_quantile._COEFFICIENTS[:, index]
    true = derivatives(exact(normal_quantile._CENTRES[index]), DEGREE + 1)
    wrong = size = CONTEXT.mpf(0)
    for order, (coefficient, derivative) in enumerate(zip(used, true, strict=True)):
        reach = half**order
        coefficient = CONTEXT.mpf(float(coefficient))
        wrong += abs(coefficient - derivative / CONTEXT.factorial(order)) * reach
        size += abs(coefficient) * reach
    # Largest where p is smallest.
    steepest = abs(derivatives(exact(start), DEGREE + 2)[-1])
    remainder = steepest * half ** (DEGREE + 1) / CONTEXT.factorial(DEGREE + 1)
    operations = 2 * DEGREE
    rounding = operations * ROUNDING / (1 - operations * ROUNDING) * size
    return wrong + remainder + rounding


def test_the_polynomials_grow_with_z():
    """So a derivative is largest at the least probability of a cell."""
    assert all(min(of_z) >= 0 for of_z in polynomials(DEGREE + 1))


def test_derivatives_are_those_of_the_quantile_function():
    z, first, second, third = derivatives(exact(0.2), 4)
    step = CONTEXT.mpf(2) ** -20
    at = [exact(0.2 + float(n * step)) for n in (-1, 0, 1)]
    assert z == at[1]
    assert float(first) == pytest.approx(float((at[2] - at[0]) / (2 * step)), rel=1e-9)
    bend = (at[2] - 2 * at[1] + at[0]) / step**2
    assert float(second) == pytest.approx(float(bend), rel=1e-9)
    assert third < 0


def test_the_error_is_below_its_bound_in_every_cell():
    """All probabilities between 2⁻⁶⁴ and ½ are in these cells."""
    edges = normal_quantile._EDGES
    assert (edges[0], edges[-1], len(edges)) == (2.0**-64, 0.5, 63 * 32 + 1)
    assert np.all(np.diff(edges) > 0)
    largest = max(errors_in_cell(index) for index in range(len(edges) - 1))
    assert largest < ERROR


def test_numbers_are_in_their_cells():
    """The subtraction of a centre is exact, and no further from it than half a cell."""
    edges, centres = normal_quantile._EDGES, normal_quantile._CENTRES
    inner = np.nextafter(edges[1:], 0)
    for place in (edges[:-1], inner):
        cell = normal_quantile._cell_of(place) - normal_quantile._FIRST
        np.testing.assert_array_equal(cell, np.arange(len(centres)))
        assert np.all(np.abs(place - centres) <= 0.5 * np.diff(edges))
    # The end of the last cell belongs to it.
    assert abs(upper_quantile(np.array([0.5]))[0]) < ERROR


def test_quantiles_are_those_of_mpmath():
    rng = np.random.default_rng(0)
    p = np.concatenate([0.5 * rng.random(100), 2.0 ** -rng.uniform(1, 64, 300)])
    p = np.append(p, [2.0**-64, 1.5 * 2.0**-64, np.nextafter(0.5, 0)])
    found = upper_quantile(p)
    for probability, z in zip(p, found, strict=True):
        assert abs(float(CONTEXT.mpf(float(z)) - exact(probability))) < ERROR
