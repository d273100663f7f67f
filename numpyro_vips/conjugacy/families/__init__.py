"""Exponential families of posteriors, and which one a latent gets.

A family is registered by its line in the table `FAMILIES` below: the statistics
that it covers and its supports. Open `family.py` first: what every family has
to know.
"""

import dataclasses
from typing import Any

from numpyro.distributions import constraints

from numpyro_vips.conjugacy.families.dirichlet import Beta, Categorical, Dirichlet
from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.conjugacy.families.gamma import Gamma, InverseGamma
from numpyro_vips.conjugacy.families.gaussian import Normal
from numpyro_vips.conjugacy.families.generalized_inverse_gaussian import (
    GeneralizedInverseGaussian,
    RootGeneralizedInverseGaussian,
    RootInverseGamma,
)
from numpyro_vips.conjugacy.families.logistic_auxiliaries import PolyaGamma, Tangent
from numpyro_vips.conjugacy.families.supports import (
    POSITIVE,
    base_support,
    same_support,
)
from numpyro_vips.conjugacy.families.wishart import InverseWishart, Wishart


@dataclasses.dataclass(frozen=True)
class Match:
    """Which statistics of which support a family is for."""

    family: type[Family]
    statistics: frozenset[str]
    supports: tuple[Any, ...]


# A latent gets the first family whose support it has and whose statistics include all
# those in which it occurs, so those that need fewer statistics come first.
FAMILIES: tuple[Match, ...] = (
    Match(Normal, frozenset({"x", "xx"}), (constraints.real, constraints.real_vector)),
    Match(Gamma, frozenset({"x", "log"}), POSITIVE),
    Match(InverseGamma, frozenset({"1/x", "log"}), POSITIVE),
    Match(Beta, frozenset({"log", "log1m"}), (constraints.unit_interval,)),
    Match(Dirichlet, frozenset({"log"}), (constraints.simplex,)),
    Match(Categorical, frozenset({"is"}), ()),
    Match(PolyaGamma, frozenset({"x"}), ()),
    Match(Tangent, frozenset({"x"}), ()),
    Match(Wishart, frozenset({"x", "logdet"}), (constraints.positive_definite,)),
    Match(
        InverseWishart, frozenset({"inv", "logdet"}), (constraints.positive_definite,)
    ),
    Match(RootInverseGamma, frozenset({"x^-2", "log"}), POSITIVE),
    Match(RootGeneralizedInverseGaussian, frozenset({"x^2", "x^-2", "log"}), POSITIVE),
    Match(GeneralizedInverseGaussian, frozenset({"x", "1/x", "log"}), POSITIVE),
)


def family_named(name: str) -> type[Family]:
    return next(match.family for match in FAMILIES if match.family.name == name)


def find_family(support: Any, statistics: set[str]) -> type[Family] | None:
    """The family with this support in which all of these statistics occur."""
    support = base_support(support)
    for match in FAMILIES:
        fits = any(same_support(support, known) for known in match.supports)
        if fits and statistics <= match.statistics:
            return match.family
    return None
