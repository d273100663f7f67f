"""Rules for gathers and updates, at positions that latents or rows may choose."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.contractions import constant_product
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import (
    Label,
    Labels,
    NotInAlgebra,
    OneHot,
    Term,
    is_public,
    split_selectors,
)
from numpyro_vips.conjugacy.interpreter.axis_rules import reshape_to, take_public
from numpyro_vips.conjugacy.interpreter.values import (
    Constant,
    Rule,
    Transformed,
    Value,
    as_form,
    rule_for,
)
from numpyro_vips.jax_tools.jaxprs import aval_of

RULES: dict[str, Rule] = {}


@rule_for(RULES, "gather")
def _gather(eqn: Any, operand: Value, indices: Value) -> Value:
    """A gather as selections by one-hots, one along each indexed axis.

    Args:
      eqn: The gather.
      operand: What is picked from.
      indices: Which entries, with the components of an index along the last axis.

    Raises:
      NotInAlgebra: It takes a part of an axis at a place that is not public, or an
        index depends on a continuous latent.
    """
    if isinstance(operand, Transformed):
        inner = _gather(eqn, operand.form, indices)
        return Transformed(operand.function, as_form(inner))
    numbers = eqn.params["dimension_numbers"]
    source, where = as_form(operand), as_form(indices)
    shape = tuple(aval_of(eqn.outvars[0]).shape)
    axes = tuple(map(Label, shape))
    batch_positions = [i for i in range(len(shape)) if i not in numbers.offset_dims]
    batch_axes = tuple(axes[i] for i in batch_positions)
    sliced = [
        axis
        for axis in range(len(source.axes))
        if axis not in numbers.collapsed_slice_dims
        and axis not in numbers.operand_batching_dims
    ]
    full = dict(zip(sliced, numbers.offset_dims, strict=True))
    for axis in sliced:
        length = eqn.params["slice_sizes"][axis]
        indexed = axis in numbers.start_index_map and source.axes[axis].size > 1
        start = _start(where, numbers.start_index_map.index(axis)) if indexed else 0
        if start is None or not 0 <= start <= source.axes[axis].size - length:
            raise NotInAlgebra("a gather of part of an axis")
        source = take_public(source, axis, np.arange(start, start + length))
    selections: list[tuple[int, Form]] = []
    for component, axis in enumerate(numbers.start_index_map):
        if axis in full:
            continue
        index = take_public(where, len(where.axes) - 1, np.asarray([component]))
        index = forms.sum_over(index, [len(index.axes) - 1])
        if forms.is_single_choice(index):
            index = Form(index.axes, index.terms)
        selections.append((axis, forms.place(index, batch_axes)))
    for axis, position in zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    ):
        line = forms.constant(np.arange(source.axes[axis].size))
        selections.append((axis, forms.place(line, batch_axes, [position])))
    # Select along each indexed axis in turn; the axes kept whole are named last.
    names = {axis: axes[position] for axis, position in full.items()}
    named = tuple(names.get(i, Label(a.size)) for i, a in enumerate(source.axes))
    result = forms.place(source, named)
    for axis, index in selections:
        result = select_by(result, named[axis], index, batch_axes)
    ordered = tuple(axis for axis in axes if axis in result.axes)
    result = Form(ordered, result.terms, result.exclusive)
    return forms.place(result, axes, [axes.index(axis) for axis in ordered])


def _start(where: Form, component: int) -> int | None:
    """Where a window begins along one axis, None if that is not one public number."""
    if not where.is_constant:
        return None
    array = forms.constant_array(where)
    if not is_public(array) or array.size == 0:
        return None
    starts = np.unique(np.asarray(array)[..., component])
    return int(starts[0]) if len(starts) == 1 else None


def select_by(form: Form, axis: Label, index: Form, batch_axes: Labels) -> Form:
    """Selects along one axis by an index that may depend on discrete latents.

    Raises:
      NotInAlgebra: The index depends on a continuous latent.
    """
    if not index.is_discrete:
        raise NotInAlgebra("a gather at an index that is not discrete")
    kept = [a for a in form.axes if a is not axis]
    axes = (*kept, *(a for a in batch_axes if a not in kept))
    terms: list[Term] = []
    for choice in index.terms or (Term(0.0),):
        selectors, values = split_selectors(choice)
        numbers = constant_product(choice.scale, values)
        xp = np if is_public(numbers.array) else jnp
        indices = xp.round(numbers.array).astype(np.int32)
        target = Label(axis.size)
        one_hot = OneHot(indices, numbers.labels, target, numbers.is_private)
        for term in form.terms:
            renamed = term.renamed({axis: target})
            factors = (*renamed.factors, *selectors, one_hot)
            bound = renamed.bound | choice.bound | {target}
            terms.append(Term(term.scale, factors, bound).with_own_labels())
    return forms.simplified(axes, terms, form.exclusive)


@rule_for(RULES, "dynamic_slice")
def _dynamic_slice(eqn: Any, operand: Value, *starts: Value) -> Value:
    form = as_form(operand)
    for axis, (start, size) in enumerate(
        zip(starts, eqn.params["slice_sizes"], strict=True)
    ):
        length = form.axes[axis].size
        if size == length:
            continue
        if isinstance(start, Constant) and start.is_public:
            first = int(np.clip(int(start.array), 0, length - size))
            form = take_public(form, axis, np.arange(first, first + size))
            continue
        if size != 1:
            raise NotInAlgebra("a slice that starts at a value that is not public")
        renamed = tuple(Label(a.size) for a in form.axes)
        form = forms.place(form, renamed)
        chosen = select_by(form, renamed[axis], as_form(start), ())
        axes = (*renamed[:axis], Label(1), *renamed[axis + 1 :])
        form = forms.place(chosen, axes, [i for i in range(len(axes)) if i != axis])
    return form


@rule_for(RULES, "scatter", "scatter-add", "scatter-mul")
def _scatter(eqn: Any, operand: Value, indices: Value, updates: Value) -> Value:
    """`x.at[i].set(y)`, `add` and `multiply`, at public positions that differ."""
    if not isinstance(indices, Constant) or not indices.is_public:
        raise NotInAlgebra("an update at an index that is not public")
    shape = tuple(aval_of(eqn.outvars[0]).shape)
    targets, unique = _scattered(eqn, indices.array, shape)
    if not unique:
        raise NotInAlgebra("several updates of one entry")
    old, new = as_form(operand), as_form(updates)
    # Which update each entry gets; -1 where it gets none.
    source = np.asarray(targets).reshape(-1)
    size, group = math.prod(shape), object()

    def flat(form: Form, indices: np.ndarray, number: int) -> Form:
        form = reshape_to(form, (math.prod(form.shape),))
        form = take_public(form, 0, indices, branch=(group, number))
        form = reshape_to(form, shape)
        complete = form.exclusive and bool(form.terms)
        return Form(form.axes, form.terms, complete or bool(np.all(indices >= 0)))

    updated = flat(new, source, 0)
    if eqn.primitive.name == "scatter-add":
        return old + updated
    if eqn.primitive.name == "scatter-mul":
        kept = forms.constant((source < 0).astype(float).reshape(shape))
        return old * (updated + kept)
    kept = flat(old, np.where(source < 0, np.arange(size), -1), 1)
    placed = forms.place(kept, updated.axes)
    exclusive = updated.exclusive and placed.exclusive
    return Form(updated.axes, (*updated.terms, *placed.terms), exclusive)


def _scattered(
    eqn: Any, indices: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, bool]:
    """The number of the update that each entry gets, and whether none gets two."""
    updates = tuple(aval_of(eqn.invars[2]).shape)
    numbers = np.arange(math.prod(updates), dtype=np.int32).reshape(updates)
    options = {
        "dimension_numbers": eqn.params["dimension_numbers"],
        "mode": eqn.params["mode"],
    }
    with jax.ensure_compile_time_eval():
        nowhere, zero = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
        targets = jax.lax.scatter(nowhere, indices, numbers, **options)
        count = jax.lax.scatter_add(zero, indices, np.ones_like(numbers), **options)
    return np.asarray(targets), bool(np.all(np.asarray(count) <= 1))
