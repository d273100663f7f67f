"""The bound on the log density of queried rows, by draws of the globals.

E_q[log p(row | globals)] has no closed form for models that are not conjugate. Discrete
latents of a row are summed out exactly and conjugate ones are solved for, as in a fit,
so the globals are all that is drawn.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from numpyro_vips.dpvi.row_latents.locals_of_rows import find_locals_of_rows
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.model.graph import build_graph
from numpyro_vips.model.log_density import row_log_density
from numpyro_vips.model.row_queries import RowQuery, map_rows
from numpyro_vips.model.synthetic.synthetic_rows import with_synthetic_rows

NUM_DRAWS = 100


def monte_carlo_bound(
    query: RowQuery,
    draws: Mapping[str, Float[Array, "draws ..."]],
    points: Mapping[str, Any],
) -> Float[np.ndarray, " rows"]:
    """Averages the rows' log densities over draws of the globals.

    Args:
      query: The model, and the rows that are asked about.
      draws: Draws of every global along a leading axis.
      points: Values of the model's parameters without a prior.

    Returns:
      Array of shape (number of rows,); not a number for a row outside its support.

    Raises:
      ValueError: The rows have continuous latents which only a guide can draw.
    """
    of_rows = query.program("density", lambda: _compiled(query))
    parts = map_rows(
        query.arguments, lambda rows: of_rows(dict(draws), dict(points), rows)
    )
    return np.concatenate([np.asarray(part) for part in parts])


def _compiled(query: RowQuery) -> Any:
    """The bound of many rows, as a function of draws, points and rows."""
    arguments = with_synthetic_rows(query.arguments, 3, seed=0)
    graph = build_graph(query.model, arguments)
    try:
        locals_of_rows = find_locals_of_rows(
            graph, sweeps=query.settings.get("local_steps")
        )
    except UnsafeModelError as error:
        raise ValueError(
            "There is no bound without draws of the latents of single rows. Use "
            "numpyro.infer.Trace_ELBO().loss with the guide and "
            f"result.posterior.points. The reason: {error}"
        ) from None

    def bound(draws: Any, points: Any, row: Any) -> Float[Array, ""]:
        # Of the parameters of a guide the model knows nothing.
        points = {name: points[name] for name in graph.params}

        def at(latents: Any) -> tuple[Float[Array, ""], Bool[Array, ""]]:
            if locals_of_rows is not None:
                return locals_of_rows(latents, row, points)
            return row_log_density(graph, latents, row, points)

        # Without globals there is nothing to draw.
        totals, in_support = jax.vmap(at)(draws) if draws else at({})
        return jnp.where(jnp.all(in_support), jnp.mean(totals), jnp.nan)

    return jax.jit(jax.vmap(bound, in_axes=(None, None, 0)))
