"""Where `engine="auto"` takes DPVI because VIPS would release statistics about zero.

Squares of heights of 170 ± 7 are six hundred times their variance, and noise in
proportion to them hides it. VIPS releases such statistics about the means of a pilot,
and of features that the pilot has standardised; see `conjugacy.structure.centring` and
`vips.program.features`. In two kinds of models it cannot:

- **A mean beside steps of another kind**, as that of a response beside the labels of a
  logistic regression, in joint models, or amounts beside whether there is one. What
  depends on the globals is released in every step, and the sums of the mean once,
  before there is a mean.
- **Coefficients of several measurements of a row**, as in autoregressions, where a row
  is a series, or trends over the visits of a person. The row adds Σ_t x_t x_tᵀ, and has
  no single feature that could be standardised.

A score is about where the globals are, and DPVI finds coordinates in which nearly
collinear coefficients are told apart (`dpvi/gradients/coordinates.py`). With some
thousand rows at ε = 1 intervals by VIPS are many times as wide as without privacy in
such models, and by DPVI a few times at most.
"""

from numpyro_vips.conjugacy.algebra.terms import OneHot, Term
from numpyro_vips.vips.program.program import ConjugateProgram


def are_about_zero(program: ConjugateProgram) -> bool:
    """Whether VIPS has no points, or no standardised features, for some means."""
    return has_means_without_points(program) or has_several_products(program)


def has_means_without_points(program: ConjugateProgram) -> bool:
    """Whether statistics of a Gaussian factor are released once, about zero."""
    structure = program.structure
    with_points = structure.recentred | structure.newton | structure.centred
    gaussian = {
        factor.name
        for factor in structure.posterior_factors_of("global")
        if factor.layout is not None and factor.name not in with_points
    }
    return any(
        statistic.release == "once"
        and any(
            structure.factor_of[latent] in gaussian for latent, *_ in statistic.atoms
        )
        for statistic in structure.statistics
    )


def has_several_products(program: ConjugateProgram) -> bool:
    """Whether rows add up products of features, of several coefficients of a factor."""
    structure = program.structure
    for name in structure.recentred - program.features.keys():
        layout = structure.posterior_factors[name].layout
        if layout is not None and layout.size > 1:
            latents = set(layout.shapes)
            if any(_adds_up_products(term, latents) for term in program.row_terms):
                return True
    return False


def _adds_up_products(term: Term, latents: set[str]) -> bool:
    """Whether it is a sum over numbers of a row, of products of two of the latents.

    Not over the groups of which a row picks one.
    """
    is_square = sum(atom.latent in latents for atom in term.atoms) == 2
    picks = any(isinstance(factor, OneHot) for factor in term.factors)
    is_sum = any(label.size > 1 for label in term.bound)
    return is_square and term.is_private and is_sum and not picks
