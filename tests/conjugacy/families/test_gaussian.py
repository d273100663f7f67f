"""What noise leaves of the rows' share of a Normal, against Bayes' rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.conjugacy.families.gaussian import Normal


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 3])
def test_normal_is_bayes_rule_for_a_noisy_linear_statistic(size: int) -> None:
    rng = np.random.default_rng(size)
    root = rng.normal(size=(size, size + 4))
    information = root @ root.T
    noise = rng.uniform(0.5, 2.0, size)
    linear = rng.normal(size=size)
    # w ~ N(0, I / 2); what is read is A w + N(0, A) + N(0, noise²).
    prior = 0.5 * np.eye(size)
    joint = information @ prior
    read = information @ prior @ information + information + np.diag(noise**2)
    mean = joint.T @ np.linalg.solve(read, linear)
    covariance = prior - joint.T @ np.linalg.solve(read, joint)

    with jax.enable_x64(True):
        share = Normal().widened(
            {"x": jnp.asarray(linear), "xx": jnp.asarray(-0.5 * information)},
            {"x": jnp.asarray(noise), "xx": jnp.zeros((size, size))},
        )
        found = Normal().parameters(
            {"x": share["x"], "xx": share["xx"] - jnp.eye(size)}
        )

    np.testing.assert_allclose(found["loc"], mean, rtol=1e-8)
    np.testing.assert_allclose(found["covariance_matrix"], covariance, rtol=1e-8)


def test_without_noise_the_share_is_what_it_was() -> None:
    data = {"x": jnp.array([1.0, -2.0]), "xx": -0.5 * jnp.array([[2.0, 0.3], [0.3, 1]])}
    none = jax.tree.map(jnp.zeros_like, data)
    for statistic, value in Normal().widened(data, none).items():
        np.testing.assert_array_equal(value, data[statistic])


@pytest.mark.thorough
def test_noise_in_a_precision_does_not_draw_coefficients_towards_zero() -> None:
    rng, noise, count = np.random.default_rng(5), 30.0, 300
    precision, w = 600.0 * np.eye(4), np.array([1.0, -2.0, 3.0, 0.5])
    sizes = np.where(np.eye(4) > 0, 1.0, np.sqrt(0.5))
    upper = np.triu(rng.normal(size=(count, 4, 4))) * sizes
    noisy = precision + noise * (upper + np.swapaxes(np.triu(upper, 1), -1, -2))

    with jax.enable_x64(True):
        linear = jnp.broadcast_to(precision @ w, (count, 4))
        data = {"x": linear, "xx": jnp.asarray(-0.5 * noisy)}
        of = {"x": jnp.full((count, 4), noise), "xx": 0.5 * noise * jnp.asarray(sizes)}
        of["xx"] = jnp.broadcast_to(of["xx"], noisy.shape)
        nothing = {s: jnp.zeros_like(value) for s, value in data.items()}
        family = Normal()
        found, ridged = (
            np.asarray(family.parameters(family.widened(share, of))["loc"])
            for share in (
                family.project_to_widen(data, of),
                family.project(nothing, data, of),
            )
        )
    error = found.std(0) / np.sqrt(count)
    # To second order an inverse of a noisy matrix is larger by its relative variance.
    second_order = np.abs(w) * 2.5 * (noise / 600.0) ** 2
    assert (np.abs(found.mean(0) - w) < 4 * error + second_order).all()
    assert (np.abs(ridged.mean(0)) < 0.98 * np.abs(w)).all()


def test_what_is_not_positive_goes_to_the_prior() -> None:
    noisy = np.diag([50.0, -8.0])
    data = {"x": jnp.array([25.0, 3.0]), "xx": jnp.asarray(-0.5 * noisy)}
    noise = {"x": jnp.full(2, 4.0), "xx": jnp.full((2, 2), 2.0)}
    share = Normal().widened(Normal().project_to_widen(data, noise), noise)
    found = Normal().parameters({"x": share["x"], "xx": share["xx"] - 0.5 * jnp.eye(2)})
    np.testing.assert_allclose(found["covariance_matrix"][1, 1], 1.0, rtol=1e-3)
    np.testing.assert_allclose(found["loc"][1], 0.0, atol=1e-3)


def test_directions_without_rows_stay_positive_beside_large_ones() -> None:
    """Of a noise far above the rows one direction is as large, the others are empty."""
    with jax.enable_x64(True):
        vector = jnp.array([0.6, 0.0, 0.8])
        noisy = 1e10 * vector[:, None] * vector
        data = {"x": jnp.array([100.0, -50.0, 20.0]), "xx": -0.5 * noisy}
        noise = {"x": jnp.full(3, 0.01), "xx": jnp.full((3, 3), 0.01)}
        share = Normal().widened(data, noise)
        values = np.linalg.eigvalsh(np.asarray(-2.0 * share["xx"]))
    assert values.min() > -1e-4
