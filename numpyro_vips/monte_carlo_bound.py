"""The bound on the log density of visible rows, by draws of the globals.

E_q[log p(row | globals)] has no closed form for models that are not conjugate. Discrete
latents of a row are summed out exactly, so the globals are all that is drawn.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.handlers import private
from numpyro_vips.log_joint import row_log_density
from numpyro_vips.made_up_rows import with_made_up_rows
from numpyro_vips.map_rows import map_rows, program_key
from numpyro_vips.model_arguments import bind_arguments
from numpyro_vips.model_graph import build_graph

NUM_DRAWS = 100


def monte_carlo_bound(
    model: private,
    args: tuple,
    kwargs: Mapping[str, Any],
    draws: Mapping[str, jax.Array],
    points: Mapping[str, Any],
    compiled: dict[str, Any],
) -> np.ndarray:
    """Averages the rows' log densities over draws of the globals.

    Args:
      model: The model that was fitted.
      args, kwargs: Its arguments, with the rows that are asked about.
      draws: Draws of every global along a leading axis.
      points: Values of the model's parameters without a prior.
      compiled: Keeps programs, never rows, from one call to the next.

    Returns:
      Array of shape (number of rows,); not a number for a row outside its support.

    Raises:
      ValueError: The rows have continuous latents, which only a guide can draw.
    """
    arguments = bind_arguments(model, args, dict(kwargs), num_rows=None)
    key = program_key(arguments)
    if key not in compiled:
        graph = build_graph(model, with_made_up_rows(arguments, 3, seed=0))
        continuous = [s.name for s in graph.latents("local") if not s.is_discrete]
        if continuous:
            raise ValueError(
                f"There is no bound without draws of {continuous[0]!r}, a latent of "
                "single rows. Use numpyro.infer.Trace_ELBO().loss with the guide and "
                "result.posterior.points."
            )

        def bound(draws: Any, points: Any, row: Mapping[str, Any]) -> jax.Array:
            def at(latents: Mapping[str, Any]) -> tuple[jax.Array, jax.Array]:
                return row_log_density(graph, latents, row, points)

            totals, in_support = jax.vmap(at)(draws)
            return jnp.where(jnp.all(in_support), jnp.mean(totals), jnp.nan)

        compiled[key] = jax.jit(jax.vmap(bound, in_axes=(None, None, 0)))
    of_rows = compiled[key]
    parts = map_rows(arguments, lambda rows: of_rows(dict(draws), dict(points), rows))
    return np.concatenate([np.asarray(part) for part in parts])
