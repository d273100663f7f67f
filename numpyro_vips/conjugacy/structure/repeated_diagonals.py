"""Diagonals of a statistic that repeat another one, and so are not released.

An indicator is its own square. Where the units z of a row are zeros and ones, what
multiplies w_k² in the log joint density, the diagonal of Σ_kl ξ z_k z_l w_k w_l / 2, is
half of what multiplies w_k c in Σ_k ξ z_k w_k c, in every row. The latter is released,
and the diagonal is read off it, so the released matrix is hollow: zero on its diagonal.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra.normal_form import simplify
from numpyro_vips.conjugacy.algebra.terms import (
    Dense,
    Factor,
    Labels,
    Term,
    function_key,
    is_public,
    product_key,
)
from numpyro_vips.conjugacy.structure.geometry import Entry, Matrix, is_global
from numpyro_vips.conjugacy.structure.latents import Latents
from numpyro_vips.conjugacy.structure.statistic import Diagonal, Statistic


def without_diagonal(block: jax.Array) -> jax.Array:
    """A block of matrices with zeros on the diagonals."""
    return jnp.where(np.eye(block.shape[-1], dtype=bool), 0.0, block)


def with_diagonal(block: Any, diagonal: Any) -> Any:
    """A block of matrices with other diagonals; noisy sums stay in double precision."""
    xp = np if is_public(block) else jnp
    return xp.where(np.eye(block.shape[-1], dtype=bool), diagonal[..., None], block)


def repeated_diagonal(
    statistic: Statistic,
    entries: Sequence[Entry],
    others: Sequence[tuple[Statistic, Sequence[Entry]]],
    latents: Latents,
) -> Diagonal | None:
    """The statistic that the diagonal of another one repeats in every row, if any.

    Only where all entries are of one sign: a semidefinite matrix without its diagonal
    is not semidefinite, and would have a larger sensitivity where a row is replaced.

    Args:
      statistic: The one with a diagonal.
      entries: Its terms, and their labels for those of the statistic.
      others: All statistics with their terms.
      latents: All latents of the model.
    """
    if statistic.matrix is None or statistic.geometry != "nonnegative":
        return None
    batch, rows, _ = statistic.matrix
    if len(rows) != 1:
        return None
    sizes = [statistic.shape[i] for i in (*batch, *rows)]
    mine = [_on_diagonal(entry, statistic.matrix) for entry in entries]
    if any(entry is None for entry in mine):
        return None
    mine = _row_parts([entry for entry in mine if entry is not None], latents)
    for other, their_entries in others:
        if other.matrix is not None or other.release != statistic.release:
            continue
        for axes in itertools.permutations(range(len(other.shape))):
            if [other.shape[i] for i in axes] != sizes:
                continue
            reordered = [
                (term, tuple(labels[i] for i in axes)) for term, labels in their_entries
            ]
            factor = _ratio(mine, _row_parts(reordered, latents))
            if factor is not None:
                return Diagonal(statistic=other.name, factor=factor, axes=axes)
    return None


def _on_diagonal(entry: Entry, matrix: Matrix) -> Entry | None:
    """A term with its row and column labels identified, in normal form."""
    term, labels = entry
    batch, (row,), (column,) = matrix
    if labels[row] is not labels[column]:
        if labels[column] not in term.bound:
            return None
        simplified = simplify(term.renamed({labels[column]: labels[row]}))
        if simplified is None:
            return None
        term = simplified
    return term, tuple(labels[i] for i in (*batch, row))


_RowPart = tuple[tuple, float]


def _row_parts(entries: Sequence[Entry], latents: Latents) -> list[_RowPart]:
    """What each term multiplies globals by: equal keys for equal functions of a row."""
    parts = [_row_part(term, labels, latents) for term, labels in entries]
    return sorted(parts, key=lambda part: repr(part[0]))


def _row_part(term: Term, labels: Labels, latents: Latents) -> _RowPart:
    inside = [f for f in term.factors if not is_global(f, latents)]
    factors = sorted(_constants_multiplied(inside), key=function_key)
    return product_key(factors, labels), term.scale


def _constants_multiplied(factors: Sequence[Factor]) -> list[Factor]:
    """The product of public constants with the same labels, as one constant."""
    found: list[Factor] = []
    for factor in factors:
        for i, other in enumerate(found):
            if (
                isinstance(factor, Dense)
                and isinstance(other, Dense)
                and is_public(factor.array)
                and is_public(other.array)
                and factor.labels == other.labels
            ):
                product = np.multiply(factor.array, other.array)
                found[i] = Dense(product, factor.labels)
                break
        else:
            found.append(factor)
    return found


def _ratio(mine: Sequence[_RowPart], theirs: Sequence[_RowPart]) -> float | None:
    """The factor between two sums of the same functions of a row, if there is one."""
    if not mine or [key for key, _ in mine] != [key for key, _ in theirs]:
        return None
    factor = mine[0][1] / theirs[0][1]
    same = all(a == factor * b for (_, a), (_, b) in zip(mine, theirs, strict=True))
    return factor if same else None
