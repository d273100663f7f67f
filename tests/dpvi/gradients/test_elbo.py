"""The evidence lower bound in its two parts, against divergences in closed form."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy import stats

import numpyro_vips as nv
from numpyro_vips.dpvi.gradients.elbo import PublicElbo, RowElbo, constrained
from numpyro_vips.dpvi.guides.automatic_guides import NormalGuide
from numpyro_vips.dpvi.guides.unconstrained import GuideSite, UnconstrainedSpace
from numpyro_vips.dpvi.guides.user_guides import UserGuide
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import ModelGraph, build_graph

Y = np.array([0.3, -1.1, 2.0], np.float32)
LOC, SCALE = np.array([0.4, -0.7]), np.array([0.3, 0.8])


def model(y: Any) -> None:
    """Two globals, one positive, a public factor, and a latent of each row."""
    mu = numpyro.sample("mu", dist.Normal(1.0, 2.0))
    sd = numpyro.sample("sd", dist.LogNormal(0.5, 1.5))
    numpyro.factor("about", -0.1 * mu**2)
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(z, sd), obs=y)


def guide(y: Any) -> None:
    numpyro.sample("mu", dist.Normal(LOC[0], SCALE[0]))
    numpyro.sample("sd", dist.LogNormal(LOC[1], SCALE[1]))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("z", dist.Normal(0.5 * y, 0.6))


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    marked = nv.private(model, unit="rows")
    return build_graph(marked, bind_arguments(marked, (Y,), {}))


SPACE = UnconstrainedSpace(
    sites=(
        GuideSite(name="mu", support=constraints.real, shape=(), dims=()),
        GuideSite(name="sd", support=constraints.positive, shape=(), dims=()),
    )
)
ARRAYS = {
    "loc": jnp.asarray(LOC, jnp.float32),
    "log_scale": jnp.asarray(np.log(SCALE), jnp.float32),
}


def kl_of_normals(mean: Any, stddev: Any, prior_mean: Any, prior_stddev: Any) -> Any:
    ratio = (stddev / prior_stddev) ** 2
    away = ((mean - prior_mean) / prior_stddev) ** 2
    return 0.5 * (ratio + away - 1.0 - np.log(ratio))


# A LogNormal's divergence is that of its logarithm.
DIVERGENCES = kl_of_normals(LOC, SCALE, np.array([1.0, 0.5]), np.array([2.0, 1.5]))
PUBLIC = -DIVERGENCES.sum() - 0.1 * (LOC[0] ** 2 + SCALE[0] ** 2)


def at_a_draw(mu: Any, log_sd: Any) -> Any:
    """The public part where NumPyro has the divergence of `mu` alone."""
    log_ratio = stats.norm.logpdf(log_sd, 0.5, 1.5)
    log_ratio -= stats.norm.logpdf(log_sd, LOC[1], SCALE[1])
    return -DIVERGENCES[0] - 0.1 * np.square(mu) + log_ratio


def quadrature() -> tuple[Any, Any]:
    """Two standard Normal numbers as places and weights."""
    points, weights = np.polynomial.hermite_e.hermegauss(12)
    grid = np.stack(np.meshgrid(points, points), -1).reshape(-1, 2)
    both = np.outer(weights, weights).ravel()
    return jnp.asarray(grid, jnp.float32), both / both.sum()


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["mean_field", "full_rank"])
@pytest.mark.parametrize("is_analytic", [False, True])
def test_the_public_part_is_a_divergence_and_the_factor(
    graph: ModelGraph, family: Any, is_analytic: bool
):
    normal = NormalGuide(SPACE, family, num_rows=3)
    elbo = PublicElbo(graph, SPACE, normal, is_analytic=is_analytic)
    arrays = dict(ARRAYS)
    if family == "full_rank":
        arrays["factor"] = jnp.zeros((2, 2))
    draws, weights = quadrature()
    values = np.asarray(jax.vmap(lambda draw: elbo(arrays, {}, draw[None]))(draws))
    # The entropy of an automatic guide is up to what its space decides.
    constant = 0.0 if is_analytic and family == "mean_field" else 1 + np.log(2 * np.pi)
    assert weights @ values + constant == pytest.approx(PUBLIC, rel=1e-5)
    if constant == 0.0:
        at = LOC + SCALE * np.asarray(draws)
        np.testing.assert_allclose(values, at_a_draw(*at.T), rtol=1e-5)


@pytest.mark.thorough
def test_the_public_part_is_an_average_over_draws(graph: ModelGraph):
    normal = NormalGuide(SPACE, "mean_field", num_rows=3)
    elbo = PublicElbo(graph, SPACE, normal, is_analytic=False)
    draws = jnp.asarray([[0.3, -0.5], [1.2, 0.1], [-2.0, 0.7]])
    one_by_one = [elbo(ARRAYS, {}, draw[None]) for draw in draws]
    np.testing.assert_allclose(elbo(ARRAYS, {}, draws), np.mean(one_by_one), rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("is_analytic", [False, True])
def test_of_a_users_guide_it_is_the_same(graph: ModelGraph, is_analytic: bool):
    mine = UserGuide(guide, graph)
    elbo = PublicElbo(graph, SPACE, mine, is_analytic=is_analytic)
    keys = jax.random.split(jax.random.key(0), 2 if is_analytic else 4000)
    values = np.array(jax.vmap(lambda key: elbo({}, {}, key[None]))(keys))
    if is_analytic:
        drawn = [mine.draw_globals({}, key).values for key in keys]
        expected = [at_a_draw(float(d["mu"]), np.log(float(d["sd"]))) for d in drawn]
        np.testing.assert_allclose(values, expected, rtol=1e-5)
    else:
        error = values.std() / np.sqrt(len(values))
        assert abs(values.mean() - PUBLIC) < 4.0 * error < 0.05 * abs(PUBLIC)


@pytest.mark.parametrize("is_analytic", [False, True])
def test_a_rows_part(graph: ModelGraph, is_analytic: bool):
    """E_q[log p(y | z)] − KL(q(z) ‖ p(z)), or what is averaged for the latter."""
    mine = UserGuide(guide, graph)
    elbo = RowElbo(
        graph=graph, user_guide=mine, locals_of_rows=None, is_analytic=is_analytic
    )
    values = {"mu": jnp.asarray(0.2), "sd": jnp.asarray(1.3)}
    for number, y in enumerate(Y):
        key, row = jax.random.key(number), {"y": jnp.asarray(y)}
        found, in_support = elbo(values, {}, row, key)
        z = float(mine.draw_locals(row, values, {}, key).values["z"][0])
        expected = stats.norm.logpdf(y, z, 1.3)
        if is_analytic:
            expected -= kl_of_normals(0.5 * y, 0.6, 0.2, 1.0)
        else:
            expected += stats.norm.logpdf(z, 0.2, 1.0)
            expected -= stats.norm.logpdf(z, 0.5 * y, 0.6)
        assert bool(in_support)
        assert float(found) == pytest.approx(expected, rel=1e-5)


def test_parameters_lie_in_their_supports():
    free = {"scale": {"a": jnp.asarray(-1.0)}, "loc": jnp.asarray([2.0, -3.0])}
    supports = {"scale": constraints.positive, "loc": constraints.real_vector}
    found = constrained(free, supports)
    assert float(found["scale"]["a"]) == pytest.approx(np.exp(-1.0))
    np.testing.assert_array_equal(found["loc"], free["loc"])
