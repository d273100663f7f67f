"""What is found in a model, and what no engine may run."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph

Y = np.zeros(7)


def with_factor(log_factor):
    """A model of two means with a factor that stands outside the plate."""

    def model(y, limit=2.0):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            own = numpyro.sample("own", dist.Normal(mean[0], 1.0))
            numpyro.sample("y", dist.Normal(own + mean[1], 1.0), obs=y)
        numpyro.factor("outside", log_factor(mean, limit, own, y))

    return model


def graph_of(fn, *args):
    model = private(fn, unit="rows")
    return build_graph(model, bind_arguments(model, args, {}))


@pytest.mark.parametrize(
    "log_factor",
    [
        lambda mean, limit, own, y: jnp.where(mean[0] < mean[1], 0.0, -jnp.inf),
        lambda mean, limit, own, y: -(mean**2) * limit,
        lambda mean, limit, own, y: -1.0,
    ],
)
def test_a_factor_of_globals_and_public_numbers_touches_no_row(log_factor):
    site = graph_of(with_factor(log_factor), Y).sites["outside"]
    assert site.row_axis is None
    assert not site.is_latent


@pytest.mark.parametrize(
    ("log_factor", "message"),
    [
        (lambda mean, limit, own, y: -(mean[0] * y.sum()), "private argument 'y'"),
        (lambda mean, limit, own, y: jnp.sum(y > limit), "private argument 'y'"),
        (lambda mean, limit, own, y: -mean[0] * y.shape[0], "number of rows"),
        (lambda mean, limit, own, y: -jnp.sum(own), "latents of theirs"),
        (lambda mean, limit, own, y: -mean[0] * y, "an axis with one entry per row"),
    ],
)
def test_a_factor_outside_the_plate_that_depends_on_rows_is_refused(
    log_factor, message
):
    with pytest.raises(UnsafeModelError, match=f"(?s)'outside'.*{message}"):
        graph_of(with_factor(log_factor), Y)


def with_groups_counted(group, y):
    num_groups = len(np.unique(group))  # Looks at the groups.
    with numpyro.plate("groups", num_groups):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean[group], 1.0), obs=y)


def with_largest_group(group, y):
    with numpyro.plate("groups", int(np.max(group)) + 1):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean[group], 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (with_groups_counted, "`num_groups = len(np.unique(group))"),
        (with_largest_group, '`with numpyro.plate("groups", int(np.max(group)) + 1)'),
    ],
)
def test_a_size_made_from_rows_is_refused_with_its_line_and_the_remedy(model, line):
    with pytest.raises(UnsafeModelError) as caught:
        graph_of(model, np.zeros(7, int), Y)
    assert f" of test_graph.py, {line}" in str(caught.value)
    assert "number of groups to the model as a Python int" in str(caught.value)


def with_number(y, num_rows):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", num_rows):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def test_the_number_of_all_rows_may_be_a_public_number():
    site = graph_of(with_number, Y, len(Y)).sites["y"]
    assert site.shape == (1,)
    row = {"y": np.zeros(1)}
    message = graph_of(with_number, Y, len(Y)).run(row, {"mean": 0.0})["y"]
    assert message["scale"] is None  # It is the engine that scales.


@pytest.mark.parametrize("number", [6, 8, 14])
def test_a_unit_plate_of_any_other_size_is_refused(number):
    with pytest.raises(ValueError, match="one entry per row"):
        graph_of(with_number, Y, number)
