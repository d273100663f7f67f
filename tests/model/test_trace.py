"""What is kept of a model's trace: facts and programs, and nothing of the tracing."""

import gc
import math

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import compiled, graph_of
from numpyro.distributions import constraints

import numpyro_vips as nv
from numpyro_vips.conjugacy.families.supports import bounds
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.trace import Trace


def model(x, y=None):
    b = numpyro.param("b", 1.0, constraint=constraints.positive)
    with numpyro.plate("feature", 3):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    corr = numpyro.sample("corr", dist.LKJCholesky(2))
    numpyro.factor("known", -b * jnp.sum(corr[0]))
    with numpyro.plate("rows", x.shape[0]):
        u = numpyro.sample("u", dist.Normal(0.0, b).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ w + u.sum(-1), 1.0), obs=y)
    numpyro.deterministic("twice", 2 * w)


def traced(fn, count=2, **rows) -> Trace:
    rows = rows or {"x": np.ones((5, 3)), "y": np.ones(5)}
    marked = nv.private(fn, unit="rows")
    return Trace(marked, bind_arguments(marked, (), rows), count)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return traced(model)


def test_the_sites_are_the_models_in_its_order(trace: Trace) -> None:
    assert [(name, site.kind) for name, site in trace.sites.items()] == [
        ("b", "param"),
        ("feature", "plate"),
        ("w", "sample"),
        ("corr", "sample"),
        ("known", "sample"),
        ("rows", "plate"),
        ("u", "sample"),
        ("y", "sample"),
        ("twice", "deterministic"),
    ]
    assert trace.has_unit_plate and trace.plate_names == ("feature", "rows")


@pytest.mark.parametrize(
    ("name", "shape", "event_dim", "plates", "support"),
    [
        ("w", (3,), 0, (("feature", -1),), constraints.real),
        ("corr", (2, 2), 2, (), constraints.corr_cholesky),
        ("u", (2, 2), 1, (("rows", -1),), constraints.independent(constraints.real, 1)),
        ("y", (2,), 0, (("rows", -1),), constraints.real),
    ],
)
def test_a_sites_axes_are_those_that_it_has_on_so_many_rows(
    trace: Trace, name, shape, event_dim, plates, support
) -> None:
    site = trace.samples[name]
    assert (site.shape, site.event_dim, site.plates) == (shape, event_dim, plates)
    assert trace.shape(name) == shape
    assert type(site.support) is type(support)
    assert site.is_observed == (name == "y")
    assert not site.is_factor


def test_a_factor_has_no_support_and_a_parameter_its_constraint(trace: Trace) -> None:
    assert trace.samples["known"].is_factor
    assert trace.samples["known"].support is None
    assert trace.params["b"].constraint is constraints.positive


def test_nothing_of_the_tracing_is_kept() -> None:
    """Else a second trace, or a program that is compiled later, may use its values."""
    found = traced(model)
    tracers, seen, waiting = [], set(), [found.sites, found.inputs, found.output_shapes]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, jax.core.Tracer):
            tracers.append(value)
        elif not isinstance(value, type) and (
            isinstance(value, dict | list | tuple) or hasattr(value, "__dict__")
        ):
            waiting += gc.get_referents(value)
    assert len(seen) > 20
    assert not tracers


def test_a_model_that_looks_at_a_row_is_told_the_line() -> None:
    def looking(x, y=None):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        if x[0, 0] > 0:
            mean = -mean
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    with pytest.raises(nv.UnsafeModelError, match=r"line \d+ of test_trace.py"):
        traced(looking)


def test_bounds_that_jax_computes_of_constants_are_numbers() -> None:
    def model(y):
        share = numpyro.sample(
            "share", dist.Uniform(jnp.zeros(3), jnp.sqrt(jnp.ones(3))).to_event(1)
        )
        part = numpyro.sample("part", dist.Uniform(0.0, share[0]))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(part, 1.0), obs=y)

    _, graph = graph_of(model, (np.zeros(20, np.float32),))
    assert bounds(graph.sites["share"].support) == (0.0, 1.0)
    # The other one is known in a run alone.
    assert bounds(graph.sites["part"].support) == (-math.inf, math.inf)


def test_such_a_uniform_prior_is_a_beta() -> None:
    def model(group, y):
        chance = numpyro.sample("chance", dist.Uniform(jnp.zeros(3), jnp.ones(3)))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Bernoulli(chance[group]), obs=y)

    program = compiled(model, (np.arange(6) % 3, np.arange(6) % 2))
    (factor,) = program.structure.posterior_factors.values()
    assert factor.family.name == "Beta"
