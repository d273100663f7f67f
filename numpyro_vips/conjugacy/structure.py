"""Finds the conjugate structure in an energy: families, blocks and statistics.

Every term of the energy is a constant times functions of latents. Collected over all
terms, the functions in which a latent occurs name its exponential family. Real-valued
latents that meet in a product share a joint Gaussian. What a row's terms multiply are
products of moments of globals; each distinct product is one *statistic* of the row,
and is released as one block.
"""

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp
from numpyro.distributions import constraints

from numpyro_vips.conjugacy import centring, families
from numpyro_vips.conjugacy.energy import Energy, Latent, Piece
from numpyro_vips.conjugacy.families import Family
from numpyro_vips.conjugacy.gaussian_layout import GaussianLayout
from numpyro_vips.conjugacy.geometry import Geometry, Matrix, geometry, is_global
from numpyro_vips.conjugacy.joint_categorical import (
    MAX_TABLE,
    JointCategorical,
    elimination_order,
)
from numpyro_vips.conjugacy.terms import (
    Atom,
    Dense,
    Factor,
    Label,
    Labels,
    Term,
    labels_of,
    same_labels,
)

Release = Literal["public", "once", "adaptive"]

# A joint covariance of more coordinates than this is not worth its d² noisy numbers
# by default: latents that meet only in the prior then get factors of their own.
MAX_JOINT_SIZE = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Latents that share one factor of the posterior, and its family."""

    name: str
    role: str
    family: type[Family] | JointCategorical
    latents: tuple[str, ...]
    shape: tuple[int, ...]
    layout: GaussianLayout | None = None


def exponential_family(group: Group) -> type[Family]:
    """The family of a global group; only locals have joint discrete posteriors."""
    assert not isinstance(group.family, JointCategorical)
    return group.family


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistic:
    """A product of moments of globals which a row's terms multiply.

    Attributes:
      name: Such as `⟨tau⟩⟨w w⟩`.
      atoms: (latent, function, power, label numbers) of each factor.
      shape: Size of each label that rows tell apart, in the order of their numbers.
      summed: Sizes of the labels with the numbers that follow. No row has different
        numbers along these, so the products are summed over them: of Σ_j z_k z_l w_jk
        w_jl a row has z_k z_l to tell, once and not for every j.
      rank: A term that fits several statistics belongs to the one that comes first.
      release: "public" if no row changes it, though the globals may; "once" if it
        does not depend on the globals, else "adaptive".
      matrix: For a symmetric statistic, the numbers of its batch labels, row labels
        and column labels.
      geometry: Where a row's contribution lies; see `conjugacy.geometry`.
    """

    name: str
    atoms: tuple[tuple[str, str, float, tuple[int, ...]], ...]
    shape: tuple[int, ...]
    release: Release
    matrix: Matrix | None
    geometry: Geometry = "signed"
    summed: tuple[int, ...] = ()
    rank: int = 0

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of the released array; a symmetric one ends in a square matrix."""
        if self.matrix is None:
            return self.shape
        batch, rows, _ = self.matrix
        size = math.prod(self.shape[i] for i in rows)
        return (*(self.shape[i] for i in batch), size, size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Structure:
    """What was found in a model.

    Attributes:
      groups: The factors of the posterior, by name.
      statistics: What rows release.
      group_of: The group of each latent.
      latents: All latents, auxiliary ones included.
      used: The statistics in which each latent occurs.
      told_by_rows: Local groups whose factors depend on what a row holds.
      centred: Gaussian groups whose statistics are released about the current mean.
    """

    groups: Mapping[str, Group]
    statistics: tuple[Statistic, ...]
    group_of: Mapping[str, str]
    latents: Mapping[str, Latent]
    used: Mapping[str, tuple[str, ...]]
    told_by_rows: frozenset[str]
    centred: frozenset[str] = frozenset()

    def groups_of(self, role: str) -> list[Group]:
        return [group for group in self.groups.values() if group.role == role]


class NotConjugate(Exception):
    """Holds one reason per latent or site that is in the way."""

    def __init__(self, reasons: Mapping[str, str]):
        self.reasons = dict(reasons)
        super().__init__("; ".join(f"{k}: {v}" for k, v in self.reasons.items()))


def find_structure(energy: Energy, overrides: Mapping[str, str]) -> Structure:
    """Finds families, blocks and statistics.

    Raises:
      NotConjugate: Some latent has no exponential family, or a density is outside
        the algebra.
    """
    if energy.failures:
        raise NotConjugate(energy.failures)
    pieces = [
        (piece, normal_terms(piece.form.terms, energy.latents))
        for piece in energy.pieces
    ]
    used, sites = _usage(pieces, energy.latents)
    chosen, reasons = {}, {}
    for name, latent in energy.latents.items():
        family = _family_of(latent, used[name])
        if family is None:
            reasons[name] = _no_family(latent, used[name], sites[name])
        else:
            chosen[name] = family
    if reasons:
        raise NotConjugate(reasons)
    groups = _groups(pieces, energy.latents, chosen, overrides)
    group_of = {latent: g.name for g in groups.values() for latent in g.latents}
    _check_products(pieces, energy.latents, group_of)
    terms = [term for piece, terms in pieces if piece.is_row for term in terms]
    told = told_by_rows(terms, energy.latents, group_of)
    centred = centring.centred_groups(terms, energy.latents, groups, group_of)
    statistics = _statistics(terms, energy.latents, groups, group_of, told, centred)
    return Structure(
        groups=groups,
        statistics=statistics,
        group_of=group_of,
        latents=energy.latents,
        used={name: tuple(sorted(kinds)) for name, kinds in used.items()},
        told_by_rows=told,
        centred=centred,
    )


def normal_terms(terms: Iterable[Term], latents: Mapping[str, Latent]) -> list[Term]:
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

    def head(factor: Factor) -> tuple:
        if isinstance(factor, Atom):
            return (1, factor.latent, factor.function, factor.power)
        array = factor.array if isinstance(factor, Dense) else factor.indices
        return (0, type(factor).__name__, str(id(array)), 0.0)

    ordered = sorted(term.factors, key=head)
    numbers: dict[Label, int] = {}
    key = []
    for factor in ordered:
        labels = labels_of(factor)
        key.append(
            (*head(factor), *(numbers.setdefault(x, len(numbers)) for x in labels))
        )
    return tuple(key)


def is_real(latent: Latent) -> bool:
    support = families._elementwise(latent.support)
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


def _usage(
    pieces: Sequence[tuple[Piece, list[Term]]], latents: Mapping[str, Latent]
) -> tuple[dict[str, set[str]], dict[str, dict[str, set[str]]]]:
    """The statistics in which each latent occurs, and at which sites."""
    used: dict[str, set[str]] = {name: set() for name in latents}
    sites: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in latents}
    for piece, terms in pieces:
        for term in terms:
            for name, atoms in _by_latent(term).items():
                statistic = _statistic_name(atoms, latents[name])
                used[name].add(statistic)
                sites[name][statistic].add(piece.site)
    return used, sites


