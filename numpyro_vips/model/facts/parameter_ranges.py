"""Whether a model's chances stay between zero and one, before any budget is spent.

`Bernoulli(probs=X @ w)` has chances below zero and above one. NumPyro moves them to the
nearest end, so that the density is finite, flat there, and none of the model that was
meant. It looks at parameters only if it is asked to, and cannot in a traced program.
Here the prior's own draws are tried on synthetic rows. No private value is read.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from numpyro_vips.jax_tools.double_precision import evaluate_in_double
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.distributions import unwrapped
from numpyro_vips.model.graph import ModelGraph, Site
from numpyro_vips.model.synthetic.prior_centre import at_initial_params, moderate_draws
from numpyro_vips.model.synthetic.synthetic_rows import directions

_NUM_DRAWS = 64
# The share of draws that has to lie outside in each kind of rows.
_WORTH_A_WARNING = 0.05
# What rounding may make of a sum of shares.
_ROUNDING = 1e-3


def chances_out_of_range(graph: ModelGraph) -> dict[str, str]:
    """By observed site, its parameter that is a chance and leaves [0, 1].

    It has to do so in many draws of the globals whatever kind of rows is tried: of
    ones, of indicators and of positive numbers of norm one. Rows of other kinds may
    well keep it within: a sum of shares is a chance where rows are indicators.

    Args:
      graph: The model. One whose rows have latents of their own is not looked at.
    """
    looked_at = {
        site.name: parameter
        for site in graph.sites.values()
        if site.role == "observed"
        for parameter in [_chance_of(site)]
        if parameter is not None
    }
    if not looked_at or graph.latents("local"):
        return {}
    graph = at_initial_params(graph)

    def outside(rows: Any, latents: Any) -> dict[str, Any]:
        def at(row: Any, values: Any) -> dict[str, Any]:
            messages = graph.run({name: x[None] for name, x in row.items()}, values)
            found = {}
            for name, parameter in looked_at.items():
                chance = jnp.asarray(
                    getattr(unwrapped(messages[name]["fn"])[0], parameter)
                )
                off = (chance < -_ROUNDING) | (chance > 1.0 + _ROUNDING)
                found[name] = jnp.any(off)
            return found

        return jax.vmap(at)(rows, latents)

    try:
        draws = moderate_draws(graph, _NUM_DRAWS)
        shares = [
            {name: np.mean(off) for name, off in of_kind.items()}
            for rows in _kinds_of_rows(graph.arguments)
            for of_kind in [evaluate_in_double(outside, rows, draws)]
        ]
    # Such as a discrete global, which has no unconstrained values, or a sampler that
    # fails on such rows. Others will say why.
    except Exception:
        return {}
    return {
        name: parameter
        for name, parameter in looked_at.items()
        if all(share[name] > _WORTH_A_WARNING for share in shares)
    }


def warning_of_chances(found: Mapping[str, str]) -> str | None:
    """What is said, before anything is charged, of chances that leave [0, 1].

    Args:
      found: See `chances_out_of_range`.
    """
    if not found:
        return None
    listed = " and ".join(f"{of!r} of {name!r}" for name, of in found.items())
    return (
        f"Under its priors the model makes chances below zero or above one: {listed}. "
        "NumPyro moves them to the nearest end, where the density does not depend on "
        "the latents, so the posterior is not that of the model that was meant. Write "
        "logits=, or a function with values between zero and one, such as "
        "jax.nn.sigmoid, or give priors that keep chances between zero and one."
    )


def _chance_of(site: Site) -> str | None:
    """The parameter of a site's distribution that is one chance for each element."""
    for parameter, constraint in site.distributed.kind.arg_constraints.items():
        if constraint is constraints.unit_interval:
            return parameter
    return None


def _kinds_of_rows(arguments: ModelArguments) -> Iterator[Mapping[str, np.ndarray]]:
    """Rows of ones, of indicators, and of positive numbers of norm one."""
    rng = np.random.default_rng(0)
    for kind in ("ones", "indicators", "positive"):
        rows = {}
        for name, like in arguments.row_shapes().items():
            shape = (_NUM_DRAWS, *like.shape)
            if not np.issubdtype(like.dtype, np.floating):
                rows[name] = np.zeros(shape, like.dtype)
                continue
            value = np.ones(shape)
            if len(shape) > 1 and kind == "indicators":
                value = np.eye(shape[-1])[rng.integers(0, shape[-1], shape[:-1])]
            if len(shape) > 1 and kind == "positive":
                value = abs(directions(rng, shape))
            rows[name] = value.astype(like.dtype)
        yield rows
