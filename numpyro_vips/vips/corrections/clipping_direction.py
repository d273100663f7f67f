"""Which way clipping draws the globals, as far as the model alone says.

A clipped row enters the sums by less than it is. Natural parameters that rows may add
to without end have a sign: a Gamma's rate grows, and so do the counts of a Beta. So for
some statistics it is known whether a sum that falls short makes the latent too small or
too large. Where statistics pull either way, a clipped row only weighs less.
"""

from collections.abc import Collection, Mapping, Sequence

from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.privacy.releases import Pull

# By the statistics of a family: whether sums of its logarithms are those of x itself,
# which make it larger, or count against it.
_LOGARITHM_IS_FOR: Mapping[tuple[str, ...], bool] = {
    ("x", "log"): True,
    ("log", "log1m"): True,
    ("1/x", "log"): False,
    ("x^-2", "log"): False,
}


def pulls_of_clipping(
    structure: Structure, names: Collection[str], recentred: Collection[str]
) -> dict[str, Pull]:
    """Which way each global is drawn where rows of some statistics were clipped.

    Args:
      structure: The compiled model's.
      names: Statistics of one joint vector, so that a row loses the same share of all.
      recentred: Those that are taken about means that were released before.

    Returns:
      By latent, of those that one of the statistics informs.
    """
    clipped = [s for s in structure.statistics if s.name in names]
    return {
        latent: _pull(structure, factor, latent, clipped, recentred)
        for factor in structure.posterior_factors_of("global")
        for latent in factor.latents
        if any(latent == of for s in clipped for of, *_ in s.atoms)
    }


def _pull(
    structure: Structure,
    factor: PosteriorFactor,
    latent: str,
    clipped: Sequence[Statistic],
    recentred: Collection[str],
) -> Pull:
    """Which way clipping of its statistics draws a latent.

    Args:
      structure: What was found in the model.
      factor: The latent's posterior factor.
      latent: Its name.
      clipped: The statistics of which rows were clipped.
      recentred: Names of those that are about a point.
    """
    mine = [
        statistic
        for statistic in structure.statistics
        if any(of == latent for of, *_ in statistic.atoms)
    ]
    unclipped = [statistic for statistic in mine if statistic not in clipped]
    # A part of a sum may have any sign where the other parts are as they were.
    is_whole = all(statistic.release == "public" for statistic in unclipped)
    if factor.layout is not None:
        return _pull_of_mean(mine, factor, is_whole, recentred)
    products = [s for s in mine if len(s.atoms) > 1]
    if products:
        has_public = any(s.release == "public" for s in products)
        about_means = any(s.name in recentred for s in products)
        if not is_whole or (has_public and not about_means):
            return "towards the other rows"
    pulls: set[Pull] = {
        _pull_of_atom(factor, function, power)
        for statistic in mine
        if statistic in clipped
        for of, function, power, _ in statistic.atoms
        if of == latent
    }
    return pulls.pop() if len(pulls) == 1 else "towards the other rows"


def _pull_of_mean(
    mine: Sequence[Statistic],
    factor: PosteriorFactor,
    is_whole: bool,
    recentred: Collection[str],
) -> Pull:
    """A sum of rows over a number of rows that is public: it comes out short."""
    linear = [s for s in mine if sum(x in factor.latents for x in s.latents) == 1]
    squares_are_public = all(s.release == "public" for s in mine if s not in linear)
    about_zero = not any(s.name in recentred for s in linear)
    if is_whole and squares_are_public and about_zero and len(mine) > len(linear):
        return "towards zero"
    return "towards the other rows"


def _pull_of_atom(factor: PosteriorFactor, function: str, power: float) -> Pull:
    """What a sum that is too short does to the latent, by the function in it."""
    if function == "x":
        # What is not Gaussian is positive, and rows may not make it grow without end.
        is_small = power < 0
    elif function in ("log", "log1m"):
        is_for = _LOGARITHM_IS_FOR.get(factor.family.statistics)
        if is_for is None:
            return "towards the other rows"
        is_small = is_for == (function == "log")
    else:
        return "towards the other rows"
    return "too small" if is_small else "too large"
