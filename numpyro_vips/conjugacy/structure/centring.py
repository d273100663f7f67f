"""Statistics about the current mean of a Gaussian, rather than about zero.

A logistic likelihood has a quadratic bound in the logit ψ = xᵀw, with the curvature ω:
1/4, or the mean of a Pólya-Gamma variable. What a row adds to the linear statistic is
κx of its label, or (κ + f'(ψ))x; what is left of it when ωψx is taken away is the
residual (y - σ(ψ))x, which is at most 1 times x. Over all rows ωψx adds up to Σ ωxxᵀ
times the mean of the weights, and so follows from the quadratic statistic. Written in
second moments about the public mean m,

    ww' = (w - m)(w' - m') + mw' + wm' - mm',

the log joint density has the residual alone in the place of the linear statistic. Noise
in Σ ωxxᵀ only slows the approach to the optimum, where residuals and prior balance, so
the matrix is released rarely: it is a *refreshed* statistic.

Over several steps residuals R_t about m_t and the m_t are averaged alike. What the
linear statistic would be about zero is then R̄ + Ω m̄, with the latest matrix Ω. Rows are
asked at the m_t, steps of Newton's method from the latest residuals alone, and the
posterior is read off the averages (Polyak and Juditsky, 1992): its noise is that of all
steps together, and how fast a direction gets to the optimum does not depend on it.
"""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from numpyro_vips.conjugacy.algebra.terms import Atom, Dense, Slot, Term
from numpyro_vips.conjugacy.structure.latents import Latents, known_family
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor

# By latent, the mean with the batch axes of its factor in front.
Means = Mapping[str, Float[Array, "..."]]


def centred_factors(
    terms: Sequence[Term],
    latents: Latents,
    factors: Mapping[str, PosteriorFactor],
    factor_of: Mapping[str, str],
) -> tuple[frozenset[str], frozenset[str]]:
    """The global Gaussian factors whose logits have a quadratic bound.

    Returns:
      All that are centred, and those of them that take Newton steps: with covariates,
      and with no other latents of rows than the bound's own. A belief network's units
      and weights find each other better by coordinate ascent; factors like these are
      centred if the bound has a fixed curvature.
    """
    tangent: set[str] = set()
    bounded: set[str] = set()
    products: set[str] = set()
    private: set[str] = set()
    with_locals: set[str] = set()
    for term in terms:
        names = [a.latent for a in term.atoms]
        families = [known_family(latents[name]) for name in names]
        mine = {factor_of[n] for n in names if latents[n].role == "global"}
        if any(family is not None and family.bounds_logits for family in families):
            bounded |= mine
            private |= mine if term.is_private else set()
        if any(family is not None and family.is_tangent for family in families):
            tangent |= mine
        if any(latents[n].role == "local" and latents[n].family is None for n in names):
            with_locals |= mine
        if len(mine) > 1:
            products |= mine  # Its statistics are about a product of moments.
    gaussian = {name for name in bounded if factors[name].layout is not None}
    newton = (gaussian & private) - products - with_locals
    centred = newton | ((gaussian & tangent) - products)
    return frozenset(centred), frozenset(newton)


def mean_corrections(
    terms: Sequence[Term],
    posterior_factors: Mapping[str, PosteriorFactor],
    factor_of: Mapping[str, str],
    centred: frozenset[str],
) -> list[Term]:
    """The corrections mw' + wm' - mm' of all terms in ww' about the means m.

    In place of the means stand slots with the latents' names as tokens.
    """

    def mean(atom: Atom) -> Dense:
        layout = posterior_factors[factor_of[atom.latent]].layout
        assert layout is not None
        batch, block = layout.labels(atom.latent, atom.labels)
        shape = (*layout.batch_shape, *layout.block_shape(atom.latent))
        return Dense(Slot(atom.latent, shape, jnp.result_type(float)), (*batch, *block))

    def replaced(term: Term, scale: float, atoms: Sequence[Atom]) -> Term:
        factors = tuple(
            mean(f) if isinstance(f, Atom) and any(f is a for a in atoms) else f
            for f in term.factors
        )
        return Term(scale * term.scale, factors, term.bound).refreshed()

    found = []
    for term in terms:
        pair = [a for a in term.atoms if factor_of[a.latent] in centred]
        if len(pair) == 2:
            assert factor_of[pair[0].latent] == factor_of[pair[1].latent]
            found += [replaced(term, 1.0, [atom]) for atom in pair]
            found.append(replaced(term, -1.0, pair))
    return found
