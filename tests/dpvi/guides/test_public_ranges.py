"""Where iterates are held: how far latents are numbers, and what is moved there."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

from numpyro_vips.dpvi.guides.public_ranges import PublicRanges, public_ranges
from numpyro_vips.dpvi.guides.unconstrained import GuideSite, UnconstrainedSpace

RANGES = PublicRanges(np.array([0.0, 5.0, -1e3]), np.array([64.0, 1e6, 2.0]))


def array(*values: float) -> jax.Array:
    return jnp.asarray(values, jnp.float32)


def stddev_of(arrays: Any) -> np.ndarray:
    """Standard deviations of a draw, from the form that `NormalGuide` documents."""
    square = np.ones(3)
    if "factor" in arrays:
        square = square + np.sum(np.asarray(arrays["factor"], float) ** 2, axis=1)
    return np.exp(np.asarray(arrays["log_scale"], float)) * np.sqrt(square)


@pytest.mark.parametrize("size", [1.0, 1e2, 1e18, np.inf])
@pytest.mark.parametrize("has_factor", [False, True])
def test_draws_are_inside_wherever_noise_has_led(has_factor: bool, size: float):
    """Eight standard deviations about the mean, which is what draws are taken to be."""
    arrays = {"loc": array(size, -size, size), "log_scale": array(size, 1.0, -size)}
    if has_factor:
        arrays["factor"] = size * jnp.asarray([[1.0, -2.0], [0.5, 0.0], [3.0, 1.0]])
    held = RANGES.holding(arrays)
    away = np.abs(np.asarray(held["loc"], float) - RANGES.centre)
    furthest = away + 8.0 * stddev_of(held)
    assert (furthest <= RANGES.distance * (1.0 + 1e-5)).all()
    if size > 1e6:  # The first coordinate has all that the range leaves.
        assert furthest[0] == pytest.approx(RANGES.distance[0], rel=1e-5)


def test_a_scale_is_not_lost_in_the_rounding_of_the_mean():
    held = RANGES.holding(
        {"loc": array(20.0, 5e5, -1e3), "log_scale": array(*[-90] * 3)}
    )
    loc, scale = np.asarray(held["loc"]), np.exp(np.asarray(held["log_scale"]))
    assert (loc + scale != loc).all()
    assert (scale <= 1e-6 * np.abs(loc)).all()


def test_what_is_no_number_stays_so_but_in_a_factor():
    factor = jnp.asarray([[jnp.nan, 2.0], [jnp.inf, -jnp.inf], [0.5, 0.25]])
    arrays = {"loc": array(jnp.nan, 0.0, -1e3), "log_scale": array(-3.0, jnp.nan, -4.0)}
    held = RANGES.holding({**arrays, "factor": factor})
    np.testing.assert_array_equal(np.isnan(held["loc"]), [True, False, False])
    assert np.isnan(held["log_scale"][1])
    np.testing.assert_array_equal(held["factor"][2], factor[2])
    np.testing.assert_array_equal(held["factor"][1], [0.0, 0.0])


def range_of(
    support: Any, shape: tuple[int, ...], start: Any, unit: float
) -> PublicRanges:
    site = GuideSite(name="x", support=support, shape=shape, dims=(), unit=unit)
    space = UnconstrainedSpace(sites=(site,))
    return public_ranges(space, jnp.asarray(start, jnp.float32))


# Where single precision ends: log of its largest number, and of the smallest that JAX
# does not round to zero.
LARGEST, SMALLEST = np.log(np.finfo("f4").max), -np.log(np.finfo("f4").tiny)


@pytest.mark.parametrize(
    ("support", "shape", "start", "unit", "end"),
    [
        (constraints.positive, (), [0.0], 1.0, LARGEST),
        (constraints.positive, (), [10.0], 1.0, LARGEST - 10.0),
        (constraints.positive, (), [-80.0], 1.0, SMALLEST - 80.0),
        (constraints.positive, (), [0.0], 4.0, LARGEST / 4.0),
        # One range for all elements: that of the first one to end.
        (constraints.positive, (3,), [0.0, 30.0, -5.0], 1.0, LARGEST - 30.0),
        (
            constraints.independent(constraints.positive, 1),
            (2,),
            [0.0, -80.0],
            1.0,
            SMALLEST - 80.0,
        ),
        # Above another bound a latent may round to the bound itself.
        (constraints.greater_than(2.0), (), [0.0], 1.0, LARGEST),
        (constraints.unit_interval, (), [0.0], 1.0, SMALLEST),
        (constraints.real, (), [0.0], 1.0, 2.0**50),
        (constraints.interval(-1.0, 1.0), (), [0.0], 1.0, 2.0**50),
        (constraints.corr_cholesky, (2, 2), [0.0], 1.0, 2.0**50),
    ],
)
def test_a_range_ends_where_latents_are_lost(
    support: Any, shape: Any, start: Any, unit: float, end: float
):
    ranges = range_of(support, shape, start, unit)
    np.testing.assert_array_equal(ranges.centre, np.asarray(start, np.float32))
    assert ranges.distance.shape == ranges.centre.shape
    assert (ranges.distance <= end).all()
    # The distances that are tried are twelfths of one another apart.
    assert (ranges.distance >= 0.91 * end).all()


@pytest.mark.parametrize("start", [-30.0, -5.0, 0.0, 5.0, 30.0])
@pytest.mark.parametrize(
    # NumPyro's transform to the unit interval clips, which would hide a zero.
    ("support", "unclipped"),
    [(constraints.positive, jnp.exp), (constraints.unit_interval, jax.nn.sigmoid)],
)
def test_latents_are_positive_up_to_the_ends_in_jax(
    support: Any, unclipped: Any, start: float
):
    ranges = range_of(support, (), [start], 1.0)
    ends = start + np.array([-1.0, -0.9, 0.9, 1.0]) * ranges.distance
    found = np.asarray(unclipped(array(*ends)))
    assert (np.isfinite(found) & (found > 0.0)).all()


def test_ranges_lie_in_the_order_of_the_space():
    sites = tuple(
        GuideSite(name=name, support=support, shape=shape, dims=())
        for name, support, shape in (
            ("a", constraints.real, (2,)),
            ("b", constraints.positive, ()),
        )
    )
    ranges = public_ranges(UnconstrainedSpace(sites=sites), array(1.0, 2.0, 3.0))
    np.testing.assert_array_equal(ranges.centre, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(ranges.distance > 100.0, [True, True, False])


@pytest.mark.thorough
def test_without_globals_there_is_no_range():
    ranges = public_ranges(UnconstrainedSpace(sites=()), array())
    assert ranges.centre.shape == ranges.distance.shape == (0,)
