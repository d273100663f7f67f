"""Supports are described with what they are bounded by."""

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
