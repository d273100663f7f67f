"""NumPyro's log density of a model, split into one row's part and the prior's.

The engines add these up and take gradients; what is computed is NumPyro's own
`log_prob` of every site, with its masks and scales.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.interpreters import partial_eval

from numpyro_vips.made_up_rows import made_up_rows
from numpyro_vips.model_graph import ModelGraph, Site


def made_up_row(graph: ModelGraph) -> dict[str, jax.Array]:
    """Stands for a row where only shapes and dtypes matter."""
    rows = made_up_rows(graph.arguments, 1, 0)
    shapes = graph.arguments.row_shapes()
    return {
        name: jnp.asarray(values[0], shapes[name].dtype)
        for name, values in rows.items()
    }


# The most joint states of a row's discrete latents that are summed over one by one.
MAX_JOINT_STATES = 1024


def num_joint_states(graph: ModelGraph) -> int | None:
    """Joint states of a row's discrete latents; None if they cannot be counted."""
    total = 1
    for site in graph.latents("local"):
        if site.num_states is None:
            return None
        total *= site.num_states ** math.prod(site.shape)
    return total


def row_log_density(
    graph: ModelGraph, latents: Mapping[str, Any], row: Mapping[str, Any]
) -> tuple[jax.Array, jax.Array]:
    """A row's log density, and whether all it observes lies in the support.

    Discrete latents of the row are summed out exactly, over all their joint states.
    """
    rows = {k: v[None] for k, v in row.items()}
    discrete = graph.latents("local")
    if not discrete:
        return _log_density_of_row(graph, latents, rows)

    def at(states: Mapping[str, Any]) -> tuple[jax.Array, jax.Array]:
        return _log_density_of_row(graph, {**latents, **states}, rows)

    totals, in_support = jax.vmap(at)(_joint_states(discrete))
    return jax.nn.logsumexp(totals), jnp.all(in_support)


def _log_density_of_row(
    graph: ModelGraph, latents: Mapping[str, Any], rows: Mapping[str, Any]
) -> tuple[jax.Array, jax.Array]:
    messages = graph.run(rows, latents)
    total = jnp.zeros((), jnp.result_type(float))
    in_support = jnp.ones((), bool)
    for site in graph.sites.values():
        if site.row_axis is None:
            continue
        message = messages[site.name]
        total += _log_density(message)
        if not site.is_latent:
            in_support &= jnp.all(_in_support(message["fn"], message["value"]))
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


def prior_log_density(
    graph: ModelGraph, latents: Mapping[str, Any], row: Mapping[str, Any]
) -> jax.Array:
    """Log density of the globals; `row` may be made up, for it has no effect."""
    messages = graph.run({k: v[None] for k, v in row.items()}, latents)
    total = jnp.zeros((), jnp.result_type(float))
    for site in graph.latents("global"):
        total += _log_density(messages[site.name])
    return total


def _log_density(message: Mapping[str, Any]) -> jax.Array:
    log_density = message["fn"].log_prob(message["value"])
    if message["scale"] is not None:
        log_density = message["scale"] * log_density
    return jnp.sum(log_density)


def _in_support(fn: Any, value: Any) -> jax.Array:
    """Whether an observation lies in the support, wherever it is not masked."""
    if isinstance(fn, dist.Unit):
        return jnp.ones((), bool)
    if isinstance(fn, dist.ExpandedDistribution):
        return _in_support(fn.base_dist, value)
    if isinstance(fn, dist.Independent):
        inside = _in_support(fn.base_dist, value)
        count = min(fn.reinterpreted_batch_ndims, inside.ndim)
        return jnp.all(inside, axis=tuple(range(-count, 0)))
    if isinstance(fn, dist.MaskedDistribution):
        return _in_support(fn.base_dist, value) | ~jnp.asarray(fn._mask)
    return jnp.asarray(fn.support(value))


def read_by_rows(graph: ModelGraph, latents: Mapping[str, Any]) -> dict[str, bool]:
    """For every global, whether the density of what is observed depends on it."""
    row = made_up_row(graph)
    traced = jax.make_jaxpr(lambda values: row_log_density(graph, values, row)[0])(
        dict(latents)
    )
    _, used = partial_eval.dce_jaxpr(traced.jaxpr, [True])
    # Dicts are flattened in sorted order.
    return dict(zip(sorted(latents), used, strict=True))
