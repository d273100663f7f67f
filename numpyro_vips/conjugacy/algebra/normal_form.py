"""The normal form of a term: rewriting rules, applied until none does.

Factors that are equal are merged, selections are followed into constants, and terms
that are zero are found.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra.contractions import expand_to, gather
from numpyro_vips.conjugacy.algebra.terms import (
    ArrayLike,
    Atom,
    Dense,
    Factor,
    Label,
    OneHot,
    Slot,
    Term,
    is_public,
    labels_of,
    picked_labels,
    same_constant,
    same_labels,
)


def without_lost_labels(term: Term) -> Term:
    """Sums over the bound labels that no factor has any more."""
    used = {label for factor in term.factors for label in labels_of(factor)}
    lost = term.bound - used
    scale = term.scale * math.prod(label.size for label in lost)
    return Term(scale, term.factors, term.bound - lost)


def simplify(term: Term) -> Term | None:
    """Applies the rewriting rules until none does; None if the term is zero."""
    result: Term | None = term
    previous = None
    while result is not previous:
        previous = result
        for rule in _RULES:
            if result is not None:
                result = rule(result)
    if result is None or result.scale == 0.0:
        return None
    return without_lost_labels(result)


def _unify(term: Term, one: Label, other: Label) -> Term | None:
    """Identifies two labels if one of them is bound; None if neither is."""
    if one in term.bound:
        return term.renamed({one: other})
    if other in term.bound:
        return term.renamed({other: one})
    return None


def _merge_atoms(term: Term) -> Term:
    """x·x is x², x·x⁻¹ is 1, and an indicator times itself is itself."""
    for (i, a), (j, b) in itertools.combinations(enumerate(term.factors), 2):
        if not (isinstance(a, Atom) and isinstance(b, Atom)):
            continue
        if (a.latent, a.function) != (b.latent, b.function):
            continue
        if not same_labels(a.labels, b.labels):
            continue
        power = 1.0 if a.function == "is" else a.power + b.power
        merged = () if power == 0.0 else (dataclasses.replace(a, power=power),)
        rest = [f for k, f in enumerate(term.factors) if k not in (i, j)]
        return without_lost_labels(Term(term.scale, (*rest, *merged), term.bound))
    return term


def _merge_indicators(term: Term) -> Term:
    """A discrete latent is in one state: 1[z=j]·1[z=k] is 1[z=j] with j=k."""
    indicators = [atom for atom in term.atoms if atom.function == "is"]
    for a, b in itertools.combinations(indicators, 2):
        same = a.labels[-1] is b.labels[-1]  # `_merge_atoms` is for these.
        equal = same_labels(a.labels[:-1], b.labels[:-1])
        if a.latent == b.latent and equal and not same:
            unified = _unify(term, a.labels[-1], b.labels[-1])
            if unified is not None:
                return unified
    return term


def _merge_one_hots(term: Term) -> Term:
    """Two selections by the same index pick the same entry."""
    one_hots = [f for f in term.factors if isinstance(f, OneHot)]
    for a, b in itertools.combinations(one_hots, 2):
        if not same_labels(a.labels, b.labels):
            continue
        if not same_constant(a.indices, b.indices):
            continue
        if a.target is b.target:
            return term.without(b)
        if a.target.size == b.target.size:
            unified = _unify(term, a.target, b.target)
            if unified is not None:
                return unified
    return term


def _merge_entries(term: Term) -> Term:
    """Entries of one row differ: 1[v=i_l]·1[v=i_m] is 1[v=i_l] with l=m."""
    one_hots = [f for f in term.factors if isinstance(f, OneHot) and f.origin]
    for a, b in itertools.combinations(one_hots, 2):
        if a.target is not b.target or not same_constant(a.indices, b.indices):
            continue
        if not same_labels(a.labels[:-1], b.labels[:-1]):
            continue
        unified = _unify(term, a.labels[-1], b.labels[-1])
        if unified is not None and a.labels[-1] is not b.labels[-1]:
            return unified
    return term


def _merge_branches(term: Term) -> Term | None:
    """Different branches of one `where` exclude each other."""
    selectors = [f for f in term.factors if not isinstance(f, Atom) and f.branch]
    for a, b in itertools.combinations(selectors, 2):
        if a.branch is None or b.branch is None or a.branch[0] != b.branch[0]:
            continue
        if type(a) is not type(b) or not same_labels(a.labels, b.labels):
            continue
        if a.branch[1] != b.branch[1]:
            return None
        if isinstance(a, Dense):
            return term.without(b)
    return term


def _drop_identity(term: Term) -> Term | None:
    """A selection of every entry in order only renames a label."""
    for factor in term.factors:
        if not isinstance(factor, OneHot) or not is_public(factor.indices):
            continue
        if np.all(factor.indices < 0):
            return None
        if len(factor.labels) != 1 or factor.labels[0].size != factor.target.size:
            continue
        if np.array_equal(factor.indices, np.arange(factor.target.size)):
            unified = _unify(term.without(factor), factor.target, factor.labels[0])
            if unified is not None:
                return unified
    return term


def _follow_one_hot(term: Term) -> Term:
    """Applies a selection to the constants it selects from."""
    for factor in term.factors:
        if not isinstance(factor, OneHot) or factor.target not in term.bound:
            continue
        rest = term.without(factor).factors
        selected = [f for f in rest if factor.target in labels_of(f)]
        users = [f for f in selected if not isinstance(f, Atom)]
        if len(users) < len(selected):
            continue
        if any(isinstance(f, OneHot) and f.target is factor.target for f in users):
            continue
        if users and any(isinstance(f.array, Slot) for f in (factor, *users)):
            continue  # There is no array to pick from yet.
        kept = [f for f in rest if f not in users]
        for user in users:
            kept += _follow(user, factor)
        if factor.may_pick_none:
            mask = (factor.indices >= 0).astype(np.float32)
            kept.append(Dense(mask, factor.labels, factor.is_private, factor.branch))
        elif not users and not is_public(factor.indices) and factor.origin is None:
            continue
        return Term(term.scale, tuple(kept), term.bound - {factor.target})
    return term


class _Picked:
    """The indices by which an alternative was selected from; equal for equal
    indices."""

    def __init__(self, indices: ArrayLike):
        self.indices = indices

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Picked) and same_constant(self.indices, other.indices)

    def __hash__(self) -> int:
        return hash(np.shape(self.indices))


def _follow(factor: Dense | OneHot, selection: OneHot) -> list[Factor]:
    """What a selection picks from a constant, as one factor or two.

    Args:
      factor: The constant, which has the selection's target among its labels.
      selection: Where it is looked up. What picks no entry picks zero: an index of -1
        stays one where indices are picked from; of numbers the caller masks it.

    Returns:
      The constant with the selection's labels in the place of the target. Where rows
      bring indices of which some pick nothing, a second factor says which do.
    """
    if factor.branch is not None and not isinstance(factor.branch[0], OperandMark):
        # Entry i may come from another alternative than entry j.
        group = (factor.branch[0], _Picked(selection.indices))
        factor = dataclasses.replace(factor, branch=(group, factor.branch[1]))
    array, labels = gather(
        factor.array,
        factor.labels,
        selection.indices,
        selection.labels,
        selection.target,
    )
    changes = {
        "labels": labels,
        "is_private": factor.is_private or selection.is_private,
    }
    if isinstance(factor, Dense):
        return [dataclasses.replace(factor, array=array, **changes)]
    if selection.target is factor.labels[-1] or labels[-1] is not factor.labels[-1]:
        factor = dataclasses.replace(factor, origin=None)  # They need not differ now.
    if is_public(array) and is_public(selection.indices):
        missing = expand_to(selection.indices < 0, selection.labels, labels)
        array = np.where(missing, -1, array)
    elif factor.may_pick_none:
        # Whether an index that a row brings picks an entry or none has to be said in
        # a factor of its own: -1 stands for none among public indices only.
        present = dataclasses.replace(factor, indices=jnp.maximum(array, 0), **changes)
        mask = (array >= 0).astype(np.float32)
        return [present, Dense(mask, labels, present.is_private, factor.branch)]
    return [dataclasses.replace(factor, indices=array, **changes)]


def _drop_uniform(term: Term) -> Term | None:
    """A known constant that is the same everywhere is a number."""
    for factor in term.factors:
        if not isinstance(factor, Dense) or not is_public(factor.array):
            continue
        if factor.branch is not None and isinstance(factor.branch[0], OperandMark):
            continue
        if factor.array.size == 0 or np.any(factor.array != factor.array.flat[0]):
            continue
        value = float(factor.array.flat[0])
        if value == 0.0:
            return None
        rest = term.without(factor)
        return dataclasses.replace(rest, scale=term.scale * value)
    return term


def _public_one_hot(term: Term) -> Term:
    """Writes a known 0/1 matrix with a single 1 per row as a selection.

    Where something else selects along the same axis, the matrix says whether both
    agree: it is a number then, zero where they do not.
    """
    selected = picked_labels(term)
    for factor in term.factors:
        if not isinstance(factor, Dense) or not is_public(factor.array):
            continue
        if len(factor.labels) != 2 or factor.branch or factor.array.size > 10**6:
            continue
        ones = factor.array == 1
        if factor.labels[1] not in term.bound or factor.labels[0] is factor.labels[1]:
            continue
        if factor.labels[1] in selected:
            continue
        if not (np.all(ones | (factor.array == 0)) and np.all(ones.sum(1) == 1)):
            continue
        one_hot = OneHot(ones.argmax(1), factor.labels[:1], factor.labels[1])
        rest = term.without(factor).factors
        return Term(term.scale, (*rest, one_hot), term.bound)
    return term


_RULES: tuple[Callable[[Term], Term | None], ...] = (
    _merge_atoms,
    _merge_indicators,
    _merge_one_hots,
    _merge_entries,
    _merge_branches,
    _drop_uniform,
    _public_one_hot,
    _drop_identity,
    _follow_one_hot,
)


class OperandMark:
    """A mark on one operand's values while selectors are merged."""
