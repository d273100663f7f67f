"""Norms of rows that the priors draw, for clipping rows whose norms nothing shows.

Where the noise of a histogram hides all rows, as with few of them, a norm has to come
from elsewhere. Rows of unit size have nothing to do with a prior of Normal(50, 20): all
rows would be clipped, and a narrow posterior would be drawn to where the norm is. Rows
that the model draws, each at globals of its own from their priors, are as large as the
caller holds possible. The noise is so, too.
"""

from collections.abc import Sequence

import numpy as np

from numpyro_vips.fitting.bounds import NormPart
from numpyro_vips.fitting.engine import Engine
from numpyro_vips.fitting.norm_histogram import LARGEST_NORM, SMALLEST_NORM
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.prior_centre import moderate_draws
from numpyro_vips.model.synthetic_rows import encoded_rows, synthetic_rows

_NUM_ROWS = 256
# As good as all rows: whoever holds 90 % intervals to be right expects globals there.
_QUANTILE = 0.95
# Where fewer can be counted, the others say too little.
_LEAST_COUNTED = _NUM_ROWS // 4
# Values of globals in all rows beyond which memory is not worth it, as of topics.
_MOST_NUMBERS = 10_000_000


def rows_in_place(engine: Engine) -> str:
    """What rows are whose norms take the place of those that no histogram shows."""
    if engine.row_simulator is None:
        return "synthetic rows"
    return "rows that the priors draw, with covariates of unit size"


def prior_norms(
    engine: Engine, graph: ModelGraph, parts: Sequence[NormPart]
) -> dict[str, float]:
    """By part, the norm that nearly all rows that the priors draw are below.

    Covariates, of which no prior says anything, are of unit size.

    Args:
      engine: What there is to release.
      graph: The model, of whose rows only shapes and types are looked at.
      parts: Of whose norms nothing is known.

    Returns:
      Norms within the histogram's grid; none where no rows can be drawn, or that would
      take too much memory.
    """
    simulator = engine.row_simulator
    is_large = _NUM_ROWS * graph.num_globals > _MOST_NUMBERS
    if simulator is None or not parts or is_large:
        return {}
    arguments = graph.arguments
    rows = {
        **synthetic_rows(arguments, _NUM_ROWS, seed=0),
        **encoded_rows(arguments, _NUM_ROWS, "any"),
    }
    try:
        latents = moderate_draws(graph, _NUM_ROWS, seed=0)
        with np.errstate(over="ignore"):  # Rows that are not finite are not counted.
            drawn = simulator.rows_at(rows, latents, seed=0)
    except (NotImplementedError, TypeError, ValueError):
        # The fit has been charged, and goes on with norms of unit size.
        return {}
    names = sorted({block for part in parts for block in part.blocks})
    taken = arguments.as_taken({k: np.asarray(row) for k, row in drawn.items()})
    norms = engine.row_norms(engine.initial_state(threefry_key(0)), taken, names)
    found = {}
    for part in parts:
        squares = sum(np.square(norms[name], dtype=np.float64) for name in part.blocks)
        counted = np.sqrt(squares)[np.isfinite(squares)]
        if len(counted) >= _LEAST_COUNTED:
            norm = float(np.quantile(counted, _QUANTILE))
            # Vague priors know no limit, and mechanisms do.
            found[part.name] = min(norm, LARGEST_NORM)
    return {name: norm for name, norm in found.items() if norm > SMALLEST_NORM}
