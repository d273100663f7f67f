"""A row's latents integrated out, against SciPy's integrals and fine grids."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to
from scipy import integrate, special, stats

import numpyro_vips as nv
from numpyro_vips.dpvi.row_latents.integrated_locals import IntegratedLocals
from numpyro_vips.dpvi.row_latents.locals_of_rows import find_locals_of_rows
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import ModelGraph, build_graph


@pytest.fixture
def _double(x64: Any) -> None:
    """All of these compare with integrals to many digits."""


def graph_of(fn: Any, y: Any) -> ModelGraph:
    model = private(fn, unit="rows")
    return build_graph(model, bind_arguments(model, (y,), {}))


def effects(y: Any) -> None:
    """Counts with an effect of every row: overdispersed Poisson regression."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("rows", y.shape[0]):
        eps = numpyro.sample("eps", dist.Normal(0.0, sigma))
        numpyro.sample("y", dist.Poisson(jnp.exp(mu + eps)), obs=y)


def log_effects(mu: float, sigma: float, y: float) -> float:
    # The density is largest where Newton's method on a concave function leads.
    x = 0.0
    for _ in range(200):
        slope = y - math.exp(mu + x) - x / sigma**2
        x += np.clip(slope / (math.exp(mu + x) + 1 / sigma**2), -1, 1)
    width = 1 / math.sqrt(math.exp(mu + x) + 1 / sigma**2)
    return log_integral(
        lambda e: (
            stats.poisson.logpmf(y, math.exp(mu + e)) + stats.norm.logpdf(e, 0, sigma)
        ),
        x - 12 * max(width, sigma),
        x + 12 * max(width, sigma),
        x,
    )


def log_integral(
    log_density: Callable[[float], Any], low: float, high: float, mode: float
) -> float:
    largest = log_density(mode)
    found = integrate.quad(
        lambda x: math.exp(log_density(x) - largest),
        low,
        high,
        points=[mode],
        epsabs=0,
        epsrel=1e-10,
        limit=500,
    )
    return largest + math.log(found[0])


