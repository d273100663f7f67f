"""Rules for sums, maxima, products and contractions along axes.

A maximum is known only as the shift of a logsumexp, which cancels.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import (
    Dense,
    Label,
    Labels,
    NotInAlgebra,
    Term,
)
from numpyro_vips.conjugacy.interpreter.values import (
    Constant,
    Rule,
    Shift,
    Shifted,
    ShiftIsFinite,
    SumOfExp,
    Transformed,
    Value,
    as_form,
    exponents_of,
    is_exp,
    is_uniform,
    latents_of,
    logarithm_of,
    names_of,
    rule_for,
)

RULES: dict[str, Rule] = {}


def apply_to_shift(eqn: Any, operands: Sequence[Value]) -> Value:
    """Lets a maximum pass to the places where it is subtracted and added back."""
    shape = tuple(eqn.outvars[0].aval.shape)
    shift = next(operand for operand in operands if isinstance(operand, Shift))
    same = dataclasses.replace(shift, shape=shape)
    match eqn.primitive.name, operands:
        case "sub", (Form() | Constant() as x, Shift()):
            form = forms.broadcast(as_form(x), tuple(map(Label, shape)))
            return Shifted(
                shift.reason, shift.latents, shape, form, shift.origin, "difference"
            )
        case ("add", (Shifted(stage="log") as log, _)) | (
            "add",
            (_, Shifted(stage="log") as log),
        ) if log.origin is shift.origin and log.shape == shape:
            return Transformed("logsumexp", log.form)
        case "max", (Constant() as bound, _) if is_uniform(bound, -math.inf):
            return same
        case "is_finite", _:
            return ShiftIsFinite(shift.reason, shift.latents, shape, shift.origin)
        case "select_n", (ShiftIsFinite(), Constant(), Shift()):
            return same
        case name, (_,) if name in _STRUCTURAL:
            return same
    raise NotInAlgebra(shift.reason)


_STRUCTURAL = {
    "broadcast_in_dim", "copy", "expand_dims", "reshape", "squeeze", "stop_gradient",
    "transpose",
}  # fmt: skip


@rule_for(RULES, "reduce_max")
def _reduce_max(eqn: Any, x: Value) -> Value:
    latents = latents_of(x)
    shape = tuple(eqn.outvars[0].aval.shape)
    return Shift(f"a maximum of {names_of(latents)}", latents, shape, object())


def _exponent(x: Value) -> tuple[Form, Any] | None:
    """The form in exp(form), and the maximum that was taken from it, if any."""
    if is_exp(x):
        return x.form, None
    if isinstance(x, Shifted) and x.stage == "exp":
        return x.form, x.origin
    return None


@rule_for(RULES, "reduce_sum")
def _reduce_sum(eqn: Any, x: Value) -> Value:
    axes = eqn.params["axes"]
    inner = _exponent(x)
    if inner is not None and len(axes) == 1:
        form, origin = inner
        kept = [a for i, a in enumerate(form.axes) if i not in axes]
        last = forms.reorder(form, (*kept, form.axes[axes[0]]))
        return _sum_of_exp(last, origin)
    return forms.sum_over(as_form(x), axes)


def _sum_of_exp(form: Form, origin: object | None = None) -> SumOfExp:
    reason = f"a sum of exponentials of {names_of(form.latents)}"
    return SumOfExp(reason, form.latents, form.shape[:-1], form, origin)


@rule_for(RULES, "dot_general")
def _dot_general(eqn: Any, x: Value, y: Value) -> Value:
    (contract_x, contract_y), (batch_x, batch_y) = eqn.params["dimension_numbers"]
    logarithms = exponents_of([x, y]) if len(contract_x) == 1 else None
    x, y = logarithms or (as_form(x), as_form(y))
    batch = tuple(Label(x.axes[axis].size) for axis in batch_x)
    summed = tuple(Label(x.axes[axis].size) for axis in contract_x)
    shared = (*batch, *summed)
    axes_x = _named_axes(x, dict(zip((*batch_x, *contract_x), shared, strict=True)))
    axes_y = _named_axes(y, dict(zip((*batch_y, *contract_y), shared, strict=True)))
    left = forms.place(x, axes_x)
    right = forms.place(y, axes_y)
    every = dict.fromkeys((*batch, *axes_x, *axes_y))
    kept = tuple(axis for axis in every if axis not in summed)
    if logarithms is None:
        return forms.product(left, right, kept, summed)
    axes = (*kept, *summed)
    left = forms.place(left, axes, [axes.index(a) for a in axes_x])
    right = forms.place(right, axes, [axes.index(a) for a in axes_y])
    return _sum_of_exp(left + right)


def _named_axes(form: Form, names: Mapping[int, Label]) -> Labels:
    return tuple(names.get(i, Label(a.size)) for i, a in enumerate(form.axes))


@rule_for(RULES, "cumsum")
def _cumsum(eqn: Any, x: Value) -> Value:
    return _cumulative(eqn, as_form(x))


@rule_for(RULES, "cumprod", "reduce_prod")
def _product(eqn: Any, x: Value) -> Value:
    logarithm, name = logarithm_of(x), eqn.primitive.name
    if logarithm is None:
        raise NotInAlgebra(f"{name} of {names_of(latents_of(x))}")
    if name == "cumprod":
        return Transformed("exp", _cumulative(eqn, logarithm))
    return Transformed("exp", forms.sum_over(logarithm, eqn.params["axes"]))


def _cumulative(eqn: Any, form: Form) -> Form:
    axis = eqn.params["axis"]
    old, new = form.axes[axis], Label(form.axes[axis].size)
    lower = np.tril(np.ones((old.size, old.size)))
    array = lower.T if eqn.params["reverse"] else lower
    sums = Form((new, old), (Term(1.0, (Dense(array, (new, old)),)),))
    axes = (*form.axes[:axis], new, *form.axes[axis + 1 :])
    return forms.product(sums, form, axes, (old,))
