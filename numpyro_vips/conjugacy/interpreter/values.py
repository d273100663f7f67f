"""The values that a model's program takes in the algebra of forms.

Constants are arrays (public ones in NumPy, so that they may shape the program; private
ones traced, so that they cannot). What depends on a latent variable is a form, one of
the few functions of a form that likelihoods know (`Transformed`), or `Opaque`, which
remembers the reason. Some opaque values are on their way to a function that is known,
such as a logsumexp that is written out.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.scatters import Scatter
from numpyro_vips.conjugacy.algebra.terms import (
    Dense,
    Label,
    NotInAlgebra,
    OneHot,
    Origin,
    is_public,
)
from numpyro_vips.errors import quoted


@dataclasses.dataclass(frozen=True, eq=False)
class Entries:
    """Which entries of a row's constant differ along its last axis, and what they are.

    Attributes:
      indices, values: Positions and values of the entries, (..., width); see
        `SparseRows`.
      elsewhere: What all others are, a public number of the constant's type.
      origin: The argument whose entries they are.
    """

    indices: Any
    values: Any
    elsewhere: np.ndarray
    origin: Origin


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A value without latents.

    `array` is a NumPy array only if it is public; `is_private` says whether it depends
    on private rows, and `nonnegative` that no entry is negative, whatever the rows
    hold. `entries` is set where all but a few are alike; `array` is then better left
    alone.
    """

    array: Any
    is_private: bool
    nonnegative: bool = False
    entries: Entries | None = None

    @property
    def is_public(self) -> bool:
        return is_public(self.array)

    def dense(self, reason: str) -> Any:
        """The array, for what entries are not enough for."""
        if self.entries is not None:
            self.entries.origin.densify(reason)
        return self.array


@dataclasses.dataclass(frozen=True, eq=False)
class Transformed:
    """`function` of a form: "exp", "sigmoid", or "logsumexp" over its last axis."""

    function: str
    form: Form

    @property
    def latents(self) -> set[str]:
        return self.form.latents


@dataclasses.dataclass(frozen=True, eq=False)
class Opaque:
    """A function of latents outside the algebra."""

    reason: str
    latents: set[str]
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class OnePlusExp(Opaque):
    """1 + exp(form), on its way to a sigmoid."""

    form: Form


@dataclasses.dataclass(frozen=True, eq=False)
class Shift(Opaque):
    """A maximum, on its way to be subtracted before an exponential and added back.

    log Σ exp(x - m) + m is the logsumexp of x whatever m is, so no more has to be known
    of it than its origin. Any other use of a maximum leaves the algebra.
    """

    origin: object


@dataclasses.dataclass(frozen=True, eq=False)
class ShiftIsFinite(Opaque):
    """Whether a maximum is finite, by which logsumexp replaces an infinite one."""

    origin: object


@dataclasses.dataclass(frozen=True, eq=False)
class Shifted(Opaque):
    """form - m, exp(form - m), or log Σ exp(form - m) over the last axis.

    `stage` says which: "difference", "exp" or "log".
    """

    form: Form
    origin: object
    stage: str


@dataclasses.dataclass(frozen=True, eq=False)
class SumOfExp(Opaque):
    """Σ exp(form) over the last axis, on its way to a logsumexp.

    With an `origin`, the maximum from there has been subtracted.
    """

    form: Form
    origin: object | None = None


Value = Constant | Form | Transformed | Opaque


def latents_of(value: Value) -> set[str]:
    """The latents that a value depends on."""
    return set() if isinstance(value, Constant) else value.latents


def as_form(value: Value) -> Form:
    """The value as a form.

    Raises:
      NotInAlgebra: It is not one; the message says what stands in the way.
    """
    if isinstance(value, Form):
        return value
    if isinstance(value, Constant):
        entries = value.entries
        if entries is not None and np.isfinite(entries.elsewhere):
            form = _form_of_entries(value.array.shape, entries)
        else:
            array = value.dense("a function without a value at zero")
            form = forms.constant(array, is_private=value.is_private)
        return forms.within(form, 0.0, math.inf) if value.nonnegative else form
    if isinstance(value, Transformed):
        product = elementwise.exponential(value.form) if is_exp(value) else None
        if product is not None:
            return product
        raise NotInAlgebra(f"{value.function} of {names_of(value.latents)}")
    raise NotInAlgebra(value.reason)


