"""Identities between sums of terms, tried at random numbers.

The terms are polynomials in a row's numbers and in moments. Two that differ agree at
random numbers with probability zero.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64, Shaped

from numpyro_vips.conjugacy.algebra.terms import Label, Labels, OneHot, Slot, Term
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.vips.program.expectations import moment_operands
from numpyro_vips.vips.program.named_arrays import AnyMoments

# By token, what the slots of a row's terms stand for, outside of JAX.
Numbers = Mapping[int | str, Shaped[np.ndarray, "..."]]
NewNumbers = dict[int | str, Shaped[np.ndarray, "..."]]
# The expectation of each of some terms.
Expectations = Float64[np.ndarray, " terms"]
# How nearly two polynomials must agree, as a share of the numbers that are added up.
TOLERANCE = 1e-9
# How often that is tried, where indices and labels of rows are drawn, too.
TRIALS = 3


def moments_at(
    place: Float64[np.ndarray, "*batch size"],
) -> dict[str, Float64[np.ndarray, "..."]]:
    """The moments of a Gaussian block that is known to be at a place."""
    return {"x": place, "xx": place[..., None] * place[..., None, :]}


def is_shifted_unseen(
    structure: Structure,
    name: str,
    direction: Float64[np.ndarray, " size"],
    terms: Sequence[Term],
) -> bool:
    """Whether a row's terms are the same wherever a factor is along a direction.

    That is tried at random numbers, and random moments of other latents.

    Args:
      structure: What was found in the model.
      name: A Gaussian factor.
      direction: In the block's coordinates.
      terms: A row's terms, with slots.
    """
    rng = np.random.default_rng(3)
    shape = structure.posterior_factors[name].shape
    mine = structure.posterior_factors[name].latents
    own = [term for term in terms if any(atom.latent in mine for atom in term.atoms)]
    for _ in range(TRIALS):
        numbers = random_numbers(own, rng)
        moments = random_moments(structure, rng)
        place = rng.normal(size=shape)
        before, after = (
            expectations_of(structure, own, numbers, {**moments, name: moments_at(at)})
            for at in (place, place + direction)
        )
        if not agree(before, after):
            return False
    return True


def are_equal(
    structure: Structure,
    first: Sequence[Term],
    second: Sequence[Term],
    with_products: Callable[[Mapping[Any, Any]], Mapping[Any, Any]],
) -> bool:
    """Whether two sums of terms are the same function of a row and of the latents.

    Args:
      structure: What was found in the model.
      first: Terms in a row's constants.
      second: Terms in these and in others that are made of them.
      with_products: What adds those others to a row's constants, by token.
    """
    rng = np.random.default_rng(1)
    for _ in range(TRIALS):
        numbers = random_numbers(first, rng)
        moments = random_moments(structure, rng)
        with double_precision():
            more = jax.tree.map(np.asarray, dict(with_products(numbers)))
        before = expectations_of(structure, first, numbers, moments)
        if not agree(before, expectations_of(structure, second, more, moments)):
            return False
    return True


def expectations_of(
    structure: Structure,
    terms: Sequence[Term],
    numbers: Numbers,
    moments: Mapping[str, AnyMoments],
) -> Expectations:
    """The expectation of each term."""
    return np.array(
        [_value(structure, term.filled(numbers), moments) for term in terms]
    )


def agree(first: Expectations, second: Expectations) -> bool:
    """Whether two sums are the same up to rounding."""
    size = np.abs(first).sum() + np.abs(second).sum()
    return bool(abs(first.sum() - second.sum()) <= TOLERANCE * size)


def _value(
    structure: Structure, term: Term, moments: Mapping[str, AnyMoments]
) -> float:
    """The expectation of a term; in NumPy, as compiling it would take longer."""
    operands: list[tuple[np.ndarray, Labels]] = []
    for factor in term.constants:
        array, labels = np.asarray(factor.array), factor.labels
        if isinstance(factor, OneHot):
            size = factor.target.size
            array = np.eye(size + 1)[:, :size][array]  # Of -1 there is none.
            labels = (*labels, factor.target)
        operands.append((array, labels))
    for operand in moment_operands(structure, term, moments, role=None):
        assert not isinstance(operand, OneHot)
        array, labels = operand
        operands.append((np.asarray(array), labels))
    number: dict[Label, int] = {}
    inputs = [
        part
        for array, labels in operands
        for part in (array, [number.setdefault(x, len(number)) for x in labels])
    ]
    # A label that stands nowhere is summed over all the same.
    missing = math.prod(x.size for x in term.bound if x not in number)
    total = np.einsum(*inputs, []) if inputs else 1.0
    return term.scale * missing * float(total)


def random_numbers(terms: Sequence[Term], rng: np.random.Generator) -> NewNumbers:
    """Numbers for the slots of terms, of the kinds that these may hold."""
    found: NewNumbers = {}
    for factor in (f for term in terms for f in term.constants):
        slot = factor.array
        if not isinstance(slot, Slot) or slot.token in found:
            continue
        if isinstance(factor, OneHot):
            numbers = rng.integers(0, factor.target.size, slot.shape)
        elif factor.branch is not None or not jnp.issubdtype(slot.dtype, jnp.floating):
            numbers = rng.integers(0, 2, slot.shape)
        else:
            numbers = rng.normal(size=slot.shape)
        is_real = jnp.issubdtype(slot.dtype, jnp.floating)
        found[slot.token] = np.asarray(numbers, float if is_real else slot.dtype)
    return found


def random_moments(
    structure: Structure, rng: np.random.Generator
) -> dict[str, dict[str, Float64[np.ndarray, "..."]]]:
    """Moments of all factors; those of a pair of latents are symmetric."""
    found = {}
    for factor in structure.posterior_factors.values():
        shapes = factor.family.moment_shapes(factor.shape)
        found[factor.name] = {
            name: rng.uniform(0.5, 1.5, shape) for name, shape in shapes.items()
        }
    return found
