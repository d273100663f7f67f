"""What noise leaves of the rows' share, against Bayes' rule and against repetition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from numpyro_vips.conjugacy.families.dirichlet import Beta, Dirichlet
from numpyro_vips.conjugacy.families.gamma import Gamma, InverseGamma
from numpyro_vips.conjugacy.families.gaussian import Normal
from numpyro_vips.conjugacy.families.logistic_auxiliaries import PolyaGamma
from numpyro_vips.conjugacy.families.wishart import Wishart

REPETITIONS = 20_000


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


@pytest.mark.parametrize("noise", [5.0, 20.0])
def test_beta_has_the_variance_of_noisy_counts(noise: float) -> None:
    rng, rows, chance = np.random.default_rng(0), 1000, 0.3
    of_rows = chance * (1 - chance) / rows
    by_noise = noise * rng.normal(size=(2, REPETITIONS))
    counts = np.array([[rows * chance], [rows * (1 - chance)]]) + by_noise
    of_noise = np.var(counts[0] / counts.sum(0))
    data = {
        "log": jnp.asarray(rows * chance),
        "log1m": jnp.asarray(rows * (1 - chance)),
    }
    share = Beta().widened(data, dict.fromkeys(data, jnp.asarray(noise)))
    found = Beta().distribution(Beta().parameters(share))
    np.testing.assert_allclose(found.variance, of_rows + of_noise, rtol=0.05)
    np.testing.assert_allclose(share["log"] / share["log1m"], 3 / 7, rtol=1e-5)


def test_dirichlet_has_the_variance_of_noisy_counts() -> None:
    rng, noise = np.random.default_rng(1), 15.0
    counts = np.array([100.0, 300.0, 50.0, 150.0])
    shares = counts / counts.sum()
    noisy = counts + noise * rng.normal(size=(REPETITIONS, 4))
    of_noise = np.var(noisy / noisy.sum(1, keepdims=True), axis=0).sum()
    of_rows = (shares * (1 - shares)).sum() / counts.sum()
    share = Dirichlet().widened(
        {"log": jnp.asarray(counts)}, {"log": jnp.full(4, noise)}
    )
    found = Dirichlet().distribution(Dirichlet().parameters(share)).variance.sum()
    np.testing.assert_allclose(found, of_rows + of_noise, rtol=0.05)


@pytest.mark.parametrize("family", [Gamma(), InverseGamma()])
def test_gamma_has_the_variance_of_noisy_counts_and_totals(family: Gamma) -> None:
    rng = np.random.default_rng(2)
    count, total, of_count, of_total = 400.0, 100.0, 15.0, 4.0
    logs = np.log(count + of_count * rng.normal(size=REPETITIONS)) - np.log(
        total + of_total * rng.normal(size=REPETITIONS)
    )
    first, log = family.statistics
    sign = 1.0 if log == "log" and first == "x" else -1.0
    share = family.widened(
        {first: jnp.asarray(-total), log: jnp.asarray(sign * count)},
        {first: jnp.asarray(of_total), log: jnp.asarray(of_count)},
    )
    variance = special.polygamma(1, sign * float(share[log]))
    np.testing.assert_allclose(variance, 1 / count + np.var(logs), rtol=0.05)
    np.testing.assert_allclose(share[log] / share[first], -sign * count / total, 1e-5)


def test_without_noise_the_share_is_what_it_was() -> None:
    data = {"x": jnp.array([1.0, -2.0]), "xx": -0.5 * jnp.array([[2.0, 0.3], [0.3, 1]])}
    none = jax.tree.map(jnp.zeros_like, data)
    for statistic, value in Normal().widened(data, none).items():
        np.testing.assert_array_equal(value, data[statistic])


@pytest.mark.parametrize("logit", [0.0, 0.7, 4.0])
def test_the_observed_moment_of_a_polya_gamma_variable_is_the_curvature(
    logit: float,
) -> None:
    with jax.enable_x64(True):
        natural = {"x": jnp.asarray(-0.5 * logit**2)}
        moments = PolyaGamma().moments(natural)
        found = PolyaGamma().observed_moments(moments, natural)
        curvature = -jax.grad(jax.grad(jax.nn.log_sigmoid))(logit)
    np.testing.assert_allclose(found["x"], curvature, rtol=1e-10)


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


@pytest.mark.parametrize("family", [Normal(), Gamma(), InverseGamma()])
def test_either_projection_is_the_one_that_was_asked_for(family) -> None:
    rng = np.random.default_rng(7)
    with jax.enable_x64(True):
        shape = (5, 3) if family.event_dim else (5,)
        own = family.neutral(shape)
        data = {s: value + rng.normal(size=value.shape) for s, value in own.items()}
        noise = {s: jnp.full(value.shape, 0.7) for s, value in own.items()}
        nothing = {s: jnp.zeros_like(value) for s, value in own.items()}
        widened = family.project_to_widen(data, noise)
        projected = family.project(nothing, data, noise)
        either = jax.jit(family.project_either)
        for expected, to_widen in ((widened, True), (projected, False)):
            found = either(data, noise, to_widen)
            for s in expected:
                np.testing.assert_allclose(found[s], expected[s], rtol=1e-9, atol=1e-12)
    assert any(not np.allclose(widened[s], projected[s]) for s in widened)


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


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_wishart_knows_the_least_eigenvalue_as_little_as_the_noise_lets_it(
    correlation: float,
) -> None:
    """The largest precision is the inverse of what noise hides first."""
    rng, rows, stddev = np.random.default_rng(0), 5000, 60.0
    covariance = np.array([[1.0, correlation], [correlation, 1.0]])
    squares = rows * covariance
    least = []
    for _ in range(2000):
        noise = stddev * rng.normal(size=(2, 2)) / np.sqrt(2.0)
        least.append(np.linalg.eigvalsh(squares + (noise + noise.T) / np.sqrt(2.0))[0])
    by_noise = np.std(least) / np.mean(least)
    entries = np.where(np.eye(2) > 0, stddev, stddev / np.sqrt(2.0))
    share = Wishart().widened(
        {"x": jnp.asarray(-0.5 * squares), "logdet": jnp.asarray(0.5 * rows)},
        {"x": jnp.asarray(0.5 * entries), "logdet": jnp.asarray(0.0)},
    )
    parameters = Wishart().parameters(share)
    # A Wishart's relative standard deviation along any axis is √(2 / concentration).
    found = np.sqrt(2.0 / parameters["concentration"])
    expected = np.hypot(np.sqrt(2.0 / rows), by_noise)
    assert 0.9 * expected < found < 2.0 * expected
