"""Statistics about the current mean of a Gaussian, rather than about zero.

**About a released mean, once.** Of y ~ Normal(w, τ^(-1/2)) rows release y and y².
Heights of 170 ± 7 have squares near 29,000, of which the variance is the 600th part:
noise in proportion to the squares hides it. With w = c + v, for any public c,

    τ(y - w)² = τ(y - c)² - 2τ(y - c)v + τv²,

so the same density has the statistics y - c and (y - c)², which are as small as the
rows' spread. This is a change of variables, and no property of this density: in every
term the latent is replaced by c + v, and the posterior of v has the form that the one
of w had. So a *pilot* releases the statistics about zero for a small part of the
budget, c is the mean of its posterior, and the rest of the budget goes into the
statistics about c. Where latents of rows stand beside w, as in a mixture, the first
steps are the pilot. These factors are *recentred*.

**About the current mean, in every step.** A logistic likelihood has a quadratic bound
in the logit ψ = xᵀw, with the curvature ω: 1/4, or the mean of a Pólya-Gamma variable.
What a row adds to the linear statistic is κx of its label, or (κ + f'(ψ))x; what is
left of it when ωψx is taken away is the residual (y - σ(ψ))x, which is at most 1 times
x. Over all rows ωψx adds up to Σ ωxxᵀ times the mean of the weights, and so follows
from the quadratic statistic. Written in second moments about the public mean m,

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

import itertools
from collections.abc import Iterator, Mapping, Sequence

import jax.numpy as jnp

from numpyro_vips.conjugacy.algebra.terms import Atom, Dense, Factor, Slot, Term
from numpyro_vips.conjugacy.structure.latents import Latents, known_family
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor


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


def recentred_factors(
    terms: Sequence[Term],
    latents: Latents,
    factors: Mapping[str, PosteriorFactor],
    factor_of: Mapping[str, str],
    centred: frozenset[str],
) -> frozenset[str]:
    """The global Gaussian factors that rows pull to where they are.

    Each is alone in a term with private numbers, such as -2τyw, or with a latent of the
    row whose mean it is, as in -2τlw. Loadings, which real latents of rows multiply
    beside private numbers, are not among them, nor are weights of logits.
    """

    def is_gaussian_of_row(atom: Atom) -> bool:
        gaussian = factors[factor_of[atom.latent]].layout is not None
        return gaussian and latents[atom.latent].role == "local"

    def is_apart(atom: Atom) -> bool:
        latent, factor = latents[atom.latent], factors[factor_of[atom.latent]]
        family = known_family(latent)
        of_logits = family is not None and (family.bounds_logits or family.is_tangent)
        return of_logits or is_gaussian_of_row(atom) or factor.name in centred

    def is_level(term: Term) -> bool:
        """Whether a real latent of the row is alone with its mean and scales."""
        return sum(map(is_gaussian_of_row, term.atoms)) == 1

    pulled: set[str] = set()
    apart: set[str] = set()
    for term in terms:
        mine = [
            factor_of[a.latent]
            for a in term.atoms
            if latents[a.latent].role == "global"
            and factors[factor_of[a.latent]].layout is not None
        ]
        of_level = len(mine) == 1 and not term.is_private and is_level(term)
        if term.is_private or of_level:
            pulled |= {name for name in mine if mine.count(name) == 1}
        if not of_level and any(map(is_apart, term.atoms)):
            apart |= set(mine)
    return frozenset(pulled - apart)


def origin_corrections(
    terms: Sequence[Term],
    posterior_factors: Mapping[str, PosteriorFactor],
    factor_of: Mapping[str, str],
    recentred: frozenset[str],
) -> list[Term]:
    """What terms gain when latents v about their origins c replace w = c + v.

    Every product of latents gives the products in which some of them are replaced by
    their origins, which are slots with the latents' names as tokens.
    """

    def some_of(places: Sequence[int]) -> Iterator[tuple[int, ...]]:
        for count in range(1, len(places) + 1):
            yield from itertools.combinations(places, count)

    return [
        _with_slots(term, 1.0, places, posterior_factors, factor_of)
        for term in terms
        for places in some_of(_places(term, recentred, factor_of))
    ]


def _places(
    term: Term, chosen: frozenset[str], factor_of: Mapping[str, str]
) -> list[int]:
    """Which of a term's factors are latents of the chosen posterior factors."""
    return [
        place
        for place, factor in enumerate(term.factors)
        if isinstance(factor, Atom) and factor_of[factor.latent] in chosen
    ]


def _with_slots(
    term: Term,
    scale: float,
    places: Sequence[int],
    posterior_factors: Mapping[str, PosteriorFactor],
    factor_of: Mapping[str, str],
) -> Term:
    """The term with slots for public points in some places of latents."""

    def point(atom: Factor) -> Dense:
        assert isinstance(atom, Atom)
        layout = posterior_factors[factor_of[atom.latent]].layout
        assert layout is not None
        batch, block = layout.labels(atom.latent, atom.labels)
        shape = (*layout.batch_shape, *layout.block_shape(atom.latent))
        return Dense(Slot(atom.latent, shape, jnp.result_type(float)), (*batch, *block))

    factors = tuple(
        point(factor) if place in places else factor
        for place, factor in enumerate(term.factors)
    )
    return Term(scale * term.scale, factors, term.bound).with_own_labels()


def mean_corrections(
    terms: Sequence[Term],
    posterior_factors: Mapping[str, PosteriorFactor],
    factor_of: Mapping[str, str],
    centred: frozenset[str],
) -> list[Term]:
    """The corrections mw' + wm' - mm' of all terms in ww' about the means m.

    In place of the means stand slots with the latents' names as tokens.
    """
    found = []
    for term in terms:
        pair = _places(term, centred, factor_of)
        if len(pair) == 2:
            for scale, places in ((1.0, pair[:1]), (1.0, pair[1:]), (-1.0, pair)):
                found.append(
                    _with_slots(term, scale, places, posterior_factors, factor_of)
                )
    return found
