"""What a model of the gallery comes with: its source and its data."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers

# Books that several models are from.
GELMAN_HILL = "Gelman and Hill 2007"
RETHINKING = "McElreath, Rethinking 2020"

Arguments = dict[str, Any]
Draws = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Foreign:
    """A model that others published, written anew, with data that it accepts.

    Attributes:
      name: What the tables call it; unique in the gallery.
      model: The model, with every private array as an argument.
      source: Where the specification is published.
      unit: The plate whose rows are protected.
      arguments: Makes the model's arguments from a generator of random numbers. Where
        `truth` is given, observations among them are placeholders of the right shape.
      truth: Values of the global latents from which the observations are drawn, or None
        if `arguments` has real observations. A reference starts from them, too.
      public: Names of arguments that are public.
      rows: Where the rows come from.
      licence: The licence of the rows.
      identified: Functions of the global latents to compare, from draws with one
        leading axis, where the latents themselves may be switched or rotated.
    """

    name: str
    model: Callable[..., None]
    source: str
    unit: str
    arguments: Callable[[np.random.Generator], Arguments]
    truth: Mapping[str, Any] | None
    public: tuple[str, ...] = ()
    rows: str = "simulated"
    licence: str = "as the project"
    identified: Callable[[Draws], Draws] | None = None

    def data(self) -> Arguments:
        """The model's arguments, the same in every call and in every precision."""
        arguments = self.arguments(np.random.default_rng(0))
        if self.truth is None:
            return arguments
        with jax.enable_x64(False):
            return _with_observations(self.model, arguments, self.truth)

    def to_compare(self, draws: Draws) -> Draws:
        """What a fit and a reference are compared in."""
        return draws if self.identified is None else self.identified(draws)


def foreign(source: str, **about: Any) -> Callable[[Callable[..., None]], Foreign]:
    """Makes an entry of the gallery of a model, under the model's name.

    Args:
      source: Where the specification is published.
      **about: The other attributes of `Foreign`, `name` only where the published one
        is no name of a function.
    """
    return lambda model: Foreign(
        **{"name": model.__name__, "model": model, "source": source, **about}
    )


def _with_observations(
    model: Callable[..., None], arguments: Arguments, truth: Mapping[str, Any]
) -> Arguments:
    """Draws what the model observes at `truth`, and the latents of its rows.

    Sites `y_0`, `y_1`, ... are the columns of the argument `y`.
    """
    values = {name: jnp.asarray(value, jnp.float32) for name, value in truth.items()}
    free = handlers.uncondition(handlers.substitute(model, data=values))
    sites = handlers.trace(handlers.seed(free, 0)).get_trace(**arguments)
    missing = set(truth) - set(sites)
    assert not missing, f"the model has no sites {sorted(missing)}"
    drawn = {
        name: np.asarray(site["value"])
        for name, site in sites.items()
        if site["type"] == "sample" and site["infer"].get("was_observed")
    }
    found = dict(arguments)
    columns: dict[str, list[np.ndarray]] = {}
    for name, value in drawn.items():
        column = re.fullmatch(r"(\w+)_\d+", name)
        if name in arguments:
            found[name] = value
        else:
            assert column is not None, f"the model has no argument {name!r}"
            columns.setdefault(column[1], []).append(value)
    for name, values in columns.items():
        assert name in arguments, f"the model has no argument {name!r}"
        found[name] = np.stack(values, -1)
    return found


def placeholder(*shape: int) -> np.ndarray:
    """Stands for observations that are drawn from the model."""
    return np.zeros(shape, np.float32)


def columns(rng: np.random.Generator, n: int, width: int) -> np.ndarray:
    """Covariates that were standardised by public numbers."""
    return rng.normal(size=(n, width)).astype(np.float32)


def column(rng: np.random.Generator, n: int) -> np.ndarray:
    """One such covariate."""
    return rng.normal(size=n).astype(np.float32)
