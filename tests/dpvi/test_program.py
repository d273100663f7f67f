"""A model's globals in flat vectors, and the draws of a step."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_of_graph
from _models import graph_of
from numpyro.distributions import constraints
from numpyro.infer import Trace_ELBO

from numpyro_vips.dpvi.program import DpviProgram, GradientInputs, unconstrained_params
from numpyro_vips.errors import UnsafeModelError

Y = np.array([0.5, -1.0, 2.0], np.float32)
KEY = jax.random.key(0)


def model(y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 3.0).to_event(1))
    s = numpyro.sample("s", dist.LogNormal(0.0, 1.0))
    b: Any = numpyro.param("b", jnp.array([0.5, 2.0]), constraint=constraints.positive)
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, w.sum() + b.sum(), s), obs=y)


def guide(y: Any) -> None:
    loc: Any = numpyro.param("loc", jnp.array([1.0, -1.0]))
    numpyro.sample("w", dist.Normal(loc, 0.1).to_event(1))
    numpyro.sample("s", dist.LogNormal(0.7, 0.1))


def program_of(**settings: Any) -> DpviProgram:
    return engine_of_graph(graph_of(model, (Y,))[1], **settings).program


@pytest.fixture(scope="module")
def program() -> DpviProgram:
    return program_of(loss=Trace_ELBO(num_particles=3))


def test_draws_are_one_for_each_particle_and_new_in_each_step(
    program: DpviProgram,
) -> None:
    (key, first), (other_key, second), (_, again) = (
        program.draws(KEY, step) for step in (0, 1, 0)
    )
    assert first.shape == (3, 3)
    np.testing.assert_array_equal(first, again)
    assert np.all(np.asarray(first) != np.asarray(second))
    assert not np.array_equal(jax.random.key_data(key), jax.random.key_data(other_key))


def test_globals_at_a_draw_are_what_the_guide_makes_of_it(program: DpviProgram) -> None:
    variational = program.initial(KEY)
    noise = jnp.array([0.3, -1.2, 0.5])
    z = program.value(variational, noise)
    scale = np.exp(variational.guide["log_scale"])
    np.testing.assert_allclose(z, variational.guide["loc"] + scale * noise, rtol=1e-6)
    values, params = program.arguments((variational.guide, variational.params), noise)
    by_name = {"w": z[:2], "s": z[2]}
    if program.space.sites[0].name == "s":
        by_name = {"s": z[0], "w": z[1:]}
    for name, value in by_name.items():
        np.testing.assert_array_equal(values[name], value)
    assert params is variational.params


def test_parameters_start_where_they_are_said_to_and_keep_their_supports(
    program: DpviProgram,
) -> None:
    params = program.initial(KEY).params
    np.testing.assert_allclose(params["b"], np.log([0.5, 2.0]), rtol=1e-6)
    np.testing.assert_allclose(program.constrained(params)["b"], [0.5, 2.0], rtol=1e-6)


def test_a_users_guide_is_drawn_from_in_the_unconstrained_space() -> None:
    program = program_of(guide=guide, loss=Trace_ELBO(num_particles=2))
    _, draws = program.draws(KEY, 0)
    assert draws.shape == (2,) and program.guide is None
    variational = program.initial(KEY)
    assert variational.guide == {} and set(variational.params) == {"b", "loc"}
    z = program.space.split(program.value(variational, draws[0]))
    assert np.all(np.abs(z["w"] - np.array([1.0, -1.0])) < 0.6)
    assert abs(float(z["s"]) - 0.7) < 0.6  # Its logarithm.


def test_late_globals_stay_where_they_are_at_first(program: DpviProgram) -> None:
    none = dataclasses.replace(program, is_late=np.zeros(3, bool))
    np.testing.assert_array_equal(none.reach_of_step(jnp.asarray(0)), program.reach)
    late = dataclasses.replace(
        program,
        is_late=np.array([False, True, False]),
        options=dataclasses.replace(program.options, num_waiting=5),
    )
    expected = np.where(late.is_late, 0.0, program.reach)
    np.testing.assert_array_equal(late.reach_of_step(jnp.asarray(4)), expected)
    np.testing.assert_array_equal(late.reach_of_step(jnp.asarray(5)), program.reach)


@pytest.mark.parametrize("perturb", ["location", "all"])
def test_gradients_of_rows_are_taken_in_the_globals_or_in_the_guide(
    perturb: Any,
) -> None:
    program = program_of(perturb=perturb)
    variational = program.initial(KEY)
    key, draws = program.draws(KEY, 0)
    shared = program.shared(GradientInputs(variational, key, draws))
    first, params = shared.tree
    if perturb == "location":
        z = program.value(variational, draws[0])
        np.testing.assert_array_equal(program.space.join(first), z)
    else:
        assert first is variational.guide
    assert params is variational.params


def test_a_parameter_without_a_gradient_is_refused() -> None:
    def counted(y: Any) -> None:
        numpyro.param("n", jnp.array([1, 2]))
        model(y)

    graph = graph_of(counted, (Y,))[1]
    names = {"n": constraints.real, "b": constraints.positive}
    with pytest.raises(UnsafeModelError, match="'n' has entries of dtype int"):
        unconstrained_params(graph, None, names, KEY)
