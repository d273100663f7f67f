import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to
from _models import graph_of
from scipy import stats

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.model.synthetic.prior_centre import (
    _centre,
    global_values,
    moderate_draws,
    moved_supports,
    prior_median,
    run_at_quartiles,
    unconstrained_scale,
)

QUARTILES = np.array([0.25, 0.75])
# Between the quartiles of a standard Normal.
UNIT = 1.349


@pytest.mark.parametrize(
    ("prior", "quartiles"),
    [
        (dist.Normal(1.0, 3.0), stats.norm(1, 3).ppf(QUARTILES)),
        (dist.StudentT(3.0, 1.0, 2.0), stats.t(3, 1, 2).ppf(QUARTILES)),
        (dist.Gamma(2.0, 5.0), np.log(stats.gamma(2, scale=1 / 5).ppf(QUARTILES))),
        (dist.InverseGamma(2.0, 5.0), np.log(stats.invgamma(2).ppf(QUARTILES) * 5)),
        (dist.Chi2(4.0), np.log(stats.chi2(4).ppf(QUARTILES))),
        (dist.HalfCauchy(2.0), np.log(stats.halfcauchy(scale=2).ppf(QUARTILES))),
        (dist.Beta(2.0, 3.0), np.log(1 / (1 / stats.beta(2, 3).ppf(QUARTILES) - 1))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_scale_is_the_distance_between_unconstrained_quartiles(prior, quartiles):
    expected = np.ptp(quartiles) / UNIT
    np.testing.assert_allclose(unconstrained_scale(prior), expected, rtol=1e-3)


def test_what_a_model_does_with_rows_is_not_run_for_its_globals():
    arrays = []

    def model(x, y=None):
        a = numpyro.sample("a", dist.Normal(2.0, 1.0))
        scale = numpyro.sample("scale", dist.Uniform(0.0, jnp.exp(a)))
        with numpyro.plate("rows", x.shape[0]):
            try:
                arrays.append(jnp.sin(a * x))
            except Exception:
                pytest.fail("a model may catch what it raises")
            numpyro.sample("y", dist.Normal(arrays[-1], scale), obs=y)

    _, graph = graph_of(model, (np.ones(5, np.float32), np.ones(5, np.float32)))
    before = len(arrays)
    found = global_values(graph)
    upper = moved_supports(graph)["scale"].upper_bound
    assert len(arrays) == before
    assert float(found.centres["a"]) == 2.0
    np.testing.assert_allclose(found.centres["scale"], np.exp(2.0) / 2, rtol=1e-6)
    np.testing.assert_allclose(found.supports["scale"].upper_bound, np.exp(2.0))
    np.testing.assert_allclose(upper, np.exp(3.0), rtol=1e-6)


def test_scale_has_the_shape_of_the_unconstrained_latent():
    scale = jnp.array([1.0, 2.0, 4.0])
    found = unconstrained_scale(dist.Normal(0.0, scale))
    np.testing.assert_allclose(found, scale, rtol=1e-3)
    gammas = dist.Gamma(jnp.array([1.0, 2.0]), 1.0)
    assert unconstrained_scale(gammas.expand([3, 2])).shape == (3, 2)


def test_scale_of_a_vague_scale_is_cut_short():
    assert unconstrained_scale(dist.Gamma(0.05, 0.05)) == 3.0


def test_scale_of_an_improper_prior_is_one():
    flat = dist.ImproperUniform(dist.constraints.real, (), (2,))
    np.testing.assert_array_equal(unconstrained_scale(flat), np.ones(2))


def test_scale_of_a_prior_whose_draws_underflow_does_not_warn():
    with warnings.catch_warnings(action="error"):
        assert unconstrained_scale(dist.Gamma(0.001, 0.001)) == 1.0


@pytest.mark.parametrize("concentration", [0.001, 1.0])
def test_centre_of_a_vague_variance_is_one_over_the_mean_precision(concentration):
    """Half of the draws of InverseGamma(0.001, 0.001) are above 1e300."""
    prior = dist.InverseGamma(concentration, 3.0 * concentration)
    centre = _centre(prior, dist.biject_to(prior.support), lambda: jax.random.key(0))
    np.testing.assert_allclose(centre, 3.0, rtol=1e-6)


def test_a_median_without_a_formula_is_that_of_draws():
    """Two Cauchys have neither an inverse distribution function nor a mean."""
    prior = dist.MixtureSameFamily(
        dist.Categorical(np.array([0.5, 0.5])), dist.Cauchy(np.array([0.0, 2.0]), 1.0)
    )
    draws = np.asarray(prior.sample(jax.random.key(1), (4000,)))
    below = (draws < float(prior_median(prior))).mean()
    np.testing.assert_allclose(below, 0.5, atol=0.1)


def test_draws_are_as_wide_as_priors_and_those_of_vague_scales_are_moderate():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(50.0, 20.0).expand([3]).to_event(1))
        numpyro.sample("share", dist.Dirichlet(np.ones(4, np.float32)))
        tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mean[0], 1 / jnp.sqrt(tau)), obs=y)

    marked = nv.private(model, unit="rows")
    graph = build_graph(marked, bind_arguments(marked, (np.zeros(5),), {}))
    drawn = moderate_draws(graph, 2000)
    assert {name: of.shape for name, of in drawn.items()} == {
        "mean": (2000, 3),
        "share": (2000, 4),
        "tau": (2000,),
    }
    np.testing.assert_allclose(drawn["mean"].mean(0), 50.0, atol=2.0)
    np.testing.assert_allclose(drawn["mean"].std(0), 20.0, rtol=0.1)
    np.testing.assert_allclose(drawn["share"].sum(1), 1.0)
    assert 0.9 < np.log(drawn["tau"]).std() < 3.3
    again = moderate_draws(graph, 2000)
    np.testing.assert_array_equal(drawn["tau"], again["tau"])


