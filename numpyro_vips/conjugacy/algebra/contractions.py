"""Contractions of arrays with labelled axes: gathers and einsums.

Public arrays stay in NumPy; what is made with a private one is traced.
"""

import functools
import string
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra.terms import (
    ArrayLike,
    Dense,
    Factor,
    Label,
    Labels,
    NotInAlgebra,
    OneHot,
    is_public,
    labels_of,
)
from numpyro_vips.model.sparse_rows import scattered

# Single-precision numbers in a vector that XLA makes for the common processors.
_LANES = 8


def constant_product(scale: float, values: Sequence[Factor]) -> Dense:
    """The product of constants, as one."""
    value = values[0] if len(values) == 1 and scale == 1.0 else None
    if isinstance(value, Dense):
        return Dense(value.array, value.labels, value.is_private)
    union = tuple(dict.fromkeys(label for x in values for label in labels_of(x)))
    array: ArrayLike = np.asarray(scale)
    is_private = False
    for value in values:
        if not isinstance(value, Dense):
            raise NotInAlgebra("a selection that is not of constants")
        array = array * expand_to(value.array, value.labels, union)
        is_private = is_private or value.is_private
    return Dense(array, union, is_private)


def expand_to(array: ArrayLike, labels: Labels, union: Labels) -> ArrayLike:
    """Transposes and inserts axes of length 1, to broadcast against `union`."""
    order = [labels.index(label) for label in union if label in labels]
    array = array.transpose(order)
    sizes = iter(array.shape)
    return array.reshape([next(sizes) if x in labels else 1 for x in union])


def gather(
    array: ArrayLike,
    labels: Labels,
    indices: ArrayLike,
    index_labels: Labels,
    target: Label,
) -> tuple[ArrayLike, Labels]:
    """Replaces the axis `target` of an array by what `indices` picks along it."""
    # A label that occurs twice stands for a diagonal.
    kept = tuple(dict.fromkeys(label for label in labels if label is not target))
    union = (*index_labels, *(label for label in kept if label not in index_labels))
    xp = np if is_public(array) and is_public(indices) else jnp
    if is_public(indices):
        # JAX keeps one copy of an array for programs of either precision: a new one.
        indices = np.maximum(indices, 0).astype(np.int32)
    else:
        indices = jnp.maximum(indices, 0)
    if not set(index_labels) & set(kept) and len(kept) == len(labels) - 1:
        moved = xp.moveaxis(array, labels.index(target), 0)
        return moved[indices], (*index_labels, *kept)
    selectors = []
    for label in labels:
        if label is target:
            selectors.append(expand_to(indices, index_labels, union))
        else:
            index = np.arange(label.size)
            selectors.append(expand_to(index, (label,), union))
    return array[tuple(selectors)], union


def contract(
    scale: float,
    operands: Sequence["tuple[ArrayLike, Labels] | OneHot"],
    output: Labels,
    *,
    cut: bool = True,
) -> ArrayLike:
    """Evaluates scale · Σ Π operands, with the labels of `output` kept.

    Selections are applied as gathers to the operands they select from, so that a
    one-hot array is made only where there is nothing to gather from.

    An operand may be longer than its labels say, if it is zero from there on, as are
    those that are `padded` for speed. So may the result be, unless it is to be cut.
    """
    operands = [x if isinstance(x, OneHot) else (as_real(x[0]), x[1]) for x in operands]
    densified = _densified(scale, operands, output)
    if densified is not None:
        return densified
    arrays = [operand for operand in operands if not isinstance(operand, OneHot)]
    by_target: dict[Label, list[OneHot]] = {}
    for operand in operands:
        if isinstance(operand, OneHot):
            by_target.setdefault(operand.target, []).append(operand)
    for target, one_hots in by_target.items():
        used = any(target in labels for _, labels in arrays)
        if target in output or not (used or len(one_hots) > 1):
            arrays += map(one_hot_array, one_hots)
        else:
            arrays = _selected(arrays, target, one_hots)
    arrays = _equally_long(arrays)
    arrays = _without_public_vectors(arrays, output)
    all_public = all(is_public(array) for array, _ in arrays)
    xp: Any = np if all_public else jnp
    if not arrays:
        return np.broadcast_to(np.asarray(scale), [label.size for label in output])
    letters: dict[Label, str] = {}
    pool = iter(string.ascii_letters)
    for _, labels in arrays:
        for label in labels:
            if label not in letters:
                letters[label] = next(pool)
    inputs = ",".join("".join(letters[x] for x in labels) for _, labels in arrays)
    kept = tuple(label for label in output if label in letters)
    einsum: Any = np.einsum if all_public else _einsum
    result = einsum(
        f"{inputs}->{''.join(letters[label] for label in kept)}",
        *(array for array, _ in arrays),
        optimize="greedy" if len(arrays) > 2 else False,
    )
    if cut:
        result = result[tuple(slice(label.size) for label in kept)]
    result = expand_to(result * scale, kept, output)
    sizes = zip(output, result.shape, strict=True)
    return xp.broadcast_to(result, [max(label.size, n) for label, n in sizes])


@functools.partial(jax.jit, static_argnums=0, static_argnames="optimize", inline=True)
def _einsum(subscripts: str, *arrays: jax.Array, optimize: Any) -> jax.Array:
    """`jnp.einsum`, traced once for all arrays of the same shapes.

    A row's norm, its sum and their checks make the same products. Norms must bound
    sums, so no accelerator may round these to half floats.
    """
    return jnp.einsum(subscripts, *arrays, optimize=optimize, precision="highest")


