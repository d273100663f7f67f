"""Which of several starts has led to the best posterior, for fits without noise."""

from collections.abc import Sequence

from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.steps.convergence import distance
from numpyro_vips.vips.steps.state import VipsState

# Bounds that differ by less, in nats, are of posteriors about as good;
# these are not the same if they are so many standard deviations apart.
_ALIKE = 3.0
_APART = 1.0


def best_start(
    program: ConjugateProgram, states: Sequence[VipsState], bounds: Sequence[float]
) -> VipsState:
    """The state with the largest evidence bound, and what the others say of it.

    Args:
      program: The compiled model.
      states: Where starts have led without noise.
      bounds: The evidence bound of each.

    Returns:
      The state, with all bounds, and with the sites of which another start has found a
      posterior that is about as good and elsewhere.
    """
    order = sorted(range(len(states)), key=lambda i: -bounds[i])
    best, factors = states[order[0]], program.structure.posterior_factors
    elsewhere = {
        site
        for i in order[1:]
        if bounds[order[0]] - bounds[i] < _ALIKE
        for name in best.natural
        if distance(
            factors[name],
            (best.natural[name], states[i].natural[name]),
            (best.moments[name], states[i].moments[name]),
        )
        > _APART
        for site in factors[name].latents
        if site in program.graph.sites
    }
    return best._replace(
        bounds=tuple(bounds[i] for i in order), as_good=tuple(sorted(elsewhere))
    )
