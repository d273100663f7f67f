"""Exponential families of posteriors, and which one a latent gets.

A family is registered by its line in the table `FAMILIES` below, with its supports.
Open `family.py` first: what every family has to know.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from numpyro.distributions import constraints

from numpyro_vips.conjugacy.families.dirichlet import Beta, Categorical, Dirichlet
from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.conjugacy.families.gamma import Gamma, InverseGamma
from numpyro_vips.conjugacy.families.gaussian import FactorizedNormal, Normal
from numpyro_vips.conjugacy.families.generalized_inverse_gaussian import (
    GeneralizedInverseGaussian,
)
from numpyro_vips.conjugacy.families.logistic_auxiliaries import PolyaGamma, Tangent
from numpyro_vips.conjugacy.families.standard_deviations import (
    RootGeneralizedInverseGaussian,
    RootInverseGamma,
)
from numpyro_vips.conjugacy.families.supports import (
    POSITIVE,
    base_support,
    same_support,
)
from numpyro_vips.conjugacy.families.wishart import InverseWishart, Wishart


class Match(NamedTuple):
    """A family for the latents that have one of these supports."""

    family: Family
    supports: tuple[Any, ...]


_DEFINITE = (constraints.positive_definite,)

# A latent gets the first family whose support it has and whose statistics include all
# those in which it occurs, so those that need fewer statistics come first.
FAMILIES: tuple[Match, ...] = (
    Match(Normal(), (constraints.real, constraints.real_vector)),
    Match(Gamma(), POSITIVE),
    Match(InverseGamma(), POSITIVE),
    Match(Beta(), (constraints.unit_interval,)),
    Match(Dirichlet(), (constraints.simplex,)),
    Match(Wishart(), _DEFINITE),
    Match(InverseWishart(), _DEFINITE),
    Match(RootInverseGamma(), POSITIVE),
    Match(RootGeneralizedInverseGaussian(), POSITIVE),
    Match(GeneralizedInverseGaussian(), POSITIVE),
)

# What augmentations ask for by name, and `structure={"w": "diag"}`. Discrete latents
# get `Categorical`, of as many states as they have, or share a `JointCategorical`.
OTHERS: tuple[Family, ...] = (PolyaGamma(), Tangent(), FactorizedNormal())


def family_named(name: str, num_states: int | None = None) -> Family:
    """The family of this name; a discrete one also needs its number of states."""
    if num_states is not None and name == Categorical.name:
        return Categorical(num_states)
    families = (*(match.family for match in FAMILIES), *OTHERS)
    return next(family for family in families if family.name == name)


def find_family(
    support: Any, statistics: Collection[str], of_rows: Collection[str] = ()
) -> Family | None:
    """The family with this support in which all of these statistics occur.

    Args:
      support: The latent's.
      statistics: Those in which it occurs.
      of_rows: Those of them that rows bring.
    """
    support = base_support(support)
    for match in FAMILIES:
        fits = any(same_support(support, known) for known in match.supports)
        family = match.family
        if (
            fits
            and set(statistics) <= set(family.statistics)
            and not set(of_rows) & set(family.of_priors)
        ):
            return family
    return None
