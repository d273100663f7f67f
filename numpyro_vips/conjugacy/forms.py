"""The algebra in which a model's links and energies are written.

A `Form` is an array-valued expression in the latent variables: a sum of terms, each
a contraction (in the sense of einsum) of constants and of views of latents,

    form[axes] = Σ_terms scale · Σ_(bound labels) Π factors.

Factors are of three kinds: `Dense`, a constant array; `OneHot`, a constant index
that selects along a label, which is how gathers, slices, reshapes and concatenations
are written without making an array; and `Atom`, a function of a latent variable,
elementwise on its value (`"x"`, `"log"`, `"log1m"`) or on a whole event
(`"logdet"`), or the indicator of a discrete latent's state (`"is"`, which has one
label more than the latent has axes).

An *exclusive* form has, at every position and in every state of the discrete latents,
exactly one product that is not switched off by a selector (a one-hot, an indicator, a
branch of `where`). Elementwise functions pass through selectors, so exclusive forms
have powers and logarithms: `1 / sqrt(tau[z])` is one, `X @ w + b` is not.
"""

import dataclasses
import itertools
import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

ArrayLike = Any
# Which alternative, of which `where` or `concatenate`, a selector stands for.
Branch = tuple[object, int]


class Label:
    """An axis of an expression; equal only to itself."""

    __slots__ = ("size",)

    def __init__(self, size: int):
        self.size = int(size)


