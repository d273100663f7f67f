"""What forms are made of: labels, factors and terms.

A term is a contraction (in the sense of einsum) of constants and of views of latents,

    scale · Σ_(bound labels) Π factors.

Factors are of three kinds: `Dense`, a constant array; `OneHot`, a constant index
that selects along a label, which is how gathers, slices, reshapes and concatenations
are written without making an array; and `Atom`, a function of a latent variable,
elementwise on its value (`"x"`, `"log"`, `"log1m"`) or on a whole event
(`"logdet"`), or the indicator of a discrete latent's state (`"is"`, which has one
label more than the latent has axes).
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

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


@dataclasses.dataclass(frozen=True)
class Slot:
    """Stands in a term for an array that is brought when the term is evaluated.

    Equal slots are the same function of what brings them. Proofs of sensitivity rest
    on this: an array times its own mirror image is semidefinite, and a diagonal may
    repeat another statistic. Of slots that differ nothing is known.

    Attributes:
      token: The number of an output of the program of a row's constants, see
        `structure.row_constants`; or the name of the latent whose mean it is.
      shape, dtype: Those of the array.
    """

    token: int | str
    shape: tuple[int, ...]
    dtype: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Dense:
    """A constant array with one label per axis.

    `is_private` says whether it depends on private rows; `branch` is set where the
    array holds zeros and ones that select; `lower` and `upper` bound the entries of
    every row that counts, because that is checked.
    """

    array: ArrayLike
    labels: Labels
    is_private: bool = False
    branch: Branch | None = None
    lower: float = -math.inf
    upper: float = math.inf


class Origin:
    """A private argument that is stored sparsely, by its entries; see `entries`.

    `densified` collects the operations that need its whole last axis as a dense array.
    """

    def __init__(self, name: str):
        self.name = name
        self.densified: list[str] = []

    def densify(self, reason: str) -> None:
        if reason not in self.densified:
            self.densified.append(reason)


@dataclasses.dataclass(frozen=True, eq=False)
class OneHot:
    """1 where the label `target` equals `indices`, else 0; all 0 at an index of -1.

    With an `origin`, the indices are those of the entries of a private argument: they
    all lie in range, and those along the last label differ.
    """

    indices: ArrayLike
    labels: Labels
    target: Label
    is_private: bool = False
    branch: Branch | None = None
    origin: Origin | None = None

    @property
    def array(self) -> ArrayLike:
        """The indices, under the name that every constant has for its array."""
        return self.indices

    @property
    def may_pick_none(self) -> bool:
        """Whether some index is -1, as only public ones are."""
        return is_public(self.indices) and bool(np.any(self.indices < 0))


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


def is_public(array: ArrayLike) -> bool:
    """Whether a constant is public, so that its value may shape the program."""
    return isinstance(array, np.ndarray)


def same_constant(a: ArrayLike, b: ArrayLike) -> bool:
    """Whether two constants are known to be the same function of the row.

    Public ones are if they hold the same numbers, slots if they have the same token,
    and arrays that are being traced if they are one variable of the traced program,
    which JAX hands about as one object. False says nothing.
    """
    if is_public(a) and is_public(b):
        return np.array_equal(a, b)
    return a == b if isinstance(a, Slot) and isinstance(b, Slot) else a is b


def constant_key(array: ArrayLike) -> str:
    """A text that is the same for two public constants or slots that are the same."""
    if isinstance(array, Slot):
        return f"slot {array.token!r}"
    assert is_public(array)
    numbers = array.astype(np.float64)
    if not np.array_equal(numbers.astype(array.dtype), array):
        numbers = array  # Such as integers that no float can hold.
    digest = hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()
    return f"public {numbers.dtype} {numbers.shape} {digest}"


def labels_of(factor: Factor) -> Labels:
    if isinstance(factor, OneHot):
        return (*factor.labels, factor.target)
    return factor.labels


def function_key(factor: Factor) -> tuple:
    """Equal for factors that are the same function, whatever their labels."""
    if isinstance(factor, Atom):
        return (1, factor.latent, factor.function, factor.power)
    return (0, type(factor).__name__, constant_key(factor.array), 0.0)


def product_key(factors: Iterable[Factor], labels: Labels = ()) -> tuple:
    """Equal for products of the same functions, as functions of the given labels.

    The names of all other labels do not matter, the order of the factors does.
    """
    numbers: dict[Label, int] = {}

    def numbered(labels: Labels) -> tuple[int, ...]:
        return tuple(numbers.setdefault(x, len(numbers)) for x in labels)

    return (
        numbered(labels),
        *((function_key(f), numbered(labels_of(f))) for f in factors),
    )


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
    def is_private(self) -> bool:
        return any(factor.is_private for factor in self.constants)

    def without(self, *factors: Factor) -> "Term":
        """The term divided by some of its factors: of one that occurs twice, once."""
        rest = list(self.factors)
        for factor in factors:
            rest.remove(factor)
        return Term(self.scale, tuple(rest), self.bound)

    def renamed(self, substitution: Mapping[Label, Label]) -> "Term":
        """The term with labels replaced; a bound label that is replaced is unbound."""
        factors = tuple(_renamed(f, substitution) for f in self.factors)
        bound = frozenset(b for b in self.bound if b not in substitution)
        return Term(self.scale, factors, bound)

    @property
    def constants(self) -> "list[Dense | OneHot]":
        return [f for f in self.factors if not isinstance(f, Atom)]

    @property
    def slots(self) -> list[Slot]:
        return [f.array for f in self.constants if isinstance(f.array, Slot)]

    def with_arrays(self, replace: "Callable[[Dense | OneHot], ArrayLike]") -> "Term":
        """The term with another array for each constant that is not public."""
        factors: list[Factor] = []
        for factor in self.factors:
            if not isinstance(factor, Atom) and not is_public(factor.array):
                name = "array" if isinstance(factor, Dense) else "indices"
                factor = dataclasses.replace(factor, **{name: replace(factor)})
            factors.append(factor)
        return Term(self.scale, tuple(factors), self.bound)

    def filled(self, arrays: "Mapping[Any, ArrayLike]") -> "Term":
        """The term with the arrays that its slots stand for, by token."""
        return self.with_arrays(lambda factor: arrays[factor.array.token])

    def with_own_labels(self) -> "Term":
        """An equal term, with bound labels that no other term has."""
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


def range_of(factor: Dense | OneHot) -> tuple[float, float]:
    """The least and the largest that an entry of a constant can be."""
    if isinstance(factor, OneHot):
        return 0.0, 1.0
    if is_public(factor.array) and np.size(factor.array):
        return float(np.min(factor.array)), float(np.max(factor.array))
    return factor.lower, factor.upper


def picked_labels(term: Term) -> list[Label]:
    """For each selector of one entry, a one-hot or an indicator, the label it is on."""
    return [
        labels_of(f)[-1]
        for f in term.factors
        if isinstance(f, OneHot) or (isinstance(f, Atom) and f.function == "is")
    ]


def same_labels(a: Labels, b: Labels) -> bool:
    """Whether two factors are indexed alike; axes of length 1 always are."""
    return len(a) == len(b) and all(
        x is y or x.size == y.size == 1 for x, y in zip(a, b, strict=True)
    )


def is_selector(factor: Factor) -> bool:
    """Whether a factor is 0 or 1, and so its own square."""
    if isinstance(factor, Atom):
        return factor.function == "is"
    return isinstance(factor, OneHot) or factor.branch is not None


def split_selectors(term: Term) -> tuple[list[Factor], list[Factor]]:
    """Separates what selects from what is selected."""
    selectors, values = [], []
    for factor in term.factors:
        (selectors if is_selector(factor) else values).append(factor)
    return selectors, values
