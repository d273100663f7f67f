"""The release of covariates' second moments, and the intervals that it is for."""

import dataclasses
import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.fitting.private_step import release
from numpyro_vips.fitting.schedule import INFORMATION_SHARES
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism
from numpyro_vips.privacy.releases import COVARIATES
from numpyro_vips.privacy.secure_random import SecureRandom
from numpyro_vips.vips.row_sums.covariates import (
    Covariates,
    CovariateUnits,
    bounded_moments,
    moment_norms,
    moments_block,
)

ROWS, DEGREES = 3_000, 4.0
OWN = CovariateUnits(np.zeros(3), np.ones(3))
PLACES = {"X": np.array([0, 2]), "x": np.array([0])}


def robust(X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.Gamma(3.0, 3.0))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.StudentT(DEGREES, X @ w, 1 / jnp.sqrt(tau)), obs=y)


def linear(X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)


def exposures(t: Any, y: Any = None) -> None:
    rate = numpyro.sample("rate", dist.Gamma(4.0, 2.0))
    with numpyro.plate("rows", t.shape[0]):
        own = numpyro.sample("own", dist.Gamma(3.0, rate))
        numpyro.sample("y", dist.Poisson(t * own), obs=y)


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, 2)) @ np.array([[0.8, 0.3], [0.0, 0.5]])
    y = X @ [1.0, -0.5] + 0.7 * rng.standard_t(DEGREES, ROWS)
    return X.astype(np.float32), y.astype(np.float32)


def fit_of(model: Any, epsilon: float = 1.0, **options: Any) -> nv.PrivateVI:
    return vi_of(
        model,
        budget=epsilon,
        **{
            "engine": "vips",
            "insecure_seed": 0 if math.isfinite(epsilon) else None,
            **options,
        },
    )


def run(vi: nv.PrivateVI, *rows: Any) -> nv.PrivateVIResult:
    with warnings.catch_warnings(action="ignore"):
        return vi.run(jax.random.key(0), *rows)


# --- what is released -----------------------------------------------------------------

EXTREME = [0.3, -2.0, 1e6, -1e30, np.inf, np.nan, 0.0]


def rows_of(values: Any) -> dict[str, np.ndarray]:
    """Rows whose covariates, at `PLACES`, are these numbers; the others are none."""
    values = np.asarray(values, np.float32)
    X = np.full((len(values), 3), np.nan, np.float32)
    X[:, 0], X[:, 2] = values, 1.0
    return {"X": X, "x": values}


def test_neighbours_differ_by_what_is_stated() -> None:
    scale, norm = 0.7, 3.0

    def summed(values: Any, mask: Any = None) -> np.ndarray:
        mask = np.ones(len(values), bool) if mask is None else mask
        found = bounded_moments(rows_of(values), mask, PLACES, OWN, scale, norm)
        return np.asarray(found)

    whole, reached = summed(EXTREME), 0.0
    for number in range(len(EXTREME)):
        mask = np.arange(len(EXTREME)) != number
        change = scale * np.linalg.norm(whole - summed(EXTREME, mask))
        reached = max(reached, change)
    assert 0.999 * norm < reached <= norm
    assert np.isfinite(whole).all()


def test_replacing_a_row_is_no_worse_than_stated() -> None:
    mechanism = GaussianMechanism(
        blocks=(moments_block(2),),
        clipping_norm=3.0,
        noise_multiplier=1.0,
        relation="replace_one",
    )
    places, values = {"X": np.array([0, 1])}, [0.0, 1.0, -50.0, 1e9, np.nan]
    X = np.array([(a, b) for a in values for b in values], np.float32)
    units, one = (
        CovariateUnits(np.array([0.5, -1.0]), np.array([1.0, 20.0])),
        np.ones(1, bool),
    )
    sums = [
        np.asarray(bounded_moments({"X": x[None]}, one, places, units, 1.0, 3.0))
        for x in X
    ]
    furthest = max(np.linalg.norm(a - b) for a in sums for b in sums)
    stated = mechanism.sensitivity("replace_one")
    assert stated == pytest.approx(3.0 * math.sqrt(2.0))
    assert 0.99 * stated < furthest <= stated


def test_norms_are_those_by_which_rows_are_clipped() -> None:
    norms = np.asarray(moment_norms(rows_of(EXTREME), PLACES, OWN))
    for value, norm in zip(EXTREME, norms, strict=True):
        z = np.array([1.0, value, 1.0, value])
        wanted = np.linalg.norm(np.outer(z, z))
        # In single precision, as rows are.
        if np.isfinite(wanted):
            assert norm == pytest.approx(wanted, rel=1e-6)
        else:
            assert not np.isfinite(norm)


