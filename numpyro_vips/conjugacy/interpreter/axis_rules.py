"""Rules for primitives that move, merge, cut or join axes at public positions.

Most work alike on a form and inside exp or sigmoid.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import (
    Branch,
    Label,
    Labels,
    NotInAlgebra,
    OneHot,
)
from numpyro_vips.conjugacy.interpreter.values import (
    Constant,
    Opaque,
    Rule,
    Shifted,
    SumOfExp,
    Transformed,
    Value,
    as_form,
    exponents_of,
    is_exp,
    is_logsumexp,
    rule_for,
)
from numpyro_vips.jax_tools.jaxprs import aval_of

RULES: dict[str, Rule] = {}


def with_last_axis(form: Form, axes: Labels) -> Form:
    form = forms.broadcast(form, axes)
    return forms.place(form, (*axes, Label(1)))


def stacked(parts: Sequence[Form]) -> Form:
    """Forms that broadcast against each other, along a new last axis."""
    axes = forms.common_axes(*parts)
    single = [with_last_axis(part, axes) for part in parts]
    shape = (*(axis.size for axis in axes), len(parts))
    return joined_forms(single, len(axes), shape)


def _has_states(x: Value) -> TypeGuard["Transformed | SumOfExp | Shifted"]:
    """Whether a value is a sum over the last axis of the form that it has."""
    return (
        isinstance(x, SumOfExp)
        or is_logsumexp(x)
        or (isinstance(x, Shifted) and x.stage == "log")
    )


def _structural(*names: str) -> Callable[[Callable[..., Form]], Rule]:
    """Enters a rule that changes axes only, on a form or inside exp or sigmoid."""

    def register(rule: Callable[..., Form]) -> Rule:
        def apply(eqn: Any, x: Value, *rest: Value) -> Value:
            if isinstance(x, Transformed) and x.function != "logsumexp":
                return Transformed(x.function, rule(eqn, x.form, *rest))
            if _has_states(x):
                # The states that are summed over are an axis that nothing sees.
                form = x.form
                states = form.axes[-1]
                seen = rule(eqn, Form(form.axes[:-1], form.terms), *rest)
                form = Form((*seen.axes, states), seen.terms, False)
                if isinstance(x, Opaque):
                    return dataclasses.replace(x, form=form, shape=seen.shape)
                return dataclasses.replace(x, form=form)
            return rule(eqn, as_form(x), *rest)

        for name in names:
            RULES[name] = apply
        return apply

    return register


@_structural("broadcast_in_dim")
def _broadcast_in_dim(eqn: Any, x: Form, *_: Value) -> Form:
    axes = tuple(map(Label, eqn.params["shape"]))
    return forms.place(x, axes, eqn.params["broadcast_dimensions"])


@_structural("transpose")
def _transpose(eqn: Any, x: Form) -> Form:
    return Form(
        tuple(x.axes[axis] for axis in eqn.params["permutation"]), x.terms, x.exclusive
    )


@_structural("squeeze")
def _squeeze(eqn: Any, x: Form) -> Form:
    return forms.sum_over(x, [axis % len(x.axes) for axis in eqn.params["dimensions"]])


@_structural("expand_dims")
def _expand_dims(eqn: Any, x: Form) -> Form:
    return reshape_to(x, tuple(aval_of(eqn.outvars[0]).shape))


@_structural("reshape")
def _reshape(eqn: Any, x: Form) -> Form:
    return reshape_to(x, tuple(eqn.params["new_sizes"]))


def reshape_to(x: Form, shape: tuple[int, ...]) -> Form:
    # Axes of length 1 come and go freely; what remains must be merged or split.
    x = forms.sum_over(x, [i for i, axis in enumerate(x.axes) if axis.size == 1])
    long = tuple(size for size in shape if size != 1)
    if x.shape != long:
        x = _merge_and_split(x, long)
    axes = tuple(map(Label, shape))
    positions = [i for i, size in enumerate(shape) if size != 1]
    return forms.place(x, axes, positions)


def _merge_and_split(x: Form, shape: tuple[int, ...]) -> Form:
    """Writes a reshape as one selection per old axis, indexed by the new ones."""
    size = math.prod(shape)
    new_axes = tuple(map(Label, shape))
    old = np.unravel_index(np.arange(size).reshape(shape), x.shape)
    result = x
    for indices in old:
        indices, kept = forms.without_constant_axes(np.asarray(indices))
        labels = tuple(new_axes[i] for i in kept)
        index = OneHot(indices, labels, Label(result.axes[0].size))
        # The selected axis is always the first one left; new axes collect behind.
        axes = (*result.axes[1:], *(a for a in labels if a not in result.axes))
        result = forms.select(result, 0, index, axes)
    order = [result.axes.index(axis) for axis in new_axes if axis in result.axes]
    kept_axes = tuple(result.axes[i] for i in order)
    ordered = Form(kept_axes, result.terms, result.exclusive)
    return forms.place(ordered, new_axes, [new_axes.index(axis) for axis in kept_axes])


@_structural("slice")
def _slice(eqn: Any, x: Form) -> Form:
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    for axis, (a, b, step) in enumerate(zip(starts, limits, strides, strict=True)):
        x = take_public(x, axis, np.arange(a, b, step))
    return x


@_structural("rev")
def _rev(eqn: Any, x: Form) -> Form:
    for axis in eqn.params["dimensions"]:
        x = take_public(x, axis, np.arange(x.axes[axis].size)[::-1])
    return x


@_structural("tile")
def _tile(eqn: Any, x: Form) -> Form:
    for axis, count in enumerate(eqn.params["reps"]):
        x = take_public(x, axis, np.tile(np.arange(x.axes[axis].size), count))
    return x


@rule_for(RULES, "split")
def _split(eqn: Any, x: Value) -> list[Value]:
    axis, start, parts = eqn.params["axis"], 0, []
    for size in eqn.params["sizes"]:
        parts.append(along_axis(x, axis, np.arange(start, start + int(size))))
        start += int(size)
    return parts


@rule_for(RULES, "unstack")
def _unstack(eqn: Any, x: Value) -> list[Value]:
    axis = eqn.params["axis"]
    return [
        along_axis(x, axis, np.arange(i, i + 1), squeeze=True)
        for i in range(len(eqn.outvars))
    ]


def along_axis(
    x: Value, axis: int, indices: np.ndarray, squeeze: bool = False
) -> Value:
    """Some entries along one axis, of a form or inside exp or sigmoid."""
    if isinstance(x, Transformed):
        return Transformed(
            x.function, as_form(along_axis(x.form, axis, indices, squeeze))
        )
    taken = take_public(as_form(x), axis, indices)
    return forms.sum_over(taken, [axis]) if squeeze else taken


@rule_for(RULES, "stack")
def _stack(eqn: Any, *parts: Value) -> Value:
    axis = eqn.params["axis"]
    whole = tuple(aval_of(eqn.outvars[0]).shape)
    shape = list(whole)
    shape[axis] = 1

    def joined(parts: Sequence[Form]) -> Form:
        return joined_forms([reshape_to(p, tuple(shape)) for p in parts], axis, whole)

    return _applied_to_all(joined, parts)


def _applied_to_all(
    function: Callable[[Sequence[Form]], Form], parts: Sequence[Value]
) -> Value:
    """What joins forms, also applied to exp(form)s and to values with a logarithm."""
    exponents = exponents_of(parts)
    if exponents is not None:
        return Transformed("exp", function(exponents))
    return function([as_form(part) for part in parts])


def take_public(
    x: Form, axis: int, indices: np.ndarray, branch: Branch | None = None
) -> Form:
    """Selects public positions along one axis, -1 giving zero."""
    if np.array_equal(indices, np.arange(x.axes[axis].size)):
        return x
    new = Label(len(indices))
    axes = (*x.axes[:axis], new, *x.axes[axis + 1 :])
    index = OneHot(indices, (new,), Label(x.axes[axis].size), branch=branch)
    return forms.select(x, axis, index, axes)


@rule_for(RULES, "concatenate")
def _concatenate(eqn: Any, *parts: Value) -> Value:
    shape, axis = tuple(aval_of(eqn.outvars[0]).shape), eqn.params["dimension"]
    return concatenated(parts, axis, shape)


def concatenated(parts: Sequence[Value], axis: int, shape: tuple[int, ...]) -> Value:
    return _applied_to_all(lambda each: joined_forms(each, axis, shape), parts)


def joined_forms(parts: Sequence[Form], axis: int, shape: tuple[int, ...]) -> Form:
    """Concatenates forms along an axis."""
    taken, offset = [], 0
    for form in parts:
        length = form.axes[axis].size
        indices = np.arange(shape[axis]) - offset
        inside = (indices >= 0) & (indices < length)
        taken.append((form, np.where(inside, indices, -1)))
        offset += length
    return _merged(taken, axis, shape)


def _merged(
    taken: Sequence[tuple[Form, np.ndarray]], axis: int, shape: tuple[int, ...]
) -> Form:
    """A form of which each entry along an axis is taken from one of several forms.

    Args:
      taken: The forms, and which entry of each is where; -1 where none of its is.
      axis: The axis.
      shape: That of the result.
    """
    axes = tuple(map(Label, shape))
    group, terms, exclusive = object(), [], True
    for number, (form, indices) in enumerate(taken):
        placed = take_public(form, axis, indices, branch=(group, number))
        terms += forms.place(placed, axes).terms
        exclusive = exclusive and form.exclusive and bool(form.terms)
    return Form(axes, tuple(terms), exclusive)


@rule_for(RULES, "pad")
def _pad(eqn: Any, x: Value, fill: Value) -> Value:
    if not isinstance(fill, Constant) or not fill.is_public:
        raise NotInAlgebra("padding with a value that is not public")
    number = float(fill.array)
    if is_exp(x) and number > 0:
        return Transformed("exp", _padded(eqn, x.form, math.log(number)))
    return _padded(eqn, as_form(x), number)


def _padded(eqn: Any, form: Form, fill: float) -> Form:
    for axis, (low, high, interior) in enumerate(eqn.params["padding_config"]):
        size = form.axes[axis].size
        line = np.full(max(size + (size - 1) * interior, 0), -1)
        line[:: interior + 1] = np.arange(size)
        line = np.concatenate([np.full(max(low, 0), -1), line[max(-low, 0) :]])
        line = line[: len(line) + min(high, 0)]
        line = np.concatenate([line, np.full(max(high, 0), -1)])
        if np.all(line >= 0):
            form = take_public(form, axis, line)
        elif fill == 0.0:
            taken = take_public(form, axis, line)
            form = dataclasses.replace(taken, exclusive=False)
        else:
            before, behind = form.shape[:axis], form.shape[axis + 1 :]
            blank = forms.constant(np.full((*before, 1, *behind), fill))
            taken = [(form, line), (blank, np.where(line < 0, 0, -1))]
            form = _merged(taken, axis, (*before, len(line), *behind))
    return form
