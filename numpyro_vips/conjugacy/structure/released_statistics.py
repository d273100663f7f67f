"""The statistics that rows release, as products of moments of globals.

What a row's terms multiply are products of moments of globals; each distinct product
is one *statistic* of the row, and is released as one block.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from numpyro.distributions import constraints

from numpyro_vips.conjugacy.algebra.terms import Atom, Label, Labels, Term, labels_of
from numpyro_vips.conjugacy.structure import centring
from numpyro_vips.conjugacy.structure.geometry import (
    Entry,
    Matrix,
    entry_range,
    geometry,
    is_global,
)
from numpyro_vips.conjugacy.structure.latents import Latents
from numpyro_vips.conjugacy.structure.posterior_factors import (
    PosteriorFactor,
    reachable,
)
from numpyro_vips.conjugacy.structure.repeated_diagonals import repeated_diagonal
from numpyro_vips.conjugacy.structure.statistic import Statistic, StatisticRelease


@dataclasses.dataclass(frozen=True, eq=False)
class GlobalPart:
    """The globals of one term: their pattern, and the term's labels in its order."""

    atoms: tuple[tuple[str, str, float, tuple[int, ...]], ...]
    labels: Labels


def global_part(term: Term, latents: Latents) -> GlobalPart:
    """Numbers the labels of a term's globals in a canonical order.

    The two axes of a symmetric matrix may be read either way; the way with the
    smallest numbers is taken, so that equal statistics are found to be equal.
    """
    atoms = [a for a in term.atoms if latents[a.latent].role == "global"]
    atoms.sort(key=lambda a: (a.latent, a.function, a.power))
    found = []
    for readings in itertools.product(*(_readings(a, latents) for a in atoms)):
        numbers: dict[Label, int] = {}
        pattern = []
        for atom, labels in zip(atoms, readings, strict=True):
            numbered = tuple(numbers.setdefault(x, len(numbers)) for x in labels)
            pattern.append((atom.latent, atom.function, atom.power, numbered))
        found.append(GlobalPart(tuple(pattern), tuple(numbers)))
    return min(found, key=lambda part: part.atoms)


def _readings(atom: Atom, latents: Latents) -> list[Labels]:
    if not _is_symmetric(atom.latent, atom.function, latents):
        return [atom.labels]
    *batch, row, column = atom.labels
    return [atom.labels, (*batch, column, row)]


def _is_symmetric(latent: str, function: str, latents: Latents) -> bool:
    support = latents[latent].support
    return function in ("x", "inv") and support is constraints.positive_definite


def labels_in(term: Term, statistic: Statistic, latents: Latents) -> Labels | None:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class FactorsInReleases:
    """What decides when, and about which point, statistics are released.

    All but the first are sets of names of posterior factors.

    Attributes:
      factor_of: The name of each latent's factor.
      data_dependent: Local factors that depend on private rows.
      centred: Global Gaussian factors whose statistics are about their current mean.
      newton: Those of the centred factors that take Newton steps.
      recentred: Factors whose statistics are about the means that a pilot has found.
    """

    factor_of: Mapping[str, str]
    data_dependent: frozenset[str]
    centred: frozenset[str]
    newton: frozenset[str]
    recentred: frozenset[str] = frozenset()


def find_statistics(
    terms: Sequence[Term],
    latents: Latents,
    factors: Mapping[str, PosteriorFactor],
    in_releases: FactorsInReleases,
) -> tuple[Statistic, ...]:
    """The statistics of the terms of a row, each term having exactly one.

    Args:
      terms: Those of a row's log joint density.
      latents: All latents, by name.
      factors: The factors of the posterior, by name.
      in_releases: Which of them have which latents, and decide when statistics are
        released, and about what.
    """
    factor_of = in_releases.factor_of
    # What a product of latents adds elsewhere when it is taken about their means.
    added = centring.mean_corrections(terms, factors, factor_of, in_releases.centred)
    corrected = {global_part(term, latents).atoms for term in added}
    gained = centring.origin_corrections(
        terms, factors, factor_of, in_releases.recentred
    )
    moved = {global_part(term, latents).atoms for term in gained}
    found: dict[Any, tuple[GlobalPart, list[Term]]] = {}
    for term in (*terms, *added, *gained):
        part = global_part(term, latents)
        if part.atoms:
            found.setdefault(part.atoms, (part, []))[1].append(term)
    # The general patterns first, so that special ones find them.
    ordered = sorted(found.values(), key=lambda entry: -len(entry[0].labels))
    kept: list[tuple[Statistic, list[Term]]] = []
    for part, of_part in ordered:
        for statistic, others in kept:
            if labels_in(of_part[0], statistic, latents) is not None:
                others += of_part
                break
        else:
            kept.append((_statistic(part, latents, factor_of), list(of_part)))
    named: list[tuple[Statistic, list[Entry]]] = []
    for rank, (statistic, mine) in enumerate(kept):
        statistic = _summed_over(statistic, mine, latents)
        name = statistic.name
        while any(name == other.name for other, _ in named):
            name += "′"  # The same latents, multiplied along other axes.
        release = _release(mine, latents, factor_of, in_releases.data_dependent)
        if release == "once" and any(
            global_part(term, latents).atoms in corrected for term in mine
        ):
            release = "adaptive"
        pair = [factor_of[latent] for latent in statistic.latents]
        if release != "public" and len(pair) == 2 and {*pair} <= in_releases.newton:
            release = "refreshed"
        entries = [_entry(term, statistic, latents) for term in mine]
        lower, upper = entry_range(entries, latents)
        statistic = dataclasses.replace(
            statistic,
            name=name,
            release=release,
            geometry=geometry(entries, statistic.matrix, latents),
            lower=lower,
            upper=upper,
            rank=rank,
            recentred=any(global_part(term, latents).atoms in moved for term in mine),
        )
        named.append((statistic, entries))
    complete = []
    for statistic, entries in named:
        diagonal = None
        if statistic.release != "public":
            diagonal = repeated_diagonal(statistic, entries, named, latents)
        complete.append(dataclasses.replace(statistic, diagonal=diagonal))
    return tuple(sorted(complete, key=lambda s: (len(s.shape), s.name)))


