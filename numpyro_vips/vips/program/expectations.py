"""Evaluates terms of the algebra under the posterior: E_q of sums of products.

A term reads globals either from the expected natural parameters n̄, one array per
statistic of `Structure.statistics`, or from the moments of their factors; locals always
come from the moments of their factors.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from numpyro_vips.conjugacy.algebra.contractions import contract
from numpyro_vips.conjugacy.algebra.terms import (
    ArrayLike,
    Atom,
    Dense,
    Factor,
    Label,
    Labels,
    OneHot,
    Term,
    labels_of,
)
from numpyro_vips.conjugacy.families.family import Moments, NewMoments
from numpyro_vips.conjugacy.structure.geometry import Entry
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.released_statistics import labels_in
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.conjugacy.structure.structure import Structure, statistic_name
from numpyro_vips.errors import NotConjugateError
from numpyro_vips.vips.program.named_arrays import (
    AnyMoments,
    ByStatistic,
    MomentsByFactor,
    NewByStatistic,
)

# What a term is contracted from: arrays with a label for each axis, and selections.
LabelledArray = tuple[ArrayLike, Labels]
Operand = LabelledArray | OneHot

# Where an auxiliary variable ω depends on Gaussian latents z of its row, what its
# moments hold of both by the number of latents: E[ω z] and E[ω z zᵀ], with the axes of
# ω in front.
BESIDE = {1: "beside x", 2: "beside xx"}

# A point in the space of a factor, in JAX or in NumPy.
_Point = TypeVar("_Point", Float[Array, "..."], Float[np.ndarray, "..."])


def expected(
    structure: Structure,
    terms: Sequence[Term],
    expected_natural: ByStatistic | None,
    moments: MomentsByFactor,
) -> Float[Array, ""]:
    """E_q of a sum of terms.

    Args:
      structure: What was found in the model.
      terms: Terms without slots.
      expected_natural: n̄, from which globals are read; None to read them from
        `moments`.
      moments: Moments of the factors that the terms mention, but for the above.
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


def natural_parameters(
    structure: Structure,
    factor: PosteriorFactor,
    terms: Sequence[Term],
    moments: MomentsByFactor,
) -> NewMoments:
    """What terms say of a factor, given the moments of all others that they mention.

    The expectation of the terms is linear in the factor's own moments, and this is its
    gradient in them: the natural parameters that the terms contribute.
    """

    def value(own: Moments) -> Float[Array, ""]:
        return expected(structure, terms, None, {**moments, factor.name: own})

    shapes = factor.family.moment_shapes(factor.shape)
    return jax.grad(value)({name: jnp.zeros(shape) for name, shape in shapes.items()})


def means_of(
    structure: Structure, moments: Mapping[str, Mapping[str, _Point]]
) -> dict[str, _Point]:
    """The points about which statistics are released, by latent; see `centring`.

    In NumPy where the moments are.
    """
    return by_latent(
        structure, {name: moments[name]["x"] for name in structure.centred}
    )


def by_latent(structure: Structure, points: Mapping[str, _Point]) -> dict[str, _Point]:
    """Points in the space of Gaussian factors, by factor, as their latents' arrays."""
    found = {}
    for name in sorted(points):
        factor = structure.posterior_factors[name]
        layout = factor.layout
        assert layout is not None
        for latent in factor.latents:
            shape = (*layout.batch_shape, *layout.block_shape(latent))
            found[latent] = points[name][..., layout.span(latent)].reshape(shape)
    return found


def constants(term: Term) -> list[Operand]:
    """The constants of a term, as operands of a contraction."""
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


def terms_by_statistic(
    structure: Structure, terms: Sequence[Term]
) -> dict[str, list[Entry]]:
    """The terms of each statistic that has any."""
    by_statistic: dict[str, list[Entry]] = {}
    for term in terms:
        found = binding(structure, term)
        if found is not None:
            by_statistic.setdefault(found[0].name, []).append((term, found[1]))
    return by_statistic


