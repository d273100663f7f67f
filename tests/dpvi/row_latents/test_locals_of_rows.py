"""Latents of rows are solved for, integrated out, or the model is refused."""

from collections.abc import Callable
from typing import Any

import jax
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


# --- chains of discrete latents -------------------------------------------------------

STEPS = 12  # With 2¹² joint states, too many to be listed.


def chain(y: Any) -> None:
    """Two hidden states, each of which shows three symbols more or less often."""
    moves: Any = numpyro.sample("moves", dist.Dirichlet(jnp.ones((2, 2))).to_event(1))
    shows: Any = numpyro.sample("shows", dist.Dirichlet(jnp.ones((2, 3))).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        z: Any = 0
        for t in range(y.shape[1]):
            z = numpyro.sample(
                f"z{t}", dist.Categorical(moves[z]), infer={"enumerate": "parallel"}
            )
            numpyro.sample(f"y{t}", dist.Categorical(shows[z]), obs=y[:, t])


def forward(values: Any, y: Any) -> Any:
    """The log density of one chain, by the forward algorithm (Rabiner 1989)."""
    states = jnp.array([1.0, 0.0])
    for symbol in y:
        states = (states @ values["moves"]) * values["shows"][:, symbol]
    return jnp.log(states.sum())


VALUES = {
    "moves": np.array([[0.9, 0.1], [0.3, 0.7]]),
    "shows": np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]]),
}


@pytest.mark.quick_with("8")
@pytest.mark.parametrize("length", [8, STEPS])
def test_a_chain_is_summed_over_by_messages(length: int, x64: None) -> None:
    """In place of each of its 256 or 4,096 states; derivatives are exact, too."""
    rows = np.random.default_rng(0).integers(0, 3, (5, length))
    _, graph = graph_of(chain, (rows,))
    found = find_locals_of_rows(graph)
    assert isinstance(found, ConjugateLocals)
    assert found.method == "exact"

    def density(values: Any, y: Any) -> Any:
        return found(values, {"y": y}, {})[0]

    values = jax.tree.map(jnp.asarray, VALUES)
    ours, theirs = (jax.jit(jax.value_and_grad(f)) for f in (density, forward))
    for y in rows:
        (found_log, gradient), (log, expected) = ours(values, y), theirs(values, y)
        assert found_log == pytest.approx(float(log), rel=1e-9)
        for name in values:
            np.testing.assert_allclose(gradient[name], expected[name], rtol=1e-7)
    if length == STEPS:
        return  # Each step has the same second derivatives in the longer chain.
    ours, theirs = (
        jax.jit(jax.hessian(f))(values, rows[0]) for f in (density, forward)
    )
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7)


def test_few_joint_states_are_listed() -> None:
    _, graph = graph_of(chain, (np.zeros((5, 6), int),))
    assert find_locals_of_rows(graph) is None


def test_many_latents_that_are_no_chain_are_refused() -> None:
    """A row's causes act on each other through what they explain together."""

    def causes(y: Any) -> None:
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        with numpyro.plate("rows", y.shape[0], dim=-2), numpyro.plate("causes", 12):
            z: Any = numpyro.sample("z", dist.Bernoulli(p))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(z.sum(-1), 1.0), obs=y)

    _, graph = graph_of(causes, (np.zeros(5),))
    with pytest.raises(UnsafeModelError, match="are no chain"):
        find_locals_of_rows(graph)
