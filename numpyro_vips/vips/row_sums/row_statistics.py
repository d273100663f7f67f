"""Norms of the rows' expected sufficient statistics.

The expected log joint density of a row is linear in the expected natural parameters n̄,
so the row's expected sufficient statistics are its gradient in them. No row's statistic
is made if it is large: its norm comes from inner products of its terms, each a small
contraction, and the clipped sum over rows is one weighted backward pass; see
`bounded_sum`. What indices scatter is made as the few entries that it is, for the norm
and for the sum; and a small statistic of many terms, such as the states of a chain, is
made for the norm, where inner products of all pairs would be far more programs.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from numpyro_vips.conjugacy.algebra.contractions import as_real, contract
from numpyro_vips.conjugacy.algebra.terms import (
    ArrayLike,
    Label,
    Labels,
    OneHot,
    Term,
    is_public,
    labels_of,
)
from numpyro_vips.conjugacy.structure.geometry import Entry, is_global
from numpyro_vips.conjugacy.structure.repeated_diagonals import (
    with_diagonal,
    without_diagonal,
)
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.e_step.coordinates import locals_of
from numpyro_vips.vips.e_step.e_step import solve_row
from numpyro_vips.vips.program.expectations import (
    Operand,
    binding,
    constants,
    expected,
    labels_of_operand,
    moment_operands,
)
from numpyro_vips.vips.program.named_arrays import (
    ByStatistic,
    MomentsByFactor,
    NewByStatistic,
    Numbers,
    Points,
    Scales,
    Sums,
)
from numpyro_vips.vips.program.program import ConjugateProgram

# Rounding errors of a contraction, in units of the machine epsilon times the sum of
# magnitudes: far more than blocked summation makes.
_ROUNDING = 64.0

# From how many terms on a statistic may be made for its norm, and up to how many
# entries for each pair of them: an inner product costs about as much.
_MANY_TERMS = 3
_ENTRIES_PER_PAIR = 32


# --- contributions of rows --------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowContribution:
    """What a row's norm and its part of the sum are computed from, for one row or
    several.

    Attributes:
      numbers: What the slots of its terms stand for, by token.
      local_moments: Moments of its latents, by factor.
      scattered: The statistics that are made already.
      valid: Whether the row may count.
      epsilon: Machine epsilon of the precision in which latents were solved for.
    """

    numbers: Numbers
    local_moments: MomentsByFactor
    scattered: "Mapping[str, Scattered]"
    valid: Bool[Array, "*rows"]
    epsilon: float = dataclasses.field(metadata={"static": True})


def row_contribution(
    program: ConjugateProgram,
    arrays: Numbers,
    valid: Bool[Array, ""],
    local_moments: MomentsByFactor,
    scales: Scales,
    means: Points,
) -> RowContribution:
    """A row's contribution, from which norm and sum are made.

    Both are made of the same numbers and in double precision, where no product of a
    few of them is too large or too small: they have sizes that single precision has,
    and are zero, or the row is not valid, where they are smaller or larger. Squares of
    smaller ones would be zero, and a row could count with a norm of zero and not be
    clipped.

    Args:
      program: The compiled model.
      arrays: The row's constants by token, zeros if it is not valid.
      valid: Whether it is.
      local_moments: Moments of its latents, by factor.
      scales: Scale of each block that is released; the others are left out.
      means: The points about which statistics are taken, by latent; may be empty.
    """
    tokens = {slot.token for term in program.row_terms for slot in term.slots}
    numbers = {token: array for token, array in arrays.items() if token in tokens}
    (arrays, local_moments), valid = _of_single_size((numbers, local_moments), valid)
    scattered = scattered_statistics(
        program.structure,
        terms_with(program, arrays, means),
        local_moments,
        scales,
    )
    return RowContribution(arrays, local_moments, scattered, valid, rounding_unit())


_SINGLE = jnp.finfo(jnp.float32)


def _of_single_size(numbers: Any, valid: Bool[Array, ""]) -> tuple[Any, Any]:
    """A row's numbers in the range of single precision, and whether it is valid so.

    Args:
      numbers: A tree of arrays. In single precision they are returned as they are.
      valid: Whether the row was valid.

    Returns:
      The same tree, with zeros for what is too small, and zeros alone if something is
      too large; and whether the row is valid still.
    """
    if jnp.result_type(float) != jnp.float64:
        return numbers, valid

    def is_real(array: Array) -> bool:
        return jnp.issubdtype(jnp.result_type(array), jnp.floating)

    for array in filter(is_real, jax.tree.leaves(numbers)):
        valid = valid & jnp.all(jnp.abs(array) <= _SINGLE.max)

    def limited(array: Array) -> Array:
        if not is_real(array):
            return array
        return jnp.where(valid & (jnp.abs(array) >= _SINGLE.tiny), array, 0.0)

    return jax.tree.map(limited, numbers), valid


def terms_with(
    program: ConjugateProgram, numbers: Numbers, means: Points
) -> list[Term]:
    """A row's terms with its numbers, taken about the means."""
    terms = program.centred_terms if means else program.row_terms
    return [term.filled({**numbers, **means}) for term in terms]


