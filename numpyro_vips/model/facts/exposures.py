"""Private numbers that a Poisson rate is proportional to: exposures, or observed times.

`Poisson(time * rate)` of an event is the likelihood of a censored time, and one of a
count under an exposure that was known before. The programs are the same. Under the
latter rows can be drawn with the exposure that they have; under the former the time
ended when the event came, and rows that are drawn so are unlike the data.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from numpyro_vips.jax_tools.double_precision import evaluate_in_double
from numpyro_vips.model.distributions import unwrapped
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.synthetic.prior_centre import at_initial_params
from numpyro_vips.model.synthetic.synthetic_rows import synthetic_latents, synthetic_row

_TOLERANCE = 1e-9


def exposures(graph: ModelGraph) -> dict[str, tuple[str, ...]]:
    """By Poisson site of a row, the arguments that its rate is proportional to.

    Args:
      graph: The model, of whose rows only shapes and types are looked at.
    """
    sites = [
        site.name
        for site in graph.sites.values()
        if site.role == "observed" and site.distributed.kind is dist.Poisson
    ]
    shapes = graph.arguments.row_shapes()
    numbers = [
        name
        for name, like in shapes.items()
        if np.issubdtype(like.dtype, np.floating) and like.shape in ((), (1,))
    ]
    if not sites or not numbers:
        return {}
    graph = at_initial_params(graph)
    row = {name: np.asarray(value) for name, value in synthetic_row(graph).items()}
    latents = synthetic_latents(graph, 1, seed=0)

    def rates(rows: Any, latents: Any) -> dict[str, Any]:
        messages = graph.run({name: x[None] for name, x in rows.items()}, latents)
        plain = {name: unwrapped(messages[name]["fn"])[0] for name in sites}
        return {name: jnp.asarray(plain[name].rate) for name in sites}

    def rates_at(argument: str, value: float) -> dict[str, Any]:
        like = row[argument]
        rows = {**row, argument: np.full(like.shape, value, like.dtype)}
        return evaluate_in_double(rates, rows, latents)

    found: dict[str, tuple[str, ...]] = {}
    for argument in numbers:
        try:
            once, twice = rates_at(argument, 1.0), rates_at(argument, 2.0)
        # A model may fail on such a row; then nothing is said of it.
        except Exception:
            continue
        for name in sites:
            rate = np.asarray(once[name])
            doubled = np.allclose(twice[name], 2.0 * rate, rtol=_TOLERANCE, atol=0.0)
            if np.all(rate > 0) and doubled:
                found[name] = (*found.get(name, ()), argument)
    return found
