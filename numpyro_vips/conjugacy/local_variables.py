"""The E-step: the posterior of one row's latents, by coordinate ascent.

A row is solved from a fresh start: auxiliary variables at a neutral value, each latent
of the model at what its parents and its own likelihood make of it. Then all are swept
from the last to the first, so that what is observed moves first. What the globals
contribute is put into the row's terms beforehand, so a sweep only touches what changes.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from numpyro_vips.conjugacy import forms
from numpyro_vips.conjugacy.contractions import contract, padded
from numpyro_vips.conjugacy.dirichlet import Categorical
from numpyro_vips.conjugacy.energy import Energy, Latent
from numpyro_vips.conjugacy.expectations import (
    Moments,
    binding,
    constants,
    expected,
    moment_operands,
    without_globals,
)
from numpyro_vips.conjugacy.family import Family
from numpyro_vips.conjugacy.groups import Group
from numpyro_vips.conjugacy.joint_categorical import JointCategorical
from numpyro_vips.conjugacy.structure import Structure
from numpyro_vips.conjugacy.terms import (
    Dense,
    Label,
    OneHot,
    Term,
    labels_of,
    same_labels,
)

# Sweeps over a row's latents where it has several that act on each other.
DEFAULT_LOCAL_STEPS = 20

# Moments and natural parameters of one factor.
Factor = tuple[dict[str, jax.Array], dict[str, jax.Array]]


def solve_row(
    structure: Structure,
    found: Energy,
    terms: Sequence[Term],
    cleared: "Clear",
    joint: Mapping[str, jax.Array],
    sweeps: int,
) -> dict[str, Factor]:
    """The factors of a row's latents.

    Args:
      structure: What was found in the model.
      found: The row's energy.
      terms: Its terms, cleared if the row is not valid.
      cleared: What cleared them.
      joint: n̄, one array per statistic.
      sweeps: Number of sweeps where latents act on each other.

    Returns:
      By group, its moments and its natural parameters. Those of a latent of which
      there are several copies (`Latent.weight`) are of one copy. Probabilities of a
      discrete latent may be `padded` with states that it does not have; see
      `without_padding`.
    """
    groups = structure.groups_of("local")
    of_locals = [term for term in terms if locals_of(structure, term)]
    local_terms = [without_globals(structure, term, joint) for term in of_locals]

    def gathered(group: Group) -> "_Base | None":
        return _gathered_base(
            structure, group, of_locals, found.latents, cleared, joint
        )

    coordinates = [
        _coordinate(structure, group, local_terms, gathered, found.latents, cleared)
        for group in groups
    ]
    moments = neutral_auxiliaries(structure, groups)
    for coordinate in coordinates:
        name = coordinate.group.name
        if name not in moments:
            factor = coordinate.update(moments, known={*moments, name})
            moments[name] = coordinate.moments(factor)
    # The first sweep gives every factor its natural parameters. It is exact at once
    # where latents do not act on each other.
    factors = _sweep(coordinates, moments)
    if couples_latents(structure, local_terms):
        factors = jax.lax.fori_loop(
            0,
            sweeps - 1,
            lambda _, before: _sweep(coordinates, _moments_of(coordinates, before)),
            factors,
        )
    return {c.group.name: c.dense(factors[c.group.name]) for c in coordinates}


def without_padding(factors: Mapping[str, Factor]) -> dict[str, Factor]:
    """Factors without the states that probabilities were padded with."""

    def cut_one(factor: Factor) -> Factor:
        moments, natural = factor
        if "is" not in moments or "is" not in natural:
            return factor
        states = natural["is"].shape[-1]
        return {**moments, "is": moments["is"][..., :states]}, natural

    return {name: cut_one(factor) for name, factor in factors.items()}


def _sweep(
    coordinates: "Sequence[_Coordinate]", moments: Mapping[str, Any]
) -> dict[str, Factor]:
    moments = dict(moments)
    factors = {}
    for coordinate in reversed(coordinates):
        name = coordinate.group.name
        factors[name] = coordinate.update(moments, known=None)
        moments[name] = coordinate.moments(factors[name])
    return factors


def _moments_of(
    coordinates: "Sequence[_Coordinate]", factors: Mapping[str, Factor]
) -> dict[str, dict[str, jax.Array]]:
    return {c.group.name: c.moments(factors[c.group.name]) for c in coordinates}


def locals_of(structure: Structure, term: Term) -> set[str]:
    """The groups of row latents that a term mentions."""
    return {
        structure.group_of[atom.latent]
        for atom in term.atoms
        if structure.latents[atom.latent].role == "local"
    }


def couples_latents(structure: Structure, terms: Sequence[Term]) -> bool:
    """Whether latents of a row act on each other."""
    return any(len(locals_of(structure, term)) > 1 for term in terms)


def neutral_auxiliaries(
    structure: Structure, groups: Sequence[Group]
) -> dict[str, dict[str, jax.Array]]:
    """Moments from which auxiliary variables start."""
    moments: dict[str, dict[str, jax.Array]] = {}
    for group in groups:
        if structure.latents[group.latents[0]].family is None:
            continue
        if group.family is Categorical:
            moments[group.name] = even(structure, group)
            continue
        assert not isinstance(group.family, JointCategorical)
        value = group.family.neutral_moment
        moments[group.name] = {
            statistic: jnp.full(group.shape, {"log": 0.0}.get(statistic, value))
            for statistic in group.family.statistics
        }
    return moments


def zero_moments(structure: Structure, group: Group) -> dict[str, jax.Array]:
    return {
        statistic: jnp.zeros(_moment_shape(structure, group, statistic))
        for statistic in group.family.statistics
    }


def even(structure: Structure, group: Group) -> dict[str, jax.Array]:
    """Every state of a discrete latent equally likely."""
    shape = _moment_shape(structure, group, "is")
    return {"is": jnp.full(shape, 1.0 / shape[-1])}


def _moment_shape(
    structure: Structure, group: Group, statistic: str
) -> tuple[int, ...]:
    if isinstance(group.family, JointCategorical):
        return (*group.shape, *group.family.table_shape(statistic))
    if statistic == "xx":
        return (*group.shape, group.shape[-1])
    if statistic == "is":
        states = structure.latents[group.name].states
        assert states is not None
        return (*group.shape, len(states))
    if statistic == "logdet":
        return group.shape[:-2]
    return group.shape


# --- one coordinate -------------------------------------------------------------------


def _coordinate(
    structure: Structure,
    group: Group,
    terms: Sequence[Term],
    gathered: Callable[[Group], "_Base | None"],
    latents: Mapping[str, Latent],
    cleared: "Clear",
) -> "_Coordinate":
    """How a group's factor is found, with all that does not change computed."""
    own = [t for t in terms if any(a.latent in group.latents for a in t.atoms)]
    weight = copies(group, latents)
    if any(couples_elements(term, group) for term in own):
        return _Elements(structure, group, own)
    factored = _factored(structure, group, own, gathered, weight, cleared)
    if factored is not None:
        return factored
    array = None if weight is None else cleared.array(forms.constant_array(weight))
    return _Whole(structure, group, own, array)


