"""Which family a latent gets."""

from typing import Any

import pytest
from numpyro.distributions import constraints

from numpyro_vips.conjugacy.families import find_family

POSITIVE = constraints.positive


FOUND = [
    (constraints.real, {"x"}, "Normal"),
    (constraints.real, {"x", "xx"}, "Normal"),
    (constraints.real_vector, {"x", "xx"}, "Normal"),
    (constraints.real, {"x", "xx", "xxx"}, None),
    (constraints.real, {"log"}, None),
    (POSITIVE, {"x", "log"}, "Gamma"),
    (POSITIVE, {"log"}, "Gamma"),
    (POSITIVE, {"1/x", "log"}, "InverseGamma"),
    (POSITIVE, {"x", "1/x", "log"}, "GeneralizedInverseGaussian"),
    (POSITIVE, {"x^-2", "log"}, "RootInverseGamma"),
    (POSITIVE, {"x^2", "x", "log"}, None),
    (POSITIVE, {"x^0.5"}, None),
    (constraints.nonnegative, {"x", "log"}, "Gamma"),
    (constraints.unit_interval, {"log", "log1m"}, "Beta"),
    (constraints.interval(0.0, 1.0), {"log1m"}, "Beta"),
    (constraints.interval(0.0, 2.0), {"log"}, None),
    (constraints.unit_interval, {"x"}, None),
    (constraints.simplex, {"log"}, "Dirichlet"),
    (constraints.simplex, {"x"}, None),
    (constraints.positive_definite, {"x", "logdet"}, "Wishart"),
    (constraints.positive_definite, {"inv", "logdet"}, "InverseWishart"),
    (constraints.positive_definite, {"inv", "x"}, None),
    (constraints.independent(POSITIVE, 1), {"x", "log"}, "Gamma"),
    (constraints.greater_than(3.0), {"x", "log"}, None),
    (constraints.less_than(0.0), {"x"}, None),
    (constraints.ordered_vector, {"x", "xx"}, None),
    (constraints.circular, {"x", "xx"}, None),
]


@pytest.mark.parametrize(("support", "statistics", "name"), FOUND)
def test_find_family(support: Any, statistics: set[str], name: str | None) -> None:
    family = find_family(support, statistics)
    assert (family and family.name) == name
