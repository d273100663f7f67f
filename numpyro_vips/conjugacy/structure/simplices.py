"""Whether an array of probabilities adds up to one, whatever the latents are.

NumPyro normalises logits and the weights of mixtures, and the algebra cannot. So a
form may stand for such probabilities only if there is nothing to normalise. Whole
simplices that are selected are recognised by their structure. Anything else that no
row can change, such as sticks that are broken off one after the other, is a fixed
analytic function of the latents: where it is one at random points, it is one.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpyro.distributions import constraints

from numpyro_vips.conjugacy.algebra.contractions import contract
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Dense,
    OneHot,
    Term,
    is_public,
    labels_of,
    same_constant,
    split_selectors,
)
from numpyro_vips.conjugacy.families import supports
from numpyro_vips.conjugacy.structure.latents import Latent, Latents

_DRAWS = 3
# Enough to meet every branch that a row may choose.
_DRAWS_PER_BRANCH = 16
_TOLERANCE = 1e-6
# Larger arrays are not tried out; whole simplices need no trial.
_MOST_NUMBERS = 10**7


def adds_up_to_one(
    form: Form, latents: Latents, *, logarithms: bool = False
) -> bool | None:
    """Whether a form's entries along its last axis are probabilities.

    Args:
      form: The probabilities, or their logarithms.
      latents: All latents of the model.
      logarithms: Which of the two.

    Returns:
      None if it depends on the rows.
    """
    if _is_choice_of_simplices(form, latents, logarithms):
        return True
    states = form.axes[-1]
    for term in form.terms:
        for factor in term.factors:
            if isinstance(factor, Atom) or not factor.is_private:
                continue
            if states in factor.labels and states.size > 1:
                return None
            if isinstance(factor, Dense) and factor.branch is None:
                return None
    rng = np.random.default_rng(0)
    for _ in range(_DRAWS_PER_BRANCH if form.is_private else _DRAWS):
        values = _at_random_point(form, latents, rng)
        if values is None:
            return None
        total = (np.exp(values) if logarithms else values).sum(-1)
        if not np.allclose(total, 1.0, rtol=0.0, atol=_TOLERANCE):
            return False
    return True


def _is_choice_of_simplices(form: Form, latents: Latents, logarithms: bool) -> bool:
    """Whether a form selects whole simplices: their entries may not be mixed."""
    states = form.axes[-1]
    wanted = ("log" if logarithms else "x", 1.0)
    for term in form.terms:
        selectors, values = split_selectors(term)
        value = values[0] if len(values) == 1 else None
        if not (
            isinstance(value, Atom)
            and ((value.function, value.power), term.scale) == (wanted, 1.0)
            and is_simplex(latents[value.latent].support)
            and value.labels[-1] is states
            and not any(states in labels_of(selector) for selector in selectors)
        ):
            return False
    return form.exclusive and bool(form.terms)


def is_simplex(support: Any) -> bool:
    return supports.base_support(support) is constraints.simplex


def _at_random_point(
    form: Form, latents: Latents, rng: np.random.Generator
) -> np.ndarray | None:
    """The form at random latents, indices and branches; None if that is impossible."""
    drawn: dict[Any, Any] = {}
    selections: list[tuple[OneHot, OneHot]] = []
    branches: dict[object, list[int]] = {}
    for term in form.terms:
        for factor in term.factors:
            if isinstance(factor, Dense) and factor.branch is not None:
                # A branch without terms is zero; two are always there.
                numbers = branches.setdefault(factor.branch[0], [0, 1])
                numbers.append(factor.branch[1])

    def remembered(key: Any, draw: Any) -> Any:
        if key not in drawn:
            drawn[key] = draw()
        return drawn[key]

    total = np.zeros(form.shape)
    for term in form.terms:
        operands: list[Any] = []
        for factor in term.factors:
            if isinstance(factor, Atom):
                latent = latents[factor.latent]
                value = remembered(
                    factor.latent, lambda latent=latent: _draw(latent, rng)
                )
                if value is None:
                    return None
                array = _function(factor, value, latent.states)
                operands.append((array, factor.labels))
            elif isinstance(factor, OneHot):
                picked = _public_selection(factor, selections, rng)
                selections.append((factor, picked))
                operands.append(picked)
            elif factor.is_private:
                assert factor.branch is not None
                group, number = factor.branch
                numbers = branches[group]
                chosen = remembered(group, lambda numbers=numbers: rng.choice(numbers))
                array = np.full(np.shape(factor.array), float(chosen == number))
                operands.append((array, factor.labels))
            else:
                if not is_public(factor.array):
                    return None
                operands.append((factor.array, factor.labels))
        if _size(term, form) > _MOST_NUMBERS:
            return None
        total = total + contract(term.scale, operands, form.axes)
    return total


def _public_selection(
    factor: OneHot,
    selections: Sequence[tuple[OneHot, OneHot]],
    rng: np.random.Generator,
) -> OneHot:
    """A selection at random indices: those drawn before if it is by the same ones."""
    if is_public(factor.indices):
        return factor
    for other, picked in selections:
        if same_constant(factor.indices, other.indices):
            return dataclasses.replace(factor, indices=picked.indices)
    drawn = rng.integers(0, factor.target.size, np.shape(factor.indices))
    return dataclasses.replace(factor, indices=np.asarray(drawn))


def _size(term: Term, form: Form) -> int:
    labels = {label for f in term.factors for label in labels_of(f)}
    return int(np.prod([float(label.size) for label in {*labels, *form.axes}]))


_FUNCTIONS = {
    "x": lambda x: x,
    "1m": lambda x: 1.0 - x,
    "log": np.log,
    "log1m": lambda x: np.log1p(-x),
}


def _function(atom: Atom, value: np.ndarray, states: np.ndarray | None) -> np.ndarray:
    if atom.function == "is":
        return (value[..., None] == states).astype(float)
    return np.asarray(_FUNCTIONS[atom.function](value) ** atom.power)


def _draw(latent: Latent, rng: np.random.Generator) -> np.ndarray | None:
    """Some value in the support of a latent."""
    if latent.states is not None:
        return rng.choice(latent.states, latent.shape)
    support = supports.base_support(latent.support)
    if support is constraints.simplex:
        return rng.dirichlet(np.ones(latent.shape[-1]), latent.shape[:-1])
    if supports.same_support(support, constraints.unit_interval):
        return rng.uniform(0.1, 0.9, latent.shape)
    if supports.bounds(support)[0] >= 0:
        return rng.gamma(2.0, 1.0, latent.shape)
    if support is constraints.real or support is constraints.real_vector:
        return rng.normal(size=latent.shape)
    return None
