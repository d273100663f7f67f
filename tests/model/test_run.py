"""A model is run on the rows that it is given, whatever it says of their number."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import cond, scan
from numpyro.distributions import constraints
from numpyro.handlers import substitute
from numpyro.primitives import mutable

import numpyro_vips as nv
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.run import UnitPlate, run_model

ALL = np.arange(5.0, dtype=np.float32)


def run(
    model: Callable[..., Any], count: int = 2, **options: Any
) -> tuple[dict[str, dict], UnitPlate]:
    """Runs a model of one argument `y` on the first rows of five."""
    marked = nv.private(model, unit="rows")
    arguments = bind_arguments(marked, (ALL,), {})
    options = {"latents": None} | options
    return run_model(marked, arguments, {"y": jnp.asarray(ALL[:count])}, **options)


def plain(y: Any) -> None:
    m: Any = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(m, 1.0), obs=y)


def minibatches(y: Any) -> None:
    """As if the model drew rows itself, and scaled their density."""
    with (
        numpyro.plate("rows", len(ALL), subsample_size=y.shape[0]),
        numpyro.handlers.scale(scale=3.0),
    ):
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


@pytest.mark.parametrize("count", [2, 5])
def test_the_unit_plate_covers_the_rows_given_and_scales_nothing(count: int) -> None:
    messages, plate = run(minibatches, count)
    assert messages["rows"]["args"] == (count, count)
    np.testing.assert_array_equal(messages["rows"]["value"], np.arange(count))
    # The model's own factor stays.
    assert messages["y"]["scale"] == pytest.approx(3.0)
    assert plate.seen and plate.plate_names == ["rows"]
    messages, _ = run(plain, count)
    assert messages["y"]["scale"] is None


def test_rows_have_the_numbers_that_they_are_given() -> None:
    messages, _ = run(plain, index=jnp.array([4, 0]))
    np.testing.assert_array_equal(messages["rows"]["value"], [4, 0])


def test_a_plate_of_another_length_is_refused() -> None:
    def model(y: Any) -> None:
        with numpyro.plate("rows", 3):
            numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y[:3])

    with pytest.raises(ValueError, match="its size is 3 when the model is given 2"):
        run(model)


def test_latents_have_the_values_given_or_those_of_the_key() -> None:
    messages, _ = run(plain, latents={"m": jnp.asarray(7.0)})
    assert float(messages["m"]["value"]) == 7.0
    first, again, other = (
        float(run(plain, rng_key=key)[0]["m"]["value"])
        for key in (jax.random.key(1), jax.random.key(1), jax.random.key(2))
    )
    assert first == again != other
    # And a fixed one without.
    assert run(plain)[0]["m"]["value"] == run(plain)[0]["m"]["value"]


def walk(reverse: bool) -> Callable[[Any], Any]:
    def model(y: Any) -> None:
        def step(state: Any, offset: Any) -> Any:
            state = numpyro.sample("state", dist.Delta(2.0 * state + offset))
            return state, 10.0 * state

        last, each = scan(step, 1.0, jnp.array([0.0, 1.0, 5.0]), reverse=reverse)
        numpyro.deterministic("last", last)
        numpyro.deterministic("each", each)
        plain(y)

    return model


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_unrolled_into_its_steps(reverse: bool) -> None:
    messages, _ = run(walk(reverse))
    last, expected = jax.lax.scan(
        lambda state, x: (2.0 * state + x, 10.0 * (2.0 * state + x)),
        1.0,
        jnp.array([0.0, 1.0, 5.0]),
        reverse=reverse,
    )
    assert float(messages["last"]["value"]) == float(last)
    np.testing.assert_array_equal(messages["each"]["value"], expected)
    for t in range(3):
        value = messages[f"state[{t}]"]["value"]
        assert float(value) == pytest.approx(float(expected[t]) / 10.0)


def test_a_point_is_no_latent_and_an_improper_prior_has_some_value() -> None:
    def model(y: Any) -> None:
        numpyro.sample("point", dist.Delta(3.0).expand([2]))
        numpyro.sample("any", dist.ImproperUniform(constraints.positive, (), (2,)))
        plain(y)

    messages, _ = run(model)
    assert messages["point"]["type"] == "deterministic"
    np.testing.assert_array_equal(messages["point"]["value"], [3.0, 3.0])
    assert messages["any"]["type"] == "sample"
    assert np.all(messages["any"]["value"] > 0)


def with_own_density(y: Any) -> None:
    numpyro.sample("point", dist.Delta(3.0, log_density=1.0))
    plain(y)


def with_cond(y: Any) -> None:
    cond(True, lambda _: 1.0, lambda _: 2.0, None)
    plain(y)


def with_parameter_of_rows(y: Any) -> None:
    with numpyro.plate("rows", y.shape[0]):
        numpyro.param("own", jnp.zeros(y.shape), event_dim=0)
    plain(y)


def with_state(y: Any) -> None:
    mutable("average", jnp.zeros(()))
    plain(y)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (with_own_density, "a latent Delta with a log_density of its own"),
        (with_cond, r"control_flow\.cond"),
        (with_parameter_of_rows, "'own' stands under the plate 'rows'"),
        (with_state, "'average' is a state"),
        (substitute(plain, data={"m": jnp.asarray(1.0)}), "'m' is given its value"),
    ],
)
def test_what_cannot_be_fitted_says_what_to_write(
    model: Callable[..., Any], reason: str
) -> None:
    with pytest.raises(UnsafeModelError, match=reason):
        run(model)


def test_parameters_have_the_values_given_in_containers_of_their_own() -> None:
    def model(y: Any) -> None:
        start: Any = {"a": jnp.zeros(2)}
        weights: Any = numpyro.param("weights", start)
        numpyro.deterministic("seen", weights["a"])
        weights["a"] = None
        plain(y)

    given = {"weights": {"a": jnp.array([1.0, 2.0])}}
    messages, _ = run(model, params=given)
    np.testing.assert_array_equal(messages["seen"]["value"], [1.0, 2.0])
    assert given["weights"]["a"] is not None
