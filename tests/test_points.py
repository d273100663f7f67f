"""Points of networks, which a file keeps without the networks' classes."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from numpyro.infer import Predictive

import numpyro_vips as nv
from numpyro_vips.dpvi.guides.posteriors import NormalPosterior
from numpyro_vips.points import (
    in_structure_of,
    named_points,
    paths_of_points,
    points_at,
)

KEY = jax.random.key(0)
rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (12, 2)).astype(np.float32)
Y = np.cos(3 * X[:, 0]).astype(np.float32)


class Layer(NamedTuple):
    weight: Any
    bias: Any


def _values(key: Any = KEY) -> list[Layer]:
    """Two layers, 2 to 4 to 1."""
    first, second = jax.random.split(key)
    return [
        Layer(jax.random.normal(first, (2, 4)), jnp.zeros(4)),
        Layer(jax.random.normal(second, (4, 1)), jnp.ones(1)),
    ]


def _applied(layers: Any, x: Any) -> Any:
    (w, b), (v, c) = layers
    return (jnp.tanh(x @ w + b) @ v + c)[..., 0]


def equinox_net(x: Any) -> Any:
    """An object whose class only the model knows."""
    import equinox
    from numpyro.contrib.module import eqx_module

    network = equinox.nn.MLP(2, "scalar", 4, 1, activation=jnp.tanh, key=KEY)
    net: Any = eqx_module("net", network)
    return jax.vmap(net)(x)


def flax_net(x: Any) -> Any:
    """Nested dicts, asked for before they are made, as `flax_module` does."""
    params: Any = numpyro.param("net$params")
    if params is None:
        first, second = _values(numpyro.prng_key())
        params = {"Dense_0": first._asdict(), "Dense_1": second._asdict()}
        numpyro.param("net$params", params)
    assert type(params["Dense_0"]) is dict
    return _applied([Layer(**params[k]) for k in ("Dense_0", "Dense_1")], x)


def nnx_net(x: Any) -> Any:
    """Dicts from numbers of layers, as `nnx_module` makes of a list."""
    params: Any = numpyro.param("net$params")
    if params is None:
        layers = dict(enumerate(layer._asdict() for layer in _values()))
        given: Any = {"layers": layers}
        params = numpyro.param("net$params", given)
    return _applied([Layer(**params["layers"][k]) for k in (0, 1)], x)


def haiku_net(x: Any) -> Any:
    """Two levels of dicts, with slashes in the names of layers."""
    names = ("mlp/~/linear_0", "mlp/~/linear_1")
    values: Any = dict(
        zip(names, (layer._asdict() for layer in _values()), strict=True)
    )
    params: Any = numpyro.param("net", values)
    return _applied([Layer(**params[name]) for name in names], x)


def listed_net(x: Any) -> Any:
    """A list of named tuples, drawn by the model's key."""
    draw: Any = _values
    params: Any = numpyro.param("net", draw)
    assert isinstance(params[0], Layer)
    return _applied(params, x)


NETWORKS = [equinox_net, flax_net, nnx_net, haiku_net, listed_net]


@pytest.mark.thorough
@pytest.mark.parametrize("net", NETWORKS, ids=lambda net: net.__name__)
def test_a_saved_network_predicts_as_before(net, tmp_path):
    @nv.private(unit="people")
    def model(X: Any, y: Any = None):
        noise: Any = numpyro.sample("noise", dist.HalfNormal(1.0))
        with numpyro.plate("people", X.shape[0]):
            numpyro.sample("y", dist.Normal(net(X), noise), obs=y)

    result = vi_of(model, budget=math.inf, num_steps=3).run(KEY, X, Y)
    result.save(tmp_path / "net.nc")
    again = nv.load(tmp_path / "net.nc", model=model)
    predicted, bounds = [], []
    for one in (result, again):
        samples, posterior = one.sample_posterior(KEY, (3,)), one.posterior
        assert isinstance(posterior, NormalPosterior)
        predictive = Predictive(model, samples, params=dict(posterior.points))
        predicted.append(predictive(KEY, X)["y"])
        bounds.append(one.elbo(X, Y))
    assert predicted[0].shape == (3, 12)
    np.testing.assert_array_equal(*predicted)
    np.testing.assert_array_equal(*bounds)
    # The points are those of the fit, and not what the model begins with.
    started = Predictive(model, result.sample_posterior(KEY, (3,)))(KEY, X)["y"]
    assert np.abs(started - predicted[0]).max() > 1e-3