# --- norms ----------------------------------------------------------------------------


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
    by_statistic = _by_statistic(structure, terms)
    named = {s.name: s for s in structure.statistics}
    units = units or {}
    total = jnp.zeros(())
    for name, entries in by_statistic.items():
        if name not in scales:
            continue
        diagonal = named[name].diagonal
        if name in contribution.scattered:
            # A diagonal that is not released counts here, too.
            square = _scattered_square(
                _in_units(contribution.scattered[name], units.get(name))
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


def _by_statistic(
    structure: Structure, terms: Sequence[Term]
) -> dict[str, list[Entry]]:
    """The terms of each statistic that has any."""
    by_statistic: dict[str, list[Entry]] = {}
    for term in terms:
        found = binding(structure, term)
        if found is not None:
            by_statistic.setdefault(found[0].name, []).append((term, found[1]))
    return by_statistic


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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scattered:
    """A row's statistic Σ_l a[l, k] 1[v = index_l], which has an entry for every v.

    Sums of it have the axes v and k, each once.

    Attributes:
      indices: index_l along each axis v.
      values: a, with axes l and k, the last of which may be `padded`. Both arrays may
        have an axis of rows in front.
      axes: For each axis of the statistic, which axis of the sum it is. Of two that
        are the same one, the statistic is the diagonal.
    """

    indices: tuple[Int[Array, "*rows entries"], ...]
    values: Float[Array, "..."]
    axes: tuple[int, ...] = dataclasses.field(metadata={"static": True})


def scattered_statistics(
    structure: Structure,
    terms: Sequence[Term],
    local_moments: MomentsByFactor,
    names: Collection[str],
) -> dict[str, Scattered]:
    """The row's statistics that are of this form, of those in `names`."""
    found = {}
    for name, entries in _by_statistic(structure, terms).items():
        if name in names and len(entries) == 1:
            scattered = _scattered(structure, entries[0], local_moments)
            if scattered is not None:
                found[name] = scattered
    return found


def _scattered(
    structure: Structure, entry: Entry, local_moments: MomentsByFactor
) -> Scattered | None:
    """A term's coefficients as values at the entries that a row's indices pick.

    Args:
      structure: What was found in the model.
      entry: A term of one row, and its labels of the statistic.
      local_moments: Moments of the row's latents.

    Returns:
      None where a row has no such indices, where their entries are more than the
      statistic has, or where values would be added up that might cancel: their norm
      would be no bound then.
    """
    term, labels = entry
    scatters = _scatters(entry)
    targets = tuple(factor.target for factor in scatters)
    index_labels = scatters[0].labels if scatters else ()
    rest = Term(
        term.scale,
        tuple(
            factor
            for factor in term.factors
            if factor not in scatters and not is_global(factor, structure.latents)
        ),
        term.bound,
    )
    used = {x for f in rest.factors for x in labels_of(f) if x in targets}
    kept = tuple(x for x in dict.fromkeys(labels) if x not in targets)
    if (
        not index_labels
        or used
        or len(set(targets)) < len(targets)
        or any(set(f.labels) != set(index_labels) for f in scatters)
        or any(label in labels for label in index_labels)
        or math.prod(x.size for x in index_labels) > math.prod(x.size for x in targets)
    ):
        return None
    operands = constants(rest)
    operands += moment_operands(structure, rest, local_moments, role="local")
    output = (*index_labels, *kept)
    summed = {x for operand in operands for x in labels_of_operand(operand)}
    summed -= set(output)
    if any(label.size > 1 for label in summed):
        return None  # A sum inside of a[l, k] could cancel.
    values = jnp.asarray(contract(term.scale, operands, output, cut=False))
    # Without the barrier XLA makes an array of each factor in place of the product.
    values = jax.lax.optimization_barrier(values)
    values = values.reshape(-1, *values.shape[len(index_labels) :])
    indices = []
    for factor in scatters:
        order = [factor.labels.index(label) for label in index_labels]
        index = jnp.transpose(jnp.asarray(factor.indices), order).reshape(-1)
        indices.append(jnp.maximum(index, 0))
    axes = tuple((*targets, *kept).index(label) for label in labels)
    return Scattered(tuple(indices), values, axes)


def _scatters(entry: Entry) -> list[OneHot]:
    """The indices of a row along axes of a statistic."""
    term, labels = entry
    return [
        factor
        for factor in term.factors
        if isinstance(factor, OneHot) and factor.is_private and factor.target in labels
    ]


def additions_of_rows(program: ConjugateProgram) -> dict[str, int]:
    """By statistic, how many numbers of a row are added to an entry of the sum at most.

    Of what is scattered these are as many as a row has indices, which may all be equal;
    those of sparse entries differ. A statistic that is left out has one of each row.
    """

    def number(scatter: OneHot, labels: Labels) -> int:
        own = scatter.labels[:-1] if scatter.origin else scatter.labels
        return math.prod(label.size for label in own if label not in labels)

    found: dict[str, int] = {}
    for terms in (program.row_terms, program.centred_terms):
        for name, entries in _by_statistic(program.structure, terms).items():
            _, labels = entries[0]
            numbers = [number(scatter, labels) for scatter in _scatters(entries[0])]
            # Of several terms each row's are added up beforehand, see `bounded_sum`.
            if len(entries) == 1 and numbers:
                found[name] = max(found.get(name, 1), *numbers)
    return found


def _in_units(scattered: Scattered, units: Float[Array, "..."] | None) -> Scattered:
    """The statistic times an array of its shape, which is no diagonal."""
    if units is None:
        return scattered
    of_sum = jnp.transpose(units, [scattered.axes.index(i) for i in range(units.ndim)])
    picked = of_sum[scattered.indices]
    # The last axis may be padded, with zeros.
    sizes = zip(scattered.values.shape, picked.shape, strict=True)
    spare = [(0, size - known) for size, known in sizes]
    values = scattered.values * jnp.pad(picked, spare)
    return dataclasses.replace(scattered, values=values)


def _scattered_square(scattered: Scattered) -> Float[Array, ""]:
    """A bound on its squared norm.

    Where m_l of the indices are equal to index_l, Cauchy and Schwarz give

        Σ_vk (Σ_l a[l, k] 1[v = index_l])² ≤ Σ_lk m_l a[l, k]²,

    with equality if indices are distinct, or entries that meet are equal. Nothing
    cancels in it.
    """
    values = scattered.values
    squares = (values.reshape(len(values), -1) ** 2).sum(1)
    # An entry of zero is no company: padding may repeat any index.
    return jnp.sum(_how_many_equal(scattered.indices, squares > 0) * squares)


def _how_many_equal(
    indices: Sequence[Int[Array, " entries"]], counting: Bool[Array, " entries"]
) -> Float[Array, " entries"]:
    """For each entry, how many of those that count have the same indices.

    One entry after the other is compared with all, in place of a square table of them,
    which costs several times as much to write as to make.

    Args:
      indices: One or more.
      counting: Whether each entry counts.
    """

    def add(
        number: Int[Array, ""], found: Float[Array, " entries"]
    ) -> Float[Array, " entries"]:
        equal = functools.reduce(jnp.logical_and, [i == i[number] for i in indices])
        return found + jnp.where(equal, ones[number], 0.0)

    ones = counting.astype(jnp.result_type(float))
    unroll = min(4, len(ones))
    return jax.lax.fori_loop(0, len(ones), add, jnp.zeros_like(ones), unroll=unroll)


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


def rounding_unit() -> float:
    """The gap between 1 and the next number of JAX's current type of floats."""
    return float(jnp.finfo(jnp.result_type(float)).eps)


def cancelling_statistics(program: ConjugateProgram, means: Points) -> set[str]:
    """The statistics in whose entries large numbers of one row may cancel."""
    terms = program.centred_terms if means else program.row_terms
    by_statistic = _by_statistic(program.structure, terms)
    return {name for name, entries in by_statistic.items() if _may_cancel(entries)}


def _may_cancel(entries: Sequence[Entry]) -> bool:
    """Whether a statistic is a sum, of several terms or within one."""
    if len(entries) > 1:
        return True
    term, labels = entries[0]
    return any(label.size > 1 and label not in labels for label in term.bound)


# --- statistics that no row changes ---------------------------------------------------


def public_statistics(
    program: ConjugateProgram, expected_natural: ByStatistic, sweeps: int
) -> NewByStatistic:
    """One row's contribution to each public statistic; every row has the same.

    Of a row's latents, only those take part whose factors do not depend on private
    rows.
    """
    structure = program.structure
    alike = dataclasses.replace(
        structure,
        posterior_factors={
            name: factor
            for name, factor in structure.posterior_factors.items()
            if factor.role == "global" or name not in structure.data_dependent_factors
        },
    )
    terms = [
        term
        for term in program.row_terms
        if not term.is_private
        and locals_of(structure, term) <= set(alike.posterior_factors)
    ]
    factors = solve_row(alike, terms, {}, expected_natural, sweeps)
    local_moments = {name: moments for name, (moments, _) in factors.items()}
    released = [
        term
        for term in terms
        if (found := binding(structure, term)) and found[0].release == "public"
    ]
    gradients = jax.grad(
        lambda natural: expected(structure, released, natural, local_moments)
    )(dict(expected_natural))
    return {
        s.name: as_block(s, gradients[s.name])
        for s in structure.statistics
        if s.release == "public"
    }


# --- blocks ---------------------------------------------------------------------------


def as_block(statistic: Statistic, array: Float[Array, "..."]) -> Float[Array, "..."]:
    """What is released of a statistic: symmetric ones symmetrised, or hollow."""
    if statistic.matrix is None:
        return array
    batch, rows, columns = statistic.matrix
    array = array.transpose(*batch, *rows, *columns)
    array = array.reshape(statistic.block_shape)
    array = 0.5 * (array + jnp.swapaxes(array, -1, -2))
    return array if statistic.diagonal is None else without_diagonal(array)


def with_repeats(
    statistics: Sequence[Statistic],
    blocks: ByStatistic | Sums,
) -> dict[str, Float[Array | np.ndarray, "..."]]:
    """Released blocks, with the diagonals that repeat others put back."""
    found = dict(blocks)
    for statistic in statistics:
        if statistic.diagonal is not None and statistic.name in blocks:
            diagonal = statistic.diagonal.of(blocks[statistic.diagonal.statistic])
            found[statistic.name] = with_diagonal(blocks[statistic.name], diagonal)
    return found


def from_block(statistic: Statistic, block: Float[Array, "..."]) -> Float[Array, "..."]:
    """The statistic in its own shape, from its block with the diagonal."""
    if statistic.matrix is None:
        return block
    order = [axis for part in statistic.matrix for axis in part]
    array = block.reshape([statistic.shape[i] for i in order])
    return array.transpose([order.index(i) for i in range(len(order))])