def copies(group: Group, latents: Mapping[str, Latent]) -> forms.Form | None:
    """How many independent copies each element of a group stands for."""
    weights = [latents[name].weight for name in group.latents]
    return None if any(weight is None for weight in weights) else weights[0]


@dataclasses.dataclass(frozen=True)
class _Coordinate(abc.ABC):
    structure: Structure
    group: Group

    @abc.abstractmethod
    def update(self, moments: Moments, known: set[str] | None) -> Factor:
        """The factor given the others' moments; only `known` ones are looked at."""

    def moments(self, factor: Factor) -> dict[str, jax.Array]:
        """What the other latents need to know of the factor."""
        return factor[0]

    def dense(self, factor: Factor) -> Factor:
        """The factor with its moments written out."""
        return factor

    def _select(self, terms: Sequence[Term], known: set[str] | None) -> list[Term]:
        return [
            term
            for term in terms
            if known is None or locals_of(self.structure, term) <= known
        ]


class _Whole(_Coordinate):
    """Natural parameters are the gradient of the expected terms in the moments."""

    def __init__(
        self,
        structure: Structure,
        group: Group,
        terms: Sequence[Term],
        weight: jax.Array | None,
    ):
        super().__init__(structure, group)
        alone, coupled = _by_coupling(structure, terms)
        self._coupled = coupled
        self._weight = weight
        self._base = self._gradient(alone, {})

    def _gradient(self, terms: Sequence[Term], moments: Moments) -> Any:
        def value(mine: Mapping[str, jax.Array]) -> jax.Array:
            with_mine = {**moments, self.group.name: mine}
            return expected(self.structure, terms, None, with_mine)

        return jax.grad(value)(zero_moments(self.structure, self.group))

    def update(self, moments: Moments, known: set[str] | None) -> Factor:
        terms = self._select(self._coupled, known)
        natural = self._base
        if terms:
            natural = jax.tree.map(jnp.add, natural, self._gradient(terms, moments))
        if self._weight is not None:
            natural = divided_by_weight(natural, self._weight, self.group.family)
        return self.group.family.moments(natural), natural


