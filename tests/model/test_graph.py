"""What is found in a model, and what no engine may run."""

# pyright: reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportOperatorIssue=false

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