def expected_natural_operand(
    structure: Structure, term: Term, expected_natural: ByStatistic
) -> list[Operand]:
    """What stands for a term's globals: the entries of n̄ of their statistic.

    Args:
      structure: What was found in the model.
      term: A term of a row.
      expected_natural: n̄, one array per statistic.

    Returns:
      One operand; none if the term has no globals.
    """
    found = binding(structure, term)
    if found is None:
        return []
    statistic, labels = found
    return [(expected_natural[statistic.name], labels)]


def moment_operands(
    structure: Structure,
    term: Term,
    moments: Mapping[str, AnyMoments],
    role: str | None,
) -> list[Operand]:
    """The moments of a term's latents, as operands of a contraction.

    Args:
      structure: What was found in the model.
      term: The term.
      moments: Moments by factor.
      role: `"global"` or `"local"`, of the latents that are asked about; None for all.
    """
    by_factor: dict[str, list[Atom]] = {}
    for atom in term.atoms:
        if role is None or structure.latents[atom.latent].role == role:
            by_factor.setdefault(structure.factor_of[atom.latent], []).append(atom)
    factors = structure.posterior_factors
    operands: list[Operand] = []
    for name in [name for name in by_factor if BESIDE[1] in moments[name]]:
        beside = [
            other
            for other in by_factor
            if factors[other].role == "local" and factors[other].layout is not None
        ]
        if beside:
            (other,) = beside
            (auxiliary,) = by_factor.pop(name)
            atoms = by_factor.pop(other)
            operands.append(
                _moment_beside(factors[other], atoms, auxiliary, moments[name])
            )
    for name, atoms in by_factor.items():
        operands += moment(factors[name], atoms, moments[name])
    return operands


def expected_natural_of(
    structure: Structure, moments: MomentsByFactor
) -> NewByStatistic:
    """n̄: for every statistic, the product of global moments that it multiplies."""
    return {
        statistic.name: _expected_natural_for(structure, statistic, moments)
        for statistic in structure.statistics
    }


def _expected_natural_for(
    structure: Structure, statistic: Statistic, moments: MomentsByFactor
) -> Float[Array, "..."]:
    labels = tuple(map(Label, statistic.shape + statistic.summed))
    atoms = tuple(
        Atom(latent, function, tuple(labels[i] for i in numbers), power)
        for latent, function, power, numbers in statistic.atoms
    )
    operands = moment_operands(structure, Term(1.0, atoms), moments, role=None)
    kept = labels[: len(statistic.shape)]
    return jnp.asarray(contract(1.0, operands, kept))


def without_globals(
    structure: Structure, term: Term, expected_natural: ByStatistic
) -> Term:
    """A term as a function of a row's latents alone: globals are replaced by moments.

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
        if len(part) == 1 and kept.issuperset(labels_of_operand(part[0])):
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


def _connected(operands: Sequence[Operand], kept: set[Label]) -> "list[list[Operand]]":
    """Splits operands into sets that share no label but kept ones."""
    parts: list[tuple[set[Label], list[Operand]]] = []
    for operand in operands:
        labels, members = set(labels_of_operand(operand)) - kept, [operand]
        apart = []
        for others, part in parts:
            if labels & others:
                labels, members = labels | others, [*part, *members]
            else:
                apart.append((others, part))
        parts = [*apart, (labels, members)]
    return [members for _, members in parts]


def labels_of_operand(operand: Operand) -> Labels:
    """The labels of an operand's axes."""
    return labels_of(operand) if isinstance(operand, OneHot) else operand[1]


# --- moments of a factor --------------------------------------------------------------


