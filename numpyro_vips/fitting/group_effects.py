"""Where `engine="auto"` takes DPVI because of effects of groups beside coefficients.

In a predictor a[group] + b x VIPS releases, once, the products of all that coefficients
are multiplied by: one number for each group and column, and one for each pair of groups
where there are two kinds of them, as schools and teachers. Few rows stand behind each,
and the noise of all of them together bends the matrix that effects are solved with. In
μ + a[group] rows say nothing of more of μ and less of all a, and noise looks as if they
did. Under DPVI a row's gradient has one number for each effect. What is noise for
certain is taken out of it (`silent_directions.py`), and groups go together to where
rows are (`prior_coordinates.py`).

Effects alone, without other coefficients, stay with VIPS: its sums are those of the
groups then. `benchmarks/group_effects.py` compares the two.
"""

from numpyro_vips.conjugacy.algebra.terms import OneHot, Term
from numpyro_vips.conjugacy.structure.structure import is_real
from numpyro_vips.vips.program.program import ConjugateProgram


def has_group_effects(program: ConjugateProgram) -> bool:
    """Whether rows choose entries of an effect that stands beside other coefficients.

    Factors that take Newton steps are asked for a gradient in every step themselves.
    """
    structure, terms = program.structure, program.row_terms
    spoken_of = {atom.latent for term in terms for atom in term.atoms}
    for factor in structure.posterior_factors_of("global"):
        names = {n for n in factor.latents if is_real(structure.latents[n])} & spoken_of
        if len(names) < 2 or factor.name in structure.newton:
            continue
        if any(_picks_entries(term, names) for term in terms):
            return True
    return False


def _picks_entries(term: Term, names: set[str]) -> bool:
    """Whether a row says which entry of some of these latents a term has."""
    own = {label for a in term.atoms if a.latent in names for label in a.labels}
    return any(
        isinstance(factor, OneHot) and factor.is_private and factor.target in own
        for factor in term.factors
    )
