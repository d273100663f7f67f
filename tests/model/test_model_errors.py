"""Errors of JAX in a model's trace are told in terms of the model."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.trace import Trace

CODES, NUMBERS = np.zeros(7, int), np.zeros(7)
TABLE = np.arange(4.0)


def observed(mean, y):
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def levels():
    return numpyro.sample("level", dist.Normal(0.0, 1.0).expand([4]).to_event(1))


def indexed(group, y):
    observed(levels()[group], y)


def from_table(group, y):
    observed(levels()[0] * TABLE[group], y)


def up_to(group, y):
    for _ in range(group[0]):
        y = 2 * y
    observed(levels()[0], y)


def deciding(group, y):
    observed(levels()[0] if y.mean() > 0 else 0.0, y)


def of_classes(group, y):
    chance = numpyro.sample("chance", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("class", dist.Categorical(chance), obs=y)


def raising(group, y):
    raise ValueError("the integer index that the model itself complains of")


def of_uniques(group, y):
    observed(jnp.unique(group)[0], y)


def in_a_library(group, y):
    observed(pd.Series(y).mean(), y)


def of_other_points(group, y):
    with numpyro.plate("rows", y.shape[0]):
        points = dist.MultivariateNormal(levels(), jnp.eye(4))
        numpyro.sample("point", points, obs=jnp.stack([y] * 3, -1))


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (of_other_points, r"'point'.*event shape \(4,\).*shape \(2, 3\)"),
        (of_classes, r"'class'.*dtype float32"),
    ],
)
def test_a_site_without_a_density_at_its_value_is_named(model, told) -> None:
    with pytest.raises(TypeError, match=f"(?s){told}"):
        tried(model, CODES, NUMBERS)


@pytest.mark.parametrize(
    ("model", "group", "told"),
    [
        (indexed, CODES > 0, r"truth values.*0 and 1, with \.astype\(int\)"),
        (from_table, CODES, r"jnp\.asarray\(table\)\[index\]"),
        (up_to, CODES, r"range\(\).*must be public"),
        (of_uniques, CODES, r"jnp\.unique.*public size="),
        (in_a_library, CODES, r"`observed\(pd\.Series\(y\)\.mean\(\), y\)`"),
        (deciding, CODES, r"`if`.*jnp\.where"),
    ],
)
def test_each_way_to_look_at_a_value_has_its_own_remedy(model, group, told) -> None:
    with pytest.raises(nv.UnsafeModelError, match=f"(?s)in line .*{told}"):
        tried(model, group, NUMBERS)


def test_what_the_model_says_itself_stays() -> None:
    with pytest.raises(ValueError, match=r"^the integer index that the model itself"):
        tried(raising, CODES, NUMBERS)


def tried(model, *arguments) -> None:
    marked = nv.private(model, unit="rows")
    Trace(marked, bind_arguments(marked, arguments, {}), 2).programs()
