"""Discrete latents of many elements that get the same message from the other latents.

As the topics of a document's words: probabilities are kept as products, so that no
array of elements by states is made in a sweep.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.contractions import contract, padded
from numpyro_vips.conjugacy.algebra.terms import (
    Dense,
    Label,
    OneHot,
    Term,
    labels_of,
    same_constant,
    same_labels,
)
from numpyro_vips.conjugacy.families.family import NewMoments
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.e_step.coordinates import (
    Coordinate,
    Given,
    by_coupling,
    copies,
    copies_array,
    divided_by_weight,
)
from numpyro_vips.vips.program.expectations import (
    binding,
    constants,
    moment_operands,
    natural_parameters,
)
from numpyro_vips.vips.program.named_arrays import LocalFactor, MomentsByFactor


class Base(NamedTuple):
    """What a discrete latent's own terms say of each element's states.

    Attributes:
      log: Log probabilities up to a constant for each element.
      scaled: Their exponentials, the largest of each element being 1. May be `padded`.
    """

    log: Float[Array, "*batch states"]
    scaled: Float[Array, "*batch padded_states"]


@dataclasses.dataclass(frozen=True)
class SharedMessage(Coordinate):
    """Discrete elements whose messages from other latents do not vary over them.

    Of a document's words, each with a topic of its own, the message from the topic
    proportions is the same for all. Probabilities are exp(base + message), and the
    exponential of the base, which has an entry per element and state, is taken once:

        r[l, k] = exp(base[l, k]) · exp(message[k]) / total[l].

    They are kept in these factors, so that no array of r is made in a sweep. A word
    that underflows in every topic counts in none.

    Attributes:
      base: What its own terms say.
      shape: That of the message: of the factor with its states, with axes of length 1
        where the message does not vary.
    """

    base: Base
    shape: tuple[int, ...]

    def update(self, moments: MomentsByFactor, known: set[str] | None) -> LocalFactor:
        message = jnp.zeros(self.shape)
        for term in self.terms_in(known):
            message = message + _coefficients(
                self.structure, self.posterior_factor, term, moments, self.shape
            )
        weights = padded(jnp.exp(message - message.max(-1, keepdims=True)))
        # einsum and not a sum of products, which would make an array of r.
        kept = [axis for axis, size in enumerate(self.shape) if size > 1]
        base = self.base.scaled
        axes = list(range(base.ndim))
        squeezed = weights.reshape([weights.shape[axis] for axis in kept])
        total = jnp.einsum(base, axes, squeezed, kept, axes[:-1], precision="highest")
        # One for each state, as products below the least number are added up as zeros:
        # an element's probabilities are never more than one together.
        total = total + base.shape[-1] * jnp.finfo(total.dtype).tiny
        return {"message": weights, "total": total}, {"is": message}

    def moments(self, factor: LocalFactor) -> NewMoments:
        # The base stays out of the loop over sweeps, which would copy it.
        return {**factor[0], "base": self.base.scaled}

    def dense(self, factor: LocalFactor) -> LocalFactor:
        moments, natural = factor
        base, total = self.base, moments["total"][..., None]
        probabilities = base.scaled * moments["message"] / total
        return {"is": probabilities}, {"is": base.log + natural["is"]}


def with_shared_message(
    given: Given, posterior_factor: PosteriorFactor, terms: Sequence[Term]
) -> SharedMessage | None:
    """The factor as a `SharedMessage` coordinate, if its messages lack some axis."""
    structure = given.structure
    if posterior_factor.family.num_states is None or len(posterior_factor.shape) == 0:
        return None
    if any(sum(a.latent == posterior_factor.name for a in t.atoms) != 1 for t in terms):
        return None
    alone, coupled = by_coupling(structure, terms)
    if not coupled:
        return None
    weight = copies(posterior_factor, structure.latents)
    if weight is not None:
        divided = [_of_one_copy(term, posterior_factor, weight) for term in coupled]
        if any(term is None for term in divided):
            return None
        coupled = [term for term in divided if term is not None]
    coupled = given.row_terms(coupled)
    varying: set[int] = set()
    for term in coupled:
        (atom,) = (a for a in term.atoms if a.latent == posterior_factor.name)
        others = {
            label
            for factor in term.factors
            if factor is not atom
            for label in labels_of(factor)
        }
        varying |= {i for i, label in enumerate(atom.labels) if label in others}
    states = structure.latents[posterior_factor.name].states
    assert states is not None
    shape = (*posterior_factor.shape, len(states))
    long = [i for i, size in enumerate(shape) if size > 1]
    if len(shape) - 1 not in varying or all(i in varying for i in long):
        return None
    message_shape = tuple(n if i in varying else 1 for i, n in enumerate(shape))
    base = _gathered_base(given, posterior_factor, alone)
    if base is None:
        own = given.row_terms(alone)
        log = natural_parameters(structure, posterior_factor, own, {})["is"]
        array = copies_array(posterior_factor, structure.latents, given.arrays)
        if array is not None:
            log = divided_by_weight({"is": log}, array, posterior_factor.family)["is"]
        base = Base(log, _scaled_exp(log))
    return SharedMessage(structure, posterior_factor, coupled, base, message_shape)


def _scaled_exp(
    log: Float[Array, "*batch states"],
) -> Float[Array, "*batch padded_states"]:
    """Exponentials, the largest along the last axis being 1; `padded`."""
    largest = log.max(-1, keepdims=True)
    # An element that is possible in no state keeps a base of zero.
    return padded(jnp.exp(log - jnp.where(jnp.isneginf(largest), 0.0, largest)))


def _gathered_base(
    given: Given, posterior_factor: PosteriorFactor, alone: Sequence[Term]
) -> Base | None:
    """The base of elements that each pick an entry of n̄ by an index of theirs.

    A word picks its row of ⟨log beta⟩. Exponentials are taken of n̄ then, which has
    fewer entries than all words of a minibatch together, and the words pick from them.

    Returns:
      The base, or None if the factor's own terms are not of this form.
    """
    structure = given.structure
    if len(alone) != 1:
        return None
    (term,) = alone
    weight = copies(posterior_factor, structure.latents)
    if weight is not None:
        divided = _of_one_copy(term, posterior_factor, weight)
        if divided is None:
            return None
        term = divided
    term = term.filled(given.arrays)
    found = binding(structure, term)
    factors = constants(term)
    one_hots = [f for f in factors if isinstance(f, OneHot) and f.is_private]
    if found is None or not one_hots or len(one_hots) < len(factors):
        return None
    statistic, labels = found
    (atom,) = (a for a in term.atoms if a.latent == posterior_factor.name)
    targets = [factor.target for factor in one_hots]
    elements, states = atom.labels[:-1], atom.labels[-1]
    if (
        len(set(targets)) < len(targets)
        or len(set(labels)) < len(labels)
        or states not in labels
        or {*labels, *atom.labels} - {*elements, states} != set(targets)
        or any(set(factor.labels) - set(elements) for factor in one_hots)
    ):
        return None
    # What one index picks lies together. Without the barrier XLA would pick from n̄ as
    # it was, entry by entry, and take the exponential anew for every word.
    rest = [x for x in labels if x not in targets and x is not states]
    order = (*targets, *rest, states)
    log = jnp.transpose(
        given.expected_natural[statistic.name], [labels.index(x) for x in order]
    )
    log = term.scale * log
    scaled = jax.lax.optimization_barrier(_scaled_exp(log))
    longer = Label(scaled.shape[-1])
    picked = [
        jnp.asarray(
            contract(1.0, [(array, (*order[:-1], last)), *one_hots], (*elements, last))
        )
        for array, last in ((log, states), (scaled, longer))
    ]
    array = copies_array(posterior_factor, structure.latents, given.arrays)
    if array is None:
        return Base(*picked)
    # As in `divided_by_weight`: what an element of no copy picks may be anything. The
    # scaled ones are no larger than 1, and are not worth another copy.
    log, scaled = picked
    return Base(jnp.where(array[..., None] > 0, log, 0.0), scaled)


def _of_one_copy(
    term: Term,
    posterior_factor: PosteriorFactor,
    weight: forms.Form,
) -> Term | None:
    """A term divided by the number of copies, if that is among its factors."""
    if len(weight.terms) != 1:
        return None
    (divisor,) = weight.terms
    (atom,) = (a for a in term.atoms if a.latent == posterior_factor.name)
    position = dict(zip(weight.axes, atom.labels[:-1], strict=True))
    factors = list(term.factors)
    for factor in divisor.factors:
        if not isinstance(factor, Dense):
            return None
        labels = tuple(position.get(label, label) for label in factor.labels)
        for number, candidate in enumerate(factors):
            if (
                isinstance(candidate, Dense)
                and same_constant(candidate.array, factor.array)
                and same_labels(candidate.labels, labels)
            ):
                del factors[number]
                break
        else:
            return None
    return Term(term.scale / divisor.scale, tuple(factors), term.bound)


def _coefficients(
    structure: Structure,
    factor: PosteriorFactor,
    term: Term,
    moments: MomentsByFactor,
    shape: tuple[int, ...],
) -> Float[Array, "..."]:
    """What a term that is linear in a factor's one atom multiplies it by, in `shape`.

    The term has no label for which `shape` is 1 but in that atom.
    """
    (atom,) = (a for a in term.atoms if a.latent == factor.name)
    rest = Term(term.scale, tuple(f for f in term.factors if f is not atom), term.bound)
    operands = constants(rest) + moment_operands(structure, rest, moments, role=None)
    output = tuple(x for x, n in zip(atom.labels, shape, strict=True) if n > 1)
    array = jnp.asarray(contract(term.scale, operands, output))
    return array.reshape(shape)