class _Factored(_Coordinate):
    """Discrete elements whose messages from other latents do not vary over them.

    Of a document's words, each with a topic of its own, the message from the topic
    proportions is the same for all. Probabilities are exp(base + message), and the
    exponential of the base, which has an entry per element and state, is taken once:

        r[l, k] = exp(base[l, k]) · exp(message[k]) / total[l].

    They are kept in these factors, so that no array of r is made in a sweep. A word
    that underflows in every topic counts in none.
    """

    def __init__(
        self,
        structure: Structure,
        group: Group,
        base: "_Base",
        coupled: Sequence[Term],
        message_shape: tuple[int, ...],
    ):
        super().__init__(structure, group)
        self._log_base = base.log
        self._base = base.scaled
        self._coupled = coupled
        self._shape = message_shape

    def update(self, moments: Moments, known: set[str] | None) -> Factor:
        message = jnp.zeros(self._shape)
        for term in self._select(self._coupled, known):
            message = message + _coefficients(
                self.structure, self.group, term, moments, self._shape
            )
        weights = padded(jnp.exp(message - message.max(-1, keepdims=True)))
        # einsum and not a sum of products, which would make an array of r.
        kept = [axis for axis, size in enumerate(self._shape) if size > 1]
        axes = list(range(self._base.ndim))
        squeezed = weights.reshape([weights.shape[axis] for axis in kept])
        total = jnp.einsum(
            self._base, axes, squeezed, kept, axes[:-1], precision="highest"
        )
        total = total + jnp.finfo(total.dtype).tiny
        return {"message": weights, "total": total}, {"is": message}

    def moments(self, factor: Factor) -> dict[str, jax.Array]:
        # The base stays out of the loop over sweeps, which would copy it.
        return {**factor[0], "base": self._base}

    def dense(self, factor: Factor) -> Factor:
        moments, natural = factor
        probabilities = self._base * moments["message"] / moments["total"][..., None]
        return {"is": probabilities}, {"is": self._log_base + natural["is"]}


class _Elements(_Coordinate):
    """Elements of one discrete latent that act on each other, updated in turn."""

    def __init__(self, structure: Structure, group: Group, terms: Sequence[Term]):
        super().__init__(structure, group)
        self._terms = list(terms)

    def update(self, moments: Moments, known: set[str] | None) -> Factor:
        terms = self._select(self._terms, known)

        def value(mine: Mapping[str, jax.Array]) -> jax.Array:
            with_mine = {**moments, self.group.name: mine}
            return expected(self.structure, terms, None, with_mine)

        start = moments.get(self.group.name) or even(self.structure, self.group)
        found = _one_by_one(value, start)
        smallest = jnp.finfo(found["is"].dtype).tiny
        return found, {"is": jnp.log(jnp.maximum(found["is"], smallest))}


def _by_coupling(
    structure: Structure, terms: Sequence[Term]
) -> tuple[list[Term], list[Term]]:
    """Terms in this group alone, and terms that other latents of the row are in."""
    alone = [term for term in terms if len(locals_of(structure, term)) == 1]
    coupled = [term for term in terms if len(locals_of(structure, term)) > 1]
    return alone, coupled


def _factored(
    structure: Structure,
    group: Group,
    terms: Sequence[Term],
    gathered: Callable[[Group], "_Base | None"],
    weight: forms.Form | None,
    cleared: "Clear",
) -> _Factored | None:
    """The group as a `_Factored` coordinate, if its messages lack some axis."""
    if group.family is not Categorical or len(group.shape) == 0:
        return None
    if any(sum(a.latent == group.name for a in t.atoms) != 1 for t in terms):
        return None
    alone, coupled = _by_coupling(structure, terms)
    if not coupled:
        return None
    if weight is not None:
        divided = [_of_one_copy(term, group, weight, cleared) for term in coupled]
        if any(term is None for term in divided):
            return None
        coupled = [term for term in divided if term is not None]
    varying: set[int] = set()
    for term in coupled:
        (atom,) = (a for a in term.atoms if a.latent == group.name)
        others = {
            label
            for factor in term.factors
            if factor is not atom
            for label in labels_of(factor)
        }
        varying |= {i for i, label in enumerate(atom.labels) if label in others}
    states = structure.latents[group.name].states
    assert states is not None
    shape = (*group.shape, len(states))
    long = [i for i, size in enumerate(shape) if size > 1]
    if len(shape) - 1 not in varying or all(i in varying for i in long):
        return None
    message_shape = tuple(n if i in varying else 1 for i, n in enumerate(shape))
    base = gathered(group)
    if base is None:
        log = _Whole(structure, group, alone, None)._base["is"]
        if weight is not None:
            array = cleared.array(forms.constant_array(weight))
            log = divided_by_weight({"is": log}, array, Categorical)["is"]
        base = _Base(log, _scaled_exp(log))
    return _Factored(structure, group, base, coupled, message_shape)


