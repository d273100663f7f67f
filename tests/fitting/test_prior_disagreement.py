"""Posteriors far out in their prior are said, and others are not."""

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
from numpyro_vips.fitting.prior_disagreement import prior_disagreements
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import ModelGraph, build_graph
from numpyro_vips.posterior import MeanAndStddev

DISAGREE = "and the data disagree"


ROWS = (np.zeros(9, np.float32),)


def graph_of(model: Any) -> ModelGraph:
    marked = nv.private(model, unit="rows")
    return build_graph(marked, bind_arguments(marked, ROWS, {}))


def said(prior: Any, mean: Any, stddev: Any = 0.0) -> list[str]:
    """What is said of a global `x` with this prior and posterior."""

    def model(y: Any) -> None:
        x = numpyro.sample("x", prior)
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.sum(x), 1.0), obs=y)

    mean = np.asarray(mean, float)
    moments = MeanAndStddev(mean=mean, stddev=np.broadcast_to(stddev, mean.shape))
    return prior_disagreements(graph_of(model), {"x": moments})


FAR = [
    (dist.Normal(0.0, 1.0), 4.1),
    (dist.Normal(0.0, 1.0), -45.0),
    (dist.Gamma(2.0, 1.0), 40.0),
    (dist.Gamma(30.0, 1.0), 5.0),
    (dist.InverseGamma(3.0, 2.0), 1e3),
    (dist.Beta(20.0, 20.0), 0.01),
    (dist.HalfNormal(1.0), 7.0),
    (dist.HalfCauchy(1.0), 1e6),
    (dist.LogNormal(0.0, 0.5), 50.0),
    (dist.Exponential(1.0), 30.0),
    (dist.StudentT(4.0, 0.0, 1.0), 40.0),
    (dist.Normal(jnp.zeros(3), 1.0).to_event(1), [0.0, 9.0, 0.0]),
    (dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)), [9.0, 0.0]),
]
NEAR = [
    (dist.Normal(0.0, 1.0), 3.0),
    (dist.Gamma(2.0, 1.0), 9.0),
    (dist.Gamma(0.001, 0.001), 1.0),
    (dist.Beta(1.0, 1.0), 1e-6),  # A rare event.
    (dist.HalfNormal(1.0), 1e-7),  # A scale that vanishes.
    (dist.HalfCauchy(1.0), 1e-7),
    (dist.HalfCauchy(1.0), 100.0),
    (dist.Cauchy(0.0, 1.0), 1e3),
    # The farthest of so many is that far out.
    (dist.Normal(jnp.zeros(1000), 1.0).to_event(1), np.linspace(-4.3, 4.3, 1000)),
    (dist.Dirichlet(jnp.ones(5)), [0.96, 0.01, 0.01, 0.01, 0.01]),
    (dist.LKJCholesky(2, 1.0), [[1.0, 0.0], [1.0, 1e-9]]),
    (dist.ImproperUniform(dist.constraints.real, (), ()), 1e9),
]


@pytest.mark.parametrize(("prior", "mean"), FAR)
def test_far_out_is_said_with_both_sides(prior, mean):
    (text,) = said(prior, mean)
    assert DISAGREE in text
    assert "'x'" in text
    worst = np.ravel(mean)[np.argmax(np.abs(np.ravel(mean)))]
    assert f"{worst:.4g} (sd " in text


@pytest.mark.parametrize(("prior", "mean"), NEAR)
def test_what_the_prior_expects_is_not_said(prior, mean):
    assert said(prior, mean) == []


def test_what_the_posterior_leaves_open_is_no_disagreement():
    assert said(dist.Normal(0.0, 1.0), 8.0, stddev=1.0)
    assert not said(dist.Normal(0.0, 1.0), 8.0, stddev=3.0)
    assert not said(dist.Normal(0.0, 1.0), np.nan)


def test_the_sentence_says_what_the_prior_expects():
    (text,) = said(dist.Normal(jnp.array([0.0, 10.0]), 1.0).to_event(1), [0.0, 45.0])
    assert "'x'[1]" in text
    assert "between 7.424 and 12.58" in text


