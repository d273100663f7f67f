"""Norms of the rows' expected sufficient statistics.

The expected log joint density of a row is linear in the expected natural parameters n̄,
so the row's expected sufficient statistics are its gradient in them. No row's statistic
is made if it is large: its norm comes from inner products of its terms, each a small
contraction, and the clipped sum over rows is one weighted backward pass; see
`bounded_sum`. What indices scatter is made as the few entries that it is, for the norm
and for the sum; and a small statistic of many terms, such as the states of a chain, is
made for the norm, where inner products of all pairs would be far more programs.
"""

import itertools
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from numpyro_vips.conjugacy.algebra.contractions import as_real, contract
from numpyro_vips.conjugacy.algebra.terms import (
    ArrayLike,
    Label,
    Labels,
    OneHot,
    Term,
    is_public,
)
from numpyro_vips.conjugacy.structure.geometry import Entry
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.program.expectations import (
    Operand,
    constants,
    labels_of_operand,
    moment_operands,
    terms_by_statistic,
)
from numpyro_vips.vips.program.named_arrays import (
    ByStatistic,
    MomentsByFactor,
    Points,
    Scales,
)
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.contributions import (
    RowContribution,
    rounding_unit,
    terms_with,
)
from numpyro_vips.vips.row_sums.released_blocks import as_block
from numpyro_vips.vips.row_sums.scattered import in_units, square_of_scattered

# Rounding errors of a contraction, in units of the machine epsilon times the sum of
# magnitudes: far more than blocked summation makes.
_ROUNDING = 64.0

# From how many terms on a statistic may be made for its norm, and up to how many
# entries for each pair of them: an inner product costs about as much.
_MANY_TERMS = 3
_ENTRIES_PER_PAIR = 32


def norm_of(
    program: ConjugateProgram,
    contribution: RowContribution,
    scales: Scales,
    means: Points,
    units: ByStatistic | None = None,
) -> Float[Array, ""]:
    """L2 norm of one row's scaled statistics, over the blocks in `scales`.

    Of a statistic with `units`, each entry counts times its own one.

    In double precision, and not finite if the row is not valid. It may be larger than
    the norm, never smaller. Where large terms cancel, rounding could swallow the norm
    of what is left, so a bound on the rounding error is added; where a term is
    scattered along an index, entries that meet are taken to add up.
    """
    structure = program.structure
    terms = terms_with(program, contribution.numbers, means)
    by_statistic = terms_by_statistic(structure, terms)
    named = {s.name: s for s in structure.statistics}
    units = units or {}
    total = jnp.zeros(())
    for name, entries in by_statistic.items():
        if name not in scales:
            continue
        diagonal = named[name].diagonal
        if name in contribution.scattered:
            # A diagonal that is not released counts here, too.
            square = square_of_scattered(
                in_units(contribution.scattered[name], units.get(name))
            )
        elif diagonal is None:
            square = _squared_norm(
                structure,
                entries,
                contribution.local_moments,
                units.get(name),
                named[name],
            )
        else:
            others = by_statistic[diagonal.statistic]
            square = _hollow_square(
                structure, entries, others, diagonal.factor, contribution
            )
        total = total + scales[name] ** 2 * square
    norm = jnp.sqrt(jnp.maximum(total, 0.0))
    return jnp.where(contribution.valid, norm, jnp.nan)


def _squared_norm(
    structure: Structure,
    entries: Sequence[Entry],
    local_moments: MomentsByFactor,
    units: Float[Array, "..."] | None,
    statistic: Statistic,
) -> Float[Array, ""]:
    """A bound on the squared norm of a statistic, given its terms."""

    def square_of(magnitudes: bool) -> Float[Array, ""]:
        return _square(
            structure, entries, local_moments, units, statistic, magnitudes=magnitudes
        )

    square = square_of(magnitudes=False)
    if not _may_cancel(entries):
        return square
    bound = square_of(magnitudes=True)
    rounding = (_ROUNDING + 2.0 * len(entries)) * rounding_unit()
    return jnp.maximum(square, 0.0) + rounding * bound


def _hollow_square(
    structure: Structure,
    entries: Sequence[Entry],
    others: Sequence[Entry],
    factor: float,
    contribution: RowContribution,
) -> Float[Array, ""]:
    """Squared norm of a statistic without its diagonal, `factor` times the others'."""

    def difference(sign: float, magnitudes: bool) -> Float[Array, ""]:
        mine = contribution.local_moments
        whole = _square(structure, entries, mine, magnitudes=magnitudes)
        other = _square(structure, others, mine, magnitudes=magnitudes)
        return whole + sign * factor**2 * other

    square = jnp.maximum(difference(-1.0, magnitudes=False), 0.0)
    # The latents' moments, of which that is true, were rounded when they were made.
    return square + _ROUNDING * contribution.epsilon * difference(1.0, magnitudes=True)


