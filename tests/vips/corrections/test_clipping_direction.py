"""Which way clipping draws the globals: what is said, beside what it does."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _engine_fit import EngineFit

RNG = np.random.default_rng(0)
COUNT = 400


def rate_of_counts(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def rate_of_waits(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Exponential(rate), obs=y)


def mean(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 100.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 2.0), obs=y)


def spread(y):
    spread = numpyro.sample("spread", dist.HalfNormal(50.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(3.0, spread), obs=y)


def variance(y):
    variance = numpyro.sample("variance", dist.InverseGamma(2.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, jnp.sqrt(variance)), obs=y)


def precision(y):
    precision = numpyro.sample("precision", dist.Gamma(2.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, 1 / jnp.sqrt(precision)), obs=y)


def chance_of_runs(y):
    """Failures before the first success: their number is all that rows differ in."""
    chance = numpyro.sample("chance", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.GeometricProbs(chance), obs=y)


def mean_and_spread(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 100.0))
    spread = numpyro.sample("spread", dist.HalfNormal(50.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, spread), obs=y)


COUNTS = RNG.poisson(3.0, COUNT)
REALS = (6.0 + 4.0 * RNG.normal(size=COUNT)).astype(np.float32)
WAITS = RNG.exponential(2.0, COUNT).astype(np.float32)
RUNS = RNG.geometric(0.3, COUNT) - 1

KNOWN: dict[str, tuple[Any, np.ndarray, dict[str, str]]] = {
    "rate of counts": (rate_of_counts, COUNTS, {"rate": "too small"}),
    "rate of waits": (rate_of_waits, WAITS, {"rate": "too large"}),
    "mean": (mean, REALS, {"mean": "towards zero"}),
    "spread": (spread, REALS, {"spread": "too small"}),
    "variance": (variance, REALS, {"variance": "too small"}),
    "precision": (precision, REALS, {"precision": "too large"}),
    "chance": (chance_of_runs, RUNS, {"chance": "too large"}),
}


def means_of(fit: EngineFit, state: Any, clipping_norm: float) -> dict[str, float]:
    """What the globals are with the sums of all rows, clipped but without noise."""
    sums = fit.sums(state, clipping_norm)
    after = fit.engine.update(state, sums, dict.fromkeys(sums, 0.0), 1.0)
    moments = fit.engine.posterior(after).moments()
    return {name: float(value.mean) for name, value in moments.items()}


def typical_norm(fit: EngineFit, state: Any) -> float:
    norms = fit.engine.row_norms(state, fit.rows, list(fit.scales))
    return float(np.median(np.sqrt(sum(norm**2 for norm in norms.values()))))


@pytest.mark.thorough
@pytest.mark.parametrize("name", KNOWN)
def test_where_a_direction_is_said_clipping_draws_there(name: str):
    model, rows, expected = KNOWN[name]
    fit = EngineFit(model, (rows,), engine="vips", clipping_norm=1.0)
    effect = fit.engine.clipping_effect(fit.start, list(fit.scales))
    assert dict(effect.pulls) == expected
    exact = means_of(fit, fit.start, np.inf)
    clipped = means_of(fit, fit.start, typical_norm(fit, fit.start))
    for site, pull in expected.items():
        ratio = clipped[site] / exact[site]
        # That it is much, so that no other reason would do.
        assert ratio > 1.05 if pull == "too large" else 0.0 < ratio < 0.95, site


@pytest.mark.thorough
def test_what_is_known_of_two_depends_on_where_rows_are_measured_from():
    """About zero a clipped row loses its mean and its square, about the mean its
    square alone."""
    fit = EngineFit(mean_and_spread, (REALS,), engine="vips")
    effect = fit.engine.clipping_effect(fit.start, list(fit.scales))
    assert effect.pulls == {"mean": "towards the other rows", "spread": "too small"}
    assert not effect.has_plain_norms
    state = fit.start
    for _ in range(3):
        sums = fit.sums(state, np.inf)
        state = fit.engine.update(state, sums, dict.fromkeys(sums, 0.0), 1.0)
    there = fit.engine.recentre(state)
    exact, clipped = (
        means_of(fit, there, norm) for norm in (np.inf, typical_norm(fit, there))
    )
    assert clipped["spread"] < 0.95 * exact["spread"]
    plain = EngineFit(mean_and_spread, (REALS,), engine="vips", clipping_norm=1.0)
    effect = plain.engine.clipping_effect(plain.start, list(plain.scales))
    assert effect.pulls == {
        "mean": "towards zero",
        "spread": "towards the other rows",
    }
    assert effect.has_plain_norms


def test_statistics_that_pull_both_ways_have_no_direction():
    def totals(y):
        chance = numpyro.sample("chance", dist.Beta(2.0, 2.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Binomial(10, chance), obs=y)

    fit = EngineFit(totals, (np.minimum(COUNTS, 10),), engine="vips")
    one, both = ["⟨log chance⟩"], ["⟨log chance⟩", "⟨log(1-chance)⟩"]
    assert fit.engine.clipping_effect(fit.start, one).pulls == {"chance": "too small"}
    assert fit.engine.clipping_effect(fit.start, both).pulls == {
        "chance": "towards the other rows"
    }


@pytest.mark.thorough
def test_coefficients_are_drawn_to_the_other_rows_and_residuals_shrink():
    def regression(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        spread = numpyro.sample("spread", dist.HalfNormal(5.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, spread), obs=y)

    x = RNG.normal(size=(COUNT, 2)).astype(np.float32)
    y = (x @ [1.0, -2.0] + 3.0 * RNG.standard_t(3, COUNT)).astype(np.float32)
    fit = EngineFit(regression, (x, y), engine="vips")
    effect = fit.engine.clipping_effect(fit.start, list(fit.scales))
    assert effect.pulls == {"w": "towards the other rows", "spread": "too small"}
    sums = {norm: fit.sums(fit.start, norm) for norm in (np.inf, 5.0)}
    spreads = [
        fit.engine.posterior(
            fit.engine.update(fit.start, found, dict.fromkeys(found, 0.0), 1.0)
        ).moments()["spread"]
        for found in sums.values()
    ]
    assert spreads[1].mean < 0.95 * spreads[0].mean
