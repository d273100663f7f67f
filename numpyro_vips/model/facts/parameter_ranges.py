"""Whether a model's parameters stay in their ranges, before any budget is spent.

`Bernoulli(probs=X @ w)` has chances below zero and above one, `Poisson(X @ w)` has
rates below zero, and a `Normal` prior of a scale makes scales below zero. NumPyro looks
at parameters only if it is asked to, and cannot in a traced program. It moves such
chances to the nearest end, so that the density is finite, flat there, and none of the
model that was meant; for the others there is no density. Here the prior's own draws are
tried on synthetic rows. No private value is read.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool
from numpyro.distributions import constraints

from numpyro_vips.jax_tools.double_precision import evaluate_in_double
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.distributions import unwrapped
from numpyro_vips.model.graph import ModelGraph, Site
from numpyro_vips.model.synthetic.prior_centre import at_initial_params, moderate_draws
from numpyro_vips.model.synthetic.synthetic_rows import directions

_NUM_DRAWS = 64
# Of larger models, networks, chances alone are looked at: the priors of many globals
# take long to draw from.
_MOST_GLOBALS = 10_000
# The share of draws that has to lie outside in each kind of rows.
_WORTH_A_WARNING = 0.05
# What rounding may make of a sum of shares.
_ROUNDING = 1e-3


class _Range(NamedTuple):
    """A range that parameters leave.

    Attributes:
      outside: Which values are out of it, elementwise or by vector.
      warning: What is said of that, with a place for the list of parameters.
    """

    outside: Callable[[Array], Bool[Array, "..."]]
    warning: str


_CHANCES = _Range(
    lambda x: (x < -_ROUNDING) | (x > 1.0 + _ROUNDING),
    "Under its priors the model makes chances below zero or above one: {}. NumPyro "
    "moves them to the nearest end, where the density does not depend on the latents, "
    "so the posterior is not that of the model that was meant. Write logits=, or a "
    "function with values between zero and one, such as jax.nn.sigmoid, or give priors "
    "that keep chances between zero and one.",
)
_POSITIVE = _Range(
    lambda x: x < -_ROUNDING,
    "Under its priors the model makes parameters below zero that have to be positive: "
    "{}. There is no density then, rows count as zero, and the posterior is not that "
    "of the model that was meant. Of a linear predictor take jnp.exp or "
    "jax.nn.softplus. Give a scale a prior on positive numbers, such as HalfNormal.",
)
_IN_ORDER = _Range(
    lambda x: jnp.any(jnp.diff(x) < -_ROUNDING, axis=-1),
    "Under its priors the model makes cutpoints that do not increase: {}. There is no "
    "density then, rows count as zero, and the posterior is not that of the model that "
    "was meant. Give them the prior dist.TransformedDistribution("
    "dist.Normal(0.0, 1.0).expand([n]), dist.transforms.OrderedTransform()).",
)
_RANGES = _CHANCES, _POSITIVE, _IN_ORDER


class OutOfRange(NamedTuple):
    """A parameter of a site's distribution that leaves its range.

    Attributes:
      site: The name of the site.
      parameter: Of its distribution, such as `"rate"`.
      place: Of the range in `_RANGES`.
    """

    site: str
    parameter: str
    place: int


def parameters_out_of_range(graph: ModelGraph) -> tuple[OutOfRange, ...]:
    """The parameters of globals and observed sites that leave their ranges.

    They have to do so in many draws of the globals whatever kind of rows is tried: of
    ones, of indicators and of positive numbers of norm one. Rows of other kinds may
    well keep them within: a sum of shares is a chance where rows are indicators.

    Args:
      graph: The model. One whose rows have latents of their own is not looked at, and
        of one with more than 10,000 globals chances alone.
    """
    if graph.latents("local"):
        return ()
    looked_at = [
        OutOfRange(site.name, parameter, place)
        for site in graph.sites.values()
        for parameter, place in _ranges_of(site)
        if (_RANGES[place] is _CHANCES or graph.num_globals <= _MOST_GLOBALS)
        and _depends_on_latents(graph, site)
    ]
    if not looked_at:
        return ()
    graph = at_initial_params(graph)

    def outside(rows: Any, latents: Any) -> list[Bool[Array, " draws"]]:
        def at(row: Any, values: Any) -> list[Bool[Array, ""]]:
            messages = graph.run({name: x[None] for name, x in row.items()}, values)
            found = []
            for name, parameter, place in looked_at:
                value = getattr(unwrapped(messages[name]["fn"])[0], parameter)
                found.append(jnp.any(_RANGES[place].outside(jnp.asarray(value))))
            return found

        return jax.vmap(at)(rows, latents)

    try:
        draws = moderate_draws(graph, _NUM_DRAWS)
        found = np.ones(len(looked_at), bool)
        for rows in _kinds_of_rows(graph.arguments):
            shares = np.mean(evaluate_in_double(outside, rows, draws), axis=-1)
            found &= shares > _WORTH_A_WARNING
            if not found.any():
                return ()
    # Such as a discrete global, which has no unconstrained values, or a sampler that
    # fails on such rows. Others will say why.
    except Exception:
        return ()
    return tuple(itertools.compress(looked_at, found))


def warnings_of_ranges(found: Iterable[OutOfRange]) -> Iterator[str]:
    """What is said, before anything is charged, of parameters out of their ranges.

    Args:
      found: See `parameters_out_of_range`.
    """
    found = tuple(found)
    for place, of_range in enumerate(_RANGES):
        listed = [f"{of!r} of {site!r}" for site, of, where in found if where == place]
        if listed:
            yield of_range.warning.format(" and ".join(listed))


def _depends_on_latents(graph: ModelGraph, site: Site) -> bool:
    _, latents = graph.read_for(
        lambda name, output: name == site.name and output == "parameters"
    )
    return bool(latents)


def _ranges_of(site: Site) -> Iterator[tuple[str, int]]:
    """The parameters of a site's distribution that have a range, and which."""
    for parameter, constraint in site.distributed.kind.arg_constraints.items():
        of_element = getattr(constraint, "base_constraint", constraint)
        if of_element is constraints.unit_interval:
            yield parameter, _RANGES.index(_CHANCES)
        # Integers are counts of trials, which are no functions of globals.
        if not constraint.is_discrete and (
            getattr(of_element, "lower_bound", None) == 0
            and not hasattr(of_element, "upper_bound")
        ):
            yield parameter, _RANGES.index(_POSITIVE)
        if of_element is constraints.ordered_vector:
            yield parameter, _RANGES.index(_IN_ORDER)


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
