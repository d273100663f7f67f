"""Supports are described with what they are bounded by."""

import math
from typing import Any

import numpy as np
import pytest
from numpyro.distributions import constraints

from numpyro_vips.conjugacy.families import supports


@pytest.mark.parametrize(
    ("support", "text"),
    [
        (constraints.real_vector, "Real"),
        (constraints.positive, "Positive"),
        (constraints.interval(0, 100), "Interval(0, 100)"),
        (constraints.greater_than(2.5), "GreaterThan(2.5)"),
        (constraints.interval(np.zeros(3), 1.0), "Interval"),
        (constraints.unit_interval, "UnitInterval"),
    ],
)
def test_supports_are_described_with_their_bounds(support: Any, text: str) -> None:
    assert supports.described(support) == text


@pytest.mark.parametrize(
    ("support", "bounds"),
    [
        (constraints.interval(np.zeros(3), np.ones(3)), (0.0, 1.0)),
        (constraints.interval(np.zeros(2), np.array([1.0, 2.0])), None),
        (constraints.interval(0.0, 1.0), (0.0, 1.0)),
        (constraints.greater_than(np.zeros(2)), (0.0, math.inf)),
        (constraints.greater_than(np.array([0.0, 1.0])), None),
    ],
)
def test_bounds_may_be_arrays(support: Any, bounds: tuple[float, float] | None) -> None:
    assert supports.bounds(support) == (bounds or (-math.inf, math.inf))
