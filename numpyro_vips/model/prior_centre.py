"""Where a fit starts: the centre of the prior, found without a private value."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.distributions import unwrapped
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.synthetic_rows import synthetic_rows

_MEDIAN_DRAWS = 101
_MOST_MEDIAN_NUMBERS = 10_000_000


class GlobalValues(NamedTuple):
    """What a run of the model on a synthetic row says about its globals.

    `moved_supports` are those at other values of the latents.
    """

    centres: dict[str, jax.Array]
    supports: dict[str, Any]
    moved_supports: dict[str, Any]


def global_values(graph: ModelGraph) -> GlobalValues:
    """Runs the model twice, with other latents the second time."""
    rows = synthetic_rows(graph.arguments, 1, 0)
    with _PriorCentres():
        messages = graph.run(rows, {})
    with _PriorCentres(distance=1.0):
        moved_messages = graph.run(rows, {})
    names = [site.name for site in graph.latents("global")]
    return GlobalValues(
        centres={name: messages[name]["value"] for name in names},
        supports={name: messages[name]["fn"].support for name in names},
        moved_supports={name: moved_messages[name]["fn"].support for name in names},
    )


def initial_params(graph: ModelGraph, rng_key: jax.Array) -> dict[str, Any]:
    """The model's parameters as its own initialisers make them, from a synthetic
    row."""
    if not graph.params:
        return {}
    rows = synthetic_rows(graph.arguments, 1, 0)
    with _PriorCentres():
        messages = graph.run(rows, {}, rng_key=rng_key)
    return {name: messages[name]["value"] for name in graph.params}


def at_initial_params(graph: ModelGraph) -> ModelGraph:
    """The graph with its parameters held at initial values, as public constants."""
    if not graph.params:
        return graph
    params = initial_params(graph, threefry_key(0))
    return dataclasses.replace(graph, run=functools.partial(graph.run, params=params))


class _PriorCentres(Messenger):
    """Sets every latent to the centre of its prior given the latents before it.

    Or to values at a distance from it, in every unconstrained coordinate.
    """

    def __init__(self, *, distance: float = 0.0):
        self.key = threefry_key(0)
        self.distance = distance
        super().__init__()

    def process_message(self, msg: Any) -> None:
        if msg["type"] != "sample" or msg["is_observed"] or msg["value"] is not None:
            return
        self.key, key = jax.random.split(self.key)
        fn = msg["fn"]
        try:
            transform = biject_to(fn.support)
        except NotImplementedError:  # Discrete, or refused later.
            msg["value"] = fn.sample(key)
            return
        centre = transform.inv(_centre(fn, transform, key))
        msg["value"] = transform(centre + self.distance)


def _centre(fn: Any, transform: Any, key: jax.Array) -> jax.Array:
    """The prior's median; where it has no formula its mean; else draws' median."""
    base, _ = unwrapped(fn)
    for formula in (lambda: base.icdf(0.5), lambda: fn.mean):
        try:
            centre = jnp.broadcast_to(formula(), fn.shape())
        # Some of NumPyro's formulas need a package that may be missing, and the
        # median of a vector's entries is none of the vector.
        # Others, such as InverseGamma(1.0, 1.0).mean, divide Python numbers by zero.
        except (
            NotImplementedError,
            AttributeError,
            ImportError,
            ValueError,
            ZeroDivisionError,
        ):
            continue
        if bool(jnp.all(jnp.isfinite(transform.inv(centre)))):
            return centre
    size = math.prod(fn.shape())
    count = max(1, min(_MEDIAN_DRAWS, _MOST_MEDIAN_NUMBERS // max(size, 1)))
    try:
        draws = transform.inv(fn.sample(key, (count,)))
    except NotImplementedError:  # Improper, as flat priors are.
        return transform(jnp.zeros(transform.inverse_shape(fn.shape())))
    return transform(jnp.median(draws, axis=0))
