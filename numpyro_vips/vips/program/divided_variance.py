"""Latents of rows that divide the rows' variance between them.

Where a row has several real latents, such as an intercept and a slope of everybody's
own, and their scales are learnt, coordinate ascent moves variance from one scale to
another little by little: a scale that starts too large takes many steps to become
small. Under noise the average of ten steps is then mostly one of steps on the way. So
such a fit has more steps, and the first ones leave nothing in the average and get less
of the budget, as where components of mixtures have to part (`waiting_globals`). It is a
matter of the model's structure alone.
"""

from collections.abc import Iterator, Sequence

from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.structure.structure import Structure, is_real


def scaled_squares(
    structure: Structure, row_terms: Sequence[Term]
) -> Iterator[tuple[frozenset[str], str]]:
    """Real latents of a row whose square a global scales, and that global, by term.

    A term without data is part of the latents' own density.

    Args:
      structure: What was found in the model.
      row_terms: The terms of the sites under the unit plate.
    """
    latents, factor_of = structure.latents, structure.factor_of
    for term in row_terms:
        real = [a.latent for a in term.atoms if is_real(latents[a.latent])]
        others = [a.latent for a in term.atoms if not is_real(latents[a.latent])]
        is_square = (
            len(real) == 2
            and all(latents[name].role == "local" for name in real)
            and len({factor_of[name] for name in real}) == 1
        )
        is_scaled = len(others) == 1 and latents[others[0]].role == "global"
        if is_square and is_scaled and not term.is_private:
            yield frozenset(real), others[0]


def dividing_latents(structure: Structure, row_terms: Sequence[Term]) -> frozenset[str]:
    """The real latents of a row whose scale is learnt; none where there is one only.

    Args:
      structure, row_terms: See `scaled_squares`.
    """
    found = [mine for mine, _ in scaled_squares(structure, row_terms)]
    together = frozenset[str]().union(*found)
    return together if len(together) > 1 else frozenset()
