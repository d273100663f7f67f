"""The integral over a row's latents, against SciPy's and sums over fine grids."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from scipy import integrate, special, stats

import numpyro_vips as nv
from numpyro_vips.dpvi.row_latents.conjugate_locals import ConjugateLocals
from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph

pytestmark = pytest.mark.usefixtures("x64")
EASE = np.array([1.5, 0.3, -0.2, 0.8, -1.0])
ANSWERS = [
    np.array(answers, float)
    for answers in ([1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 1])
]


def rasch(y: Any) -> None:
    ease = numpyro.sample("ease", dist.Normal(0.0, 2.0).expand([5]).to_event(1))
    slope = numpyro.sample("slope", dist.HalfNormal(2.0))
    with numpyro.plate("students", y.shape[0]):
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
        logits = slope * ability[..., None] + ease
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


def with_two_abilities(y: Any) -> None:
    ease = numpyro.sample("ease", dist.Normal(0.0, 2.0).expand([5]).to_event(1))
    slope = numpyro.sample("slope", dist.HalfNormal(2.0))
    loadings = jnp.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [-0.3, 1.0], [1.0, 1.0]])
    with numpyro.plate("students", y.shape[0]):
        both = numpyro.sample("both", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        logits = slope * both @ loadings.T + ease
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


def measured(y: Any) -> None:
    slope = numpyro.sample("slope", dist.HalfNormal(2.0))
    with numpyro.plate("students", y.shape[0]):
        ability = numpyro.sample("ability", dist.Normal(0.0, slope))
        numpyro.sample("y", dist.Normal(ability, 1.0), obs=y[:, 0])


def locals_of(fn: Any) -> ConjugateLocals:
    model = private(fn, unit="students")
    rows = np.zeros((7, 5))
    return ConjugateLocals(build_graph(model, bind_arguments(model, (rows,), {})))


def log_likelihood(logits: Any, y: Any) -> Any:
    return (y * logits - np.logaddexp(0.0, logits)).sum(-1)


def of_one_ability(slope: float, y: np.ndarray) -> float:
    def density(x: float) -> float:
        return math.exp(log_likelihood(slope * x + EASE, y) + stats.norm.logpdf(x))

    return math.log(integrate.quad(density, -12, 12, epsabs=0, epsrel=1e-10)[0])


def of_two_abilities(slope: float, y: np.ndarray) -> float:
    loadings = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [-0.3, 1.0], [1.0, 1.0]])
    axis = np.linspace(-9.0, 9.0, 601)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)
    logits = slope * grid @ loadings.T + EASE
    logs = log_likelihood(logits, y) + stats.norm.logpdf(grid).sum(-1)
    return special.logsumexp(logs) + 2 * math.log(axis[1] - axis[0])


CASES = {
    "one": (rasch, of_one_ability, 2e-6),
    "two": (with_two_abilities, of_two_abilities, 2e-4),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("slope", [0.2, 1.0, 3.0])
def test_the_density_of_a_row_and_its_slope(name: str, slope: float) -> None:
    fn, exact, tolerance = CASES[name]
    found = locals_of(fn)
    assert found.method == "quadrature"

    def density(slope: Any, y: Any) -> Any:
        values = {"ease": jnp.asarray(EASE), "slope": slope}
        return found(values, {"y": y}, {})[0]

    both = jax.jit(jax.value_and_grad(density))
    for y in ANSWERS:
        value, change = both(slope, y)
        assert value == pytest.approx(exact(slope, y), abs=tolerance)
        step = 1e-3
        difference = exact(slope + step, y) - exact(slope - step, y)
        slope_of_exact = difference / (2 * step)
        assert change == pytest.approx(slope_of_exact, abs=10 * tolerance)


def test_what_is_conjugate_needs_no_quadrature() -> None:
    assert locals_of(measured).method == "exact"


@pytest.mark.slow
def test_a_learned_scale_of_latents_is_not_pulled_to_zero() -> None:
    """The bound alone leaves 0.92 of 1.18."""
    rng = np.random.default_rng(0)
    ability = rng.normal(size=(400, 1))
    y = (rng.random((400, 5)) < special.expit(1.2 * ability + EASE)).astype(float)
    vi = vi_of(nv.private(rasch, unit="students"), budget=math.inf, engine="dpvi")
    result = vi.run(jax.random.key(0), y)
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(1000,))

    def loss(slope: float, ease: np.ndarray) -> float:
        nodes, weights = np.polynomial.hermite_e.hermegauss(41)
        logits = slope * nodes[:, None] + ease
        each = log_likelihood(logits, y[:, None]) + np.log(weights)
        return special.logsumexp(each, axis=-1).sum()

    # The likelihood of the slope at the posterior mean of the rest, which is precise.
    ease = np.asarray(draws["ease"]).mean(0)
    slopes = np.linspace(0.5, 2.0, 61)
    logs = np.array([loss(slope, ease) for slope in slopes]) - slopes**2 / 8
    weights = np.exp(logs - logs.max())
    mean = (weights * slopes).sum() / weights.sum()
    sd = math.sqrt((weights * (slopes - mean) ** 2).sum() / weights.sum())
    assert abs(np.asarray(draws["slope"]).mean() - mean) < sd
