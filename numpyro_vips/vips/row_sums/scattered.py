"""Statistics that a row's indices scatter, kept as the few entries that they are."""

import dataclasses
import functools
import math
from collections.abc import Collection, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from numpyro_vips.conjugacy.algebra.contractions import contract
from numpyro_vips.conjugacy.algebra.terms import Labels, OneHot, Term, labels_of
from numpyro_vips.conjugacy.structure.geometry import Entry, is_global
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.program.expectations import (
    constants,
    labels_of_operand,
    moment_operands,
    terms_by_statistic,
)
from numpyro_vips.vips.program.named_arrays import MomentsByFactor
from numpyro_vips.vips.program.program import ConjugateProgram


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
    for name, entries in terms_by_statistic(structure, terms).items():
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
        for name, entries in terms_by_statistic(program.structure, terms).items():
            _, labels = entries[0]
            numbers = [number(scatter, labels) for scatter in _scatters(entries[0])]
            # Of several terms each row's are added up beforehand, see `bounded_sum`.
            if len(entries) == 1 and numbers:
                found[name] = max(found.get(name, 1), *numbers)
    return found


def in_units(scattered: Scattered, units: Float[Array, "..."] | None) -> Scattered:
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


def square_of_scattered(scattered: Scattered) -> Float[Array, ""]:
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
