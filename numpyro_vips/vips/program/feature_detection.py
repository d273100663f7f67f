"""Which numbers of a row are features of a Gaussian block.

A feature is what one coefficient is multiplied by, whatever the model makes it of. That
the log joint density depends on features and coefficients through a + bᵀx alone is not
assumed: it is tried at random numbers, as an identity between polynomials. Numbers that
the model itself bounds are left alone, for proofs of sensitivity may rest on them.
"""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64

from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Dense,
    Label,
    Labels,
    OneHot,
    Term,
    is_public,
    range_of,
)
from numpyro_vips.conjugacy.structure.gaussian_layout import GaussianLayout
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.jax_tools.double_precision import evaluate_in_double
from numpyro_vips.vips.program.features import Features, Standardisation
from numpyro_vips.vips.program.named_arrays import AnyMoments
from numpyro_vips.vips.program.random_trials import (
    TOLERANCE,
    TRIALS,
    Expectations,
    NewNumbers,
    Numbers,
    agree,
    expectations_of,
    moments_at,
    random_moments,
    random_numbers,
)

# Features of one block beyond which they stay as they are.
_MOST_FEATURES = 200


def find_features(structure: Structure, terms: Sequence[Term]) -> dict[str, Features]:
    """By recentred factor, or one that takes Newton steps, the features that may be
    standardised.

    Args:
      structure: What was found in the model.
      terms: A row's terms, with slots.
    """
    found = {}
    for name in sorted(structure.recentred | structure.newton):
        for features in _candidates(structure, name, terms):
            if _may_be_standardised(structure, name, features, terms):
                found[name] = features
                break
    return found


def _candidates(
    structure: Structure, name: str, terms: Sequence[Term]
) -> Iterator[Features]:
    """Which features a factor may have: about each intercept, and without any."""
    factor = structure.posterior_factors[name]
    layout = factor.layout
    repeats = {
        latent
        for statistic in structure.statistics
        if statistic.diagonal is not None
        for latent in statistic.latents
    }
    # Of numbers whose squares are these numbers others would not be.
    if layout is None or not factor.family.has_covariances:
        return
    if repeats.intersection(factor.latents):
        return
    found: dict[int, tuple[int, ...]] = {}
    constant: dict[str, tuple[int, ...]] = {}
    unclear: set[int] = set()
    for latent in factor.latents:
        for term in terms:
            places = _squared_places(latent, layout, term)
            token = _own_token(term, latent, layout)
            if not places:
                continue
            if token == NO_TOKEN:
                constant[latent] = (*constant.get(latent, ()), *places)
            elif token is None or found.setdefault(token, places) != places:
                unclear |= {*places}
    by_token = {t: p for t, p in found.items() if unclear.isdisjoint(p)}
    tokens, places = tuple(by_token), tuple(itertools.chain(*by_token.values()))
    if not 0 < len(places) <= _MOST_FEATURES:
        return
    if len(set(places)) < len(places):
        return
    for intercepts in sorted(constant.values(), key=len):
        if unclear.isdisjoint(intercepts) and {*intercepts}.isdisjoint(places):
            yield Features(tokens, places, tuple(dict.fromkeys(intercepts)))
    if len(places) > 1:
        yield Features(tokens, places, ())


def _squared_places(
    latent: str, layout: GaussianLayout, term: Term
) -> tuple[int, ...] | None:
    """The coordinates whose squares are in a term; None if it has no squares."""
    atoms = _real_atoms(latent, term)
    if len(atoms) != 2 or len(atoms) != sum(a.latent == latent for a in term.atoms):
        return None
    first, second = (_places(atom, layout, term) for atom in atoms)
    return first if first == second else None


def _real_atoms(latent: str, term: Term) -> list[Atom]:
    return [
        atom
        for atom in term.atoms
        if (atom.latent, atom.function, atom.power) == (latent, "x", 1.0)
    ]


def _places(atom: Atom, layout: GaussianLayout, term: Term) -> tuple[int, ...]:
    """The coordinates that an atom stands for; public indices may pick some."""
    span = layout.span(atom.latent)
    places = np.arange(span.start, span.stop).reshape(layout.block_shape(atom.latent))
    _, labels = layout.labels(atom.latent, atom.labels)
    for axis, label in enumerate(labels):
        picked = _picked(label, term)
        if picked is not None:
            places = np.take(places, picked.entries, axis)
    return tuple(int(place) for place in places.ravel())


class _Picked(NamedTuple):
    """Entries along a label, as of w[0] or w[1:].

    Attributes:
      entries: Which ones.
      labels: Where the term has them, one after the other; empty for a single one.
    """

    entries: tuple[int, ...]
    labels: Labels


def _picked(label: Label, term: Term) -> _Picked | None:
    """The entries along a label that a public index picks; None for all."""
    picks = [f for f in term.constants if isinstance(f, OneHot) and f.target is label]
    if len(picks) != 1 or not is_public(picks[0].indices) or picks[0].may_pick_none:
        return None
    labels = long_labels(picks[0].labels)
    if len(labels) > 1:
        return None
    return _Picked(tuple(map(int, np.ravel(picks[0].indices))), labels)


# In the place of a token, where a row has the number 1 and no array. Tokens of products
# are less.
NO_TOKEN = -1