def moment(
    factor: PosteriorFactor, atoms: Sequence[Atom], moments: AnyMoments
) -> list[Operand]:
    """The moment of a factor that one term asks for, as operands with its labels."""
    if factor.layout is not None:
        return [_gaussian_moment(factor, atoms, moments)]
    if len(factor.latents) > 1:
        of = {atom.latent: atom.labels for atom in atoms}
        arrays = {name: jnp.asarray(array) for name, array in moments.items()}
        names, table = factor.family.probabilities(of, arrays)
        batch = atoms[0].labels[:-1]
        return [(table, (*batch, *(of[name][-1] for name in names)))]
    if len(atoms) == 2:
        pairs = moments.get("pairs")
        if pairs is None:
            pairs = pair_moment(moments["is"])
        return [(pairs, (*atoms[0].labels, *atoms[1].labels))]
    (atom,) = atoms
    if "base" in moments:
        return factored_operands(atom, moments)
    return [(moments[statistic_name(atom)], atom.labels)]


def _gaussian_moment(
    factor: PosteriorFactor, atoms: Sequence[Atom], moments: AnyMoments
) -> LabelledArray:
    """The first or second moment of a Gaussian factor, with the labels of a term.

    Args:
      factor: One with a layout.
      atoms: The latents of it in the term, one or two.
      moments: "x", and "xx" for two; axes in front of their own stay where they are.

    Raises:
      NotConjugateError: A second moment is asked for between independent coordinates.
    """
    layout = factor.layout
    assert layout is not None
    num_own = len(layout.batch_shape) + len(atoms)
    if len(atoms) == 1:
        (atom,) = atoms
        batch, block = layout.labels(atom.latent, atom.labels)
        array = moments["x"][..., layout.span(atom.latent)]
        front = array.shape[: array.ndim - num_own]
        shape = (*front, *layout.batch_shape, *layout.block_shape(atom.latent))
        return array.reshape(shape), (*batch, *block)
    first, second = atoms
    batch, rows = layout.labels(first.latent, first.labels)
    other, columns = layout.labels(second.latent, second.labels)
    if batch != other:
        # Found by the search itself unless structure= has taken the block apart.
        raise NotConjugateError(
            {
                first.latent: "structure='diag' needs terms without products of two "
                f"entries of {first.latent!r}"
            }
        )
    array = moments["xx"][..., layout.span(first.latent), layout.span(second.latent)]
    shape = (
        *array.shape[: array.ndim - num_own],
        *layout.batch_shape,
        *layout.block_shape(first.latent),
        *layout.block_shape(second.latent),
    )
    return array.reshape(shape), (*batch, *rows, *columns)


def _moment_beside(
    factor: PosteriorFactor,
    atoms: Sequence[Atom],
    auxiliary: Atom,
    moments: AnyMoments,
) -> LabelledArray:
    """The moment of an auxiliary variable and of Gaussian latents of its row.

    Args:
      factor: The latents' factor.
      atoms: One or two of them.
      auxiliary: The auxiliary variable.
      moments: Its moments, with those in `BESIDE`.
    """
    both = {"x": moments[BESIDE[1]], "xx": moments[BESIDE[2]]}
    array, labels = _gaussian_moment(factor, atoms, both)
    return array, (*auxiliary.labels, *labels)


def pair_moment(
    probabilities: Float[Array | np.ndarray, "*batch states"],
) -> Float[Array, "..."]:
    """E[1[z_i=s] 1[z_j=t]] for all pairs of independent elements i and j.

    It is affine in each element's probabilities given the others', i = j included.
    """
    states = probabilities.shape[-1]
    flat = probabilities.reshape(-1, states)
    pairs = flat[:, :, None, None] * flat[None, None, :, :]
    same = jnp.eye(len(flat), dtype=bool)[:, None, :, None]
    diagonal = flat[:, :, None, None] * jnp.eye(states)[None, :, None, :]
    return jnp.where(same, diagonal, pairs).reshape(probabilities.shape * 2)


def factored_operands(atom: Atom, moments: AnyMoments) -> list[Operand]:
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