def _entry(term: Term, statistic: Statistic, latents: Latents) -> Entry:
    labels = labels_in(term, statistic, latents)
    assert labels is not None
    return term, labels


def _summed_over(
    statistic: Statistic, terms: Sequence[Term], latents: Latents
) -> Statistic:
    """The statistic summed over the labels along which all its terms are constant."""
    sizes = statistic.shape
    summed = set(range(len(sizes)))
    for term in terms:
        _, labels = _entry(term, statistic, latents)
        per_label = {
            label
            for factor in term.factors
            if not is_global(factor, latents)
            for label in labels_of(factor)
        }
        # On a diagonal the labels cannot be summed one by one.
        summed -= {
            i for i, x in enumerate(labels) if x in per_label or labels.count(x) > 1
        }
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


def data_dependent_factors(
    terms: Sequence[Term],
    latents: Latents,
    factor_of: Mapping[str, str],
) -> frozenset[str]:
    """The names of the local factors that depend on private rows.

    The others are alike in all rows, given the globals: the Pólya-Gamma variable of a
    latent whose logits are a global, for one.
    """
    weights = {
        factor_of[name]
        for name, latent in latents.items()
        if latent.role == "local"
        and latent.weight is not None
        and any(term.is_private for term in latent.weight.terms)
    }
    together = [_local_factors(term, latents, factor_of) for term in terms]
    private = [x for x, term in zip(together, terms, strict=True) if term.is_private]
    return frozenset(reachable(weights.union(*private), together))


def _local_factors(
    term: Term, latents: Latents, factor_of: Mapping[str, str]
) -> set[str]:
    names = {atom.latent for atom in term.atoms}
    return {factor_of[name] for name in names if latents[name].role == "local"}


def _release(
    terms: Sequence[Term],
    latents: Latents,
    factor_of: Mapping[str, str],
    data_dependent: frozenset[str],
) -> StatisticRelease:
    mine = set().union(*(_local_factors(term, latents, factor_of) for term in terms))
    if mine & data_dependent or (mine and any(term.is_private for term in terms)):
        return "adaptive"
    return "once" if any(term.is_private for term in terms) else "public"


def _statistic(
    part: GlobalPart,
    latents: Latents,
    factor_of: Mapping[str, str],
) -> Statistic:
    by_factor: dict[str, list[str]] = defaultdict(list)
    for latent, function, power, _ in part.atoms:
        by_factor[factor_of[latent]].append(_readable(latent, function, power))
    name = "".join(f"⟨{' '.join(names)}⟩" for names in by_factor.values())
    return Statistic(
        name=name,
        atoms=part.atoms,
        shape=tuple(label.size for label in part.labels),
        release="public",
        matrix=_symmetry(part, latents, len(part.labels)),
    )


def _symmetry(part: GlobalPart, latents: Latents, count: int) -> Matrix | None:
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


def _unordered(atom: tuple, latents: Latents) -> tuple[int, ...]:
    if not _is_symmetric(atom[0], atom[1], latents):
        return atom[3]
    return (*atom[3][:-2], *sorted(atom[3][-2:]))


def _readable(latent: str, function: str, power: float) -> str:
    text = {"x": latent, "is": latent}.get(function, f"{function} {latent}")
    if function == "log1m":
        text = f"log(1-{latent})"
    return text if power == 1.0 else f"{text}^{power:g}"
