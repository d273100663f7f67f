"""Errors of JAX and NumPyro in a model's trace are told in terms of the model."""

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


def taken(group, y):
    observed(jnp.take(levels(), group), y)


def from_table(group, y):
    observed(levels()[0] * TABLE[group], y)


def from_list(group, y):
    latents = [numpyro.sample(f"w{i}", dist.Normal(0.0, 1.0)) for i in range(4)]
    observed(latents[group], y)


def up_to(group, y):
    for _ in range(group[0]):
        y = 2 * y
    observed(levels()[0], y)


def printing(group, y):
    print(f"mean {y.mean():.2f}")
    observed(levels()[0], y)


def as_series(group, y):
    observed(levels()[0], y.values)


def deciding(group, y):
    observed(levels()[0] if y.mean() > 0 else 0.0, y)


def of_classes(group, y):
    chance = numpyro.sample("chance", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("class", dist.Categorical(chance), obs=y)


def of_points(group, y):
    observed(levels(), jnp.stack([y] * 4, -1))


def raising(group, y):
    raise ValueError("the integer index that the model itself complains of")


def up_to_largest(group, y):
    observed(jnp.zeros(group.max() + 1)[group], y)


def looked_up(group, y):
    observed(levels()[0] * {0: 1.0}[group], y)


def sized_by(size):
    def model(group, y):
        with numpyro.plate("rows", size(y)):
            numpyro.sample("y", dist.Normal(levels()[0], 1.0), obs=y)

    return model


def of_uniques(group, y):
    observed(jnp.unique(group)[0], y)


def in_a_library(group, y):
    observed(pd.Series(y).mean(), y)


def of_other_points(group, y):
    with numpyro.plate("rows", y.shape[0]):
        points = dist.MultivariateNormal(levels(), jnp.eye(4))
        numpyro.sample("point", points, obs=jnp.stack([y] * 3, -1))


@pytest.mark.parametrize(
    ("model", "group", "kind", "told"),
    [
        (indexed, NUMBERS, TypeError, r"no integers, in line .*group\.astype\(int\)"),
        (taken, NUMBERS, ValueError, r"no integers, in line .*group\.astype\(int\)"),
        (from_list, CODES, TypeError, r"list .*jnp\.stack\(latents\)\[index\]"),
        (from_list, NUMBERS, TypeError, r"list .*let the index be of integers"),
        (printing, CODES, TypeError, r"array as text, in line .*`print\("),
        (as_series, CODES, AttributeError, r"arrays of JAX.*no attribute.*values"),
        (of_points, CODES, ValueError, r"'y' does not fit .*'rows'.*to_event\(1\)"),
        (up_to_largest, CODES, TypeError, r"size it computes, in line .* Python int"),
        (looked_up, CODES, TypeError, r"dict or a set by an array, in line .*asarray"),
        (sized_by(lambda y: y.shape), CODES, TypeError, r"'rows' is of type tuple"),
        (sized_by(lambda y: y), CODES, ValueError, r"'rows' .*Tracer.* len\(y\)"),
        (of_other_points, CODES, TypeError, r"'point'.*shape \(4,\).*shape \(2, 3\)"),
        (of_classes, CODES, TypeError, r"'class'.*float32.*integers.*astype\(int\)"),
    ],
)
def test_what_is_wrong_and_what_to_write_is_told(model, group, kind, told) -> None:
    with pytest.raises(kind, match=f"(?s){told}") as caught:
        tried(model, group, NUMBERS)
    assert not isinstance(caught.value, nv.UnsafeModelError)


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


def test_a_mapping_that_had_attributes_is_told_to_be_a_dict() -> None:
    class Bunch(dict):
        __getattr__ = dict.__getitem__

    def model(data):
        observed(levels()[0], data.y)

    with pytest.raises(AttributeError, match=r"reaches the model as .*write \['y'\]"):
        tried(model, Bunch(y=NUMBERS))


def test_what_the_model_says_itself_stays() -> None:
    with pytest.raises(ValueError, match=r"^the integer index that the model itself"):
        tried(raising, CODES, NUMBERS)


def tried(model, *arguments) -> None:
    marked = nv.private(model, unit="rows")
    Trace(marked, bind_arguments(marked, arguments, {}), 2).programs()
