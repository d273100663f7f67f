"""Discrete latents of a row, summed out, against NumPyro's own mixtures."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_vips as nv
from numpyro_vips.dpvi.checks import not_supported
from numpyro_vips.dpvi.row_latents.locals_of_rows import find_locals_of_rows
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.model.log_density import num_joint_states, row_log_density


def _enumerated(x, y):
    loc: Any = numpyro.sample("loc", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    slope: Any = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        weights = dist.CategoricalProbs(jnp.array([0.2, 0.3, 0.5]))
        z: Any = numpyro.sample("z", weights)
        b: Any = numpyro.sample("b", dist.BernoulliProbs(0.3))
        numpyro.sample("x", dist.Normal(jnp.tanh(loc[z]) + b, 0.7), obs=x)
        numpyro.sample("y", dist.BernoulliLogits(slope * z + b), obs=y)


def _graph(model):
    marked = nv.private(model, unit="rows")
    data = np.array([0.3, -1.2], np.float32), np.array([1.0, 0.0], np.float32)
    return build_graph(marked, bind_arguments(marked, data, {}))


@pytest.mark.thorough
def test_discrete_latents_are_summed_out_exactly():
    graph = _graph(_enumerated)
    assert num_joint_states(graph) == 6
    assert not_supported(graph) is None
    loc, slope = jnp.array([0.5, -1.0, 2.0]), jnp.asarray(0.4)
    row = {"x": jnp.asarray(0.3), "y": jnp.asarray(1.0)}
    density, in_support = row_log_density(graph, {"loc": loc, "slope": slope}, row)
    terms = [
        np.log([0.2, 0.3, 0.5][z])
        + np.log([0.7, 0.3][b])
        + float(dist.Normal(jnp.tanh(loc[z]) + b, 0.7).log_prob(0.3))
        + float(dist.BernoulliLogits(slope * z + b).log_prob(1.0))
        for z in range(3)
        for b in range(2)
    ]
    assert float(density) == pytest.approx(float(jax.nn.logsumexp(jnp.array(terms))))
    assert bool(in_support)


@pytest.mark.thorough
def test_a_label_outside_the_support_is_noticed():
    graph = _graph(_enumerated)
    latents = {"loc": jnp.zeros(3), "slope": jnp.zeros(())}
    row = {"x": jnp.asarray(0.3), "y": jnp.asarray(2.0)}
    assert not bool(row_log_density(graph, latents, row)[1])


def test_too_many_joint_states_are_refused_with_the_remedy():
    def model(x, y):
        loc: Any = numpyro.sample("loc", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            bits = dist.BernoulliProbs(0.5).expand([12]).to_event(1)
            z: Any = numpyro.sample("z", bits)
            numpyro.sample("x", dist.Normal(jnp.tanh(loc[0] * z.sum(-1)), 1.0), obs=x)

    graph = _graph(model)
    assert num_joint_states(graph) == 2**12
    with pytest.raises(UnsafeModelError, match=r"'z'.*MixtureSameFamily"):
        find_locals_of_rows(graph)


@pytest.mark.thorough
def test_the_gradient_is_that_of_the_marginal_density():
    graph = _graph(_enumerated)
    row = {"x": jnp.asarray(-0.8), "y": jnp.asarray(0.0)}

    def density(slope):
        return row_log_density(graph, {"loc": jnp.ones(3), "slope": slope}, row)[0]

    step = 1e-2
    expected = (density(0.3 + step) - density(0.3 - step)) / (2 * step)
    assert float(jax.grad(density)(0.3)) == pytest.approx(float(expected), abs=1e-3)
