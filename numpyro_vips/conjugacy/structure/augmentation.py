"""The auxiliary variables that make a site's log density conjugate.

A log density asks for one while it is written down, by `log_densities.Augment`;
`augmented` returns what was asked for beside the density.
"""

import dataclasses
from collections.abc import Callable
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


class Auxiliary(NamedTuple):
    """An auxiliary variable of a site.

    Attributes:
      latent: The variable.
      places: Where its elements are, if only the entries of a row have one.
    """

    latent: Latent
    places: Places | None


def augmented(
    density: "Callable[[Augmentation], Form]",
    site: str,
    role: str,
    model_latents: Latents,
    choice: logistic_bounds.Choice = logistic_bounds.DEFAULT,
) -> tuple[Form, tuple[Auxiliary, ...]]:
    """A site's log density, and the auxiliary variables that it asks for.

    Args:
      density: Writes the log density down, given what it may ask.
      site, role: Name and role of the site.
      model_latents: The latents that are known, by name.
      choice: The bound for logistic likelihoods, by site or for all.
    """
    augmentation = Augmentation(site, role, model_latents, choice)
    form = density(augmentation)
    return form, augmentation.asked_for


class Augmentation:
    """Answers a site's log density; see `augmented` and `log_densities.Augment`."""

    def __init__(
        self,
        site: str,
        role: str,
        model_latents: Latents,
        choice: logistic_bounds.Choice,
    ) -> None:
        self.role = role
        self._site = site
        self._model_latents = model_latents
        self._choice = choice
        self._asked_for: list[Auxiliary] = []

    @property
    def asked_for(self) -> tuple[Auxiliary, ...]:
        """The auxiliary variables so far."""
        return tuple(self._asked_for)

    def auxiliary(
        self,
        kind: str,
        axes: Labels,
        *,
        family: str,
        weight: Form | None = None,
        num_states: int | None = None,
        places: Places | None = None,
    ) -> Form:
        """A new variable per element of `axes`, as a form with these axes.

        A discrete one comes as its indicator, with the states as the last axis.

        Args:
          kind: What it is, for its name.
          axes: Of its elements.
          family: The name of its posterior's family.
          weight: How many independent copies each element stands for; 1 if left out.
          num_states: How many states a discrete one has.
          places: Where the elements are, if only a row's entries have one.
        """
        name = f"{self._site}:{kind}"
        taken = sum(asked.latent.name.startswith(name) for asked in self._asked_for)
        name = f"{name}_{taken + 1}" if taken else name
        shape = tuple(axis.size for axis in axes)
        one = forms.number(1.0)
        states = None if num_states is None else np.arange(num_states)
        latent = Latent(
            name=name,
            role=self.role,
            shape=shape,
            support=None,
            states=states,
            family=family,
            weight=forms.broadcast(one if weight is None else weight, axes),
        )
        self._asked_for.append(Auxiliary(latent, places))
        if num_states is None:
            return Form(axes, (Term(1.0, (Atom(name, "x", axes),)),))
        all_axes = (*axes, Label(num_states))
        atom = Atom(name, "is", all_axes)
        return Form(all_axes, (Term(1.0, (atom,)),))

    def adds_up_to_one(self, form: Form, *, logarithms: bool = False) -> bool | None:
        """Whether the last axis of a form holds probabilities; None: rows decide."""
        return adds_up_to_one(form, self._model_latents, logarithms=logarithms)

    def logistic(self, logits: Form, trials: Form) -> Form:
        """-trials · log(2 cosh(logits / 2)), as a tight quadratic lower bound.

        Which one is the caller's choice for the site; see `logistic_bounds`.
        """
        if not trials.is_constant:
            names = names_of(trials.latents)
            raise NotInAlgebra(f"a number of trials that depends on {names}")
        return logistic_bounds.chosen(self._choice, self._site)(self, logits, trials)

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

    def _log_sum(self, form: Form, weight: Form, places: Places | None = None) -> Form:
        # A term whose coefficient is zero in a row has no share in it.
        each = elementwise.log(alternatives(form), finite=True)
        return self._allocate(each, weight, places)

    def _log_sum_at(self, form: Form, weight: Scatter) -> Form:
        """weight · log(form) where most weights are zero, as of rows with few entries.

        Only the entries at which there is a weight are bounded; the others add nothing.

        Args:
          form: A sum of positive terms.
          weight: Which entries have a weight, and which one; zero elsewhere.
        """
        where = weight.one_hot
        axis = form.axes.index(where.target)
        entry = where.labels[-1]
        axes = (*form.axes[:axis], entry, *form.axes[axis + 1 :])
        picked = dataclasses.replace(where, target=Label(where.target.size))
        each = forms.select(form, axis, picked, axes)
        leading = tuple(form.axes.index(label) for label in where.labels[:-1])
        found = self._log_sum(
            each,
            Form(axes, (Term(1.0, (weight.values,)),)),
            Places(leading, axis, where),
        )
        back = Form((*axes, where.target), (Term(1.0, (where,)),))
        return forms.product(found, back, form.axes, (entry,))

    def allocate(self, log_terms: Form) -> Form:
        """The logsumexp of a form over its last axis, as the same bound."""
        return self._allocate(log_terms, forms.number(1.0))

    def _allocate(
        self, log_terms: Form, weight: Form, places: Places | None = None
    ) -> Form:
        """weight · logsumexp over the last axis; see `auxiliary` for `places`."""
        axes, states = log_terms.axes[:-1], log_terms.axes[-1]
        weight = forms.broadcast(weight, axes)
        chosen = self.auxiliary(
            "allocation",
            axes,
            family="Categorical",
            weight=weight,
            num_states=states.size,
            places=places,
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