def _square(
    structure: Structure,
    entries: Sequence[Entry],
    local_moments: MomentsByFactor,
    units: Float[Array, "..."] | None = None,
    statistic: Statistic | None = None,
    *,
    magnitudes: bool,
) -> Float[Array, ""]:
    """The squared norm of the terms' sum, up to rounding; see `_inner_product`.

    It may be that of what is released of the `statistic`, which is symmetrised: a
    product of two latents may stand on one side of the diagonal alone.
    """
    if _is_small_sum(entries):
        whole = jnp.zeros(())
        for term, labels in entries:
            operands = _operands(structure, [term], local_moments, magnitudes)
            scale = abs(term.scale) if magnitudes else term.scale
            own, diagonals = _without_repeats(labels)
            whole = whole + contract(scale, [*operands, *diagonals], own)
        if statistic is not None:
            whole = as_block(statistic, whole)
        return jnp.sum((whole if units is None else units * whole) ** 2)
    square = jnp.zeros(())
    for (i, first), (j, second) in itertools.product(enumerate(entries), repeat=2):
        if i <= j:
            inner = _inner_product(
                structure, first, second, local_moments, units, magnitudes=magnitudes
            )
            square = square + (1.0 if i == j else 2.0) * inner
    return square


def _inner_product(
    structure: Structure,
    first: Entry,
    second: Entry,
    local_moments: MomentsByFactor,
    units: Float[Array, "..."] | None = None,
    *,
    magnitudes: bool,
) -> Float[Array, ""]:
    """⟨a, b⟩ of two terms' coefficient arrays, without making either.

    Both are taken times `units`, if there are any. With `magnitudes`, every number is
    replaced by its absolute value.
    """
    a, a_labels = first
    b, b_labels = second
    fresh = {x: Label(x.size) for x in b.bound}
    b, b_labels = b.renamed(fresh), tuple(fresh.get(x, x) for x in b_labels)
    # Entry i of both arrays is the same coordinate, so its labels are one.
    merged: dict[Label, Label] = {}

    def root(label: Label) -> Label:
        while label in merged:
            label = merged[label]
        return label

    for x, y in zip(a_labels, b_labels, strict=True):
        x, y = root(x), root(y)
        if x is not y:
            merged[y] = x
    substitution = {label: root(label) for label in merged}
    terms = [a.renamed(substitution), b.renamed(substitution)]
    operands = _operands(structure, terms, local_moments, magnitudes)
    if units is not None:
        operands.append((units**2, tuple(root(x) for x in a_labels)))
    present = {label for operand in operands for label in labels_of_operand(operand)}
    size = 1.0
    for label in {root(x) for x in a_labels} - present:
        size *= label.size
    scale = a.scale * b.scale * size
    return jnp.asarray(contract(abs(scale) if magnitudes else scale, operands, ()))


def _operands(
    structure: Structure,
    terms: Sequence[Term],
    local_moments: MomentsByFactor,
    magnitudes: bool,
) -> list[Operand]:
    """What the coefficients of terms are products of; see `_inner_product`."""
    operands: list[Operand] = []
    for term in terms:
        operands += constants(term)
        operands += moment_operands(structure, term, local_moments, role="local")
    if not magnitudes:
        return operands
    return [x if isinstance(x, OneHot) else (_magnitude(x[0]), x[1]) for x in operands]


def _magnitude(array: ArrayLike) -> ArrayLike:
    # The absolute value of the least integer is negative.
    array = as_real(array)
    # What is public stays a NumPy array, and is contracted before what is private.
    return np.abs(array) if is_public(array) else jnp.abs(array)


def _is_small_sum(entries: Sequence[Entry]) -> bool:
    """Whether the statistic is made, in place of the inner products of its terms."""
    count, labels = len(entries), entries[0][1]
    pairs = count * (count + 1) // 2
    size = math.prod(label.size for label in labels)
    return (
        count >= _MANY_TERMS
        and size <= _ENTRIES_PER_PAIR * pairs
        and not any(_has_sparse_entries(term) for term, _ in entries)
    )


def _has_sparse_entries(term: Term) -> bool:
    """Whether an axis is made from sparse entries."""
    return any(isinstance(f, OneHot) and f.origin is not None for f in term.factors)


def _without_repeats(labels: Labels) -> tuple[Labels, list[Operand]]:
    """Labels that differ, and identities in which those that were one are equal.

    A square such as w[0]² is on the diagonal of ww: both axes have one label.
    """
    own: list[Label] = []
    diagonals: list[Operand] = []
    for label in labels:
        if label in own:
            other = Label(label.size)
            diagonals.append((np.eye(label.size), (label, other)))
            label = other
        own.append(label)
    return tuple(own), diagonals


def cancelling_statistics(program: ConjugateProgram, means: Points) -> set[str]:
    """The statistics in whose entries large numbers of one row may cancel."""
    terms = program.centred_terms if means else program.row_terms
    by_statistic = terms_by_statistic(program.structure, terms)
    return {name for name, entries in by_statistic.items() if _may_cancel(entries)}


def _may_cancel(entries: Sequence[Entry]) -> bool:
    """Whether a statistic is a sum, of several terms or within one."""
    if len(entries) > 1:
        return True
    term, labels = entries[0]
    return any(label.size > 1 and label not in labels for label in term.bound)