@pytest.mark.parametrize("library", [np, jnp], ids=["NumPy", "JAX"])
def test_bounds_that_are_arrays_are_found_in_any_precision(library):
    """Fits change precision on their way. NumPy's arrays would not change along."""

    def model(y):
        low, high = library.array([0.0, 10.0]), library.array([5.0, 30.0])
        m = numpyro.sample("m", dist.Uniform(low, high).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(m, 2.0).to_event(1), obs=y)

    rng = np.random.default_rng(0)
    y = rng.normal([2.0, 20.0], 2.0, size=(1500, 2)).astype(np.float32)
    for epsilon in (2.0, math.inf):
        draws = fit_to(model, y, budget=epsilon).sample_posterior(
            jax.random.key(1), (500,)
        )["m"]
        away = np.abs(np.mean(draws, axis=0) - y.mean(0))
        assert np.all(away < 4 * np.std(draws, axis=0))
        assert np.all(np.std(draws, axis=0) < 0.2)


def test_a_run_at_quartiles_knows_the_latents_before():
    """The first or the third quartile of each prior, given its parents' values."""

    def model(y):
        level = numpyro.sample("level", dist.Normal(5.0, 2.0))
        spread = numpyro.sample("spread", dist.LogNormal(1.0, 0.5))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(level, spread), obs=y)

    _, graph = graph_of(model, (np.zeros(20, np.float32),))
    found = {
        tuple(
            round(float((value - centre) / width / stats.norm.ppf(0.75)), 3)
            for value, centre, width in (
                (messages["level"]["value"], 5.0, 2.0),
                (np.log(messages["spread"]["value"]), 1.0, 0.5),
            )
        )
        for messages in (run_at_quartiles(graph, seed) for seed in range(20))
    }
    assert len(found) == 4
    np.testing.assert_allclose(np.abs(list(found)), 1.0, rtol=2e-3)
