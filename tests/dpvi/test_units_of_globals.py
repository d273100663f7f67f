"""The units in which globals are, from their priors."""

import numpy as np
import pytest
from numpyro.distributions import constraints

from numpyro_vips.dpvi.guides.unconstrained import GuideSite
from numpyro_vips.dpvi.units_of_globals import moderate_scales, unit_of

REAL = GuideSite(name="m", support=constraints.real, shape=(), dims=())
POSITIVE = GuideSite(name="s", support=constraints.positive, shape=(), dims=())


@pytest.mark.parametrize(
    ("site", "scale", "centre", "unit"),
    [
        (REAL, 0.25, 0.0, 0.25),  # A narrow prior says it,
        (REAL, 50.0, 120.0, 64.0),  # and so does one away from zero,
        (REAL, 50.0, 0.0, 4.0),  # and a wide one about zero, by its tenth.
        (REAL, 8.0, 0.0, 1.0),
        (POSITIVE, 3.0, 9.0, 1.0),  # A logarithm has its own.
    ],
)
def test_priors_say_the_unit(
    site: GuideSite, scale: float, centre: float, unit: float
) -> None:
    assert unit_of(site, np.array(scale), np.array(centre)) == unit


def test_numbers_with_priors_of_their_own_have_units_of_their_own() -> None:
    site = GuideSite(name="m", support=constraints.real_vector, shape=(2,), dims=())
    scale = np.array([0.25, 50.0])
    assert unit_of(site, scale, np.zeros(2)) == (0.25, 4.0)
    assert unit_of(site, np.full(2, 50.0), np.zeros(2)) == 4.0


def test_numbers_with_priors_that_are_much_alike_share_a_unit() -> None:
    """As the levels of a random walk, of which the first is known best."""
    site = GuideSite(name="w", support=constraints.real_vector, shape=(4,), dims=())
    scale = 0.6 * np.sqrt(np.arange(1, 5))
    assert unit_of(site, scale, np.zeros(4)) == 1.0


def test_only_scales_of_logarithms_are_cut_short() -> None:
    found = moderate_scales({"a": np.array(9.0), "b": np.array(9.0)}, {"a"})
    assert found == {"a": 3.0, "b": 9.0}