def as_real(array: ArrayLike) -> ArrayLike:
    """An array of real numbers, as products and sums are to be made of.

    Integers of a row, such as counts, would be multiplied as integers: 65536 squared is
    zero in 32 bits, so that a row could have any size at a norm of zero. And the sum of
    truth values is a number, where einsum's own is whether there is any.
    """
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array * 1.0


def padded(array: jax.Array) -> jax.Array:
    """Zeros behind the last axis, up to a whole number of vectors of the processor.

    XLA multiplies what is left over one number after the other: rows of 56 by a vector
    are faster than rows of 50. No more than half is added.
    """
    size = array.shape[-1]
    missing = -size % _LANES
    if missing > size / 2:
        return array
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])


def _equally_long(
    arrays: "list[tuple[ArrayLike, Labels]]",
) -> "list[tuple[ArrayLike, Labels]]":
    """Pads operands with zeros where another one is longer than its label."""
    longer: dict[Label, int] = {}
    for array, labels in arrays:
        for label, size in zip(labels, array.shape, strict=True):
            if size > label.size:
                longer[label] = size
    if not longer:
        return arrays
    found = []
    for array, labels in arrays:
        missing = [
            (0, longer.get(label, size) - size if size == label.size else 0)
            for label, size in zip(labels, array.shape, strict=True)
        ]
        xp: Any = np if is_public(array) else jnp
        found.append((xp.pad(array, missing), labels))
    return found


def _selected(
    arrays: "Sequence[tuple[ArrayLike, Labels]]",
    target: Label,
    one_hots: Sequence[OneHot],
) -> "list[tuple[ArrayLike, Labels]]":
    """Arrays whose sum over the target is that of the given ones and of the one-hots.

    The first index picks from the arrays, and any other has to be equal to it:
    Σ_v a_v 1[v=i] 1[v=j] is a_i 1[i=j]. A row with an index out of range never counts.
    """
    first, *others = one_hots
    found = []
    for array, labels in arrays:
        if target in labels:
            array, labels = gather(array, labels, first.indices, first.labels, target)
        found.append((array, labels))
    if first.may_pick_none:
        present = (first.indices >= 0).astype(np.float32)
        found.append((present, first.labels))
    for other in others:
        union = tuple(dict.fromkeys((*first.labels, *other.labels)))
        equal = expand_to(first.indices, first.labels, union) == expand_to(
            other.indices, other.labels, union
        )
        found.append((equal.astype(np.float32), union))
    return found


def _densified(
    scale: float,
    operands: Sequence["tuple[ArrayLike, Labels] | OneHot"],
    output: Labels,
) -> ArrayLike | None:
    """A product that an argument's entries put at their places along `output`.

    Returns:
      None if the operands are not of this form.
    """
    one_hots = [o for o in operands if isinstance(o, OneHot) and o.target in output]
    one_hot = one_hots[0] if len(one_hots) == 1 else None
    if one_hot is None or one_hot.origin is None:
        return None
    rest = [operand for operand in operands if operand is not one_hot]
    *leading, entry = one_hot.labels
    used = [x for o in rest for x in (labels_of(o) if isinstance(o, OneHot) else o[1])]
    if one_hot.target in used or entry in output or not set(leading) <= set(output):
        return None
    one_hot.origin.densify("an array of all its entries")
    others = [x for x in output if x is not one_hot.target and x not in leading]
    placed = (*leading, *others, entry)
    values = jnp.asarray(contract(scale, rest, placed))
    shape = [x.size if x in leading else 1 for x in placed[:-1]]
    indices = jnp.reshape(one_hot.indices, (*shape, entry.size))
    indices = jnp.broadcast_to(indices, values.shape)
    whole = scattered(indices, values, one_hot.target.size, 0)
    labels = (*leading, *others, one_hot.target)
    return whole.transpose([labels.index(x) for x in output])


def _without_public_vectors(
    arrays: "list[tuple[ArrayLike, Labels]]", output: Labels
) -> "list[tuple[ArrayLike, Labels]]":
    """Contracts known vectors, such as the values of a latent's states, at once.

    The einsum's own order knows nothing of a batch of rows: it would take the states
    along through the large contractions.
    """
    rest = list(arrays)
    for vector in arrays:
        array, labels = vector
        if not is_public(array) or len(labels) != 1 or labels[0] in output:
            continue
        users = [x for x in rest if x is not vector and labels[0] in x[1]]
        if len(users) != 1 or users[0][1].count(labels[0]) != 1:
            continue
        other, its_labels = users[0]
        axis = its_labels.index(labels[0])
        product = _times_vector(other, array, axis)
        kept = tuple(label for label in its_labels if label is not labels[0])
        rest = [x for x in rest if x is not vector and x is not users[0]]
        rest.append((product, kept))
    return rest


def _times_vector(array: ArrayLike, vector: np.ndarray, axis: int) -> ArrayLike:
    """The sum over an axis, with a known vector's weights."""
    xp: Any = np if is_public(array) else jnp
    if len(vector) > _LANES:
        precision = {} if is_public(array) else {"precision": "highest"}
        return xp.tensordot(array, vector, ((axis,), (0,)), **precision)
    # Unlike a dot product, a few slices become one loop with what is around them.
    before = (slice(None),) * axis
    total = xp.zeros_like(array[(*before, 0)])
    for i in np.flatnonzero(vector):
        total = total + vector[i] * array[(*before, i)]
    return total


def one_hot_array(one_hot: OneHot) -> tuple[ArrayLike, Labels]:
    xp = np if is_public(one_hot.indices) else jnp
    states = np.arange(one_hot.target.size)
    array = (one_hot.indices[..., None] == states).astype(xp.float32)
    return array, (*one_hot.labels, one_hot.target)