def positive(y: Any) -> None:
    """A rate of every row that is seen through a logarithm."""
    mu = numpyro.sample("mu", dist.HalfNormal(2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("rows", y.shape[0]):
        u = numpyro.sample("u", dist.Gamma(2.0, mu))
        numpyro.sample("y", dist.Normal(jnp.log1p(u), sigma), obs=y)


def log_positive(mu: float, sigma: float, y: float) -> float:
    def density(u: Any) -> Any:
        prior = stats.gamma.logpdf(u, 2.0, scale=1 / mu)
        return prior + stats.norm.logpdf(y, np.log1p(u), sigma)

    grid = np.geomspace(1e-6, 200, 4000)
    return log_integral(density, 1e-9, 200.0, grid[np.argmax(density(grid))])


def between(y: Any) -> None:
    """A latent whose support ends at a global."""
    mu = numpyro.sample("mu", dist.HalfNormal(2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("rows", y.shape[0]):
        u = numpyro.sample("u", dist.Uniform(0.0, mu))
        numpyro.sample("y", dist.Normal(u**2, sigma), obs=y)


def log_between(mu: float, sigma: float, y: float) -> float:
    def density(u: Any) -> Any:
        return stats.norm.logpdf(y, u**2, sigma) - math.log(mu)

    grid = np.linspace(0, mu, 4001)
    return log_integral(density, 0.0, mu, grid[np.argmax(density(grid))])


def shares(y: Any) -> None:
    """A vector of two numbers on a simplex, which is one number."""
    mu = numpyro.sample("mu", dist.HalfNormal(2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("rows", y.shape[0]):
        p = numpyro.sample("p", dist.Dirichlet(jnp.stack([mu, 2.0 * mu])))
        numpyro.sample("y", dist.Normal(jnp.sin(p[..., 0]), sigma), obs=y)


def log_shares(mu: float, sigma: float, y: float) -> float:
    def density(p: Any) -> Any:
        prior = stats.beta.logpdf(p, mu, 2.0 * mu)
        return prior + stats.norm.logpdf(y, np.sin(p), sigma)

    grid = np.linspace(0, 1, 4001)[1:-1]
    return log_integral(density, 1e-12, 1 - 1e-12, grid[np.argmax(density(grid))])


def together(y: Any) -> None:
    """A discrete latent that decides what the continuous one means."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        eps = numpyro.sample("eps", dist.Normal(0.0, sigma))
        rate = jnp.exp(jnp.where(z == 1, mu + eps, -mu + 0.5 * eps))
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def log_together(mu: float, sigma: float, y: float) -> float:
    one = math.log(0.3) + log_effects(mu, sigma, y)
    return np.logaddexp(one, math.log(0.7) + log_effects(-mu, 0.5 * sigma, y))


def seen(y: Any) -> None:
    """Who is not there is not seen: a chance of exactly zero, and no curvature."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        eps = numpyro.sample("eps", dist.Normal(0.0, sigma))
        chance = z * jax.nn.sigmoid(mu + eps)
        numpyro.sample("y", dist.Bernoulli(chance), obs=y)


def log_seen(mu: float, sigma: float, y: float) -> float:
    def density(eps: float) -> Any:
        sign = 2.0 * y - 1.0
        return special.log_expit(sign * (mu + eps)) + stats.norm.logpdf(eps, 0, sigma)

    there = math.log(0.3) + log_integral(density, -12 * sigma, 12 * sigma, 0.0)
    return there if y else np.logaddexp(there, math.log(0.7))


PLACES = [(0.5, 0.3), (1.5, 1.0), (2.5, 2.0)]
CASES = {
    "effects": (effects, log_effects, (0.0, 2.0, 60.0), 1e-5),
    "positive": (positive, log_positive, (0.2, 1.5), 1e-4),
    "between": (between, log_between, (0.3, 1.4), 1e-2),
    "shares": (shares, log_shares, (0.1, 0.7), 1e-2),
    "together": (together, log_together, (0.0, 7.0), 1e-5),
    "seen": (seen, log_seen, (0.0, 1.0), 1e-5),
}


@pytest.mark.thorough
@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("name", CASES)
def test_the_density_of_a_row_and_its_slopes(name: str) -> None:
    fn, exact, observed, tolerance = CASES[name]
    found = find_locals_of_rows(graph_of(fn, np.zeros(7)))
    assert isinstance(found, IntegratedLocals)

    def density(place: Any, y: Any) -> Any:
        values = {"mu": place[0], "sigma": place[1]}
        return found(values, {"y": y}, {})[0]

    both = jax.jit(jax.value_and_grad(density))
    for place in PLACES:
        for y in observed:
            value, slopes = both(jnp.asarray(place), y)
            assert value == pytest.approx(exact(*place, y), abs=tolerance)
            for i, slope in enumerate(slopes):
                step = 1e-4 * np.eye(2)[i]
                high, low = exact(*(place + step), y), exact(*(place - step), y)
                assert slope == pytest.approx((high - low) / 2e-4, abs=20 * tolerance)


def slopes_of_rows(y: Any) -> None:
    """An intercept and a slope of every row."""
    x = jnp.array([-1.0, 0.0, 1.0, 2.0])
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("rows", y.shape[0]):
        a = numpyro.sample("a", dist.Normal(0.0, sigma))
        b = numpyro.sample("b", dist.Normal(0.0, 0.5))
        rate = jnp.exp(1.0 + a[..., None] + b[..., None] * x)
        numpyro.sample("y", dist.Poisson(rate).to_event(1), obs=y)


@pytest.mark.thorough
@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0])
def test_two_latents(sigma: float) -> None:
    found = find_locals_of_rows(graph_of(slopes_of_rows, np.zeros((7, 4))))
    assert isinstance(found, IntegratedLocals)
    axis = np.linspace(-12.0, 12.0, 1601)
    a, b = axis[:, None], axis[None] / 3
    density = jax.jit(lambda y: found({"sigma": jnp.asarray(sigma)}, {"y": y}, {})[0])
    for y in np.array([[0, 0, 0, 0], [1, 2, 3, 4], [0, 5, 9, 30]], float):
        logs = stats.norm.logpdf(a, 0, sigma) + stats.norm.logpdf(b, 0, 0.5)
        for x, each in zip([-1.0, 0.0, 1.0, 2.0], y, strict=True):
            log_rate = 1.0 + a + b * x
            logs = logs + each * log_rate - np.exp(log_rate) - special.gammaln(each + 1)
        exact = special.logsumexp(logs) + 2 * math.log(axis[1] - axis[0]) - math.log(3)
        assert density(y) == pytest.approx(exact, abs=1e-3)


def test_an_observation_outside_its_support_does_not_count():
    found = find_locals_of_rows(graph_of(effects, np.zeros(7)))
    assert found is not None
    values = {"mu": jnp.asarray(0.0), "sigma": jnp.asarray(1.0)}
    counts = jax.jit(lambda y: found(values, {"y": y}, {})[1])
    assert counts(jnp.asarray(2.0))
    assert not counts(jnp.asarray(-1.0))


# --- what is refused ------------------------------------------------------------------


def three(y: Any) -> None:
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("rows", y.shape[0]):
        own = numpyro.sample("own", dist.Normal(0.0, sigma).expand([3]).to_event(1))
        numpyro.sample("y", dist.Poisson(jnp.exp(own.sum(-1))), obs=y)


def scaled(y: Any) -> None:
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("rows", y.shape[0]), numpyro.handlers.scale(scale=2.0):
        own = numpyro.sample("own", dist.Normal(0.0, sigma))
        numpyro.sample("y", dist.Poisson(jnp.exp(own)), obs=y)


@pytest.mark.parametrize(
    ("fn", "reason"), [(three, "3 numbers of its own"), (scaled, "handlers.scale")]
)
def test_what_cannot_be_integrated_is_refused(fn: Any, reason: str):
    with pytest.raises(UnsafeModelError, match=reason):
        find_locals_of_rows(graph_of(fn, np.zeros(5)))


# --- end to end -----------------------------------------------------------------------


def fit(y: np.ndarray, budget: nv.PrivacyBudget, **options: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return fit_to(effects, y, budget=budget, **options)


@pytest.mark.slow
def test_a_model_of_overdispersed_counts():
    rng = np.random.default_rng(0)
    y = rng.poisson(np.exp(1.0 + 0.7 * rng.normal(size=150))).astype(np.float32)
    result = fit(y, nv.PrivacyBudget(math.inf))
    assert "quadrature, per row" in result.plan
    assert "integrated out" in result.plan

    # The posterior on a grid.
    mu, sigma = np.meshgrid(
        np.linspace(0.5, 1.5, 41), np.linspace(0.4, 1.2, 41), indexing="ij"
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    log_rate = mu[..., None] + sigma[..., None] * nodes
    log_weights = np.log(weights) - 0.5 * math.log(2 * math.pi)
    logs = -(mu**2) / 50 - sigma**2 / 8
    for value, count in zip(*np.unique(y, return_counts=True), strict=True):
        each = value * log_rate - np.exp(log_rate) + log_weights
        logs = logs + count * special.logsumexp(each, axis=-1)
    share = np.exp(logs - special.logsumexp(logs))
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(4000,))
    for name, grid in (("mu", mu), ("sigma", sigma)):
        mean = np.sum(share * grid)
        sd = math.sqrt(np.sum(share * (grid - mean) ** 2))
        found = np.asarray(draws[name])
        assert abs(found.mean() - mean) < 0.15 * sd
        assert found.std() == pytest.approx(sd, rel=0.15)


@pytest.mark.thorough
def test_a_private_fit_of_overdispersed_counts():
    rng = np.random.default_rng(1)
    y = rng.poisson(np.exp(1.0 + 0.7 * rng.normal(size=1000))).astype(np.float32)
    result = fit(y, nv.PrivacyBudget(3.0, 1e-6), insecure_seed=0)
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(1000,))
    assert abs(np.mean(draws["mu"]) - 1.0) < 0.3
    assert abs(np.mean(draws["sigma"]) - 0.7) < 0.3
