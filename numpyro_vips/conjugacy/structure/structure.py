"""Finds the conjugate structure in a log joint density: families, factors and
statistics.

Every term of the density is a constant times functions of latents. Collected over all
terms, the functions in which a latent occurs name its exponential family.
`posterior_factors` says which latents share one of its factors, and
`released_statistics` what rows release.
"""

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpyro.distributions import constraints

from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Factor,
    Term,
    function_key,
    product_key,
    same_labels,
)
from numpyro_vips.conjugacy.families import find_family
from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.conjugacy.families.supports import base_support, described
from numpyro_vips.conjugacy.structure import centring
from numpyro_vips.conjugacy.structure.latents import Latent, Latents, known_family
from numpyro_vips.conjugacy.structure.log_joint import LogJoint
from numpyro_vips.conjugacy.structure.posterior_factors import (
    PosteriorFactor,
    SiteTerm,
    find_posterior_factors,
)
from numpyro_vips.conjugacy.structure.released_statistics import (
    FactorsInReleases,
    data_dependent_factors,
    find_statistics,
)
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.errors import NotConjugateError, quoted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Structure:
    """What was found in a model.

    Attributes:
      posterior_factors: The factors of the posterior, by name.
      statistics: What rows release.
      factor_of: The name of each latent's factor.
      latents: All latents, auxiliary ones included.
      used: The statistics in which each latent occurs.
      data_dependent_factors: Local factors that depend on private rows.
      centred: Gaussian factors whose statistics are released about the current mean.
      newton: Those of them that take Newton steps; see `centring`.
      recentred: Those whose statistics are released about the mean of a pilot.
      flat: Factors with a latent whose prior is improper.
    """

    posterior_factors: Mapping[str, PosteriorFactor]
    statistics: tuple[Statistic, ...]
    factor_of: Mapping[str, str]
    latents: Latents
    used: Mapping[str, tuple[str, ...]]
    data_dependent_factors: frozenset[str]
    centred: frozenset[str] = frozenset()
    newton: frozenset[str] = frozenset()
    recentred: frozenset[str] = frozenset()
    flat: frozenset[str] = frozenset()

    def posterior_factors_of(self, role: str) -> list[PosteriorFactor]:
        return [
            factor for factor in self.posterior_factors.values() if factor.role == role
        ]


def find_structure(log_joint: LogJoint, overrides: Mapping[str, str]) -> Structure:
    """Finds families, factors and statistics.

    Raises:
      NotConjugateError: Some latent has no exponential family, or a density is outside
        the algebra.
    """
    if log_joint.failures:
        raise NotConjugateError(log_joint.failures)
    latents = log_joint.latents
    site_terms = [
        SiteTerm(density.site, density.is_row, term)
        for density in log_joint.densities
        for term in normal_terms(density.form.terms, latents)
    ]
    uses = _uses(site_terms, latents)
    of_rows = _uses([found for found in site_terms if found.is_row], latents)
    families = {
        name: _family_of(latent, set(uses[name]), set(of_rows[name]))
        for name, latent in latents.items()
    }
    chosen = {name: family for name, family in families.items() if family is not None}
    if len(chosen) < len(latents):
        raise NotConjugateError(
            {n: _no_family(latents[n], uses[n]) for n in latents if n not in chosen}
        )
    factors = find_posterior_factors(site_terms, latents, chosen, overrides)
    factor_of = {latent: g.name for g in factors.values() for latent in g.latents}
    _check_products(site_terms, latents, factor_of)
    terms = [term for _, is_row, term in site_terms if is_row]
    data_dependent = data_dependent_factors(terms, latents, factor_of)
    centred, newton = centring.centred_factors(terms, latents, factors, factor_of)
    in_releases = FactorsInReleases(
        factor_of=factor_of,
        data_dependent=data_dependent,
        centred=centred,
        newton=newton,
    )
    statistics = find_statistics(terms, latents, factors, in_releases)
    recentred = centring.recentred_factors(terms, latents, factors, factor_of, centred)
    about_origins = ()
    if recentred:
        about_origins = find_statistics(
            terms,
            latents,
            factors,
            dataclasses.replace(in_releases, recentred=recentred),
        )
    if _can_be_recentred(statistics, about_origins):
        statistics = about_origins
    else:
        recentred = frozenset()
    return Structure(
        posterior_factors=factors,
        statistics=statistics,
        factor_of=factor_of,
        latents=latents,
        used={name: tuple(sorted(statistics)) for name, statistics in uses.items()},
        data_dependent_factors=data_dependent,
        centred=centred,
        newton=newton,
        recentred=recentred,
        flat=frozenset(
            factor_of[n] for n, latent in log_joint.latents.items() if latent.is_flat
        ),
    )


def _can_be_recentred(
    statistics: Sequence[Statistic], about_origins: Sequence[Statistic]
) -> bool:
    """Whether the statistics are the same ones, but for the origins.

    Those that change are released together. Large ones are made of few entries of a
    row, which the origins' terms are not.
    """
    if [(s.name, s.release, s.shape) for s in statistics] != [
        (s.name, s.release, s.shape) for s in about_origins
    ]:
        return False
    moved = [s for s in about_origins if s.recentred]
    if not all(map(_is_small, moved)):
        return False
    if all(s.release == "adaptive" for s in moved):
        return True
    return {s.release for s in statistics} <= {"once", "public"} and all(
        s.release == "once" for s in moved
    )


