"""Coordinates of the globals that pilots find."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from _fits import fit_to, vi_of

import numpyro_vips as nv
from numpyro_vips.dpvi.gradients.coordinates import GradientCoordinates
from numpyro_vips.vips.m_step.noisy_information import Information

RNG = np.random.default_rng(0)
N = 5000


def second_moments(values: np.ndarray, axes: np.ndarray) -> np.ndarray:
    return (axes * values) @ axes.T


def axes_of(number: int) -> np.ndarray:
    axes, _ = np.linalg.qr(RNG.normal(size=(number, number)))
    return axes


def own(number: int) -> GradientCoordinates:
    return GradientCoordinates.of_globals(
        np.eye(number), np.zeros((number, 0)), np.float64
    )


def test_without_noise_all_directions_become_alike():
    values, axes = np.array([1.0, 50.0, 1e4]) * N, axes_of(3)
    found = own(3).whitened(Information(second_moments(values, axes), 0.0), N)
    inside = found.units.T @ second_moments(values, axes) @ found.units
    np.testing.assert_allclose(inside, N * np.eye(3), rtol=1e-6, atol=1e-6 * N)
    np.testing.assert_allclose(found.units @ found.inverse, np.eye(3), atol=1e-9)
    np.testing.assert_allclose(found.units, found.units.T, atol=1e-12)
    assert found.growth == pytest.approx(np.sqrt(3 / (1 + 50 + 1e4)))


def test_weak_directions_become_as_long_as_the_strongest_allows():
    """No row is asked for more than a unit's information."""
    values = np.array([1e-3, 0.1, 0.9]) * N
    information = Information(second_moments(values, axes_of(3)), 0.0)
    found = own(3).whitened(information, N)
    inside = found.units.T @ information.matrix @ found.units
    np.testing.assert_allclose(inside, 0.9 * N * np.eye(3), atol=1e-6 * N)
    assert found.growth == pytest.approx(np.sqrt(2.7 / 1.001))


def test_what_noise_hides_stays():
    values = np.array([1e-3, 0.1, 0.9]) * N
    information = Information(second_moments(values, axes_of(3)), 1e7)
    found = own(3).whitened(information, N)
    np.testing.assert_allclose(found.units, np.eye(3), atol=1e-9)
    assert found.growth == pytest.approx(1.0)


def test_no_direction_is_longer_than_noise_would_have_it():
    noise = 0.01 * N
    values = np.array([0.0, 0.0, 0.9]) * N
    information = Information(second_moments(values, axes_of(3)), noise)
    found = own(3).whitened(information, N)
    longest = np.linalg.norm(found.units, 2)
    assert longest == pytest.approx(np.sqrt(0.9 * N / (noise * np.sqrt(6))))


def test_a_second_pilot_sees_what_the_first_one_hid():
    values, axes = np.array([3.0, 40.0, 1e5]) * N, axes_of(3)
    moments, found, noise = second_moments(values, axes), own(3), 1e3 * N
    for _ in range(3):
        inside = np.asarray(found.units.T @ moments @ found.units)
        symmetric = RNG.normal(size=(3, 3))
        symmetric = noise * (symmetric + symmetric.T) / 2
        found = found.whitened(Information(inside + symmetric, noise), N)
        # A row's product is clipped to about the trace, and so is its noise.
        noise *= found.growth**2
    inside = np.linalg.eigvalsh(found.units.T @ moments @ found.units)
    assert inside.max() / inside.min() < 50 < values.max() / values.min() / 100


def test_pilots_of_any_size_leave_coordinates_that_can_be_inverted():
    found = own(2)
    for _ in range(2):
        values = np.array([-1e60, 1e60])
        found = found.whitened(Information(second_moments(values, axes_of(2)), 1.0), N)
        product = np.asarray(found.units) @ np.asarray(found.inverse)
        np.testing.assert_allclose(product, np.eye(2), atol=1e-3)


def test_globals_that_no_row_depends_on_keep_their_units():
    values = np.array([1.0, 1e4]) * N
    moments = second_moments(values, axes_of(2))
    found = own(2).whitened(Information(moments, 0.0), N)
    of_all = found.of_all(4)
    np.testing.assert_array_equal(of_all[:2, :2], found.units)
    np.testing.assert_array_equal(of_all[2:], np.eye(4)[2:])


def counts(age, y=None):
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", age.shape[0]):
        rate = jax.numpy.exp(intercept + slope * age)
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def labels_of(**options):
    """What the steps of a fit release, in their order."""
    vi = vi_of(nv.private(counts, unit="people"), **options)
    rows = np.zeros(1000, np.float32), np.zeros(1000, np.int32)
    return [step.label for step in vi._prepare_fit(rows, {})[0].steps]


def test_pilots_are_planned_and_paid_for():
    labels = labels_of()
    at = labels.index("pilot of gradients' second moments")
    assert labels[at - 1 : at + 4] == [
        "histogram of the norms of gradients' second moments",
        "pilot of gradients' second moments",
        "histogram of the norms of gradients' second moments",
        "pilot of gradients' second moments",
        "histogram of the norms of gradient",
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"clipping_norm": 1.0, "engine": "dpvi"},
        {"engine": nv.DPVI(optimizer=optax.adam(0.1))},
        {"num_steps": 1},
    ],
    ids=["norm", "optimiser", "one step"],
)
def test_what_the_caller_says_is_in_the_globals_own_units(options):
    assert not any("pilot" in label for label in labels_of(**options))


@pytest.mark.thorough
def test_a_covariate_far_from_zero_hides_no_coefficient():
    age = RNG.uniform(18.0, 80.0, 10_000).astype(np.float32)
    y = RNG.poisson(np.exp(-1.0 + 0.03 * age))
    result = fit_to(nv.private(counts, unit="people"), age, y, insecure_seed=0)
    found = result.posterior.moments()
    # Without noise they are .028 and .00046.
    assert found["intercept"].stddev < 0.06
    assert found["slope"].stddev < 0.001
    assert abs(found["intercept"].mean + 1.0) < 3 * found["intercept"].stddev
    assert abs(found["slope"].mean - 0.03) < 3 * found["slope"].stddev
