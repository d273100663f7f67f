"""Tables of models that were judged by hand, and the priors that they share."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _models import UNIT, Rows, graph_of

from numpyro_vips.errors import NotConjugateError
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.vips.compile.compiler import compile_model

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
        except NotConjugateError as error:
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

    def observed(
        self, name: str, make_rows: MakeRows, density: Callable[..., Any]
    ) -> None:
        """Enters a model whose last argument is observed; see `observed_model`."""
        self[name] = Case(observed_model(density), make_rows)

    def factor(
        self, name: str, make_rows: MakeRows, function: Callable[..., Any]
    ) -> None:
        """Enters a model that is a factor; see `factor_model`."""
        self[name] = Case(factor_model(function), make_rows)


def together(*tables: Cases) -> Cases:
    """The cases of several tables, whose names differ."""
    found = Cases()
    for table in tables:
        assert not found.keys() & table.keys(), "two models have one name"
        found.update(table)
    return found


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


def observed_model(density: Callable[..., Any]) -> Callable[..., None]:
    """A model whose last argument is observed; `density` makes its distribution."""

    def model(*rows: Any) -> None:
        observe(density(*rows), rows[-1])

    return model


def factor_model(function: Callable[..., Any]) -> Callable[..., None]:
    """A model whose log density is a function of its arguments, row by row."""

    def model(*rows: Any) -> None:
        log_factor = function(*rows)
        with numpyro.plate(UNIT, rows[0].shape[0]):
            numpyro.factor("f", log_factor)

    return model


def weights_of(X: Any, name: str = "w") -> Any:
    return numpyro.sample(name, dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))


def sticks() -> Any:
    return numpyro.sample("v", dist.Beta(1.0, 2.0).expand([2]).to_event(1))


def mixed(weights: Any, y: Any) -> None:
    mu = normals("mu", 3, scale=3.0)
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(weights))
        numpyro.sample("y", dist.Normal(mu[z], 0.5), obs=y)


# Of scale 2, so that a prior's scale shows.
wide_normals = functools.partial(normals, scale=2.0)


def chance(name: str) -> Any:
    return numpyro.sample(name, dist.Beta(1.0, 2.0))


def inverse_wishart(size: int, *batch: int) -> Any:
    prior = dist.InverseWishart(size + 2.0, scale_matrix=jnp.eye(size))
    return numpyro.sample("S", prior.expand(batch).to_event(len(batch)))
