"""The summands of a form as alternatives, for the logarithm of their sum."""

import dataclasses
import math

import numpy as np

from numpyro_vips.conjugacy.algebra.contractions import one_hot_array
from numpyro_vips.conjugacy.algebra.elementwise import map_dense
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.normal_form import simplify
from numpyro_vips.conjugacy.algebra.terms import (
    Dense,
    Factor,
    Label,
    OneHot,
    Term,
    labels_of,
    picked_labels,
    split_selectors,
)


def alternatives(form: Form) -> Form:
    """Lays the summands of a form out along a new last axis.

    Each entry of the new axis is one term, at one value of the bound labels that
    nothing selects; their sum is `form`. The result is exclusive: where a term is
    switched off, its entry is a product that is zero.
    """
    form = Form(form.axes, tuple(_switches_as_values(form)), form.exclusive)
    counts, free_labels = [], []
    for term in form.terms:
        selected = picked_labels(term)
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
        terms.append(Term(term.scale, tuple(factors), term.bound).with_own_labels())
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
        selectors, values = split_selectors(term)
        picked: set[Label] = set()
        bound = set(term.bound)
        factors: list[Factor] = []
        for value in values:
            if isinstance(value, Dense):
                value = map_dense(lambda a: a, value, selectors)
            factors.append(value)
        for selector in selectors:
            if isinstance(selector, Dense):
                factors.append(dataclasses.replace(selector, branch=None))
                continue
            target = labels_of(selector)[-1]
            always = target in term.bound and target not in picked
            if isinstance(selector, OneHot):
                always = always and not selector.may_pick_none
            picked.add(target)
            if always:
                factors.append(selector)
            elif isinstance(selector, OneHot):
                array, labels = one_hot_array(selector)
                factors.append(Dense(array, labels, selector.is_private))
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
