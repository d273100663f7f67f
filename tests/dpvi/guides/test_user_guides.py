"""A guide of the user's own draws the model's latents, and knows of no row but one."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import graph_of
from numpyro.distributions import constraints
from numpyro.infer.autoguide import AutoNormal

from numpyro_vips.dpvi.guides.user_guides import UserGuide
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.model.graph import ModelGraph

Y = np.array([[0.5, -1.0], [2.0, 0.3], [0.0, 0.0]], np.float32)


def model(y: Any) -> None:
    s = numpyro.sample("s", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        k = numpyro.sample("k", dist.Bernoulli(0.5))
        mean = (z + k)[:, None]
        numpyro.sample("y", dist.Normal(mean, s).to_event(1), obs=y)


def globals_of_guide() -> None:
    loc: Any = numpyro.param("loc", 0.25)
    scale: Any = numpyro.param("scale", 0.5, constraint=constraints.positive)
    numpyro.sample("s", dist.LogNormal(loc, scale))


def guide(y: Any) -> None:
    globals_of_guide()
    weights: Any = numpyro.param("weights", jnp.array([1.0, 2.0]))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("z", dist.Normal(y @ weights, 0.1))


@pytest.fixture(scope="module")
def graph() -> ModelGraph:
    return graph_of(model, (Y,))[1]


def test_what_it_draws_and_what_it_learns_is_known(graph: ModelGraph) -> None:
    made = UserGuide(guide, graph)
    assert made.globals == ["s"] and made.locals == ["z"]
    assert made.constraints["scale"] is constraints.positive
    params = made.initial_params(jax.random.key(0))
    assert {name: np.asarray(value).tolist() for name, value in params.items()} == {
        "loc": 0.25,
        "scale": 0.5,
        "weights": [1.0, 2.0],
    }


def test_draws_of_globals_have_their_density(graph: ModelGraph) -> None:
    made = UserGuide(guide, graph)
    params = {"loc": 1.0, "scale": 2.0, "weights": jnp.zeros(2)}
    draw = made.draw_globals(params, jax.random.key(1))
    value = draw.values["s"]
    expected = dist.LogNormal(1.0, 2.0).log_prob(value)
    np.testing.assert_allclose(draw.log_density("s"), expected, rtol=1e-6)
    again = made.draw_globals(params, jax.random.key(1)).values["s"]
    other = made.draw_globals(params, jax.random.key(2)).values["s"]
    assert float(value) == float(again) != float(other)


def test_a_rows_latent_is_drawn_from_its_row_and_the_parameters(
    graph: ModelGraph,
) -> None:
    made = UserGuide(guide, graph)
    params = {"loc": 0.0, "scale": 1.0, "weights": jnp.array([3.0, -1.0])}
    key, given = jax.random.key(0), {"s": jnp.asarray(1.0)}
    means = []
    for row in Y:
        draw = made.draw_locals({"y": jnp.asarray(row)}, given, params, key)
        mean = row @ np.array([3.0, -1.0])
        value = float(draw.values["z"][0])
        assert abs(value - mean) < 0.5
        expected = dist.Normal(mean, 0.1).log_prob(value)
        np.testing.assert_allclose(draw.log_density("z"), expected, rtol=1e-4)
        means.append(value - mean)
    # The same number is behind each of them.
    np.testing.assert_allclose(means, means[0], atol=1e-5)


def point(y: Any) -> None:
    s: Any = numpyro.param("point", 0.75, constraint=constraints.positive)
    numpyro.sample("s", dist.Delta(s))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("z", dist.Normal(0.0, 1.0))


def test_a_point_has_no_density(graph: ModelGraph) -> None:
    draw = UserGuide(point, graph).draw_globals({"point": 0.5}, jax.random.key(0))
    assert float(draw.values["s"]) == 0.5 and draw.log_density("s") == 0.0


def test_a_guide_may_do_without_the_models_arguments() -> None:
    def of_globals(y: Any) -> None:
        s = numpyro.sample("s", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.zeros(2), s).to_event(1), obs=y)

    made = UserGuide(globals_of_guide, graph_of(of_globals, (Y,))[1])
    assert made.globals == ["s"] and made.locals == []
    assert "s" in made.draw_globals({"loc": 0.0}, jax.random.key(0)).values


def of_rows(*statements: Callable[[Any], object]) -> Callable[[Any], None]:
    """A guide with these statements in place of those of `z`."""

    def made(y: Any) -> None:
        globals_of_guide()
        for statement in statements:
            with numpyro.plate("rows", y.shape[0]):
                statement(y)

    return made


def z_of_rows(y: Any) -> None:
    numpyro.sample("z", dist.Normal(0.0, 1.0))


def z_outside(y: Any) -> None:
    globals_of_guide()
    numpyro.sample("z", dist.Normal(0.0, 1.0))


def s_from_rows(y: Any) -> None:
    numpyro.sample("s", dist.LogNormal(y.sum(), 1.0))
    with numpyro.plate("rows", y.shape[0]):
        z_of_rows(y)


def s_from_the_number_of_rows(y: Any) -> None:
    numpyro.sample("s", dist.LogNormal(float(y.shape[0]), 1.0))
    with numpyro.plate("rows", y.shape[0]):
        z_of_rows(y)


REFUSED: dict[str, tuple[Callable[..., None], str]] = {
    "another latent": (
        of_rows(z_of_rows, lambda y: numpyro.sample("q", dist.Normal())),
        "samples 'q', which is no latent of the model",
    ),
    "a discrete one": (
        of_rows(z_of_rows, lambda y: numpyro.sample("k", dist.Bernoulli(0.5))),
        "the discrete latent 'k'",
    ),
    "no gradient": (
        of_rows(lambda y: numpyro.sample("z", dist.Poisson(2.0))),
        "no reparametrised draws",
    ),
    "outside": (z_outside, "'z' stands under the plate 'rows' in the model"),
    "another shape": (
        of_rows(lambda y: numpyro.sample("z", dist.Normal(jnp.zeros(2)).to_event(1))),
        "'z' has the shape",
    ),
    "one left out": (globals_of_guide, "does not sample 'z'"),
    "of rows": (s_from_rows, "depends on the private argument 'y'"),
    "of their number": (s_from_the_number_of_rows, "on the number of rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_guide_of_the_model_is_refused(name: str, graph: ModelGraph) -> None:
    made, reason = REFUSED[name]
    with pytest.raises(UnsafeModelError, match=reason):
        UserGuide(made, graph)


def test_functions_of_other_arguments_and_numpyros_guides_are_refused(
    graph: ModelGraph,
) -> None:
    with pytest.raises(TypeError, match="to take the model's arguments or none"):
        UserGuide(lambda a, b, c: None, graph)
    with pytest.raises(TypeError, match="AutoNormal, which keeps the data"):
        UserGuide(AutoNormal(model), graph)
