"""Statistics about the current mean of a Gaussian, rather than about zero.

With a bound of fixed curvature, a row's contribution to the linear statistic of a
regression is (κ + f'(ψ))x, the sum of a residual, which is at most 1 times x, and of
ψx/4, which is as large as the weights make it. But over all rows the latter is Σ xxᵀ/4
times the mean of the weights, and so follows from the quadratic statistic. Written in
second moments about the public mean m,

    ww' = (w - m)(w' - m') + mw' + wm' - mm',

the log joint density has the residual alone in the place of the linear statistic, and
noise in Σ xxᵀ/4 only slows the approach to the optimum, where residuals and prior
balance.

Over several steps both are averaged alike: residuals R_t about m_t, and the m_t. What
the linear statistic would be about zero is then R̄ + (Σ xxᵀ/4)·m̄, with the best estimate
of the matrix that there is. It is a step in natural gradients in the coordinates mean
and precision.
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
) -> frozenset[str]:
    """The global Gaussian factors whose logits have a bound of fixed curvature."""
    found, others = set(), set()
    for term in terms:
        names = [a.latent for a in term.atoms]
        families = [known_family(latents[name]) for name in names]
        if any(family is not None and family.is_tangent for family in families):
            found |= {factor_of[name] for name in names}
        mine = {factor_of[n] for n in names if latents[n].role == "global"}
        if len(mine) > 1:
            others |= mine  # Its statistics are about a product of moments.
    return frozenset(
        name
        for name in found - others
        if factors[name].role == "global" and factors[name].layout is not None
    )


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