LEANS = "leans on an end of its prior's range"
ENDS = [
    (dist.Uniform(-np.pi, np.pi), -3.127, 0.0066),
    (dist.Uniform(-np.pi, np.pi), -3.03, 0.2),
    (dist.VonMises(0.0, 0.1), 3.1, 0.03),
    (dist.Uniform(1.0, 10.0), 9.99, 0.01),
    (dist.Uniform(1.0, 10.0), 1.01, 0.01),
    (dist.Uniform(-5.0, jnp.array([5.0, 2.0])).to_event(1), [1.0, 1.9], 0.1),
]
WITHIN = [
    (dist.Uniform(-np.pi, np.pi), 3.0, 0.02),
    (dist.Uniform(-np.pi, np.pi), 0.0, 1.8),  # Nothing is known.
    (dist.Uniform(-np.pi, np.pi), 0.5, 1.0),
    (dist.Uniform(0.0, 1.0), 0.001, 0.001),  # A rare event.
    (dist.Uniform(-1.0, 1.0), 0.98, 0.01),  # A correlation.
    (dist.Uniform(0.0, 10.0), 0.001, 0.001),  # A scale that vanishes.
    (dist.Beta(1.0, 1.0), 0.999, 0.001),
]


@pytest.mark.parametrize(("prior", "mean", "stddev"), ENDS)
def test_a_posterior_at_an_end_of_a_chosen_range_is_said(prior, mean, stddev):
    (text,) = said(prior, mean, stddev)
    assert LEANS in text
    is_angle = np.ndim(mean) == 0 and abs(mean) < 4.0 and mean != 1.01
    assert ("If it is an angle" in text) == is_angle


@pytest.mark.parametrize(("prior", "mean", "stddev"), WITHIN)
def test_ends_that_are_far_or_natural_are_not_said(prior, mean, stddev):
    assert said(prior, mean, stddev) == []


def hierarchy(y: Any) -> None:
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    with numpyro.plate("features", 4):
        local = numpyro.sample("local", dist.HalfCauchy(1.0))
        w = numpyro.sample("w", dist.Normal(0.0, local * scale))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(w.sum(), 1.0), obs=y)


def test_a_prior_is_that_given_the_posterior_of_its_parents():
    """One large weight of a horseshoe, which its own scale expects."""
    graph = graph_of(hierarchy)
    none = np.zeros(4)
    moments = {
        "scale": MeanAndStddev(np.asarray(0.01), np.asarray(0.0)),
        "local": MeanAndStddev(np.array([800.0, 1e-4, 1e-4, 1e-4]), none),
        "w": MeanAndStddev(np.array([10.0, 0.0, 0.0, 0.0]), none),
    }
    assert prior_disagreements(graph, moments) == []
    moments["local"] = MeanAndStddev(np.ones(4), none)
    (text,) = prior_disagreements(graph, moments)
    assert "'w'[0]" in text


# --- fits -----------------------------------------------------------------------------


def ages_of(mean: float, stddev: float) -> Any:
    def ages(y: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(mean, stddev))
        tau = numpyro.sample("tau", dist.Gamma(3.0, 300.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, 1 / jnp.sqrt(tau)), obs=y)

    return ages


def fit(model: Any, y: np.ndarray, **options: Any) -> nv.PrivateVIResult:
    vi = vi_of(model, budget=options.pop("budget", 1.0), insecure_seed=0, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "insecure_seed", UserWarning)
        return vi.run(jax.random.key(0), y)