@pytest.mark.thorough
def test_an_encoder_in_a_marked_guide_is_read_again(tmp_path):
    def model(y: Any):
        scale: Any = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("people", y.shape[0]):
            z: Any = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            numpyro.sample("y", dist.Normal(z, scale).to_event(1), obs=y)

    def guide(y: Any):
        width: Any = numpyro.param("width", jnp.asarray(0.5))
        numpyro.sample("scale", dist.LogNormal(-1.0, jnp.abs(width)))
        centre = equinox_net(y)[:, None] * jnp.ones(2)
        with numpyro.plate("people", y.shape[0]):
            numpyro.sample("z", dist.Normal(centre, 0.3).to_event(1))

    marked = nv.private(guide, unit="people")
    result = vi_of(
        nv.private(model, unit="people"),
        budget=math.inf,
        engine=nv.DPVI(guide=guide),
        num_steps=2,
    ).run(KEY, X)
    result.save(tmp_path / "net.nc")
    both: list[Any] = [result.posterior, nv.load(tmp_path / "net.nc").posterior]
    drawn = [
        Predictive(marked, params=one.points, num_samples=2)(KEY, X)["z"]
        for one in both
    ]
    np.testing.assert_array_equal(*drawn)


def test_points_keep_what_json_keeps():
    points = {"a": jnp.ones(2), "n": {"layers": {0: {"w": jnp.zeros(3)}}, "b": 4.0}}
    paths = paths_of_points(points)
    assert paths == {
        "a": ["a"],
        "n::b": ["n", "b"],
        "n::layers::0::w": ["n", "layers", 0, "w"],
    }
    again = points_at(paths, named_points(points) | {"other": jnp.ones(1)})
    assert jax.tree.structure(again) == jax.tree.structure(points)


@pytest.mark.parametrize(
    "value",
    [
        {"0": {"weight": 1.0}},
        {"0": {"weight": 1.0, "bias": 2.0}, "1": {"weight": 1.0, "scale": 2.0}},
        jnp.ones(3),
        [1.0, 2.0],
    ],
)
def test_what_has_other_leaves_is_left_as_it_is(value):
    assert in_structure_of(_values(), value) is value


def test_values_go_where_their_keys_lead():
    by_path = {
        "1": {"bias": 4.0, "weight": 3.0},
        "0": {"bias": 2.0, "weight": 1.0},
    }
    assert in_structure_of(_values(), by_path) == [Layer(1.0, 2.0), Layer(3.0, 4.0)]


def _parameters_alone(X: Any, y: Any = None) -> None:
    w: Any = numpyro.param("w", jnp.zeros(2))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)


@pytest.mark.parametrize("epsilon", [math.inf, 5.0])
def test_parameters_alone_are_estimated_without_any_latent(epsilon, tmp_path):
    design = np.tile(X, (200, 1))
    y = design @ [1.0, -0.5] + rng.normal(0, 0.1, len(design))
    rows = design, y.astype(np.float32)
    vi = vi_of(_parameters_alone, budget=epsilon, num_steps=400)
    assert "param w" in str(vi.explain(*rows))
    result = vi.run(KEY, *rows)
    assert result.sample_posterior(KEY, sample_shape=(3,)) == {}
    exact = np.linalg.lstsq(design, y)[0]
    posterior: Any = result.posterior
    w = np.asarray(posterior.points["w"])
    np.testing.assert_allclose(w, exact, atol=0.02 if epsilon == math.inf else 0.3)
    result.save(tmp_path / "fit.nc")
    loaded: Any = nv.load(tmp_path / "fit.nc").posterior
    np.testing.assert_array_equal(loaded.points["w"], w)
    log_density = dist.Normal(design[:5] @ w, 1.0).log_prob(rows[1][:5])
    found = result.elbo(*(each[:5] for each in rows))
    np.testing.assert_allclose(found, log_density, rtol=1e-5)
