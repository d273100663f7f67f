"""Fits by DPVI against exact and approximate posteriors."""

from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_for
from _dpvi_fits import KEY, binary_data, fit, full_sum, logistic, network, probit
from scipy import optimize, stats

from numpyro_vips.accounting import GaussianEvent, calibrate
from numpyro_vips.dpvi.guides.posteriors import NormalPosterior
from numpyro_vips.handlers import private
from numpyro_vips.privacy.batch_selection import select_rows
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism
from numpyro_vips.privacy.secure_random import SecureRandom


@pytest.mark.thorough
def test_linear_regression_finds_the_exact_posterior_mean():
    @private(unit="people")
    def linear(X: Any, y: Any = None):
        w: Any = numpyro.sample("w", dist.Normal(0, 3).expand([X.shape[1]]).to_event(1))
        with numpyro.plate("people", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 0.5), obs=y)

    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4)).astype(np.float32)
    X[:, 1] += 0.5 * X[:, 0]
    y = (X @ [1.0, -2.0, 0.5, 0.0] + 0.5 * rng.normal(size=500)).astype(np.float32)
    precision = X.T @ X / 0.25 + np.eye(4) / 9
    mean = np.linalg.solve(precision, X.T @ y / 0.25)
    posterior = fit(engine_for(linear, X, y), {"X": X, "y": y}, 2000)
    # The best mean-field Normal has the exact mean and 1/sqrt of the precisions.
    scale = 1 / np.sqrt(np.diag(precision))
    assert np.max(np.abs(posterior.loc["w"] - mean) / scale) < 0.1
    np.testing.assert_allclose(posterior.scale["w"], scale, rtol=0.1)


@pytest.mark.thorough
def test_probit_regression_agrees_with_its_laplace_approximation():
    X, y = binary_data(400, link=stats.norm.cdf)
    posterior = fit(engine_for(probit, X, y), {"X": X, "y": y}, 1000)
    sign = 2 * y.astype(float) - 1

    def loss(w: np.ndarray) -> float:
        return -stats.norm.logcdf(sign * (X @ w)).sum() + 0.5 * (w / 2) @ (w / 2)

    def gradient(w: np.ndarray) -> np.ndarray:
        t = sign * (X @ w)
        ratio = np.exp(stats.norm.logpdf(t) - stats.norm.logcdf(t))
        return -X.T @ (sign * ratio) + w / 4

    mode = optimize.minimize(loss, np.zeros(3), jac=gradient).x
    precision = np.asarray(optimize.approx_fprime(mode, gradient, 1e-5))
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert np.max(np.abs(posterior.loc["w"] - mode) / sd) < 0.3
    # Mean-field scales are those of the conditionals.
    expected = 1 / np.sqrt(np.diag(precision))
    np.testing.assert_allclose(posterior.scale["w"], expected, rtol=0.15)


@pytest.mark.slow
def test_neural_network_learns_what_no_line_can():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(300, 1)).astype(np.float32)
    y = (np.cos(3 * X[:, 0]) + 0.1 * rng.normal(size=300)).astype(np.float32)
    posterior = fit(engine_for(network, X, y), {"X": X, "y": y}, 1000)
    draws = posterior.sample(KEY, (200,))
    hidden = np.tanh(X @ draws["first"] + draws["bias"][:, None])
    fitted = np.mean(np.einsum("snh,sh->sn", hidden, draws["second"]), 0)
    line = np.polynomial.Polynomial.fit(X[:, 0], y, 1)(X[:, 0])
    assert np.mean((fitted - y) ** 2) < 0.1 * np.mean((line - y) ** 2)


@pytest.mark.slow
def test_private_fit_with_minibatches_comes_close_to_the_best_one():
    X, y = binary_data(4000, width=3)
    X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
    num_steps, rate = 200, 0.25
    engine = engine_for(logistic, X, y)
    multiplier = calibrate(
        epsilon=2.0, delta=1e-5, sampling_rate=rate, num_steps=num_steps
    )
    mechanism = GaussianMechanism(
        blocks=engine.blocks("adaptive"),
        clipping_norm=1.0,
        noise_multiplier=multiplier,
        relation="add_or_remove",
    )
    event = GaussianEvent(
        noise_stddev=mechanism.noise_stddev,
        sensitivity=mechanism.sensitivity(),
        relation="add_or_remove",
        sampling="poisson",
        sampling_rate=rate,
    )
    with pytest.warns(UserWarning, match="insecure_seed"):
        random = SecureRandom(insecure_seed=0)
    state = engine.initial_state(KEY)
    for _ in range(num_steps):
        total = np.zeros(3)
        drawn = np.isin(np.arange(len(X)), select_rows(event, len(X), random.sampling))
        rows = {"X": X, "y": y}
        total += full_sum(engine, state, rows, drawn, clipping_norm=1.0)["loc"]
        noisy = mechanism.add_noise({"loc": total}, random.noise)
        released = {"loc": noisy["loc"] / rate}
        state = engine.update(state, released, {"loc": 0.0}, 1.0)
    posterior = engine.posterior(state)
    assert isinstance(posterior, NormalPosterior)
    found = np.asarray(posterior.loc["w"])

    def loss(w):
        return np.logaddexp(0, -(2 * y - 1) * (X @ w)).sum() + 0.5 * w @ w

    best = optimize.minimize(loss, np.zeros(3)).x
    assert np.linalg.norm(found - best) < 0.25 * np.linalg.norm(best)
    excess = (loss(found) - loss(best)) / (loss(np.zeros(3)) - loss(best))
    assert excess < 0.03
