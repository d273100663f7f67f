"""Directions of a Gaussian block of which no row says anything, whatever it holds.

In logits a[group] + b[item] any number may be added to all of a and taken from all of
b, and in strength[i] - strength[j] to all strengths: rows know differences alone, and
the prior the rest. Noise knows nothing of that. In a released gradient it points along
such a direction, too, and in a released curvature it looks like information about it.

That the density of rows is the same function is not assumed: it is tried at random
numbers. In logits b + X @ w there is such a direction if a schema has encoded X by an
indicator for each category, as these add up to one; that is tried on rows that the
schema can make. DPVI, which has gradients in place of terms, tries these in
`dpvi/gradients/silent_directions.py`.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Float64

from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.structure.row_constants import RowConstants
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.jax_tools.double_precision import evaluate_in_double
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.synthetic.synthetic_rows import (
    rows_of_encodings,
    synthetic_rows,
)
from numpyro_vips.schema.columns import SyntheticPlaces
from numpyro_vips.vips.program.features import Features
from numpyro_vips.vips.program.random_trials import is_shifted_unseen

Direction = Float64[np.ndarray, " size"]
# Latents of a block beyond which nobody looks.
_MOST_LATENTS = 12
# Rows of a schema for each coordinate, so that none of its categories is missing.
_ROWS_PER_COORDINATE = 30
# What rounding leaves of a sum that is zero, in single precision.
_ROUNDING = 1e-5


def silent_directions(
    structure: Structure, name: str, terms: Sequence[Term]
) -> Float64[np.ndarray, "size directions"]:
    """An orthonormal basis of the directions that are found, as columns.

    They are differences between two latents, each moved as a whole, and single latents.

    Args:
      structure: What was found in the model.
      name: A Gaussian factor.
      terms: A row's terms, with slots.
    """
    size = structure.posterior_factors[name].shape[-1]
    found = [
        direction
        for direction in _candidates(structure, name)
        if is_shifted_unseen(structure, name, direction, terms)
    ]
    return _basis(np.stack(found, 1) if found else np.zeros((size, 0)))


class InEncodings(NamedTuple):
    """What the rows that a schema can make show of a Gaussian block.

    Attributes:
      silent: An orthonormal basis of the directions in which none has a feature.
      unlisted: Which coordinates have a feature only in rows that it does not list.
    """

    silent: Float64[np.ndarray, "size directions"]
    unlisted: Bool[np.ndarray, " size"]


def seen_in_encodings(
    arguments: ModelArguments,
    row_constants: RowConstants,
    features: Features,
    size: int,
) -> InEncodings:
    """What encoded rows show; nothing where a schema has encoded none.

    Args:
      arguments: The model's, of which a schema has encoded some or none.
      row_constants: What makes features of a row.
      features: Those of a Gaussian block.
      size: Coordinates of the block.
    """
    if not arguments.encodings:
        return InEncodings(np.zeros((size, 0)), np.zeros(size, bool))
    listed, found = (
        _features_of_encodings(arguments, row_constants, features, size, places)
        for places in ("listed", "any")
    )
    unlisted = np.any(found != 0, axis=0) & ~np.any(listed != 0, axis=0)
    return InEncodings(_null_space(found), unlisted)


def _null_space(
    features: Float64[np.ndarray, "rows size"],
) -> Float64[np.ndarray, "size directions"]:
    """Directions of coordinates that some row has, in which no row has a feature."""
    size = features.shape[1]
    sizes = np.sqrt(np.mean(features**2, axis=0)) if len(features) else np.zeros(size)
    seen = np.flatnonzero(sizes > 0)
    if len(features) < size or not len(seen):
        return np.zeros((size, 0))
    alike = features[:, seen] / sizes[seen]
    squares, axes = np.linalg.eigh(alike.T @ alike)
    silent = np.zeros((size, len(seen)))
    silent[seen] = axes / sizes[seen][:, None]
    return _basis(silent[:, squares <= _ROUNDING**2 * squares[-1]])


def _features_of_encodings(
    arguments: ModelArguments,
    row_constants: RowConstants,
    features: Features,
    size: int,
    places: SyntheticPlaces,
) -> Float64[np.ndarray, "rows size"]:
    """The features of valid synthetic rows, as a schema encodes them."""
    count = _ROWS_PER_COORDINATE * size
    rows = synthetic_rows(arguments, count, seed=0)
    rows |= rows_of_encodings(arguments, count, places)

    def of_row(row: Mapping[str, Any]) -> tuple[Float[Array, " features"], Any]:
        arrays, valid = row_constants.zero_if_invalid(row)
        return features.flat(arrays), valid

    flat, valid = evaluate_in_double(jax.vmap(of_row), rows)
    found = np.zeros((count, size))
    np.add.at(found.T, [*features.places], flat.T)
    # Which of several intercepts a row has is not known here.
    if len(features.constant) == 1:
        found[:, features.constant] = 1.0
    return found[valid]


def _basis(
    directions: Float64[np.ndarray, "size number"],
) -> Float64[np.ndarray, "size directions"]:
    """An orthonormal basis of what some directions span."""
    if not directions.size:
        return np.zeros((len(directions), 0))
    basis, values, _ = np.linalg.svd(directions, full_matrices=False)
    return basis[:, values > 1e-9 * values[0]]


def _candidates(structure: Structure, name: str) -> Iterator[Direction]:
    factor = structure.posterior_factors[name]
    layout = factor.layout
    if layout is None or len(factor.latents) > _MOST_LATENTS:
        return
    whole = {}
    for latent in factor.latents:
        whole[latent] = np.zeros(layout.size)
        whole[latent][layout.span(latent)] = 1.0
    yield from whole.values()
    for one, other in itertools.combinations(factor.latents, 2):
        yield whole[one] - whole[other]
