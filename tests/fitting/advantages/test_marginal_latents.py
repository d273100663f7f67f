"""Where "auto" takes DPVI since it knows rows without their own latents."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _engine_choice import advantage_of
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.fitting.advantages.marginal_latents import (
    ROWS_PER_NOISE,
    affords_scores,
)
from numpyro_vips.fitting.prepare import PreparedFit

ROWS = 1000


pytestmark = pytest.mark.usefixtures("own_prepared_fits")


def classes(y: Any) -> None:
    """Two classes of rows, which say yes to three questions more or less often."""
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    with numpyro.plate("classes", 2, dim=-2), numpyro.plate("questions", 3):
        yes: Any = numpyro.sample("yes", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Bernoulli(yes[z]).to_event(1), obs=y)


def clusters(y: Any) -> None:
    """A mixture of two Normals, whose classes are no sites of the model."""
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(2)))
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)):
        parts = dist.Normal(mean, 1.0)
        mixture = dist.MixtureSameFamily(dist.Categorical(share), parts)
        numpyro.sample("y", mixture, obs=1.0 * y[:, 0])


def levels(y: Any) -> None:
    """Rows have a level, and the only global beside it is its mean."""
    scale = numpyro.sample("scale", dist.InverseGamma(2.0, 2.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Normal(mean, 1.0))
        numpyro.sample("y", dist.Normal(z[:, None], scale**0.5).to_event(1), obs=y)


def effects(y: Any) -> None:
    """The mean is written beside an effect, and taken for the mean of a level."""
    scale = numpyro.sample("scale", dist.InverseGamma(2.0, 2.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        centre = mean + u[:, None]
        numpyro.sample("y", dist.Normal(centre, scale**0.5).to_event(1), obs=y)


def trends(y: Any) -> None:
    """A slope beside levels is found by turns with them."""
    scale = numpyro.sample("scale", dist.InverseGamma(2.0, 2.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    slope: Any = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        centre = mean + u[:, None] + slope * jnp.arange(3.0)
        numpyro.sample("y", dist.Normal(centre, scale**0.5).to_event(1), obs=1.0 * y)


def mixed(y: Any) -> None:
    """An effect of each row beside a vector of coefficients."""
    scale = numpyro.sample("scale", dist.InverseGamma(2.0, 2.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        X = jnp.stack([jnp.ones_like(y[:, 1:]), 1.0 * y[:, :2]], -1)
        centre = X @ w + u[:, None]
        numpyro.sample(
            "y", dist.Normal(centre, scale**0.5).to_event(1), obs=1.0 * y[:, 1:]
        )


def trials(y: Any) -> None:
    """An effect of each row in logits, beside two globals."""
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b: Any = numpyro.sample("b", dist.Normal(0.0, 2.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(y)):
        u = numpyro.sample("u", dist.Normal(0.0, spread))
        logits = a + b * y[:, 0] + u
        numpyro.sample("y", dist.Binomial(12, logits=logits), obs=y[:, 1])


def loadings(y: Any) -> None:
    """One factor, with a loading for each question."""
    load = numpyro.sample("load", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    scale = numpyro.sample("scale", dist.InverseGamma(2.0, 2.0))
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        centre = load * z[:, None]
        numpyro.sample("y", dist.Normal(centre, scale**0.5).to_event(1), obs=1.0 * y)


def medians(y: Any) -> None:
    spread: Any = numpyro.sample("spread", dist.HalfNormal(1.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Laplace(1.0 * y[:, :2] @ w, spread), obs=1.0 * y[:, 2])


def quantiles(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        density = dist.AsymmetricLaplaceQuantile(mean, 1.0, 0.9)
        numpyro.sample("y", density, obs=1.0 * y[:, 0])


def long_tails(y: Any) -> None:
    """A Student t is smooth at its centre, and the effects' Laplace prior public."""
    w = numpyro.sample("w", dist.Laplace(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)):
        centre = 1.0 * y[:, :2] @ w
        numpyro.sample("y", dist.StudentT(4.0, centre, 1.0), obs=1.0 * y[:, 2])


def no_latents(y: Any) -> None:
    with numpyro.plate("questions", 3):
        yes: Any = numpyro.sample("yes", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(yes).to_event(1), obs=y)


