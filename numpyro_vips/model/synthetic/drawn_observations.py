"""Whether a model draws what it observes in a row, or only has a density for it.

Rows that are redrawn from a model are like the data if the model is right. That takes
more than a sampler for every density. The likelihood of a censored time may be written
with `numpyro.factor`, with an observed constant, or under masks that depend on the time
itself, and says nothing of how such times are drawn. Of the data only shapes and types
are used.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpyro.distributions as dist
from jaxtyping import Int64

from numpyro_vips.model.graph import ModelGraph, Site
from numpyro_vips.model.synthetic.linear_observations import SolvedEntries

# An argument, and the flat places in a site's value and in it of what is copied.
Copied = tuple[str, Int64[np.ndarray, " copied"], Int64[np.ndarray, " copied"]]

# `numpyro.factor`, and distributions whose samplers draw as if nothing were censored.
_NOT_DRAWN = tuple(
    getattr(dist, name)
    for name in (
        "Unit",
        "LeftCensoredDistribution",
        "RightCensoredDistribution",
        "IntervalCensoredDistribution",
    )
    if hasattr(dist, name)
)

# What the program of a row returns of a site, besides its value and its support.
_DENSITY = frozenset({"parameters", "mask", "scale"})


def are_drawn(
    graph: ModelGraph,
    copies: Mapping[str, Sequence[Copied]],
    linear: Mapping[str, Sequence[SolvedEntries]],
) -> bool:
    """Whether what is observed, drawn site by site, is like the rows of the model.

    - Every entry that is observed comes from an argument, and no other site observes
      the same: no constants, nothing from `numpyro.factor`, no log of an argument.
    - A site's parameters, its mask and its scale depend on no argument that this site
      or a later one observes.
    - No sampler is for something else than the density.

    Args:
      graph: The model.
      copies: See `prior_predictive.copied_entries`.
      linear: See `linear_observations`.
    """
    sites = [site for site in graph.sites.values() if site.row_axis is not None]
    entries = {
        site.name: list(_entries(copies.get(site.name, ()), linear.get(site.name, ())))
        for site in sites
        if not site.is_latent
    }
    observed = [(name, there) for of in entries.values() for name, _, there in of]
    if len(set(observed)) < len(observed):
        return False
    for number, site in enumerate(sites):
        if issubclass(site.distributed.kind, _NOT_DRAWN):
            return False
        drawn = {here for _, here, _ in entries.get(site.name, ())}
        if not site.is_latent and len(drawn) < math.prod(site.shape):
            return False
        still = {name for s in sites[number:] for name, *_ in entries.get(s.name, ())}
        if still & _read_by_density(graph, site):
            return False
    return True


def _entries(
    copies: Sequence[Copied], linear: Sequence[SolvedEntries]
) -> Iterator[tuple[str, int, int]]:
    """What a site observes: an argument, the place in the site's value, and in it."""
    for argument, here, there in copies:
        for from_value, to in zip(np.ravel(here), np.ravel(there), strict=True):
            yield argument, int(from_value), int(to)
    for solved in linear:
        for from_value, to in zip(solved.here, solved.there, strict=True):
            yield solved.argument, int(from_value), int(to)


def _read_by_density(graph: ModelGraph, site: Site) -> set[str]:
    """The arguments that a site's density depends on, but for what it observes."""
    arguments, _ = graph.read_for(
        lambda name, output: name == site.name and output in _DENSITY
    )
    return arguments
