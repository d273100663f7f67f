"""Latents of rows that divide the rows' variance between them.

Where a row has several real latents, such as an intercept and a slope of everybody's
own, and their scales are learnt, coordinate ascent moves variance from one scale to
another little by little: a scale that starts too large takes many steps to become
small. Under noise the average of ten steps is then mostly one of steps on the way. So
such a fit has more steps, and the first ones leave nothing in the average and get less
of the budget, as where components of mixtures have to part (`waiting_globals`). It is a
matter of the model's structure alone.
"""

from collections.abc import Sequence

from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.structure.structure import Structure, is_real


def dividing_latents(structure: Structure, row_terms: Sequence[Term]) -> frozenset[str]:
    """The real latents of a row whose scale is learnt; none where there is one only.

    Args:
      structure: What was found in the model.
      row_terms: The terms of the sites under the unit plate.
    """
    latents, found = structure.latents, set[str]()
    for term in row_terms:
        real = [a.latent for a in term.atoms if is_real(latents[a.latent])]
        others = [a.latent for a in term.atoms if not is_real(latents[a.latent])]
        is_square = len(real) == 2 and all(latents[n].role == "local" for n in real)
        is_scaled = len(others) == 1 and latents[others[0]].role == "global"
        # Without data it is part of the latents' own density.
        if is_square and is_scaled and not term.is_private:
            found.update(real)
    return frozenset(found) if len(found) > 1 else frozenset()
