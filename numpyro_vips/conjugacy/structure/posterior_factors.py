"""Which latents share a factor of the posterior.

Real-valued latents that meet in a product share a joint Gaussian, where it has the
moments that are asked for and stays small; discrete latents of a row that meet share
a table of their states; every other latent has a factor of its own.
"""

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from numpyro_vips.conjugacy.algebra.terms import Atom, Term, same_labels
from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.conjugacy.families.gaussian import FactorizedNormal, Normal
from numpyro_vips.conjugacy.families.joint_categorical import (
    MAX_TABLE,
    JointCategorical,
    elimination_order,
)
from numpyro_vips.conjugacy.structure.gaussian_layout import GaussianLayout
from numpyro_vips.conjugacy.structure.latents import Latents

# A joint covariance of more coordinates than this is not worth its d² noisy numbers
# by default: latents that meet only in the prior then get factors of their own.
MAX_JOINT_SIZE = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class PosteriorFactor:
    """One factor of the posterior: its latents and its exponential family."""

    name: str
    role: str
    family: Family
    latents: tuple[str, ...]
    shape: tuple[int, ...]
    layout: GaussianLayout | None = None


class SiteTerm(NamedTuple):
    """A term in normal form, its site, and whether that is in the unit plate."""

    site: str
    is_row: bool
    term: Term


def find_posterior_factors(
    terms: Sequence[SiteTerm],
    latents: Latents,
    chosen: Mapping[str, Family],
    overrides: Mapping[str, str],
) -> dict[str, PosteriorFactor]:
    """The posterior factors of all latents, by name, from the terms in which they
    meet."""
    gaussian = [n for n in latents if chosen[n].is_gaussian]
    pairs = _gaussian_pairs(terms, set(gaussian), latents)
    apart = _kept_apart(terms, set(gaussian), latents)
    factors: dict[str, PosteriorFactor] = {}
    done: set[str] = set()
    for joint in _joint_discrete(terms, latents):
        factors[joint.name] = joint
        done.update(joint.latents)
    for name in latents:
        if name in done:
            continue
        if name not in gaussian:
            latent = latents[name]
            factors[name] = PosteriorFactor(
                name=name,
                role=latent.role,
                family=chosen[name],
                latents=(name,),
                shape=latent.shape,
            )
            continue
        excluded = apart | {frozenset((name, other)) for other in done}
        members = _connected(name, pairs, latents, overrides, excluded)
        done.update(members)
        layout = _layout(members, pairs, latents)
        diagonal = overrides.get(name) == "diag"
        factor_name = "+".join(members)
        factors[factor_name] = PosteriorFactor(
            name=factor_name,
            role=latents[name].role,
            family=FactorizedNormal() if diagonal else Normal(),
            latents=tuple(members),
            shape=(*layout.batch_shape, layout.size),
            layout=layout,
        )
    return factors


def _joint_discrete(
    terms: Sequence[SiteTerm],
    latents: Latents,
) -> list[PosteriorFactor]:
    """Discrete latents of a row that meet and can be summed out exactly."""
    cliques: dict[tuple[str, ...], None] = {}
    apart: set[str] = set()
    number = {name: i for i, name in enumerate(latents)}
    for *_, term in terms:
        atoms = [
            atom
            for atom in term.atoms
            if atom.function == "is"
            and latents[atom.latent].family is None
            and latents[atom.latent].role == "local"
        ]
        names = sorted({atom.latent for atom in atoms}, key=number.__getitem__)
        indices = [atom.labels[:-1] for atom in atoms]
        if any(not same_labels(indices[0], other) for other in indices[1:]):
            # Different elements meet; each keeps a factor of its own.
            apart.update(names)
        elif names:
            cliques[tuple(names)] = None
    factors, seen = [], set()
    joined = [set(clique) for clique in cliques if not apart & set(clique)]
    for name in latents:
        members = reachable({name}, joined)
        if len(members) < 2 or name in seen:
            continue
        seen |= members
        ordered = sorted(members, key=number.__getitem__)
        states = {n: len(latents[n].states) for n in ordered}  # type: ignore[arg-type]
        mine = [clique for clique in cliques if set(clique) <= members]
        if elimination_order(states, mine)[1] > MAX_TABLE:
            continue
        factors.append(
            PosteriorFactor(
                name=",".join(ordered),
                role=latents[name].role,
                family=JointCategorical(states, mine),
                latents=tuple(ordered),
                shape=latents[name].shape,
            )
        )
    return factors


def are_summed_exactly(factors: Sequence[PosteriorFactor]) -> bool:
    """Whether messages sum over all latents of these factors, as over a hidden chain.

    Discrete latents in factors of their own may act on each other, and then a product
    of these is no more than a bound.
    """
    return len(factors) == 1 and isinstance(factors[0].family, JointCategorical)


def reachable(start: Collection[str], groups: Sequence[set[str]]) -> set[str]:
    """What is in a group with some of `start`, or with what is found so."""
    found = set(start)
    while True:
        more = set().union(*(group for group in groups if group & found)) - found
        if not more:
            return found
        found |= more


