"""How far globals move until a row's density tells the difference."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_of_graph
from _fits import fit_to
from _models import graph_of

import numpyro_vips as nv
from numpyro_vips.dpvi.engine import DpviEngine

Y = np.zeros(50, np.float32)
CODES = np.zeros(50, np.int32)


def engine_of(model: Any, *arguments: Any) -> DpviEngine:
    return engine_of_graph(graph_of(model, arguments)[1])


def units_at(engine: DpviEngine, **values: float) -> dict[str, np.ndarray]:
    """By global, its units where some globals have these values and others none."""
    assert engine.compiled.first_coordinates is not None
    units_of_rows = engine.compiled.first_coordinates.of_rows
    space = engine.space
    place = space.split(jnp.zeros(space.size))
    for site in space.sites:
        if site.name in values:
            place[site.name] = site.transform.inv(jnp.asarray(values[site.name]))
    grown = units_of_rows.at(space.join(place), None)
    read = units_of_rows.read
    return {
        site.name: site.units * factor
        for site, factor in zip(
            read.sites, read.split(jnp.asarray(grown)).values(), strict=True
        )
    }


@pytest.mark.parametrize("factor", [1.0, 1024.0])
def test_a_mean_is_in_units_of_the_rows_width(factor: float) -> None:
    """And so are effects of groups, of which a row knows one. In other units of the
    response all are as many times larger."""

    def scores(group: Any, y: Any) -> None:
        m = numpyro.sample("m", dist.Normal(0.0, 50.0 * factor))
        w = numpyro.sample("w", dist.HalfNormal(20.0 * factor))
        with numpyro.plate("groups", 30):
            a: Any = numpyro.sample("a", dist.Normal(0.0, 30.0 * factor))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(m + a[group], w), obs=y)

    engine = engine_of(scores, CODES, Y)
    for width, of_mean, of_effects in ((12.0, 12.0, 12.0), (40.0, 40.0, 30.0)):
        found = units_at(engine, w=width * factor)
        np.testing.assert_allclose(found["m"], of_mean * factor, rtol=1e-3)
        # Quartiles of draws say how wide a prior is, about.
        np.testing.assert_allclose(found["a"], of_effects * factor, rtol=0.05)
        assert found["w"] == 1.0
    # None is shorter than the prior says.
    prior = {site.name: site.units for site in engine.space.sites}
    found = units_at(engine, w=0.01 * factor)
    assert all(np.array_equal(found[name], prior[name]) for name in found)


def test_each_coefficient_of_several_counts_by_itself() -> None:
    def regression(x: Any, y: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 500.0).expand([8]).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.StudentT(4.0, x @ b, 200.0), obs=y)

    (unit,) = units_at(engine_of(regression, np.zeros((50, 8), np.float32), Y)).values()
    # The curvature of the logarithm of a t density is 5 / 4 / 200² in the middle.
    np.testing.assert_allclose(unit, 200.0 / 1.25**0.5, rtol=5e-3)


def in_logits(x: Any, y: Any) -> None:
    b: Any = numpyro.sample("b", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=b * x - 6.0), obs=y)


def in_log_rates(x: Any, y: Any) -> None:
    b: Any = numpyro.sample("b", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Poisson(jnp.exp(b * x - 6.0)), obs=y)


def clipped(x: Any, y: Any) -> None:
    b: Any = numpyro.sample("b", dist.Normal(0.0, 5.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(jnp.clip(b, 2.0, 9.0), 100.0), obs=x)


@pytest.mark.parametrize("model", [in_logits, in_log_rates, clipped])
def test_exponents_and_globals_without_curvature_keep_their_unit(model: Any) -> None:
    assert units_at(engine_of(model, Y, CODES)) == {"b": 1.0}


def test_norms_are_counted_in_the_grown_units() -> None:
    def ages(y: Any) -> None:
        m: Any = numpyro.sample("m", dist.Normal(0.0, 64.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.StudentT(4.0, m, 32.0), obs=y)

    engine = engine_of(ages, Y)
    (site,) = engine.space.sites
    unit = float(site.units)
    state = engine.initial_state(jax.random.key(0))
    grown = engine.before_norms(state, {"loc"})
    assert state.coordinates is not None and grown.coordinates is not None
    factor = 32.0 / 1.25**0.5 / unit
    assert grown.coordinates.units[0, 0] == pytest.approx(factor, rel=5e-3)
    rows = {"y": np.full(3, 100.0, np.float32)}
    before = engine.row_norms(state, rows, ["loc"])["loc"]
    np.testing.assert_allclose(
        engine.row_norms(grown, rows, ["loc"])["loc"], factor * before, rtol=5e-3
    )
    # So does a norm of before, if the histogram does not say another one.
    assert engine.stretched(grown)["loc"] == pytest.approx(factor, rel=5e-3)
    # Counted are those of the information, say, which is in other units.
    assert engine.before_norms(state, {"information"}) is state


@pytest.mark.thorough
def test_effects_of_groups_on_natural_scales_are_found() -> None:
    """A mean of 75 +- 50 was not reached, nor effects of 8, beside residuals of 10."""

    def scores(group: Any, x: Any, y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 50.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
        spread = numpyro.sample("spread", dist.HalfNormal(20.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(20.0))
        with numpyro.plate("groups", 30):
            a: Any = numpyro.sample("a", dist.Normal(0.0, spread))
        with numpyro.plate("rows", len(y)):
            mu = mean + a[group] + slope * x
            numpyro.sample("y", dist.Normal(mu, sigma), obs=y)

    rng = np.random.default_rng(0)
    group, x = rng.integers(0, 30, 5000), rng.normal(size=5000)
    y = 75.0 + (8.0 * rng.normal(size=30))[group] + 3.0 * x
    y += 10.0 * rng.normal(size=5000)
    result = fit_to(
        scores,
        group,
        x.astype(np.float32),
        y.astype(np.float32),
        budget=nv.PrivacyBudget(1.0, 1e-6),
        engine="dpvi",
        insecure_seed=0,
    )
    moments = result.posterior.moments()
    for name, truth, error in (
        ("mean", 75.0, 3.0),
        ("slope", 3.0, 2.0),
        ("sigma", 10.0, 1.5),
        ("spread", 8.0, 4.0),
    ):
        found = moments[name]
        assert abs(float(found.mean) - truth) < error, name
        assert float(found.stddev) < error, name
