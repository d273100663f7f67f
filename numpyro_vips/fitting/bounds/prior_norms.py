"""Norms of rows that the priors draw, for clipping rows whose norms nothing shows.

Where the noise of a histogram hides all rows, as with few of them, a norm has to come
from elsewhere. Rows of unit size have nothing to do with a prior of Normal(50, 20): all
rows would be clipped, and a narrow posterior would be drawn to where the norm is. Rows
that the model draws, at globals from their priors, are as large as the caller holds
possible. The noise is so, too.

No single bin of the histogram may stand out, and all of them together still say much:
counts near to where one draw of the globals has its rows, and far from those of
another, make the first more likely. So each draw is weighed by the likelihood of the
noisy counts. That is post-processing of what was released and paid for.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float64

from numpyro_vips.fitting.bounds.norm_histogram import (
    LARGEST_NORM,
    SMALLEST_NORM,
    NoisyCounts,
)
from numpyro_vips.fitting.bounds.norm_parts import NormPart
from numpyro_vips.fitting.engine import Engine
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.synthetic.prior_centre import moderate_draws
from numpyro_vips.model.synthetic.synthetic_rows import (
    rows_of_encodings,
    synthetic_rows,
)

# Draws of the globals, and rows at each of them.
_NUM_DRAWS, _ROWS_PER_DRAW = 256, 32
_NUM_ROWS = _NUM_DRAWS * _ROWS_PER_DRAW
# How far the drawn rows are trusted to have the shape of the others: standard deviation
# of the number of rows in a bin, over its mean.
_MISFIT = 0.5
# Of the draws. With the largest of 32 rows at each it is about what 95 % of all rows
# are below where counts say nothing; where they do, few rows of a draw are clipped.
_QUANTILE = 0.75
# Where the largest row of fewer draws is known, the others say too little.
_LEAST_COUNTED = _NUM_DRAWS // 4
# Values of globals in all rows beyond which memory is not worth it, as of topics.
_MOST_NUMBERS = 10_000_000


def rows_in_place(engine: Engine) -> str:
    """What rows are whose norms take the place of those that no histogram shows."""
    if engine.row_simulator is None:
        return "synthetic rows"
    return "rows that the priors draw, with covariates of unit size"


def prior_norms(
    engine: Engine,
    graph: ModelGraph,
    parts: Sequence[NormPart],
    released: Mapping[str, NoisyCounts],
) -> dict[str, float]:
    """The norms that nearly all rows are below at nearly all draws of the priors.

    They are clipping norms where no histogram shows any. Covariates, of which no prior
    says anything, are of unit size.

    Args:
      engine: What there is to release.
      graph: The model, of whose rows only shapes and types are looked at.
      parts: Those whose rows the noise of a histogram hides.
      released: Their noisy counts about the start, by part; of some, or of none.

    Returns:
      A norm for each part, within its histogram's grid; none where no rows can be
      drawn, or that would take too much memory.
    """
    norms = _drawn_norms(engine, graph, parts)
    log_weights = np.zeros(_NUM_DRAWS)
    for part in parts:
        if part.name in norms and part.name in released:
            log_weights = log_weights + _log_likelihood(
                norms[part.name],
                part,
                released[part.name],
                graph.arguments.public_num_rows,
            )
    weights = np.exp(log_weights - np.max(log_weights))
    found = {
        name: _weighted_quantile(of_part, weights) for name, of_part in norms.items()
    }
    # Vague priors know no limit, and mechanisms do.
    return {
        name: min(norm, LARGEST_NORM)
        for name, norm in found.items()
        if norm > SMALLEST_NORM
    }


def _drawn_norms(
    engine: Engine, graph: ModelGraph, parts: Sequence[NormPart]
) -> dict[str, Float64[np.ndarray, "draws rows"]]:
    """By part, norms of the rows at each draw of the globals from their priors."""
    simulator = engine.row_simulator
    is_large = _NUM_ROWS * graph.num_globals > _MOST_NUMBERS
    if simulator is None or not parts or is_large:
        return {}
    arguments = graph.arguments
    rows = {
        **synthetic_rows(arguments, _NUM_ROWS, seed=0),
        **rows_of_encodings(arguments, _NUM_ROWS, "any"),
    }
    try:
        latents = {
            name: np.repeat(draws, _ROWS_PER_DRAW, axis=0)
            for name, draws in moderate_draws(graph, _NUM_DRAWS).items()
        }
        with np.errstate(over="ignore"):  # Rows that are not finite are not counted.
            drawn = simulator.rows_at(rows, latents)
    except (NotImplementedError, TypeError, ValueError):
        # The fit has been charged, and goes on with norms of unit size.
        return {}
    names = sorted({block for part in parts for block in part.blocks})
    taken = arguments.as_taken({k: np.asarray(row) for k, row in drawn.items()})
    norms = engine.row_norms(engine.initial_state(threefry_key(0)), taken, names)
    found = {}
    for part in parts:
        squares = sum(np.square(norms[name], dtype=np.float64) for name in part.blocks)
        by_draw = np.sqrt(squares).reshape(_NUM_DRAWS, _ROWS_PER_DRAW)
        if np.isfinite(by_draw).any(1).sum() >= _LEAST_COUNTED:
            found[part.name] = by_draw
    return found


def _log_likelihood(
    norms: Float64[np.ndarray, "draws rows"],
    part: NormPart,
    released: NoisyCounts,
    num_rows: int,
) -> Float64[np.ndarray, " draws"]:
    """The log likelihood of a released histogram at each draw of the globals.

    It is up to a constant. A count is about Normal: its mean is the number of rows that
    the draw has in the bin. Its variance is that of the noise, of the number of rows,
    of the share that so few drawn rows give, and of what the model does not say of
    rows.

    Args:
      norms: Norms of a part, of rows that were simulated at each draw.
      part: The part, with the histogram's grid.
      released: The noisy counts.
      num_rows: The public number of rows.
    """
    draws, rows = norms.shape
    places = np.searchsorted(part.grid, np.where(np.isfinite(norms), norms, 0.0))
    shares = np.zeros((draws, len(part.grid) + 1))
    np.add.at(shares, (np.arange(draws)[:, None], places), 1.0 / rows)
    mean = num_rows * shares
    # At least the rounding of whole numbers, as no noise leaves no room at all.
    noise = max(released.stddev, 1.0)
    variance = noise**2 + mean * (1.0 + num_rows / rows) + (_MISFIT * mean) ** 2
    return -0.5 * np.sum((released.counts - mean) ** 2 / variance + np.log(variance), 1)


def _weighted_quantile(
    norms: Float64[np.ndarray, "draws rows"],
    weights: Float64[np.ndarray, " draws"],
) -> float:
    """The quantile `_QUANTILE` over the draws of their largest finite norm."""
    is_finite = np.isfinite(norms)
    largest = np.where(is_finite, norms, 0.0).max(1)
    known = np.flatnonzero(is_finite.any(1))
    known = known[np.argsort(largest[known])]
    below = np.cumsum(weights[known])
    return float(largest[known[np.searchsorted(below, _QUANTILE * below[-1])]])