class _Base(NamedTuple):
    """What a discrete latent's own terms say of each element's states.

    Attributes:
      log: Log probabilities up to a constant for each element.
      scaled: Their exponentials, the largest of each element being 1.
    """

    log: jax.Array
    scaled: jax.Array


def _scaled_exp(log: jax.Array) -> jax.Array:
    largest = log.max(-1, keepdims=True)
    # An element that is possible in no state keeps a base of zero.
    return padded(jnp.exp(log - jnp.where(jnp.isneginf(largest), 0.0, largest)))


def _gathered_base(
    structure: Structure,
    group: Group,
    terms: Sequence[Term],
    latents: Mapping[str, Latent],
    cleared: "Clear",
    joint: Mapping[str, jax.Array],
) -> _Base | None:
    """The base of elements that each pick an entry of n̄ by an index of theirs.

    A word picks its row of ⟨log beta⟩. Exponentials are taken of n̄ then, which has
    fewer entries than all words of a minibatch together, and the words pick from them.

    Returns:
      The base, or None if the group's own terms are not of this form.
    """
    alone = [term for term in terms if locals_of(structure, term) == {group.name}]
    if len(alone) != 1:
        return None
    (term,) = alone
    weight = copies(group, latents)
    if weight is not None:
        divided = _of_one_copy(term, group, weight, cleared)
        if divided is None:
            return None
        term = divided
    found = binding(structure, term)
    factors = constants(term)
    one_hots = [f for f in factors if isinstance(f, OneHot) and f.row]
    if found is None or not one_hots or len(one_hots) < len(factors):
        return None
    statistic, labels = found
    (atom,) = (a for a in term.atoms if a.latent == group.name)
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
    log = jnp.transpose(joint[statistic.name], [labels.index(x) for x in order])
    log = term.scale * log
    scaled = jax.lax.optimization_barrier(_scaled_exp(log))
    longer = Label(scaled.shape[-1])
    picked = [
        jnp.asarray(
            contract(1.0, [(array, (*order[:-1], last)), *one_hots], (*elements, last))
        )
        for array, last in ((log, states), (scaled, longer))
    ]
    if weight is None:
        return _Base(*picked)
    # As in `divided_by_weight`: what an element of no copy picks may be anything. The
    # scaled ones are no larger than 1, and are not worth another copy.
    array = jnp.asarray(cleared.array(forms.constant_array(weight)))[..., None]
    log, scaled = picked
    return _Base(jnp.where(array > 0, log, 0.0), scaled)


def _of_one_copy(
    term: Term, group: Group, weight: forms.Form, cleared: "Clear"
) -> Term | None:
    """A term divided by the number of copies, if that is among its factors."""
    if len(weight.terms) != 1:
        return None
    divisor = cleared.term(weight.terms[0])
    (atom,) = (a for a in term.atoms if a.latent == group.name)
    position = dict(zip(weight.axes, atom.labels[:-1], strict=True))
    factors = list(term.factors)
    for factor in divisor.factors:
        if not isinstance(factor, Dense):
            return None
        labels = tuple(position.get(label, label) for label in factor.labels)
        for number, candidate in enumerate(factors):
            if (
                isinstance(candidate, Dense)
                and candidate.array is factor.array
                and same_labels(candidate.labels, labels)
            ):
                del factors[number]
                break
        else:
            return None
    return Term(term.scale / divisor.scale, tuple(factors), term.bound)


def _coefficients(
    structure: Structure,
    group: Group,
    term: Term,
    moments: Moments,
    shape: tuple[int, ...],
) -> jax.Array:
    """What a term that is linear in a group's one atom multiplies it by."""
    (atom,) = (a for a in term.atoms if a.latent == group.name)
    rest = Term(term.scale, tuple(f for f in term.factors if f is not atom), term.bound)
    operands = constants(rest) + moment_operands(structure, rest, moments, role=None)
    output = tuple(x for x, n in zip(atom.labels, shape, strict=True) if n > 1)
    array = jnp.asarray(contract(term.scale, operands, output))
    return array.reshape(shape)