def _form_of_entries(shape: tuple[int, ...], entries: Entries) -> Form:
    axes = tuple(map(Label, shape))
    labels = (*axes[:-1], Label(entries.values.shape[-1]))
    elsewhere = float(entries.elsewhere)
    # The same array where nothing is subtracted, so that factors stay recognisable.
    values = entries.values if elsewhere == 0.0 else entries.values - elsewhere
    scatter = Scatter(
        Dense(values, labels, is_private=True),
        OneHot(
            entries.indices, labels, axes[-1], is_private=True, origin=entries.origin
        ),
        elsewhere,
    )
    return Form(axes, scatter.terms, False)


def names_of(latents: set[str]) -> str:
    """Latents as error messages list them."""
    return quoted(sorted(latents), "constants")


# A rule returns one value, or a list of them where its primitive has several results.
Rule = Callable[..., Any]


def rule_for(rules: dict[str, Rule], *names: str) -> Callable[[Rule], Rule]:
    """Enters a rule under the names of its primitives."""

    def register(rule: Rule) -> Rule:
        for name in names:
            rules[name] = rule
        return rule

    return register


def is_exp(value: Value) -> TypeGuard[Transformed]:
    """Whether a value is exp(form)."""
    return isinstance(value, Transformed) and value.function == "exp"


def is_sigmoid(value: Value) -> TypeGuard[Transformed]:
    """Whether a value is sigmoid(form)."""
    return isinstance(value, Transformed) and value.function == "sigmoid"


def is_logsumexp(value: Value) -> TypeGuard[Transformed]:
    """Whether a value is the logsumexp of a form over its last axis."""
    return isinstance(value, Transformed) and value.function == "logsumexp"


def logarithm_of(value: Value) -> Form | None:
    """log(value) of exp(form), a constant, or a product that is never negative."""
    if isinstance(value, Transformed):
        return value.form if is_exp(value) else None
    if isinstance(value, Constant):
        log = Constant(traced_or_public(lambda a: jnp.log(a), value), value.is_private)
        return as_form(log)
    if not isinstance(value, Form) or may_be_negative(value):
        return None
    try:
        return elementwise.log(value)
    except NotInAlgebra:
        return None


def may_be_negative(form: Form) -> bool:
    """False if every term of a form has factors that are never negative."""
    return any(
        term.scale < 0 or any(atom.signed for atom in term.atoms) for term in form.terms
    )


def sum_of_exponents(x: Value, y: Value) -> Form | None:
    """log(x·y) where one is exp(form) and the other has a logarithm."""
    if not is_exp(x) and not is_exp(y):
        return None
    first, second = logarithm_of(x), logarithm_of(y)
    return None if first is None or second is None else first + second


def exponents_of(parts: Sequence[Value]) -> list[Form] | None:
    """Logarithms of values of which one is exp(form), if all have one."""
    if not any(map(is_exp, parts)):
        return None
    logarithms = [logarithm_of(part) for part in parts]
    return None if None in logarithms else [log for log in logarithms if log]


def traced_or_public(function: Callable[[Any], Any], value: Constant) -> Any:
    """A function of a constant: evaluated now if its values are public, else traced."""
    if value.is_public:
        with np.errstate(all="ignore"), jax.ensure_compile_time_eval():
            return np.asarray(function(value.array))
    return function(value.dense("a logarithm"))


def is_uniform(value: Value, number: float) -> bool:
    """Whether a value is a public constant all of whose entries are this number."""
    return (
        isinstance(value, Constant)
        and value.is_public
        and bool(np.all(value.array == number))
    )
