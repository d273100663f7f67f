"""Which globals stay where they start while the components of a model part.

From a common start, the shortest way up the bound is a broad component: scales grow to
the width of all rows, and the shares go to the component that is broad. What is left of
the others has next to no rows, so that their gradients are small, and noise hides
these: a fit stays there. With scales and shares held at the centres of their priors, no
component can do the work of the others, and all of them go to where rows are. Then the
rest follows.

It is a matter of the order of steps alone. Nothing is released for it, and the bound
that is climbed in the end is the same.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from numpyro.distributions import constraints

from numpyro_vips.dpvi.guides.unconstrained import GuideSite
from numpyro_vips.jax_tools.double_precision import evaluate_in_double, trace_in_double
from numpyro_vips.model.facts.exchangeable import Axes, exchangeable_axes

# Which part of the steps, the first ones. Of ten fits of five overlapping clusters at
# epsilon 4, 9 come within 0.03 of the true density, and 10 with twice as long a wait.
# But where the prior's centre of scales is as wide as all rows, means do not part while
# these wait: then a quarter of the steps is dear, and an eighth is not.
WAITING = 0.125
# Beyond these, networks among them, a trial takes longer than it is worth.
_MOST_NUMBERS = 10_000


def late_globals(
    sites: Sequence[GuideSite],
    centres: Mapping[str, Any],
    row_density: Callable[[Mapping[str, Any]], Any],
) -> frozenset[str]:
    """Names of the globals that wait; no private value is read.

    | what entries of exchangeable globals are    | what waits                         |
    |---------------------------------------------|------------------------------------|
    | real numbers, maybe beside others           | all globals that are not real      |
    | the same in an order, as of ordered means   | the same, but for the ordered ones |
    | other numbers, as rates of Poisson counts   | the shares                         |
    | shares alone; nothing is exchangeable       | nothing                            |

    Shares are the entries of a simplex, each a component's.

    Args:
      sites: The globals that rows' densities depend on.
      centres: Their unconstrained values at the prior's centre.
      row_density: Log density of a synthetic row, by values of the globals; traceable.
    """
    late = {site.name for site in sites if not _are_real_entries(site)}
    # Where nothing could wait there is nothing to try.
    if not late or sum(np.size(centres[s.name]) for s in sites) > _MOST_NUMBERS:
        return frozenset()
    values = _distinct_values(sites, centres)
    axes = exchangeable_axes(trace_in_double(row_density, values), values)
    shares = {s.name for s in sites if s.name in axes and _is_shares(s, axes[s.name])}
    components = [s for s in sites if s.name in axes and s.name not in shares]
    if any(_are_real_entries(site) for site in components):
        return frozenset(late)
    return frozenset(shares if components else ())


def waiting_coordinates(
    sites: Sequence[GuideSite], late: frozenset[str]
) -> Bool[np.ndarray, " size"]:
    """Where the globals that wait are in the flat vector of all of these."""
    parts = [np.full(site.size, site.name in late) for site in sites]
    return np.concatenate([np.zeros(0, bool), *parts])


def _distinct_values(
    sites: Sequence[GuideSite], centres: Mapping[str, Any]
) -> dict[str, Float64[np.ndarray, "..."]]:
    """Values about the prior's centre, no two of them alike."""
    rng = np.random.default_rng(0)
    near = {
        s.name: np.asarray(centres[s.name]) + rng.normal(size=s.unconstrained_shape)
        for s in sites
    }
    return evaluate_in_double(
        lambda free: {s.name: s.transform(free[s.name]) for s in sites}, near
    )


def _are_real_entries(site: GuideSite) -> bool:
    """Whether entries are real numbers, be it in an order."""
    return site.is_real or site.support is constraints.ordered_vector


def _is_shares(site: GuideSite, axes: Axes) -> bool:
    """Whether each exchangeable entry is a part of one whole."""
    return site.support is constraints.simplex and axes == (len(site.shape) - 1,)
