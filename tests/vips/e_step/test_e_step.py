"""The posterior of one row's latents, against closed forms and plain loops."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import uncertified
from scipy import special, stats

from numpyro_vips.vips.e_step.e_step import (
    couples_latents,
    local_factors,
    moments_of_row,
)
from numpyro_vips.vips.e_step.evidence_bound import entropy
from numpyro_vips.vips.program.expectations import expected_natural_of
from numpyro_vips.vips.program.program import ConjugateProgram

pytestmark = pytest.mark.usefixtures("x64")

WEIGHTS = np.array([0.2, 0.8])


def two_components(y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
    with numpyro.plate("components", 2):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(WEIGHTS))
        numpyro.sample("y", dist.Normal(mu[z], 1 / jnp.sqrt(tau)), obs=y)


def factor_of_a_row(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(w * u, 0.5), obs=y)


def own_precision(y: Any) -> None:
    """A class and a precision for each row, which act on each other."""
    with numpyro.plate("components", 2):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(WEIGHTS))
        tau = numpyro.sample("tau", dist.Gamma(2.0, 1.5))
        numpyro.sample("y", dist.Normal(mu[z], 1 / jnp.sqrt(tau)), obs=y)


def draws(n: Any, r: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", r.shape[0]):
        numpyro.sample("r", dist.Binomial(n, logits=a), obs=r)


def logistic_offset(y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        u = numpyro.sample("u", dist.Normal(a, 1.5))
        numpyro.sample("y", dist.Bernoulli(logits=u), obs=y)


def gaussians(mean: Any, variance: Any) -> dict[str, Any]:
    """Moments of independent coordinates, as the families keep them."""
    mean, variance = np.asarray(mean, float), np.asarray(variance, float)
    square = (mean**2 + variance)[..., None, None]
    return {"x": jnp.asarray(mean[..., None]), "xx": jnp.asarray(square)}


def natural_of(program: ConjugateProgram, **moments: Any) -> Any:
    return expected_natural_of(program.structure, moments)


MEANS, VARIANCES = np.array([-1.0, 2.0]), np.array([0.3, 0.1])


def expected_squares(y: float) -> np.ndarray:
    """E[(y - mu_k)²] for each component."""
    return (y - MEANS) ** 2 + VARIANCES


def test_responsibilities_of_two_components_are_those_of_their_expectations() -> None:
    y = np.array([0.7])
    program = uncertified(two_components, (y,))
    tau = {"x": jnp.asarray(1.4), "log": jnp.asarray(0.2)}
    natural = natural_of(program, mu=gaussians(MEANS, VARIANCES), tau=tau)
    moments, of_z = local_factors(program, natural, {"y": jnp.asarray(y[0])}, 20)["z"]
    wanted = special.softmax(np.log(WEIGHTS) - 0.5 * 1.4 * expected_squares(y[0]))
    np.testing.assert_allclose(moments["is"].ravel(), wanted, rtol=1e-6)
    np.testing.assert_allclose(special.softmax(of_z["is"].ravel()), wanted, rtol=1e-6)


def test_a_gaussian_latent_has_its_conjugate_posterior() -> None:
    y = np.array([1.3])
    program = uncertified(factor_of_a_row, (y,))
    natural = natural_of(program, w=gaussians(0.8, 0.25))
    moments, _ = local_factors(program, natural, {"y": jnp.asarray(y[0])}, 20)["u"]
    precision = 1.0 + 4.0 * (0.8**2 + 0.25)
    mean = 4.0 * 0.8 * y[0] / precision
    assert moments["x"].item() == pytest.approx(mean, rel=1e-6)
    assert moments["xx"].item() == pytest.approx(mean**2 + 1 / precision, rel=1e-6)


@functools.cache
def of_own_precision() -> tuple[ConjugateProgram, Any]:
    """The model's program, and the ascent compiled once for all rows."""
    program = uncertified(own_precision, (np.zeros(1),))
    return program, jax.jit(
        lambda natural, y, sweeps: local_factors(program, natural, {"y": y}, sweeps)
    )


def mean_field(y: float, sweeps: int) -> tuple[np.ndarray, float, float]:
    """The same ascent by hand: class, then shape and rate of the precision."""
    r = special.softmax(np.log(WEIGHTS))
    for _ in range(sweeps):
        shape, rate = 2.5, 1.5 + 0.5 * r @ expected_squares(y)
        r = special.softmax(np.log(WEIGHTS) - 0.5 * shape / rate * expected_squares(y))
    return r, 2.5, 1.5 + 0.5 * float(r @ expected_squares(y))


