"""NumPyro's log density of a model, split into one row's part and the prior's.

The engines add these up and take gradients; what is computed is NumPyro's own
`log_prob` of every site, with its masks and scales.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.model.distributions import unmasked_in_support
from numpyro_vips.model.graph import ModelGraph, Site

# A part of a row's log density, and whether the row may count.
RestOfRow = Callable[[Mapping[str, Any]], tuple[jax.Array, jax.Array]]

# The most joint states of a row's discrete latents that are summed over one by one.
MAX_JOINT_STATES = 1024


def num_joint_states(graph: ModelGraph) -> int | None:
    """Joint states of a row's discrete latents; None if they cannot be counted."""
    total = 1
    for site in graph.latents("local"):
        if not site.is_discrete:
            continue
        if site.num_states is None:
            return None
        total *= site.num_states ** math.prod(site.shape)
    return total


def row_log_density(
    graph: ModelGraph,
    latents: Mapping[str, Any],
    row: Mapping[str, Any],
    params: Mapping[str, Any] | None = None,
    sites: Collection[str] | None = None,
    rest: RestOfRow | None = None,
) -> tuple[jax.Array, jax.Array]:
    """A row's log density, and whether all it observes lies in the support.

    Latents of the row that are not given are discrete; they are summed out exactly,
    over all their joint states.

    Args:
      graph: The model.
      latents: Values of the globals, and of continuous latents of the row.
      row: One row of every private argument.
      params: Values of the model's parameters.
      sites: Names of the sites under the unit plate that count; all by default.
      rest: What else is added, as a function of the latents.
    """
    rows = {k: v[None] for k, v in row.items()}

    def at(states: Mapping[str, Any]) -> tuple[jax.Array, jax.Array]:
        known = {**latents, **states}
        total, in_support = _log_density_of_row(graph, known, rows, params, sites)
        if rest is not None:
            more, is_valid = rest(known)
            total, in_support = total + more, in_support & is_valid
        return total, in_support

    discrete = [site for site in graph.latents("local") if site.name not in latents]
    if not discrete:
        return at({})
    totals, in_support = jax.vmap(at)(_joint_states(discrete))
    return jax.nn.logsumexp(totals), jnp.all(in_support)


def _log_density_of_row(
    graph: ModelGraph,
    latents: Mapping[str, Any],
    rows: Mapping[str, Any],
    params: Mapping[str, Any] | None,
    sites: Collection[str] | None,
) -> tuple[jax.Array, jax.Array]:
    messages = graph.run(rows, latents, params=params)
    total = jnp.zeros((), jnp.result_type(float))
    in_support = jnp.ones((), bool)
    for site in graph.sites.values():
        if site.row_axis is None or (sites is not None and site.name not in sites):
            continue
        message = messages[site.name]
        total += site_log_density(message)
        if not site.is_latent:
            in_support &= jnp.all(unmasked_in_support(message["fn"], message["value"]))
    return total, in_support


def _joint_states(sites: Sequence[Site]) -> dict[str, np.ndarray]:
    """Every joint state of some discrete sites, along a leading axis."""
    sizes = []
    for site in sites:
        assert site.num_states is not None
        sizes += [site.num_states] * math.prod(site.shape)
    grid = np.indices(sizes).reshape(len(sizes), -1).T
    states, start = {}, 0
    for site in sites:
        stop = start + math.prod(site.shape)
        values = grid[:, start:stop].reshape(-1, *site.shape)
        states[site.name] = values.astype(site.dtype)
        start = stop
    return states


def site_log_density(message: Mapping[str, Any]) -> jax.Array:
    """A site's log density, with its scale, summed over its elements."""
    log_density = message["fn"].log_prob(message["value"])
    if message["scale"] is not None:
        log_density = message["scale"] * log_density
    return jnp.sum(log_density)
