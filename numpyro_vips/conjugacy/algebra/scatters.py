"""Constants that an argument's entries put at their places, as terms.

The counts x of a document with entries (i_l, n_l) are x_v = Σ_l n_l 1[v = i_l]. What is
linear in them stays so in the n_l, and a function f of each count is

    f(x_v) = f(0) + Σ_l (f(n_l) - f(0)) 1[v = i_l],

so that such functions need not be written out along v either.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from numpyro_vips.conjugacy.algebra.contractions import (
    constant_product,
    expand_to,
    gather,
)
from numpyro_vips.conjugacy.algebra.terms import (
    ArrayLike,
    Atom,
    Dense,
    Factor,
    Labels,
    OneHot,
    Term,
    is_public,
    same_constant,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Scatter:
    """`elsewhere` + Σ_l values[l] · 1[target = indices[l]], a row's own constant.

    Attributes:
      values: What differs from `elsewhere`, with the labels of `one_hot`.
      one_hot: Where it does; the last of its labels is summed over.
      elsewhere: A public number.
    """

    values: Dense
    one_hot: OneHot
    elsewhere: float = 0.0

    @property
    def terms(self) -> tuple[Term, ...]:
        factors = (self.values, self.one_hot)
        entries = Term(1.0, factors, frozenset([self.one_hot.labels[-1]]))
        if self.elsewhere == 0.0:
            return (entries,)
        return entries, Term(self.elsewhere)


def as_scatter(axes: Labels, terms: Iterable[Term]) -> Scatter | None:
    """The scatter that terms without latents make, if they make one."""
    found: Scatter | None = None
    elsewhere = 0.0
    for term in terms:
        if not term.factors and not term.bound:
            elsewhere += term.scale
            continue
        scatter = _of_term(axes, term)
        if scatter is None or found is not None:
            return None
        found = scatter
    return found and dataclasses.replace(found, elsewhere=elsewhere)


def _of_term(axes: Labels, term: Term) -> Scatter | None:
    """The scatter that one term without latents makes along `axes`.

    Returns:
      None if it has a latent, or does not put the entries of one argument at their
      places along one of the axes and sum over them.
    """
    one_hots = [f for f in term.factors if isinstance(f, OneHot)]
    if len(one_hots) != 1 or one_hots[0].origin is None:
        return None
    (one_hot,) = one_hots
    *leading, entry = one_hot.labels
    if one_hot.target not in axes or not set(leading) <= set(axes):
        return None
    if term.bound != {entry}:
        return None
    rest: list[Factor] = []
    for factor in term.factors:
        if isinstance(factor, Atom):
            return None
        if isinstance(factor, Dense):
            rest.append(_at_entries(factor, one_hot))
    values = rest[0] if len(rest) == 1 else None
    if (
        not isinstance(values, Dense)
        or term.scale != 1.0
        or values.labels != one_hot.labels
    ):
        product = constant_product(term.scale, rest)
        if not set(product.labels) <= set(one_hot.labels):
            return None
        array = expand_to(product.array, product.labels, one_hot.labels)
        spread = array + 0 * one_hot.indices
        values = Dense(spread, one_hot.labels, is_private=True)
    return Scatter(values, one_hot)


def _at_entries(factor: Dense, one_hot: OneHot) -> Dense:
    """A constant along all places, where the entries are."""
    if one_hot.target not in factor.labels:
        return factor
    array, labels = gather(
        factor.array, factor.labels, one_hot.indices, one_hot.labels, one_hot.target
    )
    return Dense(array, labels, is_private=True)


def map_scatters(
    known: Callable[..., ArrayLike],
    traced: Callable[..., ArrayLike],
    axes: Labels,
    operands: Iterable[tuple[Term, ...]],
) -> tuple[Term, ...] | None:
    """An elementwise function of constants of which all but numbers are scatters.

    Args:
      known, traced: The function, in NumPy and in JAX.
      axes: The common axes.
      operands: The terms of each constant.

    Returns:
      Its terms; None if not all scatters are at the same entries, or if it is not
      finite elsewhere.
    """
    parts: list[Scatter | float] = []
    for terms in operands:
        if all(not term.factors and not term.bound for term in terms):
            parts.append(float(sum(term.scale for term in terms)))
            continue
        scatter = as_scatter(axes, terms)
        if scatter is None:
            return None
        parts.append(scatter)
    scatters = [part for part in parts if isinstance(part, Scatter)]
    if not scatters or any(not _same_places(scatters[0], x) for x in scatters):
        return None
    others = [x.elsewhere if isinstance(x, Scatter) else x for x in parts]
    with np.errstate(all="ignore"):
        elsewhere = float(np.asarray(known(*map(np.asarray, others))))
    if not np.isfinite(elsewhere):
        return None
    arrays = [
        _plus(x.values.array, x.elsewhere) if isinstance(x, Scatter) else np.asarray(x)
        for x in parts
    ]
    result = traced(*arrays)
    first = scatters[0]
    values = Dense(_plus(result, -elsewhere), first.one_hot.labels, is_private=True)
    return Scatter(values, first.one_hot, elsewhere).terms


def _plus(array: Any, number: float) -> Any:
    return array if number == 0.0 else array + number


def _same_places(a: Scatter, b: Scatter) -> bool:
    return (
        same_constant(a.one_hot.indices, b.one_hot.indices)
        and a.one_hot.target is b.one_hot.target
        and a.one_hot.labels[:-1] == b.one_hot.labels[:-1]
    )


def is_public_number(array: Any) -> bool:
    """Whether a constant is public and the same everywhere."""
    return is_public(array) and array.size > 0 and bool(np.all(array == array.flat[0]))
