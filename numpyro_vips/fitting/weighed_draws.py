"""Whether a conjugate posterior stands for the model's own, where rows may be seen.

Coordinate ascent ends at the best posterior of its kind, and nothing in it says how
good that is: its factors are independent, and some densities are only bounded. Here
draws of it are weighed by the model's own density, with the latents of single rows
integrated out as DPVI does, and the weighted draws say where the means are (importance
sampling; Yao, Vehtari, Simpson and Gelman, 2018). It looks at all rows without noise,
so it is only for fits without privacy.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Float64

from numpyro_vips.dpvi.model_density import ModelDensity
from numpyro_vips.dpvi.posterior.importance_ratios import (
    LARGEST_GOOD_SHAPE,
    pareto_shape,
)
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.posterior import Posterior

# The tails of draws of many latents never match, wherever their means are.
MOST_GLOBALS = 20
# All rows are in memory, each at every node of its quadrature.
MOST_ROWS = 20_000
_MOST_DRAWS = 2000
_FEWEST_DRAWS = 200
# At how many of them rows are asked whether they count.
_TRIED = 8
# Seconds that the draws may take, by an estimate.
_SECONDS = 4
# Log ratios that differ by less are as good as the same.
_ALIKE = 0.05
# How far a mean may move, in standard deviations of the weighted draws, and how much
# wider these may be.
_MOVED = 0.3
_WIDER = 1.5
# Draws so many that they stand for the posterior when they are weighed.
_FEWEST_EFFECTIVE = 50.0


def weighed_draws(
    graph: ModelGraph, posterior: Posterior, arguments: ModelArguments
) -> dict[str, Any]:
    """What draws say of a posterior, where rows have real latents of their own.

    Args:
      graph: The model.
      posterior: One that was fitted without noise.
      arguments: The model's, with the rows.

    Returns:
      `pareto_k` and `log_ratio_stddev` of the draws, `moved` and `widened`, by site how
      far its mean would move and its standard deviation grow at most, and `warnings`.
      Nothing if it has no draws to weigh, if there are too many globals or rows, no
      latents of this kind, or latents that nothing integrates out.
    """
    own = [site.name for site in graph.latents("local") if not site.is_discrete]
    if not own or graph.params or arguments.num_rows > MOST_ROWS:
        return {}
    try:
        density = ModelDensity(graph)
    except UnsafeModelError:
        return {}
    if density.size > MOST_GLOBALS or not density.is_exact:
        return {}
    rng_key = threefry_key(0)
    with double_precision():
        found = posterior.weighable(rng_key, _MOST_DRAWS)
        if found is None:
            return {}
        draws, log_q = found
        points, log_volumes = density.unconstrained(draws)
    log_q, points = np.asarray(log_q), np.asarray(points)
    if not np.all(np.isfinite(points)):
        return {}
    target, per_second, _ = density.with_rows(arguments, points[:_TRIED])
    count = min(_MOST_DRAWS, _SECONDS * per_second)
    if count < _FEWEST_DRAWS:
        return {}
    log_p, _ = target(points[:count])
    log_ratios = log_p - np.asarray(log_volumes)[:count] - log_q[:count]
    values = {name: np.asarray(draw)[:count] for name, draw in draws.items()}
    return _found(log_ratios, values)


def _found(
    log_ratios: Float64[np.ndarray, " draws"],
    draws: dict[str, Float64[np.ndarray, "draws ..."]],
) -> dict[str, Any]:
    """What `weighed_draws` returns.

    Args:
      log_ratios: Of the model's density to that of the draws, up to a constant.
      draws: By site.
    """
    k = pareto_shape(log_ratios)
    weights = np.exp(log_ratios - np.max(log_ratios))
    weights = np.nan_to_num(weights) / np.sum(np.nan_to_num(weights))
    moved, widened = {}, {}
    for name, values in draws.items():
        flat = values.reshape(len(values), -1)
        mean = weights @ flat
        stddev = np.sqrt(weights @ (flat - mean) ** 2)
        moved[name] = float(np.max(abs(mean - flat.mean(0)) / stddev, initial=0.0))
        widened[name] = float(np.max(stddev / flat.std(0), initial=0.0))
    effective = 1.0 / np.sum(weights**2)
    spread = float(np.std(log_ratios))
    # The shape of the tail says nothing of its size.
    has_good_tail = k <= LARGEST_GOOD_SHAPE or spread <= _ALIKE
    is_known = has_good_tail and effective >= _FEWEST_EFFECTIVE
    found = {
        "pareto_k": k,
        "log_ratio_stddev": spread,
        "moved": moved if is_known else {},
        "widened": widened if is_known else {},
    }
    return found | {"warnings": _warnings(found, is_known)}


def _warnings(found: dict[str, Any], is_known: bool) -> list[str]:
    """What a person should know of it: that it is far off, or how far and where.

    Args:
      found: What `weighed_draws` returns, without warnings.
      is_known: Whether the weights are good enough to tell.
    """
    reason = (
        "VIPS takes latents as independent and bounds some densities; engine='dpvi' "
        "integrates the rows' own latents out instead."
    )
    if not is_known:
        k = found["pareto_k"]
        shown = f"{k:.2f}" if math.isfinite(k) else "infinite"
        return [
            "The posterior is far from the model's own: so say draws of it, weighed by "
            f"the model's density (Pareto k = {shown}, which should be below "
            f"{LARGEST_GOOD_SHAPE}). Means may be off, and standard deviations too "
            f"small. {reason}"
        ]
    moved, widened = found["moved"], found["widened"]
    texts = [
        f"{name!r} (mean by {moved[name]:.1f} sds, sd {widened[name]:.1f} times)"
        for name in moved
        if moved[name] > _MOVED or widened[name] > _WIDER
    ]
    if not texts:
        return []
    return [
        "Draws of the posterior, weighed by the model's density, put it elsewhere: "
        f"{', '.join(texts)}. {reason}"
    ]
