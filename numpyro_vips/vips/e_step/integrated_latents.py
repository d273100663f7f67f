"""Which latents of a row are integrated out: one or two under logistic likelihoods."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.e_step.coordinates import locals_of

# Nodes per dimension, by the number of dimensions: those that only say where the mass
# is, and the last. `test_local_quadrature.py` shows how exact they are.
NUM_NODES = {1: (9, 9, 15), 2: (7, 7, 9)}


class Integrated(NamedTuple):
    """Latents of a row that are integrated out, with what depends on them.

    Attributes:
      latents: Their Gaussian factor, of one or two coordinates.
      auxiliaries: The factors of the auxiliary variables of their logits.
    """

    latents: PosteriorFactor
    auxiliaries: tuple[PosteriorFactor, ...]


def integrated_latents(
    structure: Structure, terms: Sequence[Term]
) -> tuple[Integrated, ...]:
    """The latents of a row that are integrated out.

    These are Gaussian factors of one or two coordinates, with the auxiliary variables
    of logistic likelihoods as all that they act on among the row's latents, and these
    on them alone.

    Args:
      structure: What was found in the model.
      terms: The row's terms.
    """
    factors = {f.name: f for f in structure.posterior_factors_of("local")}
    together = [locals_of(structure, term) for term in terms]
    found = []
    for factor in factors.values():
        if not _is_small_block(structure, factor):
            continue
        beside = set().union(*(x for x in together if factor.name in x))
        beside -= {factor.name}
        auxiliaries = tuple(factors[name] for name in factors if name in beside)
        known = beside | {factor.name}
        if (
            auxiliaries
            and all(f.family.bounds_logits for f in auxiliaries)
            and all(x <= known for x in together if x & beside)
            and all(len(x & beside) < 2 for x in together)
        ):
            found.append(Integrated(factor, auxiliaries))
    return tuple(found)


def _is_small_block(structure: Structure, factor: PosteriorFactor) -> bool:
    return (
        factor.layout is not None
        and factor.family.has_covariances
        and int(np.prod(factor.shape)) == factor.layout.size <= max(NUM_NODES)
        and all(structure.latents[name].weight is None for name in factor.latents)
    )
