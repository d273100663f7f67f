"""Tables of models that were judged by hand, and the priors that they share."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _models import UNIT, Rows, graph_of

from numpyro_vips.conjugacy.structure.structure import NotConjugate
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.vips.compiler import compile_model

MakeRows = Callable[[np.random.Generator, int], Rows]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, its rows, and for one that is not conjugate what the reason says."""

    fn: Callable[..., None]
    make_rows: MakeRows
    reason: str = ""

    @property
    def graph(self) -> ModelGraph:
        return graph_of(self.fn, self.rows)[1]

    @property
    def rows(self) -> Rows:
        return self.make_rows(np.random.default_rng(0), 12)

    def reasons_against_vips(self) -> dict[str, str]:
        """By site; empty if the model was compiled and certified."""
        marked, graph = graph_of(self.fn, self.rows)
        try:
            compile_model(marked, graph)
        except NotConjugate as error:
            assert error.reasons, "a refusal has reasons"
            assert set(error.reasons) <= {*graph.sites, "certificate"}
            return error.reasons
        return {}


class Cases(dict[str, Case]):
    """Cases by the name of their model."""

    def of(self, make_rows: MakeRows, reason: str = "") -> Any:
        """A decorator that enters a model."""

        def enter(fn: Callable[..., None]) -> Callable[..., None]:
            assert fn.__name__ not in self, f"two models are called {fn.__name__}"
            self[fn.__name__] = Case(fn, make_rows, reason)
            return fn

        return enter


def normals(name: str, *shape: int, scale: Any = 1.0) -> Any:
    prior = dist.Normal(0.0, scale)
    return numpyro.sample(name, prior.expand(shape).to_event(len(shape)))


def gammas(name: str, *shape: int) -> Any:
    prior = dist.Gamma(2.0, 1.0)
    return numpyro.sample(name, prior.expand(shape).to_event(len(shape)))


def simplices(name: str, *shape: int) -> Any:
    prior = dist.Dirichlet(jnp.ones(shape))
    return numpyro.sample(name, prior.to_event(len(shape) - 1))


def observe(distribution: Any, y: Any, name: str = "y") -> None:
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample(name, distribution, obs=y)