def _is_small(statistic: Statistic) -> bool:
    return math.prod(statistic.block_shape) <= _MOST_RECENTRED


# Entries of a statistic about origins. A row's terms meet before rows are added up only
# in statistics of this size, see `vips.row_sums.bounded_sum`.
_MOST_RECENTRED = 512


def normal_terms(terms: Iterable[Term], latents: Latents) -> list[Term]:
    """Writes the square of a real latent as a product, and merges equal terms."""
    result: dict[Any, Term] = {}
    for term in terms:
        factors: list[Factor] = []
        for factor in term.factors:
            if (
                isinstance(factor, Atom)
                and factor.function == "x"
                and factor.power == 2.0
                and is_real(latents[factor.latent])
            ):
                single = dataclasses.replace(factor, power=1.0)
                factors += [single, dataclasses.replace(single)]
            else:
                factors.append(factor)
        term = Term(term.scale, tuple(factors), term.bound)
        key = _canonical_key(term)
        if key in result:
            scale = result[key].scale + term.scale
            result[key] = dataclasses.replace(result[key], scale=scale)
        else:
            result[key] = term
    return [term for term in result.values() if term.scale != 0.0]


def _canonical_key(term: Term) -> tuple:
    """Equal for terms that are the same up to the names of bound labels."""

    # Two atoms of one latent may stand in either order, so the least key counts.
    alike = [
        list(factors)
        for _, factors in itertools.groupby(
            sorted(term.factors, key=function_key), key=function_key
        )
    ]
    if math.prod(math.factorial(len(factors)) for factors in alike) > _MOST_ORDERS:
        return product_key(itertools.chain.from_iterable(alike))
    orders = itertools.product(*map(itertools.permutations, alike))
    return min(product_key(itertools.chain.from_iterable(order)) for order in orders)


# Of how many orders of a term's factors the least is looked for.
_MOST_ORDERS = 64


def is_real(latent: Latent) -> bool:
    support = base_support(latent.support)
    return support is constraints.real or support is constraints.real_vector


def _statistic_name(atoms: Sequence[Atom], latent: Latent) -> str:
    """How a latent occurs in one term, such as `x`, `1/x`, `log` or `xx`."""
    if len(atoms) == 1:
        return statistic_name(atoms[0])
    if is_real(latent) and all((a.function, a.power) == ("x", 1.0) for a in atoms):
        return "x" * len(atoms) if len(atoms) <= 3 else f"x^{len(atoms)}"
    if all(atom.function == "is" for atom in atoms) and _are_two_elements(atoms):
        return "is"
    return "·".join(sorted(statistic_name(atom) for atom in atoms))


def statistic_name(atom: Atom) -> str:
    """The statistic that one atom is, as families name them."""
    if atom.power == 1.0:
        return atom.function
    if atom.function == "x" and atom.power == -1.0:
        return "1/x"
    return f"{atom.function}^{atom.power:g}"


def _by_latent(term: Term) -> dict[str, list[Atom]]:
    found: dict[str, list[Atom]] = defaultdict(list)
    for atom in term.atoms:
        found[atom.latent].append(atom)
    return found


# By statistic in which a latent occurs, the sites where it does.
_Uses = Mapping[str, set[str]]


def _uses(terms: Sequence[SiteTerm], latents: Latents) -> Mapping[str, _Uses]:
    found: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in latents}
    for site, _, term in terms:
        for name, atoms in _by_latent(term).items():
            found[name][_statistic_name(atoms, latents[name])].add(site)
    return found


def _family_of(latent: Latent, used: set[str], of_rows: set[str]) -> Family | None:
    """The family of a latent in these statistics, some of which rows bring."""
    family = known_family(latent)
    if family is None:
        return find_family(latent.support, used, of_rows)
    return family if used <= set(family.statistics) else None


def _no_family(latent: Latent, uses: _Uses) -> str:
    support = described(latent.support)
    where = "; ".join(
        f"{statistic} in {quoted(sorted(uses[statistic]))}"
        for statistic in sorted(uses)
    )
    return (
        f"no exponential family on {support} with statistics "
        f"[{', '.join(sorted(uses))}] ({where})"
    )


def _check_products(
    terms: Sequence[SiteTerm], latents: Latents, factor_of: Mapping[str, str]
) -> None:
    """Refuses products within one factor that its moments do not cover."""
    reasons = {}
    for site, _, term in terms:
        by_factor: dict[str, list[Atom]] = defaultdict(list)
        for atom in term.atoms:
            by_factor[factor_of[atom.latent]].append(atom)
        for factor, atoms in by_factor.items():
            is_real_pair = len(atoms) == 2 and all(
                is_real(latents[a.latent]) for a in atoms
            )
            are_states = all(atom.function == "is" for atom in atoms) and (
                len({atom.latent for atom in atoms}) == len(atoms)
                or _are_two_elements(atoms)
            )
            if len(atoms) > 1 and not is_real_pair and not are_states:
                names = " · ".join(sorted(a.latent for a in atoms))
                reasons[factor] = f"a product of {names} in {site!r}"
    if reasons:
        raise NotConjugateError(reasons)


def _are_two_elements(atoms: Sequence[Atom]) -> bool:
    """Whether two indicators belong to different elements of one latent."""
    if len(atoms) != 2:
        return False
    first, second = (atom.labels[:-1] for atom in atoms)
    return not same_labels(first, second)