def many_globals(y: Any) -> None:
    """Too many for a posterior that knows of the noise in scores."""
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(50)))
    with numpyro.plate("classes", 50, dim=-2), numpyro.plate("questions", 3):
        yes: Any = numpyro.sample("yes", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample(
            "z", dist.Categorical(share), infer={"enumerate": "parallel"}
        )
        numpyro.sample("y", dist.Bernoulli(yes[z]).to_event(1), obs=y)


def chain(y: Any) -> None:
    """Three days, with too many joint states to be listed."""
    moves: Any = numpyro.sample("moves", dist.Dirichlet(jnp.ones((5, 5))).to_event(1))
    shows: Any = numpyro.sample("shows", dist.Beta(jnp.ones(5), 2.0).to_event(1))
    with numpyro.plate("rows", len(y)):
        z: Any = 0
        for t in range(3):
            z = numpyro.sample(
                f"z{t}", dist.Categorical(moves[z]), infer={"enumerate": "parallel"}
            )
            numpyro.sample(f"y{t}", dist.Bernoulli(shows[z]), obs=y[:, t])


def fit_of(fn: Any = classes, *, epsilon: float = 1.0, **options: Any) -> nv.PrivateVI:
    return vi_of(fn, budget=epsilon, **options)


def plan_of(fn: Any = classes, *, rows: int = ROWS, **options: Any) -> nv.Plan:
    return fit_of(fn, **options).explain(np.zeros((rows, 3), np.int32))


@pytest.mark.thorough_with("chain-1.0")
@pytest.mark.parametrize(
    ("fn", "epsilon"), [(classes, 1.0), (classes, math.inf), (chain, 1.0)]
)
def test_dpvi_is_taken_and_explain_says_why(fn: Any, epsilon: float) -> None:
    plan = plan_of(fn, epsilon=epsilon)
    assert plan.engine == "dpvi"
    assert not plan.reasons  # VIPS could run it.
    (note,) = [note for note in plan.notes if "VIPS can run this model" in note]
    assert "sums over the discrete latents" in note
    assert "engine='vips' runs VIPS all the same" in note
    local = [site for site in plan.sites if site["role"] == "local"]
    assert all("summed out" in site["posterior"] for site in local)


def test_the_budget_decides_anew_in_every_fit() -> None:
    """Prepared fits are kept: the one for many rows is not that for few."""
    engines = [plan_of(epsilon=e).engine for e in (1.0, 0.1, 1.0, 0.1)]
    assert engines == ["dpvi", "vips"] * 2


@pytest.fixture(scope="module")
def by_vips() -> PreparedFit:
    vi = fit_of(engine="vips")
    return vi._prepare_fit((np.zeros((ROWS, 3), np.int32),), {})[0]


@pytest.mark.parametrize(
    "options",
    [
        {"num_steps": 5},
        {"clipping_norm": 3.0},
        {"noise_multiplier": 20.0},
        {"sampling": nv.Poisson(0.5)},
        {"epsilon": math.inf, "rows": 100},
        {"epsilon": math.inf, "num_steps": 5},
        {"rows": 100},
        {"epsilon": 0.1},
    ],
    ids=str,
)
def test_vips_has_no_disadvantage(by_vips: PreparedFit, options: Any) -> None:
    """Where the caller chose its steps; and for few rows."""
    rows = options.get("rows", ROWS)
    vi = fit_of(**{name: options[name] for name in options if name != "rows"})
    assert advantage_of(by_vips, vi, rows) is None
    assert advantage_of(by_vips, fit_of(), ROWS) == "marginal latents"


@pytest.mark.parametrize("options", [{"engine": nv.VIPS()}, {"rows": 100}], ids=str)
def test_vips_stays(options: Any) -> None:
    """Where the caller chose it, and where it has no disadvantage."""
    plan = plan_of(**options)
    assert plan.engine == "vips"
    assert not any("DPVI was taken" in note for note in plan.notes)


@pytest.mark.quick_with("mixed-1.0", "trends-1.0", "loadings-inf", "trials-1.0")
@pytest.mark.parametrize("epsilon", [1.0, math.inf])
@pytest.mark.parametrize("fn", [mixed, trends, trials, loadings])
def test_effects_beside_globals_are_integrated_out(fn: Any, epsilon: float) -> None:
    plan = plan_of(fn, epsilon=epsilon)
    assert plan.engine == "dpvi"
    (note,) = [note for note in plan.notes if "VIPS can run this model" in note]
    assert "integrates out the latents of rows" in note
    assert plan_of(fn, rows=100, epsilon=epsilon).engine == "vips"


@pytest.mark.quick_with("medians-1.0", "quantiles-inf")
@pytest.mark.parametrize("epsilon", [1.0, math.inf])
@pytest.mark.parametrize("fn", [medians, quantiles])
def test_densities_with_a_cusp_are_taken_as_they_are(fn: Any, epsilon: float) -> None:
    plan = plan_of(fn, epsilon=epsilon)
    assert plan.engine == "dpvi"
    (note,) = [note for note in plan.notes if "VIPS can run this model" in note]
    assert "not smooth at its centre" in note
    assert plan_of(fn, rows=100, epsilon=epsilon).engine == "vips"


@pytest.mark.thorough_with("effects", "many_globals")
@pytest.mark.parametrize("fn", [levels, effects, no_latents, many_globals, long_tails])
def test_vips_runs_other_models(fn: Any) -> None:
    assert plan_of(fn).engine == "vips"


def test_rows_are_enough_or_not() -> None:
    assert affords_scores(math.ceil(4 * ROWS_PER_NOISE), 4.0)
    assert not affords_scores(math.floor(4 * ROWS_PER_NOISE) - 1, 4.0)
    assert not affords_scores(10**9, None)


def test_a_mixture_without_a_site_for_its_classes_says_that_they_are_summed() -> None:
    plan = plan_of(clusters)
    assert plan.engine == "dpvi"
    (note,) = [note for note in plan.notes if "VIPS can run this model" in note]
    assert "sums over the discrete latents of rows" in note