def _own_token(term: Term, latent: str, layout: GaussianLayout) -> int | None:
    """The token of what multiplies each of two equal atoms; None if that is not clear.

    Args:
      term: A term with the square of a latent.
      latent, layout: Which latent, and its place in a block.
    """
    dense = [f for f in term.constants if isinstance(f, Dense) and f.is_private]
    times = Counter(f.array for f in dense)
    twice = [slot for slot, count in times.items() if count == 2]
    if not twice:
        return NO_TOKEN
    slot, mine = twice[0], [f for f in dense if f.array in twice]
    is_bounded = {range_of(f) for f in mine} != {(-math.inf, math.inf)}
    if len(twice) > 1 or is_bounded or any(f.branch is not None for f in mine):
        return None
    atoms = _real_atoms(latent, term)
    of_atoms = {entries_of(atom, layout, term) for atom in atoms}
    if {long_labels(f.labels) for f in mine} != of_atoms:
        return None
    return slot.token if jnp.issubdtype(slot.dtype, jnp.floating) else None


def picks_of(
    atom: Atom, layout: GaussianLayout, term: Term
) -> tuple[tuple[int, ...], ...]:
    """For each axis in the block, which entries a public index picks; none for all."""
    _, labels = layout.labels(atom.latent, atom.labels)
    picks = (_picked(label, term) for label in labels)
    return tuple(() if pick is None else pick.entries for pick in picks)


def entries_of(atom: Atom, layout: GaussianLayout, term: Term) -> Labels:
    """The labels along which a term has several of an atom's coordinates."""
    _, labels = layout.labels(atom.latent, atom.labels)
    found: list[Label] = []
    for label in labels:
        picked = _picked(label, term)
        found.extend([label] if picked is None else picked.labels)
    return long_labels(tuple(found))


def long_labels(labels: Labels) -> Labels:
    """The labels along which there are several entries."""
    return tuple(label for label in labels if label.size > 1)


def _may_be_standardised(
    structure: Structure, name: str, features: Features, terms: Sequence[Term]
) -> bool:
    """Whether a row's terms are the same function of x and w as of x' and w'.

    The terms are polynomials in a row's numbers and in moments. Two that differ agree
    at random numbers with probability zero.
    """
    factor = structure.posterior_factors[name]
    rng = np.random.default_rng(0)
    count = len(features.places)
    means = rng.normal(size=count) if features.constant else np.zeros(count)
    tried = Standardisation(means, rng.normal(size=(count, count)) + 2 * np.eye(count))
    numbers = random_numbers(terms, rng)
    moments = random_moments(structure, rng)
    point = rng.normal(size=factor.shape)
    matrix = features.to_coefficients(tried, factor.shape[-1])
    there = np.linalg.solve(matrix, point[..., None])[..., 0]
    after = evaluate_in_double(functools.partial(features.apply, tried), numbers)

    def values(
        numbers: Numbers, place: Float64[np.ndarray, "*batch size"]
    ) -> Expectations:
        given = {**moments, name: moments_at(place)}
        return expectations_of(structure, terms, numbers, given)

    return agree(values(numbers, point), values(after, there))


def weight_of_intercepts(
    structure: Structure,
    name: str,
    features: Features,
    terms: Sequence[Term],
    moments: Mapping[str, AnyMoments],
) -> float | None:
    """What the squares of intercepts have in every row, where it is the same in all.

    That it is the same is tried at rows of random numbers, and random moments of rows'
    own latents.

    Args:
      structure: What was found in the model.
      name: A Gaussian factor.
      features: Its features, of which some are intercepts.
      terms: A row's terms, with slots.
      moments: Those of all other global factors.

    Returns:
      The coefficient of the square, over −1/2; None if rows differ.
    """
    tried = _squares_at(structure, name, features.constant, terms, moments)
    return _if_alike([value for _, value in tried])


def weight_of_features(
    structure: Structure,
    name: str,
    features: Features,
    terms: Sequence[Term],
    moments: Mapping[str, AnyMoments],
) -> float | None:
    """What all products of features are multiplied by, where rows do not differ.

    As a precision, by which the squares of all residuals are. It is tried like
    `weight_of_intercepts`, whose arguments these are.

    Returns:
      The weight of ψψᵀ in a row; None if rows differ.
    """
    tried = _squares_at(structure, name, features.places, terms, moments)
    return _if_alike(
        [
            value / sum(np.square(numbers[token]).sum() for token in features.tokens)
            for numbers, value in tried
        ]
    )


def _squares_at(
    structure: Structure,
    name: str,
    places: Sequence[int],
    terms: Sequence[Term],
    moments: Mapping[str, AnyMoments],
) -> Iterator[tuple[NewNumbers, float]]:
    """The numbers of random rows, and what these multiply the squares of some
    coordinates by, over −1/2.

    Args:
      structure, name, terms, moments: See `weight_of_intercepts`.
      places: The coordinates, each of which has the square 1.
    """
    factor = structure.posterior_factors[name]
    at_places = np.zeros(factor.shape)
    at_places[..., list(places)] = 1.0
    own = {
        "x": np.zeros(factor.shape),
        "xx": at_places[..., None] * np.eye(factor.shape[-1]),
    }
    squares = [
        term
        for term in terms
        if sum(atom.latent in factor.latents for atom in term.atoms) == 2
    ]
    rng = np.random.default_rng(2)
    for _ in range(TRIALS):
        numbers = random_numbers(squares, rng)
        given = {**random_moments(structure, rng), **moments, name: own}
        value = expectations_of(structure, squares, numbers, given).sum()
        yield numbers, -2.0 * float(value)


def _if_alike(values: Sequence[float]) -> float | None:
    """The first of some numbers, if they are all the same up to rounding."""
    if max(values) - min(values) > TOLERANCE * max(map(abs, values)):
        return None
    return float(values[0])
