"""The value of a form, by brute force: every product is made over all labels."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import Atom, Dense, Factor, Label, OneHot

_FUNCTIONS = {
    "x": lambda x: x,
    "log": np.log,
    "1m": lambda x: 1.0 - x,
    "log1m": lambda x: np.log1p(-x),
    "inv": np.linalg.inv,
    "logdet": lambda x: np.linalg.slogdet(x)[1],
}


def evaluate(
    form: Form, values: Mapping[str, Any], states: Mapping[str, Any] | None = None
) -> np.ndarray:
    """Evaluates a form at given values of the latents (and states of discrete ones)."""
    total = np.zeros(form.shape)
    for term in form.terms:
        labels = [*form.axes, *(b for b in term.bound if b not in form.axes)]
        product = np.full([label.size for label in labels], float(term.scale))
        chosen = np.ones_like(product, dtype=bool)
        for factor in term.factors:
            array, axes = _array(factor, values, states or {})
            assert set(axes) <= set(labels), "a label is neither free nor bound"
            spread = _spread(array, axes, labels)
            with np.errstate(all="ignore"):
                product = product * spread
            if isinstance(factor, OneHot) or getattr(factor, "function", "") == "is":
                chosen &= spread != 0
        # What is not selected may be anything, such as 1/0 in a state not taken.
        product = np.where(chosen, product, 0.0)
        total = total + product.sum(axis=tuple(range(len(form.axes), len(labels))))
    return total


def _array(
    factor: Factor, values: Mapping[str, Any], states: Mapping[str, Any]
) -> tuple[np.ndarray, list[Label]]:
    if isinstance(factor, Dense):
        return np.asarray(factor.array, np.float64), list(factor.labels)
    if isinstance(factor, OneHot):
        indices = np.asarray(factor.indices)
        array = indices[..., None] == np.arange(factor.target.size)
        return array.astype(float), [*factor.labels, factor.target]
    assert isinstance(factor, Atom)
    value = np.asarray(values[factor.latent], np.float64)
    if factor.function == "is":
        array = (value[..., None] == np.asarray(states[factor.latent])).astype(float)
    else:
        array = _FUNCTIONS[factor.function](value) ** factor.power
    return array, list(factor.labels)


def _spread(array: np.ndarray, axes: list[Label], labels: list[Label]) -> np.ndarray:
    """Lays an array out over `labels`; a label that occurs twice takes the diagonal."""
    while len(set(axes)) < len(axes):
        first = next(i for i, x in enumerate(axes) if axes.count(x) > 1)
        second = axes.index(axes[first], first + 1)
        array = np.diagonal(array, axis1=first, axis2=second)
        label = axes[first]
        axes = [a for i, a in enumerate(axes) if i not in (first, second)] + [label]
    order = [axes.index(label) for label in labels if label in axes]
    array = array.transpose(order)
    return array.reshape([x.size if x in axes else 1 for x in labels])