def couples_elements(term: Term, group: Group) -> bool:
    """Whether a term multiplies two elements of one discrete latent."""
    mine = [a for a in term.atoms if a.latent in group.latents and a.function == "is"]
    return len(mine) == 2 and mine[0].latent == mine[1].latent


def _one_by_one(
    value: Callable[[Mapping[str, jax.Array]], jax.Array],
    current: Mapping[str, jax.Array],
) -> dict[str, jax.Array]:
    """Updates the elements of a discrete latent in turn, so that the bound only rises.

    The expectation is linear in the elements' probabilities and in those of pairs, so
    one gradient in both has all coefficients; each update then corrects the natural
    parameters of the elements that it acts on.
    """
    start = current["is"]
    states = start.shape[-1]
    flat = start.reshape(-1, states)
    count = len(flat)

    def of_moments(single: jax.Array, pairs: jax.Array) -> jax.Array:
        return value({"is": single, "pairs": pairs})

    zeros = jnp.zeros_like(start), jnp.zeros(start.shape * 2)
    single, pairs = jax.grad(of_moments, argnums=(0, 1))(*zeros)
    single = single.reshape(count, states)
    pairs = pairs.reshape(count, states, count, states)
    apart = ~jnp.eye(count, dtype=bool)[:, None, :, None]
    both_ways = jnp.where(apart, pairs + pairs.transpose(2, 3, 0, 1), 0.0)
    # What each state is worth more than the first: of two states one number, not two.
    gain = both_ways[:, 1:] - both_ways[:, :1]
    slope = gain[..., 1:] - gain[..., :1]
    # An element with itself is in one state only. A state may be impossible.
    alone = single + jnp.einsum("isis->is", pairs)

    def update(i: int, carry: tuple) -> tuple:
        probabilities, coupled = carry
        new = jax.nn.softmax(alone[i].at[1:].add(coupled[i]))
        change = jnp.einsum("sjt,s->jt", slope[i], (new - probabilities[i])[1:])
        return probabilities.at[i].set(new), coupled + change

    coupled = gain[..., 0].sum(2) + jnp.einsum("isjt,jt->is", slope, flat[:, 1:])
    flat, _ = jax.lax.fori_loop(0, count, update, (flat, coupled))
    return {"is": flat.reshape(start.shape)}


def divided_by_weight(
    natural: Mapping[str, jax.Array],
    weight: jax.Array,
    family: "type[Family] | JointCategorical",
) -> dict[str, jax.Array]:
    """Natural parameters of one of `weight` independent copies.

    Of no copy, as where an observation is masked out, those of a neutral member: they
    must only be such that nothing becomes infinite.
    """
    neutral = family.neutral

    def divide(statistic: str, value: jax.Array) -> jax.Array:
        each = weight.reshape(weight.shape + (1,) * (value.ndim - weight.ndim))
        other = neutral.get(statistic, 0.0)
        return jnp.where(each > 0, value / jnp.where(each > 0, each, 1.0), other)

    return {statistic: divide(statistic, value) for statistic, value in natural.items()}


# --- the bound ------------------------------------------------------------------------


def entropy(
    group: Group,
    natural: Mapping[str, jax.Array],
    moments: Mapping[str, jax.Array],
    weight: jax.Array | None,
) -> jax.Array:
    """Entropy of a factor: log normaliser minus ⟨natural, moments⟩, of all its copies.

    Of an auxiliary variable: minus its divergence from its own base measure.

    Args:
      group: Which factor.
      natural: Its natural parameters, those of one copy.
      moments: Its moments.
      weight: Number of copies of each element; None for one.
    """
    normalizer = group.family.log_normalizer(natural)
    if weight is None:
        linear = sum(jnp.vdot(natural[s], moments[s]) for s in natural)
        return jnp.sum(normalizer) - linear
    total = jnp.sum(weight * normalizer)
    for statistic, value in natural.items():
        each = (value * moments[statistic]).reshape((*weight.shape, -1)).sum(-1)
        total = total - jnp.sum(weight * each)
    return total


# --- rows that may not count ----------------------------------------------------------


class Clear:
    """Zeroes the private constants of a row that may not count."""

    def __init__(self, valid: Any):
        self.valid = valid
        self._cleared: dict[int, Any] = {}

    def array(self, array: Any) -> Any:
        return jnp.where(self.valid, array, jnp.zeros((), jnp.asarray(array).dtype))

    def term(self, term: Term) -> Term:
        return term.with_row_arrays(self._remembered)

    def _remembered(self, array: Any) -> Any:
        # One object per array, so that equal factors stay recognisable.
        if id(array) not in self._cleared:
            self._cleared[id(array)] = (array, self.array(array))
        return self._cleared[id(array)][1]
