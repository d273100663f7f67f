"""Globals whose exponential is taken are found, and are in no units of wide priors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_of_graph
from _models import graph_of

from numpyro_vips.dpvi.logarithmic_globals import logarithmic_globals


@pytest.mark.parametrize(
    ("density", "expected"),
    [
        (lambda a, b, x: jnp.exp(a + b * x), {"a", "b"}),
        (lambda a, b, x: a * x - jnp.exp(b / x), {"b"}),
        (lambda a, b, x: jnp.exp(a * b), set()),
        (lambda a, b, x: jnp.exp(x / a) + b, set()),
        (lambda a, b, x: -((x - a) ** 2) * jnp.exp(-b), {"b"}),
        (lambda a, b, x: jax.nn.sigmoid(jnp.stack([a, x])[0]) + b, {"a"}),
        (lambda a, b, x: jax.scipy.special.logsumexp(jnp.stack([a, b * x])), {*"ab"}),
        (
            lambda a, b, x: jax.jit(jnp.tanh)(jnp.array([x, x]) @ jnp.array([a, a])),
            {"a"},
        ),
        # A mixture's densities, of which the log of the sum is taken.
        (
            lambda a, b, x: jnp.log(jnp.exp(-((x - a) ** 2)) + jnp.exp(-(x**2)) * b),
            set(),
        ),
        # Beside what is not linear: a row's effect, say.
        (lambda a, b, x: jnp.exp(a + b**2 * x), {"a"}),
    ],
)
def test_what_an_exponential_is_taken_of_is_found(density: Any, expected: set) -> None:
    free = {"a": jnp.asarray(0.3), "b": jnp.asarray(0.7)}
    program = jax.make_jaxpr(lambda free, x: density(free["a"], free["b"], x))(
        free, 0.5
    )
    assert logarithmic_globals(program, free) == expected


def counts(x: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1000.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + b * x)), obs=y)


def incomes(x: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1000.0))
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, a + b * x, 1.0), obs=y)


@pytest.mark.parametrize(("model", "unit"), [(counts, 1.0), (incomes, 128.0)])
def test_only_other_globals_are_in_units_of_wide_priors(model: Any, unit: float):
    rows = np.zeros(50, np.float32), np.zeros(50, np.int32)
    program = engine_of_graph(graph_of(model, rows)[1]).compiled.program
    units = {site.name: site.unit for site in program.space.sites}
    assert units == {"a": unit, "b": 1.0}
    # Steps are as long, and the prior itself is what it was.
    np.testing.assert_allclose(program.reach, 1.0)
    np.testing.assert_allclose(
        sorted(program.prior_scale), [2.0, 1000.0 / unit], rtol=1e-3
    )
