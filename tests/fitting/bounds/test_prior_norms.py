"""Norms of rows that the priors draw, where no histogram shows any."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _engine_fit import EngineFit
from _fits import fit_to, vi_of
from scipy import stats

import numpyro_vips as nv
from numpyro_vips.fitting.bounds import prior_norms as module
from numpyro_vips.fitting.bounds.norm_histogram import NoisyCounts
from numpyro_vips.fitting.bounds.prior_norms import prior_norms, rows_in_place


def ages(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(50.0, 20.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 10.0), obs=y)


def ages_of_unknown_spread(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(50.0, 20.0))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 200.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1 / jnp.sqrt(tau)), obs=y)


def visits(y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def slopes(x: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 30.0).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def vague(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1e4))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1 / jnp.sqrt(tau)), obs=y)


def flat(y: Any) -> None:
    prior = dist.ImproperUniform(dist.constraints.real, (), ())
    mean = numpyro.sample("mean", prior)
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


NUMBERS = np.zeros(30, np.float32)


def norms_of(model: Callable[..., None], *rows: np.ndarray) -> dict[str, float]:
    fit = EngineFit(model, rows, engine="vips")
    return norms_with(fit, {})


def norms_with(fit: EngineFit, released: dict[str, NoisyCounts]) -> dict[str, float]:
    return prior_norms(fit.engine, fit.engine.program.graph, fit.parts, released)


def typical(model: Callable[..., None], row: float) -> dict[str, float]:
    """Norms by part of a row with this number, at the start."""
    y = np.full(30, row, np.float32)
    fit = EngineFit(model, (y,), engine="vips")
    names = [block for part in fit.parts for block in part.blocks]
    norms = fit.engine.row_norms(fit.start, {"y": y}, names)
    return {
        part.name: math.hypot(*(float(norms[name][0]) for name in part.blocks))
        for part in fit.parts
    }


def test_nearly_all_rows_that_the_prior_draws_are_below() -> None:
    marginal = stats.norm(50.0, math.hypot(20.0, 10.0))
    norms = norms_of(ages, NUMBERS)
    (least,) = typical(ages, float(marginal.ppf(0.92))).values()
    (most,) = typical(ages, float(marginal.ppf(0.98))).values()
    (norm,) = norms.values()
    assert least < norm < most


@pytest.mark.thorough
def test_counts_are_as_large_as_their_prior_says() -> None:
    # A Poisson with a Gamma(2, rate 0.1) is a negative binomial.
    marginal = stats.nbinom(2, 0.1 / 1.1)
    (norm,) = norms_of(visits, np.zeros(30, np.int32)).values()
    (least,) = typical(visits, float(marginal.ppf(0.9))).values()
    # Draws are log-normal, with a longer tail.
    (most,) = typical(visits, float(marginal.ppf(0.998))).values()
    assert least < norm < most


@pytest.mark.thorough
def test_responses_follow_the_priors_of_slopes() -> None:
    """Responses of slopes of 30 are larger than what covariates are alone."""
    x, y = np.zeros((30, 2), np.float32), NUMBERS
    fit = EngineFit(slopes, (x, y), engine="vips")
    norms = norms_with(fit, {})
    assert max(norms.values()) > 10 * max(part.reference for part in fit.parts)


@pytest.mark.thorough
@pytest.mark.parametrize("model", [vague, flat])
def test_norms_are_finite_whatever_the_priors(model: Callable[..., None]) -> None:
    norms = norms_of(model, NUMBERS)
    assert norms
    assert all(0 < norm < 1e12 for norm in norms.values())


@pytest.mark.thorough
def test_under_dpvi_synthetic_rows_stay() -> None:
    model = nv.private(ages, unit="rows")
    prepared, _ = vi_of(model, engine="dpvi")._prepare_fit((NUMBERS,), {})
    assert prior_norms(prepared.engine, prepared.graph, prepared.parts, {}) == {}
    assert rows_in_place(prepared.engine) == "synthetic rows"


@pytest.mark.filterwarnings("ignore:Too few rows")
def test_a_fit_of_few_rows_clips_to_them() -> None:
    """The noise may make any mean more likely, of those that the prior knows."""
    y = np.full(60, 45.0, np.float32)
    (norm,) = fit_to(ages, y).diagnostics["clipping_norms"].values()
    (expected,) = norms_of(ages, y).values()
    assert expected / 4 < norm < 4 * expected


def spread(y: Any) -> None:
    sd = numpyro.sample("sd", dist.HalfCauchy(2.5))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, sd), obs=y)


def rows_norms(fit: EngineFit) -> dict[str, np.ndarray]:
    """By part, the norms of the rows themselves at the start."""
    blocks = [block for part in fit.parts for block in part.blocks]
    found = fit.engine.row_norms(fit.start, fit.rows, blocks)
    return {
        part.name: np.sqrt(sum(np.square(found[name]) for name in part.blocks))
        for part in fit.parts
    }


def counts_of(fit: EngineFit, stddev: float) -> dict[str, NoisyCounts]:
    """The counts of the rows themselves, as if they had such noise."""
    norms = rows_norms(fit)
    return {
        part.name: NoisyCounts(
            np.bincount(
                np.searchsorted(part.grid, norms[part.name]),
                minlength=len(part.grid) + 1,
            ).astype(float),
            stddev,
        )
        for part in fit.parts
    }


def norm_with_counts(y: np.ndarray, stddev: float) -> float:
    fit = EngineFit(spread, (y,), engine="vips")
    (norm,) = norms_with(fit, counts_of(fit, stddev)).values()
    return norm


@pytest.mark.parametrize("sd", [0.2, 5.0])
def test_counts_that_stand_out_nowhere_weigh_the_priors_rows(sd: float) -> None:
    y = (sd * np.random.default_rng(1).normal(size=200)).astype(np.float32)
    largest = np.quantile(np.square(y) / 2, 0.95)
    unweighed, weighed = norm_with_counts(y, 1e9), norm_with_counts(y, 13.0)
    assert largest < weighed < 8 * largest
    assert abs(np.log(weighed / largest)) < abs(np.log(unweighed / largest))


@pytest.mark.parametrize("stddev", [0.0, 1e-3, 1e30])
def test_weights_are_finite_whatever_the_noise(stddev: float) -> None:
    y = np.zeros(200, np.float32)
    assert np.isfinite(norm_with_counts(y, stddev))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Too few rows", "ignore:What the rows say")
@pytest.mark.parametrize("model", [ages, ages_of_unknown_spread])
def test_intervals_of_few_rows_hold_the_truth(model: Callable[..., None]) -> None:
    """Norms of rows of unit size drew a mean of 45 to about 1, with an sd of 0.5."""
    rng, held = np.random.default_rng(0), []
    for _ in range(20):
        truth = 50.0 + 20.0 * rng.normal()
        y = (truth + 10.0 * rng.normal(size=60)).astype(np.float32)
        draws = fit_to(model, y).sample_posterior(
            jax.random.key(1), sample_shape=(1000,)
        )
        low, high = np.quantile(np.asarray(draws["mean"]), [0.05, 0.95])
        held.append(low < truth < high)
    assert np.mean(held) >= 0.5


@pytest.mark.thorough
def test_many_globals_are_not_drawn_for_every_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST_NUMBERS", 255)
    assert norms_of(ages, NUMBERS) == {}
