"""An axis belongs to columns because it grows with them, not because it is as long."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _models import graph_of

import numpyro_vips as nv
from numpyro_vips.model.facts.axis_labels import AxisLabels, axis_labels

SCHEMA = nv.Schema(
    age=nv.Bounded(20, 80),
    job=nv.Categorical(["clerk", "cook"], reference="clerk", handle_unknown="ignore"),
)
TABLE = {"age": np.array([30.0, 40.0, 50.0]), "job": ["clerk", "cook", "cook"]}
COLUMNS = list(SCHEMA.design_columns)
Y = np.zeros(3, np.float32)


def labels_of(model: Any, X: Any) -> AxisLabels:
    return axis_labels(*graph_of(model, (X, Y)))


def test_weights_have_the_columns_and_groups_of_the_same_length_have_not() -> None:
    size = len(COLUMNS)

    def model(X: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 1.0).to_event(1))
        W = numpyro.sample("W", dist.Normal(jnp.zeros((4, X.shape[1])), 1).to_event(2))
        groups = numpyro.sample("groups", dist.Normal(jnp.zeros(size), 1.0).to_event(1))
        numpyro.sample("scalar", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", X.shape[0]):
            mean = X @ w + (X @ W.T).sum(-1) + groups.sum()
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    found = labels_of(model, SCHEMA.encode(TABLE))
    assert found == {"w": [COLUMNS], "W": [None, COLUMNS]}


def test_an_array_without_an_encoding_has_no_names() -> None:
    def model(X: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 1.0).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)

    assert labels_of(model, np.asarray(SCHEMA.encode(TABLE))) == {}


def test_weights_of_two_columns_fewer_or_one_more_are_not_the_columns() -> None:
    def model(X: Any, y: Any) -> None:
        shape = X.shape[1] + 1
        w = numpyro.sample("w", dist.Normal(jnp.zeros(shape), 1.0).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            mean = X @ w[:-1] + w[-1]
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    assert labels_of(model, SCHEMA.encode(TABLE)) == {}


def test_a_model_that_writes_the_number_of_columns_down_has_no_labels() -> None:
    size = len(COLUMNS)

    def model(X: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(size), 1.0).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)

    assert labels_of(model, SCHEMA.encode(TABLE)) == {}
