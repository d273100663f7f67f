"""Steps of least squares lead no further than noise in the products lets them."""

import numpy as np

from numpyro_vips.vips.m_step.known_steps import known_part


def test_without_noise_a_step_stays_as_it_is() -> None:
    step, products = np.array([3.0, -1e6]), np.diag([4.0, 1e-6])
    found = known_part(step, products, np.zeros((2, 2)))
    np.testing.assert_allclose(found, step, rtol=1e-12)
    # Even where rows say nothing.
    np.testing.assert_array_equal(
        known_part(step, 0.0 * products, 0.0 * products), step
    )


def test_of_a_direction_that_noise_hides_there_is_no_step() -> None:
    products = np.diag([1000.0, -3.0])
    found = known_part(np.array([2.0, 1e5]), products, np.full((2, 2), 10.0))
    np.testing.assert_allclose(found[0], 2.0, rtol=1e-3)
    assert abs(found[1]) < 1e-9


def test_as_far_as_noise_is_as_large_as_the_products_half_of_the_step_is_left() -> None:
    found = known_part(np.array([8.0]), np.array([[6.0]]), np.array([[3.0]]))
    np.testing.assert_allclose(found, 8.0 * 16.0 / 17.0)
    # Below two standard deviations they count as no larger than two.
    found = known_part(np.array([8.0]), np.array([[3.0]]), np.array([[3.0]]))
    np.testing.assert_allclose(found, 8.0 / 2.0)


def test_units_of_columns_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    half = rng.normal(size=(3, 40))
    products, noise, step = half @ half.T, np.full((3, 3), 9.0), rng.normal(size=3)
    units = np.array([1.0, 1e3, 1e-4])
    of_products = np.outer(units, units)
    there = known_part(step / units, products * of_products, noise * of_products)
    found = known_part(step, products, noise)
    np.testing.assert_allclose(there * units, found, rtol=1e-9)


def test_two_columns_that_are_alike_are_known_in_their_sum_alone() -> None:
    products, noise = 100.0 * np.ones((2, 2)), np.full((2, 2), 10.0)
    found = known_part(np.array([51.0, -49.0]), products, noise)
    np.testing.assert_allclose(found, [1.0, 1.0], rtol=0.02)
