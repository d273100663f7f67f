"""The algebra in which a model's links and log densities are written.

A `Form` is an array-valued expression in the latent variables: a sum of terms, each
a contraction of constants and of views of latents (see `terms`),

    form[axes] = Σ_terms scale · Σ_(bound labels) Π factors.

Here are its constructors, what changes its axes, and sums and products. Functions of
forms are in `elementwise` and `matrices`.

An *exclusive* form has, at every position and in every state of the discrete latents,
exactly one product that is not switched off by a selector (a one-hot, an indicator, a
branch of `where`). Elementwise functions pass through selectors, so exclusive forms
have powers and logarithms: `1 / sqrt(tau[z])` is one, `X @ w + b` is not.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra.contractions import contract
from numpyro_vips.conjugacy.algebra.normal_form import simplify, without_lost_labels
from numpyro_vips.conjugacy.algebra.scatters import as_scatter, map_scatters
from numpyro_vips.conjugacy.algebra.terms import (
    ArrayLike,
    Atom,
    Dense,
    Label,
    Labels,
    OneHot,
    Term,
    is_public,
    picked_labels,
    range_of,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
    """An array that is a sum of products of constants and functions of latents.

    Attributes:
      axes: The labels of its axes, of which every term may have any.
      terms: What is added up; none for zero.
      exclusive: Whether exactly one product is not switched off by a selector, at every
        position and in every state, so that functions pass through selectors.
    """

    axes: Labels
    terms: tuple[Term, ...]
    exclusive: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    @property
    def latents(self) -> set[str]:
        return {atom.latent for term in self.terms for atom in term.atoms}

    @property
    def is_private(self) -> bool:
        return any(term.is_private for term in self.terms)

    def filled(self, arrays: Mapping[Any, ArrayLike]) -> "Form":
        """The form with the arrays that its slots stand for, by token."""
        return self.with_arrays(lambda factor: arrays[factor.array.token])

    def with_arrays(self, replace: Callable[[Dense | OneHot], ArrayLike]) -> "Form":
        """The form with another array for each constant that is not public."""
        terms = tuple(term.with_arrays(replace) for term in self.terms)
        return dataclasses.replace(self, terms=terms)

    @property
    def is_constant(self) -> bool:
        return not self.latents

    @property
    def is_discrete(self) -> bool:
        """Whether latents enter through indicators alone, as in `z < 3`."""
        return self.exclusive and all(
            atom.function == "is" for term in self.terms for atom in term.atoms
        )

    def __add__(self, other: "Form | float") -> "Form":
        return add(self, _as_form(other))

    __radd__ = __add__

    def __sub__(self, other: "Form | float") -> "Form":
        return add(self, -_as_form(other))

    def __rsub__(self, other: float) -> "Form":
        return add(number(other), -self)

    def __neg__(self) -> "Form":
        return self * -1.0

    def __mul__(self, other: "Form | float") -> "Form":
        if isinstance(other, Form):
            return multiply(self, other)
        terms = (dataclasses.replace(t, scale=t.scale * other) for t in self.terms)
        return Form(
            self.axes,
            tuple(t for t in terms if t.scale != 0.0),
            self.exclusive and other != 0.0,
        )

    __rmul__ = __mul__


# --- making forms -----------------------------------------------------------------


def constant(array: ArrayLike, *, is_private: bool = False) -> Form:
    """The form of a constant array."""
    axes = tuple(map(Label, np.shape(array)))
    if not is_public(array):
        return Form(axes, (Term(1.0, (Dense(array, axes, is_private),)),))
    array, kept = without_constant_axes(array)
    if array.ndim == 0:
        value = float(array)
        return Form(axes, (Term(value),) if value != 0.0 else ())
    labels = tuple(axes[i] for i in kept)
    return Form(axes, (Term(1.0, (Dense(array, labels, is_private),)),))


def without_constant_axes(array: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Drops the axes along which a known array does not vary."""
    kept = []
    for axis, (size, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        first = np.take(array, [0], axis=axis) if size else array
        if size and (stride == 0 or bool(np.all(array == first))):
            array = first
        else:
            kept.append(axis)
    return array.reshape([array.shape[axis] for axis in kept]), kept


def number(value: float) -> Form:
    """A number as a form without axes."""
    return Form((), (Term(float(value)),) if value != 0.0 else ())


def _as_form(value: Form | float) -> Form:
    return value if isinstance(value, Form) else number(value)


def latent(
    name: str,
    shape: Sequence[int],
    states: np.ndarray | None = None,
    *,
    signed: bool = False,
) -> Form:
    """The value of a latent variable; `states` are the values of a discrete one."""
    axes = tuple(map(Label, shape))
    if states is None:
        return Form(axes, (Term(1.0, (Atom(name, "x", axes, signed=signed),)),))
    state = Label(len(states))
    factors = (Dense(np.asarray(states), (state,)), Atom(name, "is", (*axes, state)))
    return Form(axes, (Term(1.0, factors, frozenset([state])),))


def within(form: Form, lower: float, upper: float) -> Form:
    """The form with bounds on its entries, which the caller has checked.

    They are kept by the constant that the form consists of. A form of several terms or
    factors comes back unchanged.

    Args:
      form: The form.
      lower, upper: Between which numbers all its entries lie.
    """
    if len(form.terms) != 1:
        return form
    (term,) = form.terms
    made_of = list(term.factors)
    if as_scatter(form.axes, form.terms) is not None:
        # The entries of an array are the array, where they are put at their places.
        made_of = [f for f in term.factors if not isinstance(f, OneHot)]
    factor = made_of[0] if len(made_of) == 1 else None
    if not isinstance(factor, Dense) or term.scale != 1:
        return form
    bounded = dataclasses.replace(factor, lower=lower, upper=upper)
    factors = tuple(bounded if f is factor else f for f in term.factors)
    return Form(form.axes, (Term(1.0, factors, term.bound),), form.exclusive)


def _range_of_constants(terms: Sequence[Term]) -> tuple[float, float]:
    """The range of a sum of terms without latents: that of 1 - y is [0, 1] for labels.

    Where it is not known, the numbers are infinite or not numbers at all.
    """
    low = high = 0.0
    for term in terms:
        product = (1.0, 1.0)
        for factor in term.factors:
            assert not isinstance(factor, Atom)
            ends = [_times(x, y) for x in product for y in range_of(factor)]
            product = min(ends), max(ends)
        count = term.scale * math.prod(label.size for label in term.bound)
        ends = [_times(count, x) for x in product]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _times(x: float, y: float) -> float:
    return 0.0 if x == 0 or y == 0 else x * y


# --- axes -------------------------------------------------------------------------


def place(form: Form, axes: Labels, positions: Iterable[int] | None = None) -> Form:
    """Puts each axis of `form` at a position among `axes`; the others broadcast.

    Without `positions`, they are the first ones in order.
    """
    positions = range(len(form.axes)) if positions is None else positions
    substitution: dict[Label, Label] = {}
    bound = set()
    for label, position in zip(form.axes, positions, strict=True):
        if label.size == axes[position].size:
            substitution[label] = axes[position]
        elif label.size == 1:  # grows by broadcasting: summed over its one entry
            substitution[label] = fresh = Label(1)
            bound.add(fresh)
        else:
            raise ValueError(f"Cannot broadcast {form.shape} to {len(axes)} axes.")
    terms = []
    for term in form.terms:
        renamed = term.renamed(substitution)
        renamed = dataclasses.replace(renamed, bound=renamed.bound | bound)
        terms.append(without_lost_labels(renamed))
    return Form(axes, tuple(terms), form.exclusive)


def reorder(form: Form, axes: Labels) -> Form:
    """Permutes the axes of a form."""
    assert set(axes) == set(form.axes)
    return Form(axes, form.terms, form.exclusive)


def broadcast(form: Form, axes: Labels) -> Form:
    """Broadcasts to the given axes, matched from the right as NumPy does."""
    return place(form, axes, range(len(axes) - len(form.axes), len(axes)))


def common_axes(*forms: Form) -> Labels:
    """The axes that forms have after broadcasting, as NumPy aligns them."""
    axes = []
    for position in range(-max(len(form.axes) for form in forms), 0):
        labels = [f.axes[position] for f in forms if len(f.axes) >= -position]
        axes.append(max(labels, key=lambda label: label.size))
    return tuple(axes)


def select(form: Form, axis: int, index: OneHot, axes: Labels) -> Form:
    """Replaces an axis by what `index` picks along it, with the given new axes.

    `index.target` must be a fresh label and `index.labels` among `axes`.
    """
    bound = frozenset([index.target])
    substitution = {form.axes[axis]: index.target}
    terms = []
    for term in form.terms:
        renamed = term.renamed(substitution)
        factors = (*renamed.factors, index)
        terms.append(Term(term.scale, factors, renamed.bound | bound).with_own_labels())
    return simplified(axes, terms, form.exclusive)


def sum_over(form: Form, positions: Iterable[int]) -> Form:
    """Sums over axes, given by position."""
    positions = set(positions)
    axes = tuple(a for i, a in enumerate(form.axes) if i not in positions)
    summed = frozenset(a for i, a in enumerate(form.axes) if i in positions)
    terms = (
        Term(t.scale, t.factors, t.bound | summed).with_own_labels() for t in form.terms
    )
    return simplified(axes, terms, form.exclusive)


# --- sums and products ------------------------------------------------------------


def add(first: Form, second: Form) -> Form:
    """The sum of two forms, broadcast; of two constants it is a single constant."""
    axes = common_axes(first, second)
    first, second = broadcast(first, axes), broadcast(second, axes)
    terms = [*first.terms, *(term.with_own_labels() for term in second.terms)]
    if first.is_constant and second.is_constant and len(terms) > 1:
        if as_scatter(axes, terms) is not None:
            return Form(axes, _numbers_merged(terms), False)
        operands = (first.terms, second.terms)
        entries = map_scatters(np.add, jnp.add, axes, operands)
        if entries is not None:
            return Form(axes, entries, False)
        # A sum of constants is one constant, so that it still has a logarithm.
        return _as_single_constant(Form(axes, tuple(terms), False))
    exclusive = len(terms) == 1 and first.exclusive and second.exclusive
    return Form(axes, tuple(terms), exclusive)


def _numbers_merged(terms: Sequence[Term]) -> tuple[Term, ...]:
    """Terms without latents, with a single one for those that are numbers."""
    rest = [term for term in terms if term.factors]
    total = sum(term.scale for term in terms if not term.factors)
    return (*rest, *number(total).terms)


def _as_single_constant(form: Form) -> Form:
    array = constant_array(form)
    if is_public(array):
        return place(constant(array), form.axes)
    lower, upper = _range_of_constants(form.terms)
    dense = Dense(array, form.axes, form.is_private, lower=lower, upper=upper)
    return Form(form.axes, (Term(1.0, (dense,)),))


def multiply(first: Form, second: Form) -> Form:
    """The elementwise product of two forms, broadcast."""
    axes = common_axes(first, second)
    return product(broadcast(first, axes), broadcast(second, axes), axes, ())


def product(first: Form, second: Form, axes: Labels, summed: Labels) -> Form:
    """Multiplies two forms whose axes share labels, and sums over `summed`."""
    terms = []
    for a, b in itertools.product(first.terms, second.terms):
        b = b.with_own_labels()
        bound = a.bound | b.bound | frozenset(summed)
        term = Term(a.scale * b.scale, (*a.factors, *b.factors), bound)
        terms.append(term.with_own_labels())
    return simplified(axes, terms, first.exclusive and second.exclusive)


def simplified(axes: Labels, terms: Iterable[Term], exclusive: bool) -> Form:
    """The form of the given terms, each in normal form, zero ones left out."""
    simple = [simplify(term) for term in terms]
    kept = tuple(term for term in simple if term is not None)
    exclusive = exclusive and all(_selects_every_bound_label(t) for t in kept)
    return Form(axes, kept, exclusive)


def _selects_every_bound_label(term: Term) -> bool:
    selected = picked_labels(term)
    return all(label in selected or label.size == 1 for label in term.bound)


def is_single_choice(form: Form) -> bool:
    """Whether a form is exclusive as it stands, whatever it was made from.

    What was picked from a concatenation with zeros is, where nothing is left of them.
    """
    if len(form.terms) > 1:
        return False
    for term in form.terms:
        if any(
            factor.may_pick_none if isinstance(factor, OneHot) else factor.branch
            for factor in term.constants
        ):
            return False
        picked = picked_labels(term)
        if len(set(picked)) < len(picked) or not set(picked) <= term.bound:
            return False
        if not _selects_every_bound_label(term):
            return False
    return True


# --- arrays -----------------------------------------------------------------------


def constant_array(form: Form) -> ArrayLike:
    """The array of a form without latents, with its full shape."""
    total: ArrayLike = np.zeros(form.shape)
    for term in form.terms:
        assert not term.atoms
        operands = [
            f if isinstance(f, OneHot) else (f.array, f.labels) for f in term.constants
        ]
        total = total + contract(term.scale, operands, form.axes)
    # NumPy makes a scalar of a sum without axes, which nothing would take for public.
    return np.asarray(total) if isinstance(total, np.generic) else total