def test_a_release_is_paid_for_and_has_the_noise_that_is_stated() -> None:
    X, y = data()
    vi = fit_of(robust)
    prepared = vi._prepare_fit((X, y), {})[0]
    (ours,) = (step for step in prepared.steps if step.label == COVARIATES)
    share = ours.share / sum(step.share for step in prepared.steps)
    assert share == pytest.approx(INFORMATION_SHARES[COVARIATES])
    assert vi.explain(X, y).statistics[-1]["released"] == "information"
    labels = [event.label for event in run(vi, X, y).privacy.events]
    assert labels.count(COVARIATES) == 1

    step = dataclasses.replace(ours, clipping_norm=100.0)
    exact = np.einsum("ri,rj->ij", *2 * [np.c_[np.ones(ROWS), X].astype(float)])
    state = prepared.engine.initial_state(jax.random.key(0))
    errors = []
    for seed in range(60):
        random = SecureRandom(insecure_seed=seed)
        found = release(prepared.arguments, prepared.engine, step, state, random, None)
        errors.append((found[COVARIATES] - exact)[np.triu_indices(3)])
    # Off the diagonal an entry counts twice, and has half the variance.
    wanted = np.where(np.eye(3), 1.0, math.sqrt(0.5)) * step.event.noise_stddev
    np.testing.assert_allclose(np.std(errors, 0), wanted[np.triu_indices(3)], rtol=0.3)
    assert step.event.noise_stddev == pytest.approx(100.0 * step.noise_multiplier)


@pytest.mark.parametrize(
    ("model", "options"),
    [(linear, {}), (robust, {"clipping_norm": 5.0})],
)
def test_nothing_is_paid_where_it_is_not_needed(model: Any, options: Any) -> None:
    X, y = data()
    steps = fit_of(model, **options)._prepare_fit((X, y), {})[0].steps
    assert COVARIATES not in [step.label for step in steps]


@pytest.mark.thorough
def test_rows_of_many_covariates_keep_their_budget() -> None:
    def wide(X: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.StudentT(4.0, w * X.mean(1), 1.0), obs=y)

    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 30)).astype(np.float32)
    steps = fit_of(wide)._prepare_fit((X, X[:, 0]), {})[0].steps
    assert COVARIATES not in [step.label for step in steps]


# --- how they are simulated -----------------------------------------------------------


def test_draws_have_the_moments() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal([1.0, -2.0, 0.0], [0.5, 1.0, 2.0], (5_000, 3))
    z = np.c_[np.ones(5_000), x]
    found = Covariates.with_moments(z.T @ z, 5_000, OWN, np.zeros(3, bool))
    drawn = found.drawn(20_000, 0)
    np.testing.assert_allclose(drawn.mean(0), x.mean(0), atol=0.05)
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(x.T), atol=0.12)


def test_positive_ones_are_log_normal_with_the_moments() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 3)) @ [
        [0.5, 0.2, 0.0],
        [0.0, 0.4, 0.1],
        [0.0, 0.0, 0.3],
    ]
    x = np.c_[2.0 * np.exp(x[:, 0]), x[:, 1] - 1.0, 0.1 * np.exp(x[:, 2])]
    z = np.c_[np.ones(20_000), x]
    positive = np.array([True, False, True])
    found = Covariates.with_moments(z.T @ z, 20_000, OWN, positive)
    drawn = found.drawn(100_000, 0)
    assert (drawn[:, positive] > 0).all()
    np.testing.assert_allclose(drawn.mean(0), x.mean(0), rtol=0.03)
    np.testing.assert_allclose(drawn.std(0), x.std(0), rtol=0.05)


@pytest.mark.thorough
def test_exposures_are_positive_and_regressors_are_not() -> None:
    X, y = data()
    counts = np.ones(ROWS, np.int32)
    for model, rows, wanted in (
        (exposures, (np.abs(y), counts), [True]),
        (robust, (X, y), [False, False]),
    ):
        prepared, _ = fit_of(model)._prepare_fit(rows, {})
        engine: Any = prepared.engine
        assert engine.on_rows.positive_covariates.tolist() == wanted


