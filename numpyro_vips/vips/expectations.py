"""Evaluates terms of the algebra under the posterior: E_q of sums of products.

A term reads globals either from the expected natural parameters n̄, one array per
statistic of `Structure.statistics`, or from the moments of their factors; locals always
come from the moments of their factors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_vips.conjugacy.algebra.contractions import contract
from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Dense,
    Factor,
    Label,
    Labels,
    OneHot,
    Term,
    labels_of,
)
from numpyro_vips.conjugacy.families.joint_categorical import JointCategorical
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.released_statistics import labels_in
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.conjugacy.structure.structure import (
    NotConjugate,
    Structure,
    statistic_name,
)

MomentsByFactor = Mapping[str, Mapping[str, jax.Array]]
LabelledArray = tuple[Any, Labels]


def expected(
    structure: Structure,
    terms: Sequence[Term],
    expected_natural: Mapping[str, jax.Array] | None,
    moments: MomentsByFactor,
) -> jax.Array:
    """E_q of a sum of terms.

    Globals are read from the expected natural parameters n̄ if those are given, else
    from the moments of their factors.
    """
    total = jnp.zeros(())
    for term in terms:
        operands = constants(term)
        if expected_natural is not None:
            operands += expected_natural_operand(structure, term, expected_natural)
            operands += moment_operands(structure, term, moments, role="local")
        else:
            operands += moment_operands(structure, term, moments, role=None)
        total = total + contract(term.scale, operands, ())
    return total


def means_of(structure: Structure, moments: MomentsByFactor) -> dict[str, jax.Array]:
    """The points about which statistics are released, by latent; see `centring`."""
    means = {}
    for name in sorted(structure.centred):
        factor = structure.posterior_factors[name]
        layout = factor.layout
        assert layout is not None
        for latent in factor.latents:
            shape = (*layout.batch_shape, *layout.block_shape(latent))
            array = moments[name]["x"][..., layout.span(latent)]
            means[latent] = array.reshape(shape)
    return means


def constants(term: Term) -> "list[LabelledArray | OneHot]":
    return [
        factor if isinstance(factor, OneHot) else (factor.array, factor.labels)
        for factor in term.constants
    ]


def binding(structure: Structure, term: Term) -> tuple[Statistic, Labels] | None:
    """The statistic that a term's globals belong to, and its labels in the term."""
    if all(structure.latents[atom.latent].role != "global" for atom in term.atoms):
        return None
    for statistic in sorted(structure.statistics, key=lambda s: s.rank):
        labels = labels_in(term, statistic, structure.latents)
        if labels is not None:
            return statistic, labels
    raise AssertionError("every row term has a statistic")


def expected_natural_operand(
    structure: Structure, term: Term, expected_natural: Mapping[str, jax.Array]
) -> "list[LabelledArray | OneHot]":
    found = binding(structure, term)
    if found is None:
        return []
    statistic, labels = found
    return [(expected_natural[statistic.name], labels)]


def moment_operands(
    structure: Structure, term: Term, moments: MomentsByFactor, role: str | None
) -> "list[LabelledArray | OneHot]":
    by_factor: dict[str, list[Atom]] = {}
    for atom in term.atoms:
        if role is None or structure.latents[atom.latent].role == role:
            by_factor.setdefault(structure.factor_of[atom.latent], []).append(atom)
    operands: list[LabelledArray | OneHot] = []
    for name, atoms in by_factor.items():
        operands += moment(structure.posterior_factors[name], atoms, moments[name])
    return operands


def expected_natural_of(
    structure: Structure, moments: MomentsByFactor
) -> dict[str, jax.Array]:
    """n̄: for every statistic, the product of global moments that it multiplies."""
    return {
        statistic.name: _expected_natural_for(structure, statistic, moments)
        for statistic in structure.statistics
    }


def _expected_natural_for(
    structure: Structure, statistic: Statistic, moments: MomentsByFactor
) -> jax.Array:
    labels = tuple(map(Label, statistic.shape + statistic.summed))
    atoms = tuple(
        Atom(latent, function, tuple(labels[i] for i in numbers), power)
        for latent, function, power, numbers in statistic.atoms
    )
    operands = moment_operands(structure, Term(1.0, atoms), moments, role=None)
    kept = labels[: len(statistic.shape)]
    return jnp.asarray(contract(1.0, operands, kept))


def without_globals(
    structure: Structure, term: Term, expected_natural: Mapping[str, jax.Array]
) -> Term:
    """The same function of a row's latents, with the globals put in.

    Whatever does not bear a label of the row's latents alone is contracted once, so
    that sweeps over the latents repeat only what changes.
    """
    atoms = [a for a in term.atoms if structure.latents[a.latent].role == "local"]
    kept = {label for atom in atoms for label in atom.labels}
    operands = [
        *constants(term),
        *expected_natural_operand(structure, term, expected_natural),
    ]
    factors: list[Factor] = []
    for part in _connected(operands, kept):
        if len(part) == 1 and _labels(part[0]) <= kept:
            (operand,) = part
            factors.append(
                operand
                if isinstance(operand, OneHot)
                else Dense(*operand, is_private=True)
            )
            continue
        output = tuple(
            dict.fromkeys(x for o in part for x in labels_of_operand(o) if x in kept)
        )
        array = jnp.asarray(contract(1.0, part, output))
        factors.append(Dense(array, output, is_private=True))
    return Term(term.scale, (*factors, *atoms), frozenset(kept))