def _family_of(latent: Latent, used: set[str]) -> type[Family] | None:
    if latent.family is not None:
        family = families.family_named(latent.family)
        return family if used <= set(family.statistics) else None
    if latent.states is not None:
        return families.Categorical if used <= {"is"} else None
    return families.find_family(latent.support, used)


def _no_family(latent: Latent, used: set[str], sites: Mapping[str, set[str]]) -> str:
    support = str(families._elementwise(latent.support)).strip("<>").split(" ")[0]
    where = "; ".join(
        f"{statistic} in {', '.join(map(repr, sorted(sites[statistic])))}"
        for statistic in sorted(used)
    )
    return (
        f"no exponential family on {support} with statistics "
        f"[{', '.join(sorted(used))}] ({where})"
    )


# --- groups ---------------------------------------------------------------------------


def _groups(
    pieces: Sequence[tuple[Piece, list[Term]]],
    latents: Mapping[str, Latent],
    chosen: Mapping[str, type[Family]],
    overrides: Mapping[str, str],
) -> dict[str, Group]:
    gaussian = [n for n in latents if chosen[n] is families.Normal]
    pairs = _gaussian_pairs(pieces, set(gaussian), latents)
    apart = _kept_apart(pieces, set(gaussian), latents)
    groups: dict[str, Group] = {}
    done: set[str] = set()
    for joint in _joint_discrete(pieces, latents):
        groups[joint.name] = joint
        done.update(joint.latents)
    for name in latents:
        if name in done:
            continue
        if name not in gaussian:
            latent = latents[name]
            groups[name] = Group(
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
        group_name = "+".join(members)
        groups[group_name] = Group(
            name=group_name,
            role=latents[name].role,
            family=families.FactorizedNormal if diagonal else families.Normal,
            latents=tuple(members),
            shape=(*layout.batch_shape, layout.size),
            layout=layout,
        )
    return groups


def _joint_discrete(
    pieces: Sequence[tuple[Piece, list[Term]]], latents: Mapping[str, Latent]
) -> list[Group]:
    """Discrete latents of a row that meet and can be summed out exactly."""
    cliques: dict[tuple[str, ...], None] = {}
    apart: set[str] = set()
    number = {name: i for i, name in enumerate(latents)}
    for _, terms in pieces:
        for term in terms:
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
    groups, seen = [], set()
    for name in latents:
        members = _reachable(name, list(cliques), apart)
        if len(members) < 2 or name in seen:
            continue
        seen |= members
        ordered = sorted(members, key=number.__getitem__)
        states = {n: len(latents[n].states) for n in ordered}  # type: ignore[arg-type]
        mine = [clique for clique in cliques if set(clique) <= members]
        if elimination_order(states, mine)[1] > MAX_TABLE:
            continue
        groups.append(
            Group(
                name=",".join(ordered),
                role=latents[name].role,
                family=JointCategorical(states, mine),
                latents=tuple(ordered),
                shape=latents[name].shape,
            )
        )
    return groups


def _reachable(
    start: str, cliques: Sequence[tuple[str, ...]], apart: set[str]
) -> set[str]:
    found, queue = {start}, [start]
    while queue:
        here = queue.pop()
        for clique in cliques:
            if here in clique and not apart & set(clique):
                new = set(clique) - found
                found |= new
                queue += new
    return found


Pairs = dict[tuple[str, str], list[tuple[Atom, Atom, bool]]]


def _gaussian_pairs(
    pieces: Sequence[tuple[Piece, list[Term]]],
    gaussian: set[str],
    latents: Mapping[str, Latent],
) -> Pairs:
    """The products of two real latents that occur; the flag marks a row's terms."""
    pairs: Pairs = defaultdict(list)
    for piece, terms in pieces:
        for term in terms:
            atoms = [a for a in term.atoms if a.latent in gaussian]
            for i, a in enumerate(atoms):
                for b in atoms[i + 1 :]:
                    if latents[a.latent].role == latents[b.latent].role:
                        pairs[a.latent, b.latent].append((a, b, piece.is_row))
    return pairs


def _kept_apart(
    pieces: Sequence[tuple[Piece, list[Term]]],
    gaussian: set[str],
    latents: Mapping[str, Latent],
) -> set[frozenset[str]]:
    """Pairs of real latents that one Gaussian cannot hold: a and b of (a·b)².

    A joint Gaussian has no moments of more than two factors in closed form; as factors
    of their own, a and b have all that the term needs.
    """
    crowded: list[dict[str, int]] = []
    for _, terms in pieces:
        for term in terms:
            for role in ("global", "local"):
                counts: dict[str, int] = defaultdict(int)
                for atom in term.atoms:
                    if atom.latent in gaussian and latents[atom.latent].role == role:
                        counts[atom.latent] += 1
                if sum(counts.values()) > 2:
                    crowded.append(counts)
    apart: set[frozenset[str]] = set()
    for counts in crowded:
        for first, second in itertools.combinations(counts, 2):
            if max(counts[first], counts[second]) > 1:
                apart.add(frozenset((first, second)))
    for counts in crowded:
        every = [frozenset(pair) for pair in itertools.combinations(counts, 2)]
        if not apart & set(every):
            apart |= set(every)
    return apart


def _connected(
    start: str,
    pairs: Pairs,
    latents: Mapping[str, Latent],
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
            for (a, b), uses in pairs.items():
                if here not in (a, b) or a == b:
                    continue
                if row_only and not any(is_row for _, _, is_row in uses):
                    continue
                other = b if here == a else a
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


def _layout(
    members: Sequence[str],
    pairs: Pairs,
    latents: Mapping[str, Latent],
) -> GaussianLayout:
    """Splits the axes of a block's sites into batch axes and coordinates.

    An axis is a batch axis if no term multiplies two different entries along it, for
    every site of the block alike.
    """
    own = {name: _own_batch_axes(name, pairs, latents) for name in members}
    reference = min(members, key=lambda name: len(own[name]))
    classes = []
    for axis in sorted(own[reference]):
        matched = _match_axis(reference, axis, members, own, pairs)
        if matched is not None:
            classes.append(matched)
    batch_axes = {n: tuple(c[n] for c in classes) for n in members}
    block_axes = {
        n: tuple(i for i in range(len(latents[n].shape)) if i not in batch_axes[n])
        for n in members
    }
    shapes = {n: latents[n].shape for n in members}
    offsets, size = {}, 0
    for name in members:
        offsets[name] = size
        size += math.prod(shapes[name][axis] for axis in block_axes[name])
    return GaussianLayout(
        batch_axes=batch_axes,
        block_axes=block_axes,
        offsets=offsets,
        shapes=shapes,
        batch_shape=tuple(shapes[reference][i] for i in batch_axes[reference]),
        size=size,
    )


def _own_batch_axes(
    name: str,
    pairs: Pairs,
    latents: Mapping[str, Latent],
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
        for (first, second), uses in pairs.items():
            if here not in (first, second) or first == second:
                continue
            other = second if here == first else first
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


def _check_products(
    pieces: Sequence[tuple[Piece, list[Term]]],
    latents: Mapping[str, Latent],
    group_of: Mapping[str, str],
) -> None:
    """Refuses products within one factor that its moments do not cover."""
    reasons = {}
    for piece, terms in pieces:
        for term in terms:
            counts: dict[str, list[Atom]] = defaultdict(list)
            for atom in term.atoms:
                counts[group_of[atom.latent]].append(atom)
            for group, atoms in counts.items():
                if len(atoms) == 1:
                    continue
                real = all(is_real(latents[a.latent]) for a in atoms)
                if real and len(atoms) == 2:
                    continue
                if all(atom.function == "is" for atom in atoms) and (
                    len({atom.latent for atom in atoms}) == len(atoms)
                    or _are_two_elements(atoms)
                ):
                    continue
                names = " · ".join(sorted(a.latent for a in atoms))
                reasons[group] = f"a product of {names} in {piece.site!r}"
    if reasons:
        raise NotConjugate(reasons)


def _are_two_elements(atoms: Sequence[Atom]) -> bool:
    """Whether two indicators belong to different elements of one latent."""
    if len(atoms) != 2:
        return False
    first, second = (atom.labels[:-1] for atom in atoms)
    return not same_labels(first, second)


# --- statistics -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class GlobalPart:
    """The globals of one term: their pattern, and the term's labels in its order."""

    atoms: tuple[tuple[str, str, float, tuple[int, ...]], ...]
    labels: Labels


def global_part(term: Term, latents: Mapping[str, Latent]) -> GlobalPart:
    """Numbers the labels of a term's globals in a canonical order.

    The two axes of a symmetric matrix may be read either way; the way with the
    smallest numbers is taken, so that equal statistics are found to be equal.
    """
    atoms = [a for a in term.atoms if latents[a.latent].role == "global"]
    atoms.sort(key=lambda a: (a.latent, a.function, a.power))
    best: GlobalPart | None = None
    for readings in itertools.product(*(_readings(a, latents) for a in atoms)):
        numbers: dict[Label, int] = {}
        pattern = []
        for atom, labels in zip(atoms, readings, strict=True):
            numbered = tuple(numbers.setdefault(x, len(numbers)) for x in labels)
            pattern.append((atom.latent, atom.function, atom.power, numbered))
        found = GlobalPart(tuple(pattern), tuple(numbers))
        if best is None or found.atoms < best.atoms:
            best = found
    assert best is not None
    return best


def _readings(atom: Atom, latents: Mapping[str, Latent]) -> list[Labels]:
    if not _is_symmetric(atom.latent, atom.function, latents):
        return [atom.labels]
    *batch, row, column = atom.labels
    return [atom.labels, (*batch, column, row)]


def _is_symmetric(latent: str, function: str, latents: Mapping[str, Latent]) -> bool:
    support = latents[latent].support
    return function in ("x", "inv") and support is constraints.positive_definite


def labels_in(
    term: Term, statistic: Statistic, latents: Mapping[str, Latent]
) -> Labels | None:
    """The term's own label for each label of a statistic; None if it has another one.

    A term in w_j² is a term in w_j w_k on the diagonal: both are read off one
    statistic, so that no coordinate is released twice.
    """
    part = global_part(term, latents)
    if len(part.atoms) != len(statistic.atoms):
        return None
    found: dict[int, int] = {}
    for mine, theirs in zip(part.atoms, statistic.atoms, strict=True):
        if mine[:3] != theirs[:3]:
            return None
        for here, there in zip(mine[3], theirs[3], strict=True):
            if found.setdefault(there, here) != here:
                return None
    return tuple(part.labels[found[i]] for i in range(len(statistic.shape)))


def _statistics(
    terms: Sequence[Term],
    latents: Mapping[str, Latent],
    groups: Mapping[str, Group],
    group_of: Mapping[str, str],
    told: frozenset[str],
    centred: frozenset[str],
) -> tuple[Statistic, ...]:
    means = {
        name: jnp.zeros(tuple(latents[name].shape))
        for group in centred
        for name in groups[group].latents
    }
    # What a product of two latents adds elsewhere when it is taken about their means.
    added = [
        shadow
        for term in terms
        for shadow in centring.shadows(term, groups, group_of, centred, means)
    ]
    is_shadow = {id(term) for term in added}
    found: dict[Any, tuple[GlobalPart, list[Term]]] = {}
    for term in (*terms, *added):
        part = global_part(term, latents)
        if part.atoms:
            found.setdefault(part.atoms, (part, []))[1].append(term)
    # The general patterns first, so that special ones find them.
    ordered = sorted(found.values(), key=lambda entry: -len(entry[0].labels))
    kept: list[tuple[Statistic, list[Term]]] = []
    for part, terms in ordered:
        candidate = _statistic(part, latents, groups, group_of)
        for statistic, others in kept:
            if labels_in(terms[0], statistic, latents) is not None:
                others += terms
                break
        else:
            kept.append((candidate, list(terms)))
    named: list[Statistic] = []
    for rank, (statistic, terms) in enumerate(kept):
        statistic = _summed_over(statistic, terms, latents)
        name = statistic.name
        while any(name == other.name for other in named):
            name += "′"  # The same latents, multiplied along other axes.
        release = _release(terms, latents, group_of, told)
        if release == "once" and any(id(term) in is_shadow for term in terms):
            release = "adaptive"
        bound = [(term, labels_in(term, statistic, latents)) for term in terms]
        entries = [(term, labels) for term, labels in bound if labels is not None]
        assert len(entries) == len(terms)
        lies = geometry(entries, statistic.matrix, latents)
        named.append(
            dataclasses.replace(
                statistic, name=name, release=release, geometry=lies, rank=rank
            )
        )
    return tuple(sorted(named, key=lambda s: (len(s.shape), s.name)))


def _summed_over(
    statistic: Statistic, terms: Sequence[Term], latents: Mapping[str, Latent]
) -> Statistic:
    """The statistic summed over the labels along which all its terms are constant."""
    sizes = statistic.shape
    summed = set(range(len(sizes)))
    for term in terms:
        labels = labels_in(term, statistic, latents)
        assert labels is not None
        told = {
            label
            for factor in term.factors
            if not is_global(factor, latents)
            for label in labels_of(factor)
        }
        # On a diagonal the labels cannot be summed one by one.
        summed -= {i for i, x in enumerate(labels) if x in told or labels.count(x) > 1}
    if not summed:
        return statistic
    order = [*(i for i in range(len(sizes)) if i not in summed), *sorted(summed)]
    number = {old: new for new, old in enumerate(order)}
    atoms = tuple(
        (latent, function, power, tuple(number[i] for i in labels))
        for latent, function, power, labels in statistic.atoms
    )
    count = len(sizes) - len(summed)
    part = GlobalPart(atoms, tuple(Label(sizes[i]) for i in order))
    return dataclasses.replace(
        statistic,
        atoms=atoms,
        shape=tuple(sizes[i] for i in order[:count]),
        summed=tuple(sizes[i] for i in order[count:]),
        matrix=_symmetry(part, latents, count),
    )


def told_by_rows(
    terms: Sequence[Term],
    latents: Mapping[str, Latent],
    group_of: Mapping[str, str],
) -> frozenset[str]:
    """The local groups whose factors depend on what a row holds.

    The others are alike in all rows, given the globals: the Pólya-Gamma variable of a
    latent whose logits are a global, for one.
    """
    weights = {
        group_of[name]
        for name, latent in latents.items()
        if latent.role == "local"
        and latent.weight is not None
        and any(term.row for term in latent.weight.terms)
    }
    members = []
    found = set(weights)
    for term in terms:
        groups = {group_of[a.latent] for a in term.atoms if _is_local(a, latents)}
        members.append(groups)
        if term.row:
            found |= groups
    while True:
        more = set().union(*(groups for groups in members if groups & found)) - found
        if not more:
            return frozenset(found)
        found |= more


def _is_local(atom: Atom, latents: Mapping[str, Latent]) -> bool:
    return latents[atom.latent].role == "local"


def _release(
    terms: Sequence[Term],
    latents: Mapping[str, Latent],
    group_of: Mapping[str, str],
    told: frozenset[str],
) -> Release:
    mine = {group_of[a.latent] for t in terms for a in t.atoms if _is_local(a, latents)}
    if mine & told or (mine and any(term.row for term in terms)):
        return "adaptive"
    return "once" if any(term.row for term in terms) else "public"


def _statistic(
    part: GlobalPart,
    latents: Mapping[str, Latent],
    groups: Mapping[str, Group],
    group_of: Mapping[str, str],
) -> Statistic:
    by_group: dict[str, list[str]] = defaultdict(list)
    for latent, function, power, _ in part.atoms:
        by_group[group_of[latent]].append(_readable(latent, function, power))
    name = "".join(f"⟨{' '.join(names)}⟩" for names in by_group.values())
    return Statistic(
        name=name,
        atoms=part.atoms,
        shape=tuple(label.size for label in part.labels),
        release="public",
        matrix=_symmetry(part, latents, len(part.labels)),
    )


def _symmetry(
    part: GlobalPart, latents: Mapping[str, Latent], count: int
) -> Matrix | None:
    """Which of the first `count` labels of a statistic can be exchanged for others.

    The labels that follow are summed over.

    Returns:
      The numbers of batch, row and column labels, or None if there is no symmetry.
    """
    pairs = []
    for i, a in enumerate(part.atoms):
        if _is_symmetric(a[0], a[1], latents) and a[3][-2] != a[3][-1]:
            pairs.append((a[3][-2:-1], a[3][-1:]))
        for b in part.atoms[i + 1 :]:
            if a[:3] == b[:3] and a[1] == "x" and a[3] != b[3]:
                differ = [(x, y) for x, y in zip(a[3], b[3], strict=True) if x != y]
                pairs.append((tuple(x for x, _ in differ), tuple(y for _, y in differ)))

    def canonical(atoms: Sequence[tuple]) -> list[tuple]:
        return sorted((*atom[:3], _unordered(atom, latents)) for atom in atoms)

    for rows, columns in pairs:
        if set(rows) & set(columns):
            continue
        if any((i < count) != (j < count) for i, j in zip(rows, columns, strict=True)):
            continue
        swap = dict(zip((*rows, *columns), (*columns, *rows), strict=True))
        swapped = [
            (*atom[:3], tuple(swap.get(i, i) for i in atom[3])) for atom in part.atoms
        ]
        if canonical(swapped) == canonical(part.atoms):
            rows = tuple(i for i in rows if i < count)
            columns = tuple(i for i in columns if i < count)
            if not rows:
                continue
            others = set(range(count)) - set(rows) - set(columns)
            return tuple(sorted(others)), rows, columns
    return None


def _unordered(atom: tuple, latents: Mapping[str, Latent]) -> tuple[int, ...]:
    if not _is_symmetric(atom[0], atom[1], latents):
        return atom[3]
    return (*atom[3][:-2], *sorted(atom[3][-2:]))


def _readable(latent: str, function: str, power: float) -> str:
    text = {"x": latent, "is": latent}.get(function, f"{function} {latent}")
    if function == "log1m":
        text = f"log(1-{latent})"
    return text if power == 1.0 else f"{text}^{power:g}"
