"""Where `engine="auto"` takes DPVI because of effects of groups beside coefficients.

In a predictor a[group] + b x VIPS releases, once, the products of all that coefficients
are multiplied by: one number for each group and column, and one for each pair of groups
where there are two kinds of them, as schools and teachers. In a[group] + b[group] x
there are three for each group. Few rows stand behind each, and the noise of all of them
together distorts the matrix that effects are solved with. In μ + a[group] raising μ and
lowering all a changes no row, but noise moves the fit in that direction. Under DPVI a
row's gradient has one number for each effect. What is noise for certain is taken out of
it (`silent_directions.py`), and groups go together to where rows are
(`prior_coordinates.py`).

Effects alone, without other coefficients, stay with VIPS: its sums are those of the
groups then. So do models with many rows in each group, which its noise does not hide.
`benchmarks/group_effects.py` compares the two.
"""

import math

from numpyro_vips.conjugacy.algebra.terms import OneHot, Term
from numpyro_vips.conjugacy.structure.structure import is_real
from numpyro_vips.vips.program.program import ConjugateProgram

# Rows for each unit of the noise multiplier of a single release on which the whole
# budget is spent, and each effect to the power of 1.5, from which on VIPS stays: the
# noise in a matrix of k effects grows like the root of k, and each effect has a k-th of
# the rows. Intervals of effects in a[group] + slope x with 12 groups held the truth in
# 85 and 95 % with 30 and 50 of these rows: `python benchmarks/group_effects.py --groups
# 12 --rows 4700 --engines vips --predictors "a[g] + slope x"`, and with 7800 rows.
_ROWS_PER_EFFECT = 30.0
# The same where no row's predictor changes when one coefficient rises and all effects
# fall by as much: in mean + a[group] + slope x intervals held the truth in 27, 10,
# 38, 57 and 100 % with 30, 50, 97, 142 and 194 of these rows, by the table and the
# command in docs/choosing_a_budget.md.
_ROWS_PER_COLLINEAR_EFFECT = 200.0


def hides_groups(
    rows_for_groups: float, num_rows: int, noise_multiplier: float | None
) -> bool:
    """Whether noise in the products that VIPS releases is predicted to hide effects.

    Args:
      rows_for_groups: See `rows_for_groups`.
      num_rows: Public number of rows.
      noise_multiplier: That of a single release from all rows on which the fit's whole
        budget is spent; None where it is not known.
    """
    if noise_multiplier is None:
        return False
    return num_rows < rows_for_groups * noise_multiplier


def rows_for_groups(program: ConjugateProgram) -> float:
    """Rows for each unit of the noise multiplier from which VIPS shows effects.

    Zero if none stand beside other coefficients. Factors that take Newton steps are
    asked for a gradient in every step themselves.
    """
    structure, terms = program.structure, program.row_terms
    number, is_collinear = 0, False
    spoken_of = {atom.latent for term in terms for atom in term.atoms}
    for factor in structure.posterior_factors_of("global"):
        names = {n for n in factor.latents if is_real(structure.latents[n])} & spoken_of
        if factor.name in structure.newton:
            continue
        picked: set[str] = set()
        for term in terms:
            found = _picked_beside_others(term, names)
            picked |= found
            is_collinear |= bool(found) and not _has_covariates(term)
        number += sum(math.prod(structure.latents[name].shape) for name in picked)
    per_effect = _ROWS_PER_COLLINEAR_EFFECT if is_collinear else _ROWS_PER_EFFECT
    return per_effect * number**1.5


def _has_covariates(term: Term) -> bool:
    """Whether a row's numbers stand in it, and not only which entries it picks."""
    return any(f.is_private and not isinstance(f, OneHot) for f in term.constants)


def _picked_beside_others(term: Term, names: set[str]) -> set[str]:
    """Latents of which a row picks an entry, which is multiplied by another entry.

    Where one number of the row picks both, as of an intercept and a slope of a group,
    only with numbers of the row beside them: without, all that rows say is of their sum
    or of the square of one.

    Args:
      term: The product.
      names: The latents to look at.
    """
    codes = {
        factor.target
        for factor in term.factors
        if isinstance(factor, OneHot) and factor.is_private
    }
    entries = {(a.latent, a.labels) for a in term.atoms if a.latent in names}
    picked = [codes & {*labels} for _, labels in entries]
    if len(entries) < 2 or (
        set.intersection(codes, *picked) and not _has_covariates(term)
    ):
        return set()
    return {latent for (latent, _), found in zip(entries, picked, strict=True) if found}