def _connected(
    operands: "Sequence[LabelledArray | OneHot]", kept: set[Label]
) -> "list[list[LabelledArray | OneHot]]":
    """Splits operands into sets that share no label but kept ones."""
    parts: list[tuple[set[Label], list[LabelledArray | OneHot]]] = []
    for operand in operands:
        labels, members = _labels(operand) - kept, [operand]
        apart = []
        for others, part in parts:
            if labels & others:
                labels, members = labels | others, [*part, *members]
            else:
                apart.append((others, part))
        parts = [*apart, (labels, members)]
    return [members for _, members in parts]


def labels_of_operand(operand: "LabelledArray | OneHot") -> Labels:
    return labels_of(operand) if isinstance(operand, OneHot) else operand[1]


def _labels(operand: "LabelledArray | OneHot") -> set[Label]:
    return set(labels_of_operand(operand))


# --- moments of a factor --------------------------------------------------------------


def moment(
    factor: PosteriorFactor, atoms: Sequence[Atom], moments: Mapping[str, jax.Array]
) -> "list[LabelledArray | OneHot]":
    """The moment of a factor that one term asks for, as operands with its labels."""
    if isinstance(factor.family, JointCategorical):
        by_latent = {atom.latent: atom for atom in atoms}
        ordered = [by_latent[name] for name in factor.latents if name in by_latent]
        table = moments[",".join(atom.latent for atom in ordered)]
        return [(table, (*atoms[0].labels[:-1], *(a.labels[-1] for a in ordered)))]
    if "base" in moments:
        (atom,) = atoms
        return factored_operands(atom, moments)
    if factor.layout is None and len(atoms) == 2:
        pairs = moments.get("pairs")
        if pairs is None:
            pairs = pair_moment(moments["is"])
        return [(pairs, (*atoms[0].labels, *atoms[1].labels))]
    if factor.layout is None:
        (atom,) = atoms
        return [(moments[statistic_name(atom)], atom.labels)]
    return [_gaussian_moment(factor, atoms, moments)]


def _gaussian_moment(
    factor: PosteriorFactor, atoms: Sequence[Atom], moments: Mapping[str, jax.Array]
) -> LabelledArray:
    layout = factor.layout
    assert layout is not None
    if len(atoms) == 1:
        (atom,) = atoms
        batch, block = layout.labels(atom.latent, atom.labels)
        array = moments["x"][..., layout.span(atom.latent)]
        shape = (*layout.batch_shape, *layout.block_shape(atom.latent))
        return array.reshape(shape), (*batch, *block)
    first, second = atoms
    batch, rows = layout.labels(first.latent, first.labels)
    other, columns = layout.labels(second.latent, second.labels)
    if batch != other:
        # Found by the search itself unless structure= has taken the block apart.
        raise NotConjugate(
            {
                first.latent: "structure='diag' needs terms without products of two "
                f"entries of {first.latent!r}"
            }
        )
    array = moments["xx"][..., layout.span(first.latent), layout.span(second.latent)]
    shape = (
        *layout.batch_shape,
        *layout.block_shape(first.latent),
        *layout.block_shape(second.latent),
    )
    return array.reshape(shape), (*batch, *rows, *columns)


def pair_moment(probabilities: jax.Array) -> jax.Array:
    """E[1[z_i=s] 1[z_j=t]] for all pairs of independent elements i and j.

    It is affine in each element's probabilities given the others', i = j included.
    """
    states = probabilities.shape[-1]
    flat = probabilities.reshape(-1, states)
    pairs = flat[:, :, None, None] * flat[None, None, :, :]
    same = jnp.eye(len(flat), dtype=bool)[:, None, :, None]
    diagonal = flat[:, :, None, None] * jnp.eye(states)[None, :, None, :]
    return jnp.where(same, diagonal, pairs).reshape(probabilities.shape * 2)


def factored_operands(
    atom: Atom, moments: Mapping[str, jax.Array]
) -> "list[LabelledArray | OneHot]":
    """Probabilities base · message / total; see `shared_messages`.

    The message lacks the axes along which it does not vary. It and the base may be
    padded with zeros along the states.
    """
    message = moments["message"]
    labels = tuple(x for x, n in zip(atom.labels, message.shape, strict=True) if n > 1)
    message = message.reshape([n for n in message.shape if n > 1])
    return [
        (1.0 / moments["total"], atom.labels[:-1]),
        (moments["base"], atom.labels),
        (message, labels),
    ]
