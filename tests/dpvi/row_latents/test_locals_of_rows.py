"""Latents of rows are solved for, integrated out, or the model is refused."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import graph_of, three_locals

from numpyro_vips.dpvi.row_latents.conjugate_locals import ConjugateLocals
from numpyro_vips.dpvi.row_latents.integrated_locals import IntegratedLocals
from numpyro_vips.dpvi.row_latents.locals_of_rows import find_locals_of_rows
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph

Y = np.array([0.5, 1.0], np.float32)


def of_rows(observe: Callable[[Any, Any], dist.Distribution]) -> Callable[..., None]:
    """A global, and a Normal latent of each row about its tanh."""

    def model(y: Any) -> None:
        m: Any = numpyro.sample("m", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            z = numpyro.sample("z", dist.Normal(jnp.tanh(m), 1.0))
            numpyro.sample("y", observe(m, z), obs=y)

    return model


def no_locals(y: Any) -> None:
    m: Any = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(jnp.tanh(m), 1.0), obs=y)


def own_scale(y: Any) -> None:
    m: Any = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        tau: Any = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
        scale = 1 / jnp.sqrt(tau)
        numpyro.sample("y", dist.StudentT(4.0, jnp.tanh(m), scale), obs=y)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (no_locals, None),
        (of_rows(lambda m, z: dist.Normal(z, 1.0)), ConjugateLocals),
        (of_rows(lambda m, z: dist.Normal(jnp.sin(z), 1.0)), IntegratedLocals),
        # Gaussian ones are solved for by quadrature; of others there is a bound alone.
        (of_rows(lambda m, z: dist.Bernoulli(logits=z)), ConjugateLocals),
        (own_scale, IntegratedLocals),
    ],
    ids=["none", "conjugate", "neither", "logits", "a bound"],
)
def test_the_best_way_is_taken(
    model: Callable[..., None], kind: type[object] | None
) -> None:
    rows = (np.array([0.0, 1.0], np.float32),)
    found = find_locals_of_rows(graph_of(model, rows)[1])
    assert type(found) is (kind or type(None))


def test_what_is_neither_says_both_reasons() -> None:
    marked = private(three_locals, unit="people")
    graph = build_graph(marked, bind_arguments(marked, (Y,), {}))
    with pytest.raises(UnsafeModelError, match=r"not conjugate: .*tanh") as found:
        find_locals_of_rows(graph)
    assert "cannot be integrated out by quadrature" in str(found.value)