@pytest.mark.thorough
def test_a_fit_with_covariates_of_truth_values_ends() -> None:
    """It ended in an error about their sign, after the budget had been spent."""

    def model(x: Any, is_ill: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            mean = w[0] * x + w[1] * is_ill
            numpyro.sample("y", dist.StudentT(4.0, mean, 1.0), obs=y)

    X, y = data()
    result = run(fit_of(model), X[:, 0], X[:, 1] > 0, y)
    assert result.diagnostics["missing_information"] is not None


@pytest.mark.parametrize("positive", [[False, False], [True, True]])
def test_noise_leaves_a_covariance(positive: list[bool]) -> None:
    moments = np.array([[90.0, 300.0, 5.0], [300.0, 400.0, 0.0], [5.0, 0.0, -20.0]])
    for sign in (1.0, -1.0):
        units = CovariateUnits(np.array([3.0, -5.0]), np.array([1.0, 1e-3]))
        found = Covariates.with_moments(sign * moments, 100, units, np.array(positive))
        assert np.isfinite(found.root).all()
        assert np.isfinite(found.drawn(10, 0)).all()


# --- intervals ------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("epsilon", [1e5, math.inf])
def test_a_robust_regression_has_the_width_of_its_likelihood(epsilon: float) -> None:
    """Its information about weights is τ (ν + 1) / (ν + 3) of Σ xxᵀ (Lange, Little and
    Taylor, 1989); that of scale mixtures of known scales would be τ Σ xxᵀ."""
    X, y = data()
    result = run(fit_of(robust, epsilon), X, y)
    moments = result.posterior.moments()
    tau = float(moments["tau"].mean)
    information = tau * (DEGREES + 1) / (DEGREES + 3) * X.T.astype(float) @ X
    stddev = np.sqrt(np.diagonal(np.linalg.inv(information + np.eye(2) / 4.0)))
    np.testing.assert_allclose(moments["w"].stddev, stddev, rtol=0.12)
    # Of half the logarithm of tau it is 2 ν / (ν + 3) for a row.
    wanted = tau * 2.0 / math.sqrt(2.0 * DEGREES / (DEGREES + 3) * ROWS)
    assert moments["tau"].stddev == pytest.approx(wanted, rel=0.12)
    missing = result.diagnostics["missing_information"]
    assert missing + 0.02 >= 2 / (DEGREES + 3) and missing < 0.6


@pytest.mark.thorough
def test_exposures_are_covariates() -> None:
    rng = np.random.default_rng(0)
    t = rng.uniform(0.5, 3.0, ROWS)
    own = rng.gamma(3.0, 1.0 / 2.0, ROWS)
    y = rng.poisson(t * own).astype(np.int32)
    result = run(fit_of(exposures, 1e5), t.astype(np.float32), y)
    found = result.posterior.moments()["rate"]
    # A row is negative binomial: its information about the rate, by numbers.
    share = t / (2.0 + t)
    information = np.sum(3.0 * share / 2.0**2)
    assert abs(found.mean - 2.0) < 4.0 * found.stddev
    assert found.stddev == pytest.approx(1.0 / math.sqrt(information), rel=0.15)


@pytest.mark.thorough
def test_shares_have_no_log_normal_covariates() -> None:
    """Many simulated rows would be none, and so none are simulated."""

    def model(t: Any, y: Any = None) -> None:
        rate = numpyro.sample("rate", dist.Gamma(4.0, 2.0))
        with numpyro.plate("rows", t.shape[0]):
            own = numpyro.sample("own", dist.Gamma(3.0, rate))
            numpyro.sample("y", dist.Poisson(20.0 * t * (1.0 - t) * own), obs=y)

    rng = np.random.default_rng(0)
    t = rng.beta(0.5, 0.5, 500).clip(0.01, 0.99).astype(np.float32)
    y = rng.poisson(20.0 * t * (1.0 - t)).astype(np.int32)
    result = run(fit_of(model), t, y)
    assert result.diagnostics["missing_information"] is None


@pytest.mark.thorough
def test_exposures_are_simulated_however_far_apart_they_are() -> None:
    rng = np.random.default_rng(0)
    t = np.exp(rng.normal(size=ROWS)).astype(np.float32)
    y = rng.poisson(t).astype(np.int32)
    result = run(fit_of(exposures, 1e3), t, y)
    assert result.diagnostics["missing_information"] > 0.2


def test_no_private_fit_sums_rows_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any) -> None:
        raise AssertionError("rows were asked without noise")

    programs = (
        "numpyro_vips.vips.row_sums.row_programs.RowPrograms.moments_of_covariates"
    )
    monkeypatch.setattr(programs, asked)
    X, y = data()
    assert run(fit_of(robust, num_steps=1), X, y).engine == "vips"
