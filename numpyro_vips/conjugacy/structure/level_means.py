"""Effects of rows about a mean that all rows share, as levels of the rows.

A row's effect u ~ Normal(0, s), beside a mean b in b + u, is the level l = b + u with
l ~ Normal(b, s). It is the same model (hierarchical centring, Gelfand, Sahu and Carlin,
1995), but in a posterior of factors the two are far apart: given the effects that rows
take the mean hardly moves, however far it is off, while the levels go with the rows.
"""

from collections.abc import Callable, Iterable, Mapping

from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.structure.latents import Latent
from numpyro_vips.conjugacy.structure.log_joint import LogJoint
from numpyro_vips.conjugacy.structure.structure import is_real, normal_terms

# By the name of a row's effect, its mean: a global latent.
LevelMeans = Mapping[str, str]


def level_means(
    log_joint: LogJoint, rewritten: Callable[[LevelMeans], LogJoint]
) -> LevelMeans:
    """The effects that become levels, and their means.

    A mean has the size of the effect, and rows say nothing of it but through the level.

    Args:
      log_joint: The model as it was written.
      rewritten: The same with some effects as levels.
    """
    found: dict[str, str] = {}
    effects = [x for x in log_joint.latents.values() if is_effect(x)]
    for effect in effects:
        terms = (
            term
            for density in log_joint.densities
            if density.is_row and density.site != effect.name
            for term in normal_terms(density.form.terms, log_joint.latents)
        )
        others = beside(effect, terms)
        means = [
            latent.name
            for latent in log_joint.latents.values()
            if latent.name in others and is_mean(latent, effect)
        ]
        for mean in means:
            trial = {**found, effect.name: mean}
            if mean not in found.values() and _is_gone(
                mean, effect.name, rewritten(trial)
            ):
                found = trial
                break
    return found


def beside(effect: Latent, terms: Iterable[Term]) -> set[str]:
    """Names of the latents that some terms have with an effect, its own among them."""
    names = ({atom.latent for atom in term.atoms} for term in terms)
    return set().union(*(mine for mine in names if effect.name in mine))


def is_effect(latent: Latent) -> bool:
    """Whether it is a row's own, a real number or vector, and no auxiliary variable."""
    return latent.role == "local" and latent.family is None and is_real(latent)


def is_mean(latent: Latent, effect: Latent) -> bool:
    """Whether a latent may be the mean of an effect, by its role and shape."""

    def long_axes(latent: Latent) -> tuple[int, ...]:
        return tuple(size for size in latent.shape if size > 1)

    return (
        latent.role == "global"
        and latent.family is None
        and is_real(latent)
        and len(latent.shape) <= len(effect.shape)
        and long_axes(latent) == long_axes(effect)
    )


def _is_gone(mean: str, effect: str, log_joint: LogJoint) -> bool:
    """Whether a mean is left in the density of its level alone."""
    return not log_joint.failures and not any(
        mean in {atom.latent for atom in term.atoms}
        for density in log_joint.densities
        if density.is_row and density.site != effect
        for term in normal_terms(density.form.terms, log_joint.latents)
    )
