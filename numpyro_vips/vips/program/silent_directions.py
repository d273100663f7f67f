"""Directions of a Gaussian block of which no row says anything, whatever it holds.

In logits a[group] + b[item] any number may be added to all of a and taken from all of
b, and in strength[i] - strength[j] to all strengths: rows know differences alone, and
the prior the rest. Noise knows nothing of that. In a released gradient it points along
such a direction, too, and in a released curvature it looks like information about it.

That the density of rows is the same function is not assumed: it is tried at random
numbers. DPVI, which has gradients in place of terms, tries these in
`dpvi/gradients/silent_directions.py`.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float64

from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.program.random_trials import is_shifted_unseen

Direction = Float64[np.ndarray, " size"]
# Latents of a block beyond which nobody looks.
_MOST_LATENTS = 12


def silent_directions(
    structure: Structure, name: str, terms: Sequence[Term]
) -> Float64[np.ndarray, "size directions"]:
    """An orthonormal basis of the directions that are found, as columns.

    They are differences between two latents, each moved as a whole, and single latents.

    Args:
      structure: What was found in the model.
      name: A Gaussian factor.
      terms: A row's terms, with slots.
    """
    size = structure.posterior_factors[name].shape[-1]
    found = [
        direction
        for direction in _candidates(structure, name)
        if is_shifted_unseen(structure, name, direction, terms)
    ]
    if not found:
        return np.zeros((size, 0))
    basis, values, _ = np.linalg.svd(np.stack(found, 1), full_matrices=False)
    return basis[:, values > 1e-9 * values[0]]


def _candidates(structure: Structure, name: str) -> Iterator[Direction]:
    factor = structure.posterior_factors[name]
    layout = factor.layout
    if layout is None or len(factor.latents) > _MOST_LATENTS:
        return
    whole = {}
    for latent in factor.latents:
        whole[latent] = np.zeros(layout.size)
        whole[latent][layout.span(latent)] = 1.0
    yield from whole.values()
    for one, other in itertools.combinations(factor.latents, 2):
        yield whole[one] - whole[other]
