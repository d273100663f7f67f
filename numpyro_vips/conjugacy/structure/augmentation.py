"""The auxiliary variables that make a site's log density conjugate.

`Augmentation` is what a log density calls for one; see `log_densities.Augment`.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.scatters import Scatter, as_scatter
from numpyro_vips.conjugacy.algebra.summands import alternatives
from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Label,
    Labels,
    NotInAlgebra,
    OneHot,
    Term,
)
from numpyro_vips.conjugacy.densities import logistic_bounds
from numpyro_vips.conjugacy.interpreter.values import names_of
from numpyro_vips.conjugacy.structure.latents import Latent, Latents
from numpyro_vips.conjugacy.structure.simplices import adds_up_to_one


class Places(NamedTuple):
    """Where along one axis of a site's elements a row has entries.

    Attributes:
      leading: Number of the axis that each leading label of `one_hot` stands for.
      axis: The axis that the entries lie along.
      one_hot: Their places on it.
    """

    leading: tuple[int, ...]
    axis: int
    one_hot: OneHot


class Augmentation:
    """Collects the auxiliary variables that a site's log density asks for."""

    def __init__(
        self,
        site: str,
        role: str,
        model_latents: Latents,
        choice: logistic_bounds.Choice = logistic_bounds.DEFAULT,
    ) -> None:
        self.site = site
        self.choice = choice
        self.role = role
        self.model_latents = model_latents
        self.latents: list[Latent] = []
        # Of auxiliary variables that only the entries of a row have, where these are.
        self.places: dict[str, Places] = {}

    def auxiliary(
        self,
        kind: str,
        axes: Labels,
        *,
        family: str,
        weight: Form | None = None,
        num_states: int | None = None,
    ) -> Form:
        """A new variable per element of `axes`, as a form with these axes.

        A discrete one comes as its indicator, with the states as the last axis.
        """
        name = f"{self.site}:{kind}"
        taken = sum(latent.name.startswith(name) for latent in self.latents)
        name = f"{name}_{taken + 1}" if taken else name
        shape = tuple(axis.size for axis in axes)
        one = forms.as_form(1.0)
        states = None if num_states is None else np.arange(num_states)
        self.latents.append(
            Latent(
                name=name,
                role=self.role,
                shape=shape,
                support=None,
                states=states,
                family=family,
                weight=forms.broadcast(one if weight is None else weight, axes),
            )
        )
        if num_states is None:
            return Form(axes, (Term(1.0, (Atom(name, "x", axes),)),))
        all_axes = (*axes, Label(num_states))
        atom = Atom(name, "is", all_axes)
        return Form(all_axes, (Term(1.0, (atom,)),))

    def adds_up_to_one(self, form: Form, *, logarithms: bool = False) -> bool | None:
        """Whether the last axis of a form holds probabilities; None: rows decide."""
        return adds_up_to_one(form, self.model_latents, logarithms=logarithms)

    def logistic(self, logits: Form, trials: Form) -> Form:
        """-trials · log(2 cosh(logits / 2)), as a tight quadratic lower bound.

        Which one is the caller's choice for the site; see `logistic_bounds`.
        """
        if not trials.is_constant:
            names = names_of(trials.latents)
            raise NotInAlgebra(f"a number of trials that depends on {names}")
        return logistic_bounds.chosen(self.choice, self.site)(self, logits, trials)

    def log_sum(self, form: Form, weight: Form) -> Form:
        """weight · log(form) for a sum of positive terms, as its lower bound.

        log Σ_k a_k is at least Σ_k r_k log(a_k / r_k), with equality at the
        probabilities r that each term is where the mass comes from.
        """
        if form.exclusive and form.terms:
            return weight * elementwise.log(form)
        if not weight.is_constant:
            names = names_of(weight.latents)
            raise NotInAlgebra(f"the logarithm of a sum, times {names}")
        axes = forms.common_axes(form, weight)
        form, weight = forms.broadcast(form, axes), forms.broadcast(weight, axes)
        entries = as_scatter(axes, weight.terms)
        if entries is not None and entries.elsewhere == 0.0:
            return self._log_sum_at(form, entries)
        return self._log_sum(form, weight)

    def _log_sum(self, form: Form, weight: Form) -> Form:
        # A term whose coefficient is zero in a row has no share in it.
        each = elementwise.log(alternatives(form), finite=True)
        return self.allocate(each, weight)

    def _log_sum_at(self, form: Form, weight: Scatter) -> Form:
        """The same where only a row's entries have a weight: the others add nothing."""
        where = weight.one_hot
        axis = form.axes.index(where.target)
        entry = where.labels[-1]
        axes = (*form.axes[:axis], entry, *form.axes[axis + 1 :])
        picked = dataclasses.replace(where, target=Label(where.target.size))
        each = forms.select(form, axis, picked, axes)
        made = len(self.latents)
        found = self._log_sum(each, Form(axes, (Term(1.0, (weight.values,)),)))
        leading = tuple(form.axes.index(label) for label in where.labels[:-1])
        for latent in self.latents[made:]:
            self.places[latent.name] = Places(leading, axis, where)
        back = Form((*axes, where.target), (Term(1.0, (where,)),))
        return forms.product(found, back, form.axes, (entry,))

    def allocate(self, log_terms: Form, weight: Form | None = None) -> Form:
        """weight · logsumexp of a form over its last axis, as the same bound."""
        axes, states = log_terms.axes[:-1], log_terms.axes[-1]
        weight = forms.broadcast(forms.as_form(1.0) if weight is None else weight, axes)
        chosen = self.auxiliary(
            "allocation",
            axes,
            family="Categorical",
            weight=weight,
            num_states=states.size,
        )
        chosen = forms.place(chosen, log_terms.axes)
        expected = forms.sum_over(chosen * log_terms, [len(axes)])
        return weight * expected


def auxiliary_weight(
    weight: Form | None,
    factors: list[Form],
    batch_rank: int,
    places: Places | None = None,
) -> Form:
    """The weight of an auxiliary variable once its site is masked and scaled.

    With `places`, it has elements only there.
    """
    assert weight is not None
    result = weight
    # Auxiliary axes are those of the site's elements, then any event axes.
    event_rank = max(0, len(weight.axes) - batch_rank)
    for factor in factors:
        if len(factor.axes) < len(result.axes):
            axes = (*factor.axes, *(Label(1) for _ in range(event_rank)))
            factor = forms.place(factor, axes)
        if places is not None:
            factor = _at_places(factor, result.shape, places)
        result = result * forms.broadcast(factor, result.axes)
    return result


def _at_places(factor: Form, shape: tuple[int, ...], places: Places) -> Form:
    """A mask or scale of all elements, at the entries that a row has.

    Args:
      factor: The mask or scale.
      shape: Shape of the elements that remain.
      places: Where they are.
    """
    leading, axis, one_hot = places
    sizes = [*shape[:axis], one_hot.target.size, *shape[axis + 1 :]]
    factor = forms.broadcast(factor, tuple(map(Label, sizes)))
    entry = Label(shape[axis])
    labels = (*(factor.axes[i] for i in leading), entry)
    target = Label(one_hot.target.size)
    picked = dataclasses.replace(one_hot, labels=labels, target=target)
    axes = (*factor.axes[:axis], entry, *factor.axes[axis + 1 :])
    return forms.select(factor, axis, picked, axes)