Labels = tuple[Label, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Dense:
    """A constant array with one label per axis.

    `row` says whether it depends on private rows; `branch` is set where the array
    holds zeros and ones that select; `lower` and `upper` bound the entries of every row
    that counts, because that is checked.
    """

    array: ArrayLike
    labels: Labels
    row: bool = False
    branch: Branch | None = None
    lower: float = -math.inf
    upper: float = math.inf


@dataclasses.dataclass(frozen=True, eq=False)
class OneHot:
    """1 where the label `target` equals `indices`, else 0; all 0 at an index of -1."""

    indices: ArrayLike
    labels: Labels
    target: Label
    row: bool = False
    branch: Branch | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Atom:
    """A function of a latent variable, raised to a power.

    `signed` says that the variable itself may be negative.
    """

    latent: str
    function: str
    labels: Labels
    power: float = 1.0
    signed: bool = False


Factor = Dense | OneHot | Atom


class NotInAlgebra(Exception):
    """An operation leaves the algebra; the message says which and why."""


def is_known(array: ArrayLike) -> bool:
    """Whether a constant is public, so that its value may shape the program."""
    return isinstance(array, np.ndarray)


def labels_of(factor: Factor) -> Labels:
    if isinstance(factor, OneHot):
        return (*factor.labels, factor.target)
    return factor.labels


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """scale · Σ_bound Π factors. No label in `bound` occurs in another term."""

    scale: float
    factors: tuple[Factor, ...] = ()
    bound: frozenset[Label] = frozenset()

    @property
    def atoms(self) -> list[Atom]:
        return [f for f in self.factors if isinstance(f, Atom)]

    @property
    def row(self) -> bool:
        return any(f.row for f in self.factors if not isinstance(f, Atom))

    def renamed(self, substitution: Mapping[Label, Label]) -> "Term":
        """The term with labels replaced; a bound label that is replaced is unbound."""
        factors = tuple(_renamed(f, substitution) for f in self.factors)
        bound = frozenset(b for b in self.bound if b not in substitution)
        return Term(self.scale, factors, bound)

    def with_row_arrays(self, replace: Callable[[ArrayLike], ArrayLike]) -> "Term":
        """The term with another array for each that depends on private rows."""
        factors: list[Factor] = []
        for factor in self.factors:
            if isinstance(factor, Dense) and factor.row:
                factor = dataclasses.replace(factor, array=replace(factor.array))
            elif isinstance(factor, OneHot) and factor.row:
                factor = dataclasses.replace(factor, indices=replace(factor.indices))
            factors.append(factor)
        return Term(self.scale, tuple(factors), self.bound)

    def refreshed(self) -> "Term":
        """The same term with bound labels of its own."""
        fresh = {label: Label(label.size) for label in self.bound}
        renamed = self.renamed(fresh)
        return Term(self.scale, renamed.factors, frozenset(fresh.values()))


def _renamed(factor: Factor, substitution: Mapping[Label, Label]) -> Factor:
    if not any(label in substitution for label in labels_of(factor)):
        return factor
    labels = tuple(substitution.get(label, label) for label in factor.labels)
    if isinstance(factor, OneHot):
        target = substitution.get(factor.target, factor.target)
        return dataclasses.replace(factor, labels=labels, target=target)
    return dataclasses.replace(factor, labels=labels)


@dataclasses.dataclass(frozen=True, eq=False)
class Form:
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
    def row(self) -> bool:
        return any(term.row for term in self.terms)

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
        return add(self, as_form(other))

    __radd__ = __add__

    def __sub__(self, other: "Form | float") -> "Form":
        return add(self, -as_form(other))

    def __rsub__(self, other: float) -> "Form":
        return add(as_form(other), -self)

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


def constant(array: ArrayLike, *, row: bool = False) -> Form:
    """The form of a constant array."""
    axes = tuple(map(Label, np.shape(array)))
    if not is_known(array):
        return Form(axes, (Term(1.0, (Dense(array, axes, row),)),))
    array, kept = _without_constant_axes(array)
    if array.ndim == 0:
        value = float(array)
        return Form(axes, (Term(value),) if value != 0.0 else ())
    labels = tuple(axes[i] for i in kept)
    return Form(axes, (Term(1.0, (Dense(array, labels, row),)),))


def _without_constant_axes(array: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Drops the axes along which a known array does not vary."""
    kept = []
    for axis, (size, stride) in enumerate(zip(array.shape, array.strides, strict=True)):
        first = np.take(array, [0], axis=axis) if size else array
        if size and (stride == 0 or bool(np.all(array == first))):
            array = first
        else:
            kept.append(axis)
    return array.reshape([array.shape[axis] for axis in kept]), kept


def as_form(value: Form | float) -> Form:
    if isinstance(value, Form):
        return value
    return Form((), (Term(float(value)),) if value != 0.0 else ())


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
    """The same form, where its entries have been checked to lie between the bounds.

    Only the constant that a form is made of takes them; others stay as they are.
    """
    if len(form.terms) != 1 or len(form.terms[0].factors) != 1:
        return form
    (term,) = form.terms
    (factor,) = term.factors
    if not isinstance(factor, Dense) or term.scale != 1:
        return form
    factor = dataclasses.replace(factor, lower=lower, upper=upper)
    return Form(form.axes, (Term(1.0, (factor,), term.bound),), form.exclusive)


def range_of(factor: Dense | OneHot) -> tuple[float, float]:
    """The least and the largest that an entry of a constant can be."""
    if isinstance(factor, OneHot):
        return 0.0, 1.0
    if is_known(factor.array) and np.size(factor.array):
        return float(np.min(factor.array)), float(np.max(factor.array))
    return factor.lower, factor.upper


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


def place(form: Form, axes: Labels, positions: Iterable[int]) -> Form:
    """Puts each axis of `form` at a position among `axes`; the others broadcast."""
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
        terms.append(_without_lost_labels(renamed))
    return Form(axes, tuple(terms), form.exclusive)


def _without_lost_labels(term: Term) -> Term:
    """Sums over the bound labels that no factor has any more."""
    used = {label for factor in term.factors for label in labels_of(factor)}
    lost = term.bound - used
    scale = term.scale * math.prod(label.size for label in lost)
    return Term(scale, term.factors, term.bound - lost)


def reorder(form: Form, axes: Labels) -> Form:
    """Permutes the axes of a form."""
    assert set(axes) == set(form.axes)
    return Form(axes, form.terms, form.exclusive)


def broadcast(form: Form, axes: Labels) -> Form:
    """Broadcasts to the given axes, matched from the right as NumPy does."""
    return place(form, axes, range(len(axes) - len(form.axes), len(axes)))


def common_axes(*forms: Form) -> Labels:
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
        terms.append(Term(term.scale, factors, renamed.bound | bound).refreshed())
    return simplified(axes, terms, form.exclusive)


def sum_over(form: Form, positions: Iterable[int]) -> Form:
    """Sums over axes, given by position."""
    positions = set(positions)
    axes = tuple(a for i, a in enumerate(form.axes) if i not in positions)
    summed = frozenset(a for i, a in enumerate(form.axes) if i in positions)
    terms = (Term(t.scale, t.factors, t.bound | summed).refreshed() for t in form.terms)
    return simplified(axes, terms, form.exclusive)


# --- sums and products ------------------------------------------------------------


def add(first: Form, second: Form) -> Form:
    axes = common_axes(first, second)
    first, second = broadcast(first, axes), broadcast(second, axes)
    terms = [*first.terms, *(term.refreshed() for term in second.terms)]
    if first.is_constant and second.is_constant and len(terms) > 1:
        # A sum of constants is one constant, so that it still has a logarithm.
        return _as_single_constant(Form(axes, tuple(terms), False))
    exclusive = len(terms) == 1 and first.exclusive and second.exclusive
    return Form(axes, tuple(terms), exclusive)


def _as_single_constant(form: Form) -> Form:
    array = constant_array(form)
    if is_known(array):
        return place(constant(array), form.axes, range(len(form.axes)))
    lower, upper = _range_of_constants(form.terms)
    dense = Dense(array, form.axes, form.row, lower=lower, upper=upper)
    return Form(form.axes, (Term(1.0, (dense,)),))


def multiply(first: Form, second: Form) -> Form:
    axes = common_axes(first, second)
    return product(broadcast(first, axes), broadcast(second, axes), axes, ())


def product(first: Form, second: Form, axes: Labels, summed: Labels) -> Form:
    """Multiplies two forms whose axes share labels, and sums over `summed`."""
    terms = []
    for a, b in itertools.product(first.terms, second.terms):
        b = b.refreshed()
        bound = a.bound | b.bound | frozenset(summed)
        term = Term(a.scale * b.scale, (*a.factors, *b.factors), bound)
        terms.append(term.refreshed())
    return simplified(axes, terms, first.exclusive and second.exclusive)


def simplified(axes: Labels, terms: Iterable[Term], exclusive: bool) -> Form:
    """The form of the given terms, each in normal form, zero ones left out."""
    simple = [simplify(term) for term in terms]
    kept = tuple(term for term in simple if term is not None)
    exclusive = exclusive and all(_selects_every_bound_label(t) for t in kept)
    return Form(axes, kept, exclusive)


def _selects_every_bound_label(term: Term) -> bool:
    selected = _selected_labels(term)
    return all(label in selected or label.size == 1 for label in term.bound)


def is_single_choice(form: Form) -> bool:
    """Whether a form is exclusive as it stands, whatever it was made from.

    What was picked from a concatenation with zeros is, where nothing is left of them.
    """
    if len(form.terms) > 1:
        return False
    for term in form.terms:
        targets = []
        for factor in term.factors:
            if isinstance(factor, OneHot):
                if is_known(factor.indices) and bool(np.any(factor.indices < 0)):
                    return False
                targets.append(factor.target)
            elif isinstance(factor, Atom) and factor.function == "is":
                targets.append(factor.labels[-1])
            elif isinstance(factor, Dense) and factor.branch is not None:
                return False
        if len(set(targets)) < len(targets) or not set(targets) <= term.bound:
            return False
        if not _selects_every_bound_label(term):
            return False
    return True


def _selected_labels(term: Term) -> set[Label]:
    """The labels along which a selector picks a single entry."""
    selected = set()
    for factor in term.factors:
        if isinstance(factor, OneHot):
            selected.add(factor.target)
        elif isinstance(factor, Atom) and factor.function == "is":
            selected.add(factor.labels[-1])
    return selected


# --- normal form ------------------------------------------------------------------


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
    return _without_lost_labels(result)


def _unify(term: Term, one: Label, other: Label) -> Term | None:
    """Identifies two labels if one of them is bound; None if neither is."""
    if one in term.bound:
        return term.renamed({one: other})
    if other in term.bound:
        return term.renamed({other: one})
    return None


def same_labels(a: Labels, b: Labels) -> bool:
    """Whether two factors are indexed alike; axes of length 1 always are."""
    return len(a) == len(b) and all(
        x is y or x.size == y.size == 1 for x, y in zip(a, b, strict=True)
    )


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
        return _without_lost_labels(Term(term.scale, (*rest, *merged), term.bound))
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
        if not _same_array(a.indices, b.indices):
            continue
        if a.target is b.target:
            factors = tuple(f for f in term.factors if f is not b)
            return Term(term.scale, factors, term.bound)
        if a.target.size == b.target.size:
            unified = _unify(term, a.target, b.target)
            if unified is not None:
                return unified
    return term


def _same_array(a: ArrayLike, b: ArrayLike) -> bool:
    return a is b or (is_known(a) and is_known(b) and np.array_equal(a, b))


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
            factors = tuple(f for f in term.factors if f is not b)
            return Term(term.scale, factors, term.bound)
    return term


def _drop_identity(term: Term) -> Term | None:
    """A selection of every entry in order only renames a label."""
    for factor in term.factors:
        if not isinstance(factor, OneHot) or not is_known(factor.indices):
            continue
        if np.all(factor.indices < 0):
            return None
        if len(factor.labels) != 1 or factor.labels[0].size != factor.target.size:
            continue
        if np.array_equal(factor.indices, np.arange(factor.target.size)):
            rest = tuple(f for f in term.factors if f is not factor)
            unified = _unify(
                Term(term.scale, rest, term.bound), factor.target, factor.labels[0]
            )
            if unified is not None:
                return unified
    return term


def _follow_one_hot(term: Term) -> Term:
    """Applies a selection to the constants it selects from."""
    for factor in term.factors:
        if not isinstance(factor, OneHot) or factor.target not in term.bound:
            continue
        rest = [f for f in term.factors if f is not factor]
        users = [f for f in rest if factor.target in labels_of(f)]
        if any(isinstance(f, Atom) for f in users):
            continue
        if any(isinstance(f, OneHot) and f.target is factor.target for f in users):
            continue
        kept = [f for f in rest if f not in users]
        for user in users:
            if not isinstance(user, Atom):
                kept += _follow(user, factor)
        if is_known(factor.indices) and np.any(factor.indices < 0):
            mask = (factor.indices >= 0).astype(np.float32)
            kept.append(Dense(mask, factor.labels, factor.row, factor.branch))
        elif not users and not is_known(factor.indices):
            continue
        return Term(term.scale, tuple(kept), term.bound - {factor.target})
    return term


class _Picked:
    """By which indices an alternative was selected from; equal for equal indices."""

    def __init__(self, indices: ArrayLike):
        self.indices = indices

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Picked) and _same_array(self.indices, other.indices)

    def __hash__(self) -> int:
        return hash(np.shape(self.indices))


def _follow(factor: Dense | OneHot, selection: OneHot) -> list[Factor]:
    if factor.branch is not None and not isinstance(factor.branch[0], _Operand):
        # Entry i may come from another alternative than entry j.
        group = (factor.branch[0], _Picked(selection.indices))
        factor = dataclasses.replace(factor, branch=(group, factor.branch[1]))
    array = factor.array if isinstance(factor, Dense) else factor.indices
    array, labels = gather(
        array, factor.labels, selection.indices, selection.labels, selection.target
    )
    row = factor.row or selection.row
    if isinstance(factor, Dense):
        return [dataclasses.replace(factor, array=array, labels=labels, row=row)]
    if is_known(array) and is_known(selection.indices):
        missing = _expand_to(selection.indices < 0, selection.labels, labels)
        array = np.where(missing, -1, array)
    elif is_known(factor.indices) and np.any(factor.indices < 0):
        # Whether an index that a row brings picks an entry or none has to be said in
        # a factor of its own: -1 stands for none among public indices only.
        present = dataclasses.replace(factor, indices=jnp.maximum(array, 0))
        present = dataclasses.replace(present, labels=labels, row=row)
        mask = (array >= 0).astype(np.float32)
        return [present, Dense(mask, labels, row, factor.branch)]
    return [dataclasses.replace(factor, indices=array, labels=labels, row=row)]


def _drop_uniform(term: Term) -> Term | None:
    """A known constant that is the same everywhere is a number."""
    for factor in term.factors:
        if not isinstance(factor, Dense) or not is_known(factor.array):
            continue
        if factor.branch is not None and isinstance(factor.branch[0], _Operand):
            continue
        if factor.array.size == 0 or np.any(factor.array != factor.array.flat[0]):
            continue
        value = float(factor.array.flat[0])
        if value == 0.0:
            return None
        rest = tuple(f for f in term.factors if f is not factor)
        return Term(term.scale * value, rest, term.bound)
    return term


def _known_one_hot(term: Term) -> Term:
    """Writes a known 0/1 matrix with a single 1 per row as a selection.

    Where something else selects along the same axis, the matrix says whether both
    agree: it is a number then, zero where they do not.
    """
    selected = _selected_labels(term)
    for factor in term.factors:
        if not isinstance(factor, Dense) or not is_known(factor.array):
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
        rest = [f for f in term.factors if f is not factor]
        return Term(term.scale, (*rest, one_hot), term.bound)
    return term


_RULES: tuple[Callable[[Term], Term | None], ...] = (
    _merge_atoms,
    _merge_indicators,
    _merge_one_hots,
    _merge_branches,
    _drop_uniform,
    _known_one_hot,
    _drop_identity,
    _follow_one_hot,
)


# --- elementwise functions --------------------------------------------------------


def _split_selectors(term: Term) -> tuple[list[Factor], list[Factor]]:
    """Separates what selects from what is selected."""
    selectors, values = [], []
    for factor in term.factors:
        is_selector = (
            isinstance(factor, OneHot)
            or (isinstance(factor, Atom) and factor.function == "is")
            or (isinstance(factor, Dense) and factor.branch is not None)
        )
        (selectors if is_selector else values).append(factor)
    return selectors, values


def _map_dense(
    function: Callable[[ArrayLike], ArrayLike],
    dense: Dense,
    selectors: list[Factor],
    instead: float = 1.0,
) -> Dense:
    """Applies a function to a constant, to `instead` where it is switched off."""
    array, labels = dense.array, dense.labels
    for mask in selectors:
        if isinstance(mask, Dense):
            union = tuple(dict.fromkeys((*labels, *mask.labels)))
            array = _expand_to(array, labels, union)
            chosen = _expand_to(mask.array, mask.labels, union)
            xp = np if is_known(array) and is_known(chosen) else jnp
            array, labels = xp.where(chosen != 0, array, instead), union
    with np.errstate(all="ignore"):
        return dataclasses.replace(
            dense,
            array=function(array),
            labels=labels,
            lower=-math.inf,
            upper=math.inf,
        )


def spared(term: Term) -> Term:
    """The term with ones for the numbers of a row that a choice leaves out.

    They need not be finite, as in `jnp.where(jnp.isnan(x), m, b * x)`.
    """
    masks = [f for f in term.factors if isinstance(f, Dense) and f.branch]
    factors: list[Factor] = []
    for factor in term.factors:
        if isinstance(factor, Dense) and factor.row and not factor.branch:
            over = [m for m in masks if m.row and set(m.labels) <= set(factor.labels)]
            lower, upper = min(factor.lower, 1.0), max(factor.upper, 1.0)
            factor = _map_dense(lambda a: a, factor, list(over)) if over else factor
            factor = dataclasses.replace(factor, lower=lower, upper=upper)
        factors.append(factor)
    return Term(term.scale, tuple(factors), term.bound)


def power(form: Form, exponent: float) -> Form:
    """Raises a form to a power, elementwise.

    Raises:
      NotInAlgebra: The form is a sum and the exponent is not 1 or 2.
    """
    if exponent == 1:
        return form
    if not form.exclusive or not form.terms:
        if exponent == 2:
            return multiply(form, form)
        raise NotInAlgebra(f"a power {exponent:g} of a sum")
    terms = []
    for term in form.terms:
        selectors, values = _split_selectors(term)
        if term.scale < 0 and exponent != round(exponent):
            raise NotInAlgebra(f"a power {exponent:g} of a negative number")
        powers: list[Factor] = []
        for value in values:
            if isinstance(value, Atom):
                powers.append(_power_of_atom(value, exponent))
            elif isinstance(value, Dense):
                powers.append(_map_dense(lambda a: a**exponent, value, selectors))
        factors = (*selectors, *powers)
        terms.append(Term(term.scale**exponent, factors, term.bound))
    return simplified(form.axes, terms, True)


def _power_of_atom(atom: Atom, exponent: float) -> Atom:
    power = atom.power * exponent
    # (x^(-1/3))^(-3) is x, though -1/3 is no number of a machine.
    if abs(2 * power - round(2 * power)) < 1e-6:
        power = round(2 * power) / 2
    # √(w²) is |w| and not w; √(w⁴) is w² whatever the sign.
    if atom.signed and exponent != round(exponent) and power % 2 != 0:
        raise NotInAlgebra(
            f"a power {exponent:g} of {atom.latent!r}, which may be negative"
        )
    return dataclasses.replace(atom, power=power)


# The logarithm of a zero that must not become infinite, as 0 · log 0 is to be 0.
LOG_OF_ZERO = -1e20


_LOGARITHMS = {"x": "log", "1m": "log1m"}
_FROM_LOGARITHM = {logarithm: name for name, logarithm in _LOGARITHMS.items()}


def complement(form: Form) -> Form | None:
    """1 - p as one product, if p is a latent with a single sign (or such a 1 - p).

    Only as one product can it be multiplied and still have a logarithm, as in the
    sticks that are broken off one after the other. See `expanded` for the way back.
    """
    if not form.exclusive or not form.terms:
        return None
    terms = []
    for term in form.terms:
        selectors, values = _split_selectors(term)
        value = values[0] if len(values) == 1 and term.scale == 1.0 else None
        if not isinstance(value, Atom) or value.power != 1.0 or value.signed:
            return None
        if value.function not in _LOGARITHMS:
            return None
        other = "1m" if value.function == "x" else "x"
        factors = (*selectors, dataclasses.replace(value, function=other))
        terms.append(Term(1.0, factors, term.bound))
    return Form(form.axes, tuple(terms), True)


def expanded(form: Form) -> Form:
    """Writes what `complement` made as one minus a latent again."""
    terms, queue = [], list(form.terms)
    while queue:
        term = queue.pop(0)
        for factor in term.factors:
            if isinstance(factor, Atom) and (factor.function, factor.power) in (
                ("1m", 1.0),
                ("1m", 2.0),
            ):
                break
        else:
            terms.append(term)
            continue
        rest = [f for f in term.factors if f is not factor]
        if factor.power == 2.0:
            rest.append(dataclasses.replace(factor, power=1.0))
        latent = dataclasses.replace(factor, function="x", power=1.0)
        queue.append(dataclasses.replace(term, factors=tuple(rest)).refreshed())
        negative = Term(-term.scale, (*rest, latent), term.bound)
        queue.append(negative.refreshed())
    if len(terms) == len(form.terms):
        return form
    return simplified(form.axes, terms, False)


def log(form: Form, *, finite: bool = False) -> Form:
    """The logarithm of a form, elementwise.

    With `finite`, that of a constant 0 is `LOG_OF_ZERO`.

    Raises:
      NotInAlgebra: The form is a sum, other than one minus a latent.
    """
    complement = _complement(form)
    if complement is not None:
        return log1m(complement)
    if not form.exclusive or not form.terms:
        raise NotInAlgebra("the logarithm of a sum")
    terms = []
    for term in form.terms:
        selectors, values = _split_selectors(term)
        if term.scale <= 0:
            raise NotInAlgebra("the logarithm of a number that is not positive")
        if term.scale != 1:
            terms.append(Term(math.log(term.scale), tuple(selectors), term.bound))
        for value in values:
            scale = 1.0
            if isinstance(value, Atom):
                if value.function not in _LOGARITHMS:
                    raise NotInAlgebra(f"the logarithm of {value.function}")
                scale = value.power
                function = _LOGARITHMS[value.function]
                value = dataclasses.replace(value, function=function, power=1.0)
            elif isinstance(value, Dense):
                function = _log_or_finite if finite else _log_array
                value = _map_dense(function, value, selectors)
            terms.append(Term(scale, (*selectors, value), term.bound))
    terms = [term.refreshed() for term in terms]
    return simplified(form.axes, terms, len(terms) == len(form.terms))


def exponential(form: Form) -> Form | None:
    """The exponential of a sum of logarithms of latents and of constants, as a product.

    None if something else occurs in it.
    """
    result = Form(form.axes, (Term(1.0),))
    constants = [term for term in form.terms if not term.atoms]
    for term in form.terms:
        if term in constants:
            continue
        selectors, values = _split_selectors(term)
        value = values[0] if len(values) == 1 else None
        # 0.5 · log(w²) is the logarithm of |w|, which the algebra does not have.
        logarithm = (
            isinstance(value, Atom)
            and not value.signed
            and value.function in _FROM_LOGARITHM
        )
        if not logarithm or not is_single_choice(Form(form.axes, (term,))):
            return None
        assert isinstance(value, Atom)
        atom = dataclasses.replace(value, function=_FROM_LOGARITHM[value.function])
        power = Term(1.0, (*selectors, _power_of_atom(atom, term.scale)), term.bound)
        result = product(result, Form(form.axes, (power,)), form.axes, ())
    if constants:
        exponent = Form(form.axes, tuple(constants))
        factor = map_constant(np.exp, jnp.exp, exponent)
        result = product(result, factor, form.axes, ())
    return result


def _log_array(array: ArrayLike) -> ArrayLike:
    return (np if is_known(array) else jnp).log(array)


def _log1m_array(array: ArrayLike) -> ArrayLike:
    return (np if is_known(array) else jnp).log1p(-array)


def _log_or_finite(array: ArrayLike) -> ArrayLike:
    xp = np if is_known(array) else jnp
    return xp.where(array == 0, LOG_OF_ZERO, xp.log(xp.where(array == 0, 1, array)))


def log_det(form: Form) -> Form:
    """The log determinant of a form whose last two axes are a latent's matrix."""
    if not form.exclusive or not form.terms:
        raise NotInAlgebra("the determinant of a sum")
    matrix, terms = form.axes[-2:], []
    for term in form.terms:
        selectors, values = _split_selectors(term)
        value = values[0] if len(values) == 1 else None
        if not isinstance(value, Atom) or value.labels[-2:] != matrix:
            raise NotInAlgebra("the determinant of a product")
        if (value.function, value.power) != ("x", 1.0):
            raise NotInAlgebra("the determinant of a power")
        if term.scale <= 0:
            raise NotInAlgebra("the determinant of a negative multiple")
        if term.scale != 1:
            log_scale = matrix[0].size * math.log(term.scale)
            terms.append(Term(log_scale, tuple(selectors), term.bound))
        atom = Atom(value.latent, "logdet", value.labels[:-2])
        terms.append(Term(1.0, (*selectors, atom), term.bound))
    terms = [term.refreshed() for term in terms]
    return simplified(form.axes[:-2], terms, len(terms) == len(form.terms))


def inverse(form: Form) -> Form:
    """The inverse of a form whose last two axes are a latent's matrix."""
    if not form.exclusive or not form.terms:
        raise NotInAlgebra("the inverse of a sum")
    terms = []
    for term in form.terms:
        selectors, values = _split_selectors(term)
        value = values[0] if len(values) == 1 else None
        if not isinstance(value, Atom) or value.labels[-2:] != form.axes[-2:]:
            raise NotInAlgebra("the inverse of a product")
        if (value.function, value.power) not in (("x", 1.0), ("inv", 1.0)):
            raise NotInAlgebra("the inverse of a power")
        function = "inv" if value.function == "x" else "x"
        atom = dataclasses.replace(value, function=function)
        terms.append(Term(1.0 / term.scale, (*selectors, atom), term.bound))
    return simplified(form.axes, terms, True)


def diagonal(form: Form) -> Form | None:
    """The diagonal of a matrix of which no other entry can differ from zero.

    Each of its terms must have a public factor that is zero off the diagonal.
    """
    *batch, row, column = form.axes
    terms = []
    for term in form.terms:
        for factor in term.factors:
            kept = _diagonal_of(factor, row, column)
            if kept is not None:
                break
        else:
            return None
        rest = [f for f in term.factors if f is not factor]
        factors = (*rest, *kept)
        terms.append(Term(term.scale, factors, term.bound).renamed({column: row}))
    result = simplified((*batch, row), terms, form.exclusive)
    exclusive = result.exclusive or is_single_choice(result)
    return Form(result.axes, result.terms, exclusive)


def _diagonal_of(factor: Factor, row: Label, column: Label) -> list[Factor] | None:
    """What is left of a public diagonal matrix on its diagonal."""
    if row.size == 1 or isinstance(factor, Atom):
        return None
    if isinstance(factor, OneHot):
        if not is_known(factor.indices) or set(labels_of(factor)) != {row, column}:
            return None
        is_identity = np.array_equal(factor.indices, np.arange(row.size))
        return [] if is_identity else None
    if not is_known(factor.array) or set(factor.labels) != {row, column}:
        return None
    entries = np.diagonal(factor.array)
    if len(factor.labels) != 2 or np.any(factor.array != np.diag(entries)):
        return None
    return [Dense(np.asarray(entries), (row,))]


def alternatives(form: Form) -> Form:
    """Lays the summands of a form out along a new last axis.

    Each entry of the new axis is one term, at one value of the bound labels that
    nothing selects; their sum is `form`. The result is exclusive: where a term is
    switched off, its entry is a product that is zero.
    """
    form = Form(form.axes, tuple(_switches_as_values(form)), form.exclusive)
    counts, free_labels = [], []
    for term in form.terms:
        selected = _selected_labels(term)
        free = [x for x in term.bound if x not in selected and x.size > 1]
        free_labels.append(free)
        counts.append(math.prod(label.size for label in free))
    total, offset, group = Label(sum(counts)), 0, object()
    axes, terms = (*form.axes, total), []
    for number, (term, free, count) in enumerate(
        zip(form.terms, free_labels, counts, strict=True)
    ):
        inside = np.arange(total.size) - offset
        inside = np.where((inside >= 0) & (inside < count), inside, -1)
        shape = [label.size for label in free]
        positions = np.unravel_index(np.maximum(inside, 0), shape) if free else ()
        factors: list[Factor] = list(term.factors)
        for label, position in zip(free, positions, strict=True):
            indices = np.where(inside >= 0, position, -1)
            branch = (group, number)
            factors.append(OneHot(indices, (total,), label, branch=branch))
        if not free and len(form.terms) > 1:
            mask = (inside >= 0).astype(np.float32)
            factors.append(Dense(mask, (total,), branch=(group, number)))
        terms.append(Term(term.scale, tuple(factors), term.bound).refreshed())
        offset += count
    simple = [simplify(term) for term in terms]
    return Form(axes, tuple(term for term in simple if term is not None), True)


def _switches_as_values(form: Form) -> list[Term]:
    """The terms of a form, with factors of 0 and 1 for what may switch one off.

    The logarithm of a term that a selector switches off is that of zero, and as a
    selector it would make it zero, the logarithm of one.
    """
    terms = []
    for term in form.terms:
        selectors, values = _split_selectors(term)
        picked: set[Label] = set()
        bound = set(term.bound)
        factors: list[Factor] = []
        for value in values:
            if isinstance(value, Dense):
                value = _map_dense(lambda a: a, value, selectors)
            factors.append(value)
        for selector in selectors:
            if isinstance(selector, Dense):
                factors.append(dataclasses.replace(selector, branch=None))
                continue
            target = labels_of(selector)[-1]
            always = target in term.bound and target not in picked
            if isinstance(selector, OneHot):
                always = always and not (
                    is_known(selector.indices) and bool(np.any(selector.indices < 0))
                )
            picked.add(target)
            if always:
                factors.append(selector)
            elif isinstance(selector, OneHot):
                array, labels = _one_hot_array(selector)
                factors.append(Dense(array, labels, selector.row))
            else:
                state = Label(target.size)
                bound.add(state)
                indicator = dataclasses.replace(
                    selector, labels=(*selector.labels[:-1], state)
                )
                same = Dense(np.eye(target.size), (state, target))
                factors += [indicator, same]
        terms.append(Term(term.scale, tuple(factors), frozenset(bound)))
    return terms


def log1m(form: Form) -> Form:
    """log(1 - form), elementwise, for probabilities."""
    complement = _complement(form)
    if complement is not None:
        return log(complement)
    if form.is_constant:
        return map_constant(lambda p: np.log1p(-p), lambda p: jnp.log1p(-p), form)
    if form.is_discrete and form.terms:
        return map_discrete(_log1m_array, form)
    if not form.exclusive:
        raise NotInAlgebra("log(1 - p) of a sum")
    terms = []
    for term in form.terms:
        selectors, values = _split_selectors(term)
        if all(isinstance(value, Dense) for value in values):
            array, labels = _product_array(term.scale, values)
            row = any(value.row for value in values if isinstance(value, Dense))
            dense = Dense(array, labels, row)
            number = _map_dense(_log1m_array, dense, selectors, instead=0.0)
            terms.append(Term(1.0, (*selectors, number), term.bound))
            continue
        plain = len(values) == 1 and term.scale == 1.0
        value = values[0] if plain else None
        if (
            not isinstance(value, Atom)
            or value.power != 1.0
            or value.function not in _LOGARITHMS
        ):
            raise NotInAlgebra("log(1 - p) of a product")
        function = "log1m" if value.function == "x" else "log"
        value = dataclasses.replace(value, function=function)
        terms.append(Term(1.0, (*selectors, value), term.bound))
    return simplified(form.axes, terms, True)


def _complement(form: Form) -> Form | None:
    """The exclusive p with form = 1 - p, if there is one."""
    ones = [t for t in form.terms if not t.factors and t.scale == 1.0]
    rest = [t for t in form.terms if t.factors]
    if form.is_constant or len(ones) != 1 or len(rest) != len(form.terms) - 1:
        return None
    complement = simplified(
        form.axes,
        [dataclasses.replace(t, scale=-t.scale) for t in rest],
        len(rest) == 1,
    )
    return complement if complement.exclusive else None


def map_constant(
    known: Callable[..., ArrayLike], traced: Callable[..., ArrayLike], *forms: Form
) -> Form:
    """Applies an elementwise function to forms without latents."""
    axes = common_axes(*forms)
    arrays = [constant_array(broadcast(form, axes)) for form in forms]
    with np.errstate(all="ignore"):
        if all(map(is_known, arrays)):
            result = constant(np.asarray(known(*arrays)))
            return place(result, axes, range(len(axes)))
    array = traced(*arrays)
    row = any(form.row for form in forms)
    return Form(axes, (Term(1.0, (Dense(array, axes, row),)),))


def map_discrete(function: Callable[..., ArrayLike], *forms: Form) -> Form:
    """Applies an elementwise function, state by state, to functions of indicators.

    `function` gets arrays that broadcast against each other.
    """
    axes = common_axes(*forms)
    placed = [_or_zero(broadcast(form, axes)) for form in forms]
    terms = []
    for combination in itertools.product(*(form.terms for form in placed)):
        # One product of all the selectors, to agree on the labels of the states.
        marked: list[Factor] = []
        bound: frozenset[Label] = frozenset()
        for position, term in enumerate(combination):
            term = term.refreshed()
            selectors, values = _split_selectors(term)
            array, labels = _product_array(term.scale, values)
            row = any(v.row for v in values if not isinstance(v, Atom))
            # Kept apart through simplification as a branch of its own.
            value = Dense(array, labels, row, branch=(_Operand(), position))
            marked += [*selectors, value]
            bound |= term.bound
        joint = simplify(Term(1.0, tuple(marked), bound))
        if joint is None:
            continue
        operands = [
            f
            for f in joint.factors
            if isinstance(f, Dense) and f.branch and isinstance(f.branch[0], _Operand)
        ]
        operands.sort(key=lambda f: f.branch[1] if f.branch else 0)
        union = tuple(dict.fromkeys(label for f in operands for label in f.labels))
        arrays = [_expand_to(f.array, f.labels, union) for f in operands]
        result = function(*arrays)
        result = (
            np.broadcast_to(result, [label.size for label in union])
            if (is_known(result))
            else jnp.broadcast_to(result, [label.size for label in union])
        )
        row = any(f.row for f in operands)
        rest = [f for f in joint.factors if f not in operands]
        factors = (*rest, Dense(result, union, row))
        terms.append(Term(1.0, factors, joint.bound))
    return Form(axes, tuple(terms), True)


class _Operand:
    """Marks one operand's values while selectors are merged."""


def _or_zero(form: Form) -> Form:
    """A form without terms is the constant zero; this one says so with a term."""
    return form if form.terms else Form(form.axes, (Term(0.0),), True)


# --- arrays -----------------------------------------------------------------------


def _product_array(scale: float, values: Sequence[Factor]) -> tuple[ArrayLike, Labels]:
    union: Labels = tuple(
        dict.fromkeys(label for value in values for label in labels_of(value))
    )
    if len(values) == 1 and scale == 1.0 and isinstance(values[0], Dense):
        return values[0].array, values[0].labels
    array: ArrayLike = np.asarray(scale)
    for value in values:
        if not isinstance(value, Dense):
            raise NotInAlgebra("a selection that is not of constants")
        array = array * _expand_to(value.array, value.labels, union)
    return array, union


def _expand_to(array: ArrayLike, labels: Labels, union: Labels) -> ArrayLike:
    """Transposes and inserts axes of length 1, to broadcast against `union`."""
    order = [labels.index(label) for label in union if label in labels]
    array = array.transpose(order)
    shape = [label.size if label in labels else 1 for label in union]
    return array.reshape(shape)


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
    xp = np if is_known(array) and is_known(indices) else jnp
    indices = xp.maximum(indices, 0)
    if not set(index_labels) & set(kept) and len(kept) == len(labels) - 1:
        moved = xp.moveaxis(array, labels.index(target), 0)
        return moved[indices], (*index_labels, *kept)
    selectors = []
    for label in labels:
        if label is target:
            selectors.append(_expand_to(indices, index_labels, union))
        else:
            index = np.arange(label.size)
            selectors.append(_expand_to(index, (label,), union))
    return array[tuple(selectors)], union


def constant_array(form: Form) -> ArrayLike:
    """The array of a form without latents, with its full shape."""
    total: ArrayLike = np.zeros(form.shape)
    for term in form.terms:
        value = contract(term.scale, [_as_operand(f) for f in term.factors], form.axes)
        total = total + value
    # NumPy makes a scalar of a sum without axes, which nothing would take for public.
    return np.asarray(total) if isinstance(total, np.generic) else total


def _as_operand(factor: Factor) -> "tuple[ArrayLike, Labels] | OneHot":
    if isinstance(factor, OneHot):
        return factor
    if isinstance(factor, Atom):
        raise AssertionError("a constant has no atoms")
    return factor.array, factor.labels


def contract(
    scale: float,
    operands: Sequence["tuple[ArrayLike, Labels] | OneHot"],
    output: Labels,
) -> ArrayLike:
    """Evaluates scale · Σ Π operands, with the labels of `output` kept.

    Selections are applied as gathers to the operands they select from, so that a
    one-hot array is made only where there is nothing to gather from.
    """
    arrays = [operand for operand in operands if not isinstance(operand, OneHot)]
    for one_hot in (operand for operand in operands if isinstance(operand, OneHot)):
        users = [labels for _, labels in arrays if one_hot.target in labels]
        if one_hot.target in output or not users:
            arrays.append(_one_hot_array(one_hot))
            continue
        gathered = []
        for array, labels in arrays:
            if one_hot.target in labels:
                array, labels = gather(
                    array, labels, one_hot.indices, one_hot.labels, one_hot.target
                )
            gathered.append((array, labels))
        arrays = gathered
        if is_known(one_hot.indices) and np.any(one_hot.indices < 0):
            present = (one_hot.indices >= 0).astype(np.float32)
            arrays.append((present, one_hot.labels))
    arrays = _without_known_vectors(arrays, output)
    # The sum of truth values is a number, and einsum's own is whether there is any.
    arrays = [(array * 1.0 if array.dtype == bool else array, x) for array, x in arrays]
    known = all(is_known(array) for array, _ in arrays)
    xp: Any = np if known else jnp
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
    # Norms must bound sums, so no accelerator may round these products to half floats.
    precision = {} if known else {"precision": "highest"}
    result = xp.einsum(
        f"{inputs}->{''.join(letters[label] for label in kept)}",
        *(array for array, _ in arrays),
        optimize="greedy" if len(arrays) > 2 else False,
        **precision,
    )
    result = _expand_to(result * scale, kept, output)
    return xp.broadcast_to(result, [label.size for label in output])


def _without_known_vectors(
    arrays: "list[tuple[ArrayLike, Labels]]", output: Labels
) -> "list[tuple[ArrayLike, Labels]]":
    """Contracts known vectors, such as the values of a latent's states, at once.

    The einsum's own order knows nothing of a batch of rows: it would take the states
    along through the large contractions.
    """
    rest = list(arrays)
    for vector in arrays:
        array, labels = vector
        if not is_known(array) or len(labels) != 1 or labels[0] in output:
            continue
        users = [x for x in rest if x is not vector and labels[0] in x[1]]
        if len(users) != 1 or users[0][1].count(labels[0]) != 1:
            continue
        other, its_labels = users[0]
        xp: Any = np if is_known(other) else jnp
        precision = {} if is_known(other) else {"precision": "highest"}
        axis = its_labels.index(labels[0])
        product = xp.tensordot(other, array, ((axis,), (0,)), **precision)
        kept = tuple(label for label in its_labels if label is not labels[0])
        rest = [x for x in rest if x is not vector and x is not users[0]]
        rest.append((product, kept))
    return rest


def _one_hot_array(one_hot: OneHot) -> tuple[ArrayLike, Labels]:
    xp = np if is_known(one_hot.indices) else jnp
    states = np.arange(one_hot.target.size)
    array = (one_hot.indices[..., None] == states).astype(xp.float32)
    return array, (*one_hot.labels, one_hot.target)
