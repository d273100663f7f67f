"""The M-step by itself: sums of statistics in, the posterior of the globals out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import uncertified

from numpyro_vips.vips.m_step.m_step import GlobalInputs, update_globals
from numpyro_vips.vips.m_step.starts import start, symmetric_factors
from numpyro_vips.vips.program.expectations import expected_natural_of
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.bounded_sum import bounded_sum
from numpyro_vips.vips.row_sums.contributions import RowInputs

Y = np.array([0.3, 2.1, -1.4, 0.9], np.float32)


def measured(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 0.5), obs=y)


def with_precision(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 3.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1 / jnp.sqrt(tau)), obs=y)


def mixed(y: Any) -> None:
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
    with numpyro.plate("components", 2):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(weights))
        numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)


def regressed(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(w * y, 1.0), obs=y)


def two_weights(x: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1000.0).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1 / jnp.sqrt(tau)), obs=y)


def sums_of(program: ConjugateProgram, **rows: Any) -> dict[str, Any]:
    """Σ_n of every statistic, by the gradient of the log joint density in n̄."""
    rows = rows or {"y": Y}
    moments = start(program, jax.random.key(0)).moments
    n_bar = expected_natural_of(program.structure, moments)
    scales = {statistic.name: 1.0 for statistic in program.structure.statistics}
    found = bounded_sum(
        program,
        RowInputs(n_bar),
        rows,
        jnp.ones(len(rows["y"]), bool),
        scales,
        np.inf,
        sweeps=1,
    )
    return {name: jnp.asarray(found[name], float) for name in scales}


def solved(program: ConjugateProgram, noise: float = 0.0, max_sweeps: int = 500) -> Any:
    sums = sums_of(program)
    deviations = {name: jnp.full(array.shape, noise) for name, array in sums.items()}
    moments = start(program, jax.random.key(0)).moments
    inputs = GlobalInputs(sums, deviations, {})
    return update_globals(program, inputs, moments, max_sweeps)


@pytest.mark.thorough
def test_a_normal_mean_has_its_closed_form() -> None:
    found = solved(uncertified(measured, (Y,)))
    precision = 1 / 4.0 + len(Y) / 0.25
    mean = (1.0 / 4.0 + Y.sum() / 0.25) / precision
    np.testing.assert_allclose(found.moments["mu"]["x"], [mean], rtol=1e-5)
    variance = found.moments["mu"]["xx"][..., 0] - found.moments["mu"]["x"] ** 2
    np.testing.assert_allclose(variance, [1 / precision], rtol=1e-3)
    assert found.change == 0.0  # One factor takes one sweep.


@pytest.mark.thorough
def test_independent_factors_end_where_each_is_the_best_given_the_other() -> None:
    found = solved(uncertified(with_precision, (Y,)))
    tau, mean, variance = 0.6667, 0.0, 1.0
    for _ in range(500):
        precision = 1 / 4.0 + len(Y) * tau
        mean = (1.0 / 4.0 + tau * Y.sum()) / precision
        variance = 1 / precision
        rate = 3.0 + 0.5 * (np.sum((Y - mean) ** 2) + len(Y) * variance)
        tau = (2.0 + 0.5 * len(Y)) / rate
    np.testing.assert_allclose(found.moments["mu"]["x"], [mean], rtol=1e-4)
    np.testing.assert_allclose(found.moments["tau"]["x"], tau, rtol=1e-4)
    assert found.change <= 1e-5
    few = solved(uncertified(with_precision, (Y,)), max_sweeps=2)
    assert abs(few.moments["tau"]["x"] - tau) > 1e-3 * tau


@pytest.mark.thorough
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_weight_that_noise_hides_explains_no_more_than_there_is(sign: float) -> None:
    """Its prior is wide, and so is its posterior; the residuals are as they were."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(400, 2)) * [1.0, 0.01]).astype(np.float32)
    y = (2.0 * x[:, 0] + rng.normal(scale=0.5, size=400)).astype(np.float32)
    program = uncertified(two_weights, (x, y))
    sums = sums_of(program, x=x, y=y)
    (squares,) = (s for s in program.structure.statistics if len(s.atoms) == 3)
    assert {latent for latent, *_ in squares.atoms} == {"w", "tau"}
    noise = 10.0  # The second column's sum of squares is 0.04.
    deviations = {name: jnp.zeros(array.shape) for name, array in sums.items()}
    deviations[squares.name] = deviations[squares.name].at[1, 1].set(noise)
    sums[squares.name] = sums[squares.name].at[1, 1].add(0.5 * sign * noise)
    moments = start(program, jax.random.key(0)).moments
    inputs = GlobalInputs(sums, deviations, {}, noise_read=1.0)
    found = update_globals(program, inputs, moments)
    mean, square = found.moments["w"]["x"], found.moments["w"]["xx"]
    deviation = np.sqrt(square[1, 1] - mean[1] ** 2)
    assert deviation > 500.0
    assert 0.8 * 0.25 < 1.0 / found.moments["tau"]["x"] < 1.5 * 0.25


@pytest.mark.thorough
def test_a_posterior_that_knows_of_the_noise_is_the_wider_one() -> None:
    """The release for the mean has the noise's variance beside that of the rows."""
    program = uncertified(measured, (Y,))
    linear = [s.name for s in program.structure.statistics if len(s.atoms) == 1]
    sums, noise = sums_of(program), 3.0
    deviations = {
        name: jnp.full(array.shape, noise if name in linear else 0.0)
        for name, array in sums.items()
    }
    moments = start(program, jax.random.key(0)).moments

    def variance(noise_read: float) -> float:
        inputs = GlobalInputs(sums, deviations, {}, noise_read)
        found = update_globals(program, inputs, moments).moments["mu"]
        return float(found["xx"].ravel()[0] - found["x"].ravel()[0] ** 2)

    information = len(Y) / 0.25  # Of the sum of y/0.25, whose variance this is, too.
    kept = information**2 / (information + noise**2)
    assert variance(0.0) == pytest.approx(1 / (1 / 4.0 + information), rel=1e-3)
    assert variance(1.0) == pytest.approx(1 / (1 / 4.0 + kept), rel=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "symmetric"),
    [
        (measured, set()),
        (with_precision, set()),
        (regressed, set()),
        (mixed, {"mu", "weights"}),
    ],
)
def test_only_what_a_symmetry_would_hold_is_perturbed(model, symmetric) -> None:
    program = uncertified(model, (Y,))
    assert symmetric_factors(program) == symmetric
    first, second = (start(program, jax.random.key(seed)).moments for seed in (0, 1))
    moved = {
        name
        for name in first
        if not np.allclose(*(jax.tree.leaves(one[name])[0] for one in (first, second)))
    }
    assert moved == symmetric
    if model is mixed:
        centres = np.ravel(first["mu"]["x"])
        assert abs(centres[0] - centres[1]) > 1e-3


def test_a_fit_starts_at_the_prior_where_nothing_is_symmetric() -> None:
    moments = start(uncertified(with_precision, (Y,)), jax.random.key(3)).moments
    np.testing.assert_allclose(moments["mu"]["x"], [1.0], rtol=1e-6)
    np.testing.assert_allclose(moments["tau"]["x"], 2.0 / 3.0, rtol=1e-6)
