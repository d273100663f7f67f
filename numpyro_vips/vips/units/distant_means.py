"""Whether means of rows may be far from zero, by what the priors say.

A pilot's sums are about zero. Heights of 170 ± 7 have squares of 600 times their
variance, and with some hundred rows the pilot's noise in proportion to them leaves the
mean off by as much as the rows' spread; squares about there, and with them the residual
scale, are then mostly of the pilot's making. A second pilot about the first one's mean
has rows as long as their spread, and a third is as good as there is (CoinPress, Biswas,
Dong, Kamath and Ullman 2020). Where means are near zero anyway, more pilots only cost.
With some hundred such rows at ε = 1 the interval of the scale is many times as wide
with one pilot as with three, also where rows are in groups.
"""

import math
from collections.abc import Collection, Iterator

import numpy as np

from numpyro_vips.model.distributions import unwrapped
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.synthetic.prior_centre import run_at_quartiles
from numpyro_vips.vips.program.program import ConjugateProgram

# How far from zero rows are at quartiles of the prior, in standard deviations about
# their mean, for that to be far; and how many such places are tried.
_DISTANT = 2.5
_NUM_PLACES = 5
# With fewer rows for each mean than this, noise hides means from all pilots; with more
# than that a single one shows them. With 50 rows for each of 20 means near zero three
# pilots made intervals half as wide again.
_FEWEST_ROWS, _MOST_ROWS = 75.0, 1e5


def need_several_pilots(
    program: ConjugateProgram, names: Collection[str], num_rows: int
) -> bool:
    """Whether one pilot may leave means too far from where rows are.

    Args:
      program: The compiled model.
      names: Gaussian factors that rows pull to where they are.
      num_rows: Public number of rows.
    """
    factors = program.structure.posterior_factors
    candidates = {
        name
        for name in names
        if _FEWEST_ROWS <= num_rows / math.prod(factors[name].shape) <= _MOST_ROWS
    }
    # A flat prior says nothing of where they are.
    if candidates & program.structure.flat:
        return True
    return bool(candidates) and _distance(program.graph) > _DISTANT


def _distance(graph: ModelGraph) -> float:
    """How far rows of the model are from zero, in their standard deviations."""
    found = [ratio for seed in range(_NUM_PLACES) for ratio in _distances(graph, seed)]
    return float(np.median(found)) if found else 0.0


def _distances(graph: ModelGraph, seed: int) -> Iterator[float]:
    """The same at one place, of each observed site with a location and a scale."""
    messages = run_at_quartiles(graph, seed)
    for site in graph.sites.values():
        plain, _ = unwrapped(messages[site.name]["fn"])
        loc, scale = (getattr(plain, name, None) for name in ("loc", "scale"))
        if not site.is_latent and loc is not None and scale is not None:
            yield float(np.median(np.abs(loc) / np.asarray(scale)))
