"""Functions of forms whose last two axes are a matrix."""

import dataclasses
import math

import numpy as np

from numpyro_vips.conjugacy.algebra.forms import Form, is_single_choice, simplified
from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Dense,
    Factor,
    Label,
    Labels,
    NotInAlgebra,
    OneHot,
    Term,
    is_public,
    labels_of,
    split_selectors,
)


def log_det(form: Form) -> Form:
    """The log determinant of a form whose last two axes are a latent's matrix."""
    if not form.exclusive or not form.terms:
        raise NotInAlgebra("the determinant of a sum")
    terms = []
    for term in form.terms:
        selectors, value = _matrix_in(term, form.axes, "the determinant")
        if value.function != "x":
            raise NotInAlgebra("the determinant of a power")
        if term.scale <= 0:
            raise NotInAlgebra("the determinant of a negative multiple")
        if term.scale != 1:
            log_scale = form.axes[-1].size * math.log(term.scale)
            terms.append(Term(log_scale, tuple(selectors), term.bound))
        atom = Atom(value.latent, "logdet", value.labels[:-2])
        terms.append(Term(1.0, (*selectors, atom), term.bound))
    terms = [term.with_own_labels() for term in terms]
    return simplified(form.axes[:-2], terms, len(terms) == len(form.terms))


def inverse(form: Form) -> Form:
    """The inverse of a form whose last two axes are a latent's matrix."""
    if not form.exclusive or not form.terms:
        raise NotInAlgebra("the inverse of a sum")
    terms = []
    for term in form.terms:
        selectors, value = _matrix_in(term, form.axes, "the inverse")
        function = "inv" if value.function == "x" else "x"
        atom = dataclasses.replace(value, function=function)
        terms.append(Term(1.0 / term.scale, (*selectors, atom), term.bound))
    return simplified(form.axes, terms, True)


def _matrix_in(term: Term, axes: Labels, what: str) -> tuple[list[Factor], Atom]:
    """The selectors of a term, and the latent's matrix or its inverse that it is."""
    selectors, values = split_selectors(term)
    value = values[0] if len(values) == 1 else None
    if not isinstance(value, Atom) or value.labels[-2:] != axes[-2:]:
        raise NotInAlgebra(f"{what} of a product")
    if value.function not in ("x", "inv") or value.power != 1.0:
        raise NotInAlgebra(f"{what} of a power")
    return selectors, value


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
        factors = (*term.without(factor).factors, *kept)
        terms.append(Term(term.scale, factors, term.bound).renamed({column: row}))
    result = simplified((*batch, row), terms, form.exclusive)
    exclusive = result.exclusive or is_single_choice(result)
    return Form(result.axes, result.terms, exclusive)


def _diagonal_of(factor: Factor, row: Label, column: Label) -> list[Factor] | None:
    """What is left of a public diagonal matrix on its diagonal."""
    if row.size == 1 or isinstance(factor, Atom):
        return None
    if isinstance(factor, OneHot):
        if not is_public(factor.indices) or set(labels_of(factor)) != {row, column}:
            return None
        is_identity = np.array_equal(factor.indices, np.arange(row.size))
        return [] if is_identity else None
    if not is_public(factor.array) or set(factor.labels) != {row, column}:
        return None
    entries = np.diagonal(factor.array)
    if len(factor.labels) != 2 or np.any(factor.array != np.diag(entries)):
        return None
    return [Dense(np.asarray(entries), (row,))]
