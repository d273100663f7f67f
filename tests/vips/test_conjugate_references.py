"""Updates written out by hand in NumPy, and by scikit-learn, against compiled models.

Each reference follows its textbook: Gaussian mixtures Bishop (2006), section 10.2;
topics Blei, Ng and Jordan (2003); principal components Bishop (1999); annotators
Dawid and Skene (1979) with Dirichlet priors. All of them start where the compiled model
starts and take the same steps: every row's factors to convergence, then the globals to
convergence given their sums.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to
from _full_batch import FullBatch
from _models import MODELS, UNIT, Rows, compiled
from scipy.special import digamma, logsumexp
from sklearn.linear_model import BayesianRidge
from sklearn.mixture import BayesianGaussianMixture

from numpyro_vips.vips.e_step.evidence_bound import row_bound
from numpyro_vips.vips.program.expectations import expected_natural_of
from numpyro_vips.vips.steps.state import VipsState

SWEEPS = 6
LOCAL_SWEEPS = 300
Params = dict[str, np.ndarray]
pytestmark = pytest.mark.usefixtures("x64", "coordinate_ascent")


def batch_of(fn: Callable[..., None], rows: Rows) -> FullBatch:
    program = compiled(fn, rows)
    named = dict(zip(program.graph.arguments.row_shapes(), rows, strict=True))
    return FullBatch(program, named, LOCAL_SWEEPS)


def params_of(batch: FullBatch, state: VipsState) -> Params:
    params = batch.engine.posterior(state).params
    return {name: np.asarray(value) for name, value in params.items()}


def ascended(batch: FullBatch, state: VipsState, sweeps: int = SWEEPS) -> Params:
    for _ in range(sweeps):
        state = batch.step(state)
    return params_of(batch, state)


def close(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def normalised(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits - logsumexp(logits, axis=-1, keepdims=True))


def expected_log(concentration: np.ndarray) -> np.ndarray:
    """E[log θ] of a Dirichlet."""
    return digamma(concentration) - digamma(concentration.sum(-1, keepdims=True))


@pytest.mark.thorough
def test_gaussian_mixture() -> None:
    rows = MODELS["mixture"].rows(40)
    batch = batch_of(MODELS["mixture"].fn, rows)
    start = batch.start()
    (x,), moments = rows, start.moments
    log_pi = np.asarray(moments["weights"]["log"])
    mean = np.asarray(moments["mu"]["x"]).reshape(3, 2)
    variance = np.asarray(moments["mu"]["xx"]).reshape(3, 2) - mean**2
    tau, log_tau = (np.asarray(moments["tau"][s]) for s in ("x", "log"))
    weights = shape = rate = np.nan
    for _ in range(SWEEPS):
        squares = (x[:, None] - mean) ** 2 + variance
        r = normalised(log_pi + 0.5 * (log_tau - tau * squares).sum(-1))
        count, first, second = r.sum(0)[:, None], r.T @ x, r.T @ x**2
        weights = 1.0 + r.sum(0)
        log_pi = expected_log(weights)
        for _ in range(2000):
            variance = 1 / (1 / 25 + tau * count)
            mean = variance * tau * first
            shape = 2.0 + 0.5 * count
            rate = 1.0 + 0.5 * (
                second - 2 * mean * first + count * (mean**2 + variance)
            )
            tau, log_tau = shape / rate, digamma(shape) - np.log(rate)
    found = ascended(batch, start)
    close(found["weights/concentration"], weights)
    close(found["mu/loc"].reshape(3, 2), mean)
    close(found["mu/covariance_matrix"].reshape(3, 2), variance)
    close(found["tau/concentration"], np.broadcast_to(shape, (3, 2)))
    close(found["tau/rate"], rate)


@pytest.mark.slow
def test_latent_dirichlet_allocation() -> None:
    rows = MODELS["topics"].rows(20)
    batch = batch_of(MODELS["topics"].fn, rows)
    start = batch.start()
    (words,) = rows
    log_beta = np.asarray(start.moments["beta"]["log"])
    beta = phi = np.nan
    for _ in range(SWEEPS):
        beta = np.full(log_beta.shape, 0.3)
        for document in words:
            gamma = np.full(3, 0.5)
            for _ in range(LOCAL_SWEEPS):
                phi = normalised(expected_log(gamma) + log_beta.T[document])
                gamma = 0.5 + phi.sum(0)
            np.add.at(beta.T, document, phi)
        log_beta = expected_log(beta)
    close(ascended(batch, start)["beta/concentration"], beta)


@pytest.mark.slow
def test_principal_components() -> None:
    rows = MODELS["factor_analysis"].rows(30)
    batch = batch_of(MODELS["factor_analysis"].fn, rows)
    start = batch.start()
    (x,), moments = rows, start.moments
    n, d, k = *x.shape, 2
    W = np.asarray(moments["W"]["x"]).reshape(d, k)
    WW = np.asarray(moments["W"]["xx"]).reshape(d, k, k)
    tau = float(moments["tau"]["x"])
    covariance = shape = rate = np.nan
    for _ in range(SWEEPS):
        local = np.linalg.inv(np.eye(k) + tau * WW.sum(0))
        u = tau * x @ W @ local
        uu = n * local + u.T @ u
        for _ in range(3000):
            covariance = np.linalg.inv(np.eye(k) + tau * uu)
            W = tau * x.T @ u @ covariance
            WW = covariance + W[:, :, None] * W[:, None, :]
            error = (x**2).sum() - 2 * ((x @ W) * u).sum() + (WW.sum(0) * uu).sum()
            shape, rate = 2.0 + 0.5 * n * d, 1.0 + 0.5 * error
            tau = shape / rate
    found = ascended(batch, start)
    close(found["W/loc"].reshape(d, k), W)
    close(found["W/covariance_matrix"], np.broadcast_to(covariance, (d, k, k)))
    close(found["tau/concentration"], shape)
    close(found["tau/rate"], rate)


def annotations(rng: np.random.Generator, n: int) -> Rows:
    truth = rng.integers(0, 3, n)
    wrong = rng.random((n, 4)) < 0.3
    return (np.where(wrong, rng.integers(0, 3, (n, 4)), truth[:, None]),)


def dawid_skene(y: Any) -> None:
    with numpyro.plate("annotator", 4, dim=-2), numpyro.plate("class", 3):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.array([1.0, 0.8, 1.2])))
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate(UNIT, y.shape[0], dim=-2):
        c = numpyro.sample("c", dist.Categorical(pi), infer={"enumerate": "parallel"})
        with numpyro.plate("position", 4):
            numpyro.sample("y", dist.Categorical(beta[np.arange(4), c, :]), obs=y)


@pytest.mark.slow
def test_dawid_skene() -> None:
    rows = annotations(np.random.default_rng(3), 40)
    batch = batch_of(dawid_skene, rows)
    start = batch.start()
    (y,) = rows
    log_pi = np.asarray(start.moments["pi"]["log"])
    log_beta = np.asarray(start.moments["beta"]["log"])
    pi = beta = np.nan
    for _ in range(SWEEPS):
        # log_beta[j, class, answer], read at each answer of each item.
        said = log_beta[np.arange(4), :, y]
        r = normalised(log_pi + said.sum(1))
        pi = 1.0 + r.sum(0)
        answered = (y[:, :, None] == np.arange(3)).astype(float)
        beta = np.array([1.0, 0.8, 1.2]) + np.einsum("nc,nja->jca", r, answered)
        log_pi, log_beta = expected_log(pi), expected_log(beta)
    found = ascended(batch, start)
    close(found["pi/concentration"], pi)
    close(found["beta/concentration"], beta)


def ridge(X: Any, y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(1.5, 0.7))
    alpha = numpyro.sample("alpha", dist.Gamma(1.2, 0.8))
    with numpyro.plate("feature", X.shape[1]):
        w = numpyro.sample("w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)))
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, 1 / jnp.sqrt(tau)), obs=y)


def fitted(fn: Callable[..., None], rows: Rows) -> Params:
    """The converged parameters, through the public interface."""
    result = fit_to(fn, *rows, budget=math.inf, engine="vips")
    return {name: np.asarray(value) for name, value in result.params.items()}


@pytest.mark.thorough
def test_linear_regression() -> None:
    """By hand, and by scikit-learn with all four hyperparameters matched.

    BayesianRidge maximises the evidence over the precisions, and its fixed point is
    that of the factorised posterior: with γ the effective number of weights,
    E[τ] (2b + SSE) = 2a + n - γ on both sides.
    """
    X, y = MODELS["linear_regression"].rows(60)
    tau, alpha, d = 1.0, 1.0, X.shape[1]
    mean = covariance = tau_rate = alpha_rate = np.nan
    for _ in range(3000):
        covariance = np.linalg.inv(alpha * np.eye(d) + tau * X.T @ X)
        mean = tau * covariance @ X.T @ y
        error = ((y - X @ mean) ** 2).sum() + np.trace(X @ covariance @ X.T)
        tau_rate = 0.7 + 0.5 * error
        tau = (1.5 + 0.5 * len(y)) / tau_rate
        alpha_rate = 0.8 + 0.5 * (mean @ mean + np.trace(covariance))
        alpha = (1.2 + 0.5 * d) / alpha_rate
    found = fitted(ridge, (X, y))
    close(found["w/loc"], mean)
    close(found["w/covariance_matrix"], covariance)
    close(found["tau/rate"], tau_rate)
    close(found["alpha/rate"], alpha_rate)
    other = BayesianRidge(
        alpha_1=1.5,
        alpha_2=0.7,
        lambda_1=1.2,
        lambda_2=0.8,
        fit_intercept=False,
        tol=1e-13,
        max_iter=10_000,
    ).fit(X, y)
    close(found["w/loc"], other.coef_)
    close(found["w/covariance_matrix"], other.sigma_)
    close(found["tau/concentration"] / found["tau/rate"], other.alpha_)
    close(found["alpha/concentration"] / found["alpha/rate"], other.lambda_)


def normal_gamma_mixture(x: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.array([1.5, 1.5])))
    with numpyro.plate("component", 2):
        tau = numpyro.sample("tau", dist.Gamma(2.0, 0.5))
        mu = numpyro.sample("mu", dist.Normal(0.3, (0.2 * tau) ** -0.5))
    with numpyro.plate(UNIT, x.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi))
        numpyro.sample("x", dist.Normal(mu[z], tau[z] ** -0.5), obs=x)


@pytest.mark.slow
def test_gaussian_mixture_of_scikit_learn() -> None:
    """In one dimension, where its "diag" prior is Normal-Gamma; all priors matched.

    Its posterior couples a component's mean and precision and ours does not. Their
    expectations agree exactly given the responsibilities, which differ by E[log τ], a
    matter of 1/N².
    """
    rng = np.random.default_rng(5)
    x = np.where(
        rng.random(600) < 0.35, rng.normal(-2, 0.6, 600), rng.normal(2, 1, 600)
    )
    batch = batch_of(normal_gamma_mixture, (x,))
    start = batch.start()
    centres = jnp.array([-1.0, 1.0])
    moments = jax.tree.map(jnp.asarray, start.moments)
    moments["mu"] = {
        "x": centres.reshape(moments["mu"]["x"].shape),
        "xx": (centres**2 + 0.1).reshape(moments["mu"]["xx"].shape),
    }
    moments["tau"] = {"x": jnp.ones(2), "log": jnp.full(2, -0.1)}
    expected_natural = expected_natural_of(batch.program.structure, moments)
    start = start._replace(
        moments=jax.tree.map(np.asarray, moments), expected_natural=expected_natural
    )
    found = ascended(batch, start, sweeps=80)
    other = BayesianGaussianMixture(
        n_components=2,
        covariance_type="diag",
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=1.5,
        mean_prior=[0.3],
        mean_precision_prior=0.2,
        degrees_of_freedom_prior=4.0,  # Twice the concentration of τ.
        covariance_prior=[1.0],  # Twice the rate of τ.
        tol=1e-12,
        max_iter=5000,
        random_state=0,
    ).fit(x[:, None])
    order = np.argsort(other.means_[:, 0])
    weights = np.asarray(other.weight_concentration_)[order]
    close(found["pi/concentration"], weights, 1e-3)
    close(found["mu/loc"].ravel(), other.means_[order, 0], 1e-3)
    precision = found["tau/concentration"] / found["tau/rate"]
    close(precision, other.precisions_[order, 0], 1e-3)


def hidden_chain(y: Any) -> None:
    A = numpyro.sample("A", dist.Dirichlet(jnp.ones((3, 3))).to_event(1))
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([3]).to_event(1))
    with numpyro.plate(UNIT, y.shape[0]):
        z = 0
        for t in range(4):
            z = numpyro.sample(f"z{t}", dist.Categorical(A[z]))
            numpyro.sample(f"y{t}", dist.Normal(mu[z], 0.8), obs=y[:, t])


@pytest.mark.slow
def test_hidden_markov_chain() -> None:
    """The bound of a sequence is the sum over all hidden sequences, by brute force."""
    rows = (np.random.default_rng(0).normal(size=(5, 4)),)
    batch = batch_of(hidden_chain, rows)
    state = batch.step(batch.start())
    log_A = np.asarray(state.moments["A"]["log"])
    mean = np.asarray(state.moments["mu"]["x"]).reshape(3)
    second = np.asarray(state.moments["mu"]["xx"]).reshape(3)
    for number, y in enumerate(rows[0]):
        paths = []
        for path in itertools.product(range(3), repeat=4):
            z = np.array(path)
            steps = log_A[np.array([0, *path[:-1]]), z].sum()
            squares = y**2 - 2 * y * mean[z] + second[z]
            density = -0.5 * squares / 0.64 - math.log(0.8 * math.sqrt(2 * math.pi))
            paths.append(steps + density.sum())
        row = {name: value[number] for name, value in batch.rows.items()}
        found = row_bound(batch.program, state.expected_natural, row, 1)
        close(found, logsumexp(paths), 1e-10)


def summed_rates(X: Any, y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate(UNIT, X.shape[0]):
        numpyro.sample("y", dist.Poisson(X @ rate), obs=y)


@pytest.mark.thorough
def test_a_zero_coefficient_takes_no_share_of_a_sum() -> None:
    """With one coefficient other than zero per row, the posterior is exact."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 200)
    X = np.eye(3)[group] * 2.0
    y = rng.poisson(X @ [1.0, 4.0, 9.0]).astype(float)
    found = fitted(summed_rates, (X, y))
    counts = np.bincount(group, weights=y, minlength=3)
    close(found["rate/concentration"], 2.0 + counts)
    close(found["rate/rate"], 1.0 + X.sum(0))
