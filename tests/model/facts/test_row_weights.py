"""Which rows have weights of their own."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import mask, scale

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.facts.row_weights import weights_of_rows
from numpyro_vips.model.graph import build_graph

W = np.linspace(0.5, 2.0, 6).astype(np.float32)
Y = np.array([1, 0, 1, 1, 0, 1], np.float32)


def level() -> Any:
    return numpyro.sample("level", dist.Normal(0.0, 1.0))


def observed(name: str, value: Any, found: Any) -> None:
    numpyro.sample(name, dist.Normal(found, 1.0), obs=value)


def plain(w: Any, y: Any) -> None:
    found = level()
    with numpyro.plate("rows", y.shape[0]):
        observed("y", y, found * w)


def weighted(w: Any, y: Any) -> None:
    found = level()
    with numpyro.plate("rows", y.shape[0]), scale(scale=w / 2.0):
        observed("y", y, found)


def one_of_two(w: Any, y: Any) -> None:
    found = level()
    with numpyro.plate("rows", y.shape[0]):
        observed("w", w, found)
        with scale(scale=1.0 + w * y):
            observed("y", y, found)


def power(w: Any, y: Any) -> None:
    """Every row counts half."""
    found = level()
    with numpyro.plate("rows", y.shape[0]), scale(scale=0.5):
        observed("y", y, found + w)


def around_all(w: Any, y: Any) -> None:
    with scale(scale=0.01):
        plain(w, y)


def masked(w: Any, y: Any) -> None:
    found = level()
    with numpyro.plate("rows", y.shape[0]), mask(mask=w > 1.0):
        observed("y", y, found)


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        (plain, {}),
        (weighted, {"y": ("w",)}),
        (one_of_two, {"y": ("w", "y")}),
        (power, {}),
        (around_all, {}),
        (masked, {}),
    ],
)
def test_weights_are_scales_that_rows_make(
    model: Callable[..., None], weights: dict[str, tuple[str, ...]]
) -> None:
    private = nv.private(model, unit="rows")
    graph = build_graph(private, bind_arguments(private, (W, Y), {}))
    assert weights_of_rows(graph) == weights


def test_weights_in_a_dictionary_have_their_path() -> None:
    def nested(data: Any) -> None:
        weighted(data["w"], jnp.asarray(data["y"]))

    private = nv.private(nested, unit="rows")
    arguments = bind_arguments(private, ({"w": W, "y": Y},), {})
    assert weights_of_rows(build_graph(private, arguments)) == {"y": ("data.w",)}