Uses = list[tuple[Atom, Atom, bool]]
Pairs = dict[tuple[str, str], Uses]


def _gaussian_pairs(
    terms: Sequence[SiteTerm],
    gaussian: set[str],
    latents: Latents,
) -> Pairs:
    """The products of two real latents that occur; the flag marks a row's terms."""
    pairs: Pairs = defaultdict(list)
    for _, is_row, term in terms:
        atoms = [a for a in term.atoms if a.latent in gaussian]
        for a, b in itertools.combinations(atoms, 2):
            if latents[a.latent].role == latents[b.latent].role:
                pairs[a.latent, b.latent].append((a, b, is_row))
    return pairs


def _kept_apart(
    terms: Sequence[SiteTerm],
    gaussian: set[str],
    latents: Latents,
) -> set[frozenset[str]]:
    """Pairs of real latents that one Gaussian cannot hold: a and b of (a·b)².

    A joint Gaussian has no moments of more than two factors in closed form; as factors
    of their own, a and b have all that the term needs.
    """
    crowded = []
    for (*_, term), role in itertools.product(terms, ("global", "local")):
        counts = Counter(
            atom.latent
            for atom in term.atoms
            if atom.latent in gaussian and latents[atom.latent].role == role
        )
        if counts.total() > 2:
            crowded.append(counts)
    apart: set[frozenset[str]] = set()
    for counts in crowded:
        for first, second in itertools.combinations(counts, 2):
            if max(counts[first], counts[second]) > 1:
                apart.add(frozenset((first, second)))
    for counts in crowded:
        every = set(map(frozenset, itertools.combinations(counts, 2)))
        if not apart & every:
            apart |= every
    return apart


def _connected(
    start: str,
    pairs: Pairs,
    latents: Latents,
    overrides: Mapping[str, str],
    apart: set[frozenset[str]],
) -> list[str]:
    """Latents that share a joint Gaussian with `start`, in the model's order.

    No two of them are a pair in `apart`. A member with `structure={"w": "diag"}` stays
    alone. Latents that meet in the likelihood are joined whatever their size; those
    that meet only in the prior, only if the block stays small.
    """

    def reach(row_only: bool) -> list[str]:
        found, queue = {start}, [start]
        while queue:
            here = queue.pop()
            for other, uses in _neighbours(here, pairs):
                if row_only and not any(is_row for _, _, is_row in uses):
                    continue
                if other in found or overrides.get(other) or overrides.get(here):
                    continue
                if any(frozenset((other, member)) in apart for member in found):
                    continue
                found.add(other)
                queue.append(other)
        return [name for name in latents if name in found]

    wide = reach(row_only=False)
    if _layout(wide, pairs, latents).size <= MAX_JOINT_SIZE:
        return wide
    return reach(row_only=True)


def _neighbours(name: str, pairs: Pairs) -> list[tuple[str, Uses]]:
    """The latents that a latent meets, and where."""
    return [
        (second if name == first else first, uses)
        for (first, second), uses in pairs.items()
        if name in (first, second) and first != second
    ]


def _layout(
    members: Sequence[str],
    pairs: Pairs,
    latents: Latents,
) -> GaussianLayout:
    """Splits the axes of a factor's sites into batch axes and coordinates.

    An axis is a batch axis if no term multiplies two different entries along it, for
    every site of the factor alike.
    """
    own = {name: _own_batch_axes(name, pairs, latents) for name in members}
    reference = min(members, key=lambda name: len(own[name]))
    classes = []
    for axis in sorted(own[reference]):
        matched = _match_axis(reference, axis, members, own, pairs)
        if matched is not None:
            classes.append(matched)
    batch_axes = {n: tuple(c[n] for c in classes) for n in members}
    shapes = {n: latents[n].shape for n in members}
    return GaussianLayout(shapes=shapes, batch_axes=batch_axes)


def _own_batch_axes(
    name: str,
    pairs: Pairs,
    latents: Latents,
) -> set[int]:
    axes = set(range(len(latents[name].shape)))
    for a, b, _ in pairs.get((name, name), []):
        axes &= {i for i in axes if a.labels[i] is b.labels[i]}
    return axes


def _match_axis(
    reference: str,
    axis: int,
    members: Sequence[str],
    own: Mapping[str, set[int]],
    pairs: Pairs,
) -> dict[str, int] | None:
    """The axis of every member that goes with one of the reference, if all have one."""
    matched = {reference: axis}
    queue = [reference]
    while queue:
        here = queue.pop()
        for other, uses in _neighbours(here, pairs):
            if other not in members:
                continue
            for a, b, _ in uses:
                mine, theirs = (a, b) if a.latent == here else (b, a)
                label = mine.labels[matched[here]]
                axes = [i for i, x in enumerate(theirs.labels) if x is label]
                axes = [i for i in axes if i in own[other]]
                if not axes or matched.setdefault(other, axes[0]) not in axes:
                    return None
                if other not in queue and len(matched) < len(members):
                    queue.append(other)
    return matched if set(matched) == set(members) else None