AGES = np.random.default_rng(0).normal(45.0, 10.0, 4000).astype(np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize(("engine", "width"), [("vips", 1.0), ("dpvi", 8.0)])
def test_ages_under_a_prior_in_other_units_warn(engine, width, tmp_path):
    """Under a narrower prior DPVI does not get to the ages, and says that instead."""
    with pytest.warns(UserWarning, match=r"prior of 'mu' and the data"):
        result = fit(ages_of(0.0, width), AGES, engine=engine, budget=10.0)
    texts = [text for text in result.diagnostics["warnings"] if DISAGREE in text]
    assert len(texts) == 1
    assert texts[0] in str(result)
    result.save(tmp_path / "fit.nc")
    assert texts[0] in nv.load(tmp_path / "fit.nc").diagnostics["warnings"]


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
def test_ages_under_their_own_prior_do_not(engine):
    result = fit(ages_of(50.0, 20.0), AGES, engine=engine)
    assert not any(DISAGREE in text for text in result.diagnostics["warnings"])


@pytest.mark.thorough
def test_without_privacy_the_rows_can_be_looked_at():
    result = fit(ages_of(0.0, 1.0), AGES, budget=np.inf)
    assert not any(DISAGREE in text for text in result.diagnostics["warnings"])


def test_a_models_numpy_columns_meet_latents_as_they_do_in_a_fit():
    """`X.dot(beta)` of a NumPy array would look at the value of a traced `beta`."""

    def model(X: Any, y: Any = None) -> None:
        beta = numpyro.sample("beta", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Normal(X.dot(beta), 1.0), obs=y)

    marked = nv.private(model, unit="rows")
    arguments = bind_arguments(marked, (np.ones((9, 2)), ROWS[0]), {})
    moments = MeanAndStddev(mean=np.array([0.0, 9.0]), stddev=np.full(2, 0.1))
    (text,) = prior_disagreements(build_graph(marked, arguments), {"beta": moments})
    assert DISAGREE in text


AS_ITS_PRIOR = "hardly narrower than its prior"


@pytest.mark.parametrize(
    ("prior", "mean", "stddev", "is_said"),
    [
        (dist.Exponential(1.0), 0.8, 0.6, True),
        (dist.Exponential(1.0), 0.8, 0.3, False),
        # Far above the prior, and near zero.
        (dist.Exponential(1.0), 7.3, 0.8, False),
        (dist.Exponential(1.0), 0.05, 0.04, False),
        (dist.HalfNormal(20.0), 8.0, 9.0, True),
        (dist.HalfNormal(20.0), 8.0, 0.5, False),
        # Without a variance, too.
        (dist.HalfCauchy(1.0), 1.0, 1.2, True),
        (
            dist.Exponential(jnp.ones(3)).to_event(1),
            [0.8, 1.0, 0.8],
            [0.1, 0.7, 0.1],
            True,
        ),
        # A coefficient may be one of which rows say nothing.
        (dist.Normal(0.0, 1.0), 0.0, 1.0, False),
        (dist.Beta(2.0, 2.0), 0.5, 0.2, False),
    ],
)
def test_a_scale_whose_posterior_is_its_prior_is_said(prior, mean, stddev, is_said):
    texts = [text for text in said(prior, mean, stddev) if AS_ITS_PRIOR in text]
    assert len(texts) == is_said
    assert all("posterior of 'x'" in text for text in texts)


@pytest.mark.parametrize("is_centred", [True, False])
def test_a_scale_of_other_globals_is_none_of_rows(is_centred: bool) -> None:
    """Few of these say little of it. As a factor of coefficients it is one of rows."""

    def model(y: Any) -> None:
        x = numpyro.sample("x", dist.Exponential(1.0))
        w = numpyro.sample("w", dist.Normal(0.0, x if is_centred else 1.0))
        w = w if is_centred else x * w
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(w, 1.0), obs=y)

    moments = {
        "x": MeanAndStddev(mean=np.array(0.8), stddev=np.array(0.7)),
        "w": MeanAndStddev(mean=np.array(0.1), stddev=np.array(0.5)),
    }
    texts = prior_disagreements(graph_of(model), moments)
    assert [AS_ITS_PRIOR in text for text in texts] == ([] if is_centred else [True])


def test_what_an_engine_says_is_not_said_twice() -> None:
    def model(y: Any) -> None:
        x = numpyro.sample("x", dist.Exponential(1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(0.0, x), obs=y)

    moments = {"x": MeanAndStddev(mean=np.array(0.8), stddev=np.array(0.6))}
    assert prior_disagreements(graph_of(model), moments, {"x"}) == []