@pytest.mark.parametrize("y", [-1.5, 0.6, 4.0])
def test_latents_that_act_on_each_other_end_at_a_fixed_point(y: float) -> None:
    program, solve = of_own_precision()
    assert couples_latents(program.structure, program.row_terms)
    natural = natural_of(program, mu=gaussians(MEANS, VARIANCES))
    factors = solve(natural, y, 100)
    r, shape, rate = mean_field(y, 1000)
    np.testing.assert_allclose(factors["z"][0]["is"].ravel(), r, rtol=1e-6)
    precision = factors["tau"][0]
    assert precision["x"].item() == pytest.approx(shape / rate, rel=1e-6)
    log = special.digamma(shape) - np.log(rate)
    assert precision["log"].item() == pytest.approx(log, rel=1e-6)
    # One sweep is not there yet: the loop has something to do.
    once = solve(natural, y, 1)
    assert abs(once["tau"][0]["x"].item() / (shape / rate) - 1.0) > 1e-4


def test_an_invalid_row_is_solved_as_if_all_that_it_brings_were_zero() -> None:
    program, solve = of_own_precision()
    natural = natural_of(program, mu=gaussians(MEANS, VARIANCES))
    row = {"y": jnp.asarray(np.nan)}
    arrays, valid = program.row_constants.zero_if_invalid(row)
    assert not bool(valid)
    zeros = {token: jnp.zeros_like(array) for token, array in arrays.items()}
    found = solve(natural, np.nan, 5)
    wanted = moments_of_row(program, natural, zeros, 5)
    for name, moments in wanted.items():
        for statistic, array in moments.items():
            assert np.all(np.isfinite(array)), (name, statistic)
            np.testing.assert_allclose(found[name][0][statistic], array, rtol=1e-12)


def test_observed_moments_of_a_count_are_the_curvature_of_its_likelihood() -> None:
    n, r = np.array([7]), np.array([3])
    program = uncertified(draws, (n, r))
    natural = natural_of(program, a=gaussians(0.9, 0.2))
    arrays, valid = program.row_constants.zero_if_invalid(
        {"n": jnp.asarray(n[0]), "r": jnp.asarray(r[0])}
    )
    assert bool(valid)
    plain, observed = (
        moments_of_row(program, natural, arrays, 20, observed=o) for o in (False, True)
    )
    ((name, mean),) = plain.items()
    # A Polya-Gamma's mean at c = sqrt(E[a²]), and σ(c)(1 - σ(c)): each of one copy.
    c = np.sqrt(0.9**2 + 0.2)
    assert mean["x"].item() == pytest.approx(np.tanh(c / 2) / (2 * c), rel=1e-6)
    curvature = special.expit(c) * special.expit(-c)
    assert observed[name]["x"].item() == pytest.approx(curvature, rel=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("observed", [False, True])
def test_moments_of_an_integrated_latent_come_without_its_entropy(
    observed: bool,
) -> None:
    y = np.array([1])
    program = uncertified(logistic_offset, (y,))
    natural = natural_of(program, a=gaussians(0.4, 0.0))
    arrays, _ = program.row_constants.zero_if_invalid({"y": jnp.asarray(y[0])})
    moments = moments_of_row(program, natural, arrays, 20, observed=observed)
    assert set(moments["u"]) == {"x", "xx"}
    grid = np.linspace(-12.0, 12.0, 4001)
    shares = special.softmax(
        stats.norm.logpdf(grid, 0.4, 1.5) - np.logaddexp(0.0, -grid)
    )
    assert moments["u"]["x"].item() == pytest.approx(shares @ grid, abs=1e-4)
    assert moments["u"]["xx"].item() == pytest.approx(shares @ grid**2, abs=1e-4)


def test_entropies_are_scipys() -> None:
    y = np.array([0.6])
    program, solve = of_own_precision()
    factors = solve(natural_of(program, mu=gaussians(MEANS, VARIANCES)), y[0], 50)
    r, shape, rate = mean_field(y[0], 1000)
    wanted = {
        "z": stats.entropy(r),
        "tau": stats.gamma(shape, scale=1 / rate).entropy(),
    }
    for name, (moments, natural) in factors.items():
        factor = program.structure.posterior_factors[name]
        found = entropy(factor, natural, moments, None)
        assert float(found) == pytest.approx(float(wanted[name]), rel=1e-5), name
        # Of three copies it is three times as much.
        weight = jnp.full(jnp.shape(factor.family.log_normalizer(natural)), 3.0)
        tripled = entropy(factor, natural, moments, weight)
        assert float(tripled) == pytest.approx(3 * float(wanted[name]), rel=1e-5), name
