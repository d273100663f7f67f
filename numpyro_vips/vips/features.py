"""Features of rows, standardised by what a pilot has released of them.

Ages near 50 beside an intercept are nearly a second intercept, and squares of incomes
hide what they are added to under their noise. So statisticians subtract means and
divide by standard deviations; but of private rows nobody knows any. A pilot does: its
noisy second moments Σ ψψᵀ of the features ψ of a Gaussian block have means and
covariances in them. For any public m and A,

    a + bᵀx = a' + b'ᵀx',   x' = A (x - m),   b = Aᵀb',   a = a' - mᵀAᵀb',

so this is a change of variables, as in `conjugacy.structure.centring`: what follows the
pilot is released of x', of which no two columns are nearly the same and none is larger
than the others, and the posterior of (a', b') is one of (a, b).

A feature is what one coefficient is multiplied by, whatever the model makes it of. That
the log joint density depends on features and coefficients through a + bᵀx alone is not
assumed: it is tried at random numbers, as an identity between polynomials. Numbers that
the model itself bounds are left alone, for proofs of sensitivity may rest on them.
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

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
from numpyro_vips.conjugacy.families.gaussian import Normal
from numpyro_vips.conjugacy.structure.gaussian_layout import GaussianLayout
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.vips.expectations import moment_operands
from numpyro_vips.vips.named_arrays import AnyMoments, Numbers, as_rows_know

# Features of one block beyond which they stay as they are.
_MOST_FEATURES = 200
# Sums that are smaller, in standard deviations of their noise, count as that large.
_LEAST = 2.0
# How nearly two polynomials must agree, as a share of the numbers that are added up.
_TOLERANCE = 1e-9


class Standardisation(NamedTuple):
    """What is subtracted from features x, and by what the rest is multiplied.

    Attributes:
      means: m.
      matrix: A; x' = A (x - m).
    """

    means: Float[Array | np.ndarray, " features"]
    matrix: Float[Array | np.ndarray, "features features"]

    def as_rows_know(self) -> Self:
        """Rounded to the precision in which programs of rows run."""
        means, matrix = map(np.asarray, (self.means, self.matrix))
        return type(self)(as_rows_know(means), as_rows_know(matrix))


# By recentred factor.
Standards = Mapping[str, Standardisation]


@dataclasses.dataclass(frozen=True)
class Features:
    """The features of a Gaussian block.

    Attributes:
      tokens: The slots that hold those of each latent; see `RowConstants`.
      places: The coordinate of the block that each entry is multiplied by.
      constant: The coordinates of intercepts: every row has one of these, times 1.
        Without any, features are not centred.
    """

    tokens: tuple[int, ...]
    places: tuple[int, ...]
    constant: tuple[int, ...]

    def in_units_of(
        self, stddev: Float64[np.ndarray, "*batch size"]
    ) -> Standardisation:
        """That which makes features comparable, as far as their coefficients' are.

        Args:
          stddev: Of the block's coordinates, up to a factor, as the prior has them.
        """
        count = len(self.places)
        variance = (stddev.reshape(-1, stddev.shape[-1]) ** 2).mean(0)[[*self.places]]
        scale = np.sqrt(variance / np.exp(np.mean(np.log(variance))))
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            scale = np.ones(count)
        return Standardisation(np.zeros(count), np.diag(scale))

    def flat(self, numbers: Mapping[Any, Any]) -> Float[Array, " features"]:
        """These features one after the other, of a row's numbers by token."""
        return jnp.concatenate([jnp.ravel(numbers[token]) for token in self.tokens])

    def apply(self, standardisation: Standardisation, numbers: Numbers) -> Numbers:
        """A row's numbers by token, with these features standardised.

        Differences to means near them are exact in any precision.
        """
        arrays = [numbers[token] for token in self.tokens]
        centred = self.flat(numbers) - standardisation.means
        moved = jnp.matmul(standardisation.matrix, centred, precision="highest")
        parts = jnp.split(moved, np.cumsum([array.size for array in arrays])[:-1])
        shaped = {
            token: part.reshape(array.shape).astype(array.dtype)
            for token, part, array in zip(self.tokens, parts, arrays, strict=True)
        }
        return {**numbers, **shaped}

    def to_coefficients(
        self, standardisation: Standardisation, size: int
    ) -> Float64[np.ndarray, "size size"]:
        """The matrix that takes the coordinates of x' to those of x.

        Args:
          standardisation: What was done to the features.
          size: Coordinates of the block.
        """
        means, matrix = map(np.asarray, standardisation)
        found = np.eye(size)
        found[np.ix_(self.places, self.places)] = matrix.T
        if self.constant:
            found[np.ix_(self.constant, self.places)] = -(matrix @ means)
        return found

    def standardisation(
        self,
        before: Standardisation,
        moments: Float64[np.ndarray, "*batch size size"],
        noise_stddev: Float64[np.ndarray, "*batch size size"],
    ) -> Standardisation:
        """That which makes features uncorrelated and of one size, as far as is known.

        Args:
          before: How they were standardised when moments were released.
          moments: Noisy sums over rows of ψψᵀ, in the block's coordinates, all times
            one positive number.
          noise_stddev: Standard deviations of the noise in them.
        """
        size = moments.shape[-1]
        sums = moments.reshape(-1, size, size).sum(0)
        noise = np.sqrt((noise_stddev**2).reshape(-1, size, size).sum(0))
        places, constant = list(self.places), list(self.constant)
        number, means = 1.0, np.zeros(len(places))
        covariance, of_covariance = (x[np.ix_(places, places)] for x in (sums, noise))
        if constant:
            number = sums[constant, constant].sum()
            error = math.sqrt((noise[constant, constant] ** 2).sum())
            if number <= _LEAST * error or number <= 0:
                return before
            means = sums[np.ix_(constant, places)].sum(0) / number
            errors = np.sqrt((noise[np.ix_(constant, places)] ** 2).sum(0)) / number
            # A mean that noise has made is none.
            sure = means**2 / np.where(means == 0, 1.0, means**2 + errors**2)
            means = sure * means
            covariance = covariance / number - np.outer(means, means)
            of_covariance = of_covariance / number
        matrix = _whitening(covariance, of_covariance)
        if not constant:
            # Nothing says how many rows there are in the sums: the size stays.
            sizes = np.linalg.svd(matrix, compute_uv=False)
            matrix = matrix / np.exp(np.mean(np.log(sizes)))
        means = before.means + np.linalg.solve(before.matrix, means)
        matrix = matrix @ before.matrix
        if not (np.isfinite(matrix).all() and np.isfinite(means).all()):
            return before
        return Standardisation(means, matrix)


def _whitening(
    covariance: Float64[np.ndarray, "features features"],
    noise_stddev: Float64[np.ndarray, "features features"],
) -> Float64[np.ndarray, "features features"]:
    """The symmetric root of an inverse, of variances that stand out of the noise.

    Directions that do not stand out count as large as the noise, so that no row is made
    larger by what the noise has left of them.
    """
    variances = np.diagonal(covariance)
    least = np.maximum(_LEAST * np.diagonal(noise_stddev), 1e-9 * np.abs(variances))
    scale = np.sqrt(np.maximum(variances, least))
    scale = np.where(scale > 0, scale, 1.0)
    correlation = covariance / np.outer(scale, scale)
    noise = noise_stddev / np.outer(scale, scale)
    spectral_norm = 2.0 * math.sqrt(np.max((noise**2).sum(1)))
    values, vectors = np.linalg.eigh(correlation)
    values = np.maximum(values, max(spectral_norm, 1e-6 * float(values[-1])))
    return (vectors / np.sqrt(values)) @ vectors.T / scale


# --- what the features of a model are -------------------------------------------------


def find_features(structure: Structure, terms: Sequence[Term]) -> dict[str, Features]:
    """By recentred factor, the features that may be standardised.

    Args:
      structure: What was found in the model.
      terms: A row's terms, with slots.
    """
    found = {}
    for name in sorted(structure.recentred):
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
        for latent, *_ in statistic.atoms
    }
    # Of numbers whose squares are these numbers others would not be.
    if layout is None or type(factor.family) is not Normal:
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
            if token == _ONE:
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
    """The coordinates that an atom stands for, of which a public index may pick one."""
    span = layout.span(atom.latent)
    places = np.arange(span.start, span.stop).reshape(layout.block_shape(atom.latent))
    _, labels = layout.labels(atom.latent, atom.labels)
    for axis, label in enumerate(labels):
        index = _picked(label, term)
        if index is not None:
            places = np.take(places, [index], axis)
    return tuple(int(place) for place in places.ravel())


def _picked(label: Label, term: Term) -> int | None:
    """The entry along a label that a public index picks; None for all."""
    picks = [f for f in term.constants if isinstance(f, OneHot) and f.target is label]
    if len(picks) == 1 and is_public(picks[0].indices) and picks[0].indices.size == 1:
        return int(picks[0].indices.item())
    return None


# In the place of a token, where a row has the number 1 and no array.
_ONE = -1


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
        return _ONE
    slot, mine = twice[0], [f for f in dense if f.array in twice]
    is_bounded = {range_of(f) for f in mine} != {(-math.inf, math.inf)}
    if len(twice) > 1 or is_bounded or any(f.branch is not None for f in mine):
        return None
    atoms = _real_atoms(latent, term)
    of_atoms = {_entries(atom, layout, term) for atom in atoms}
    if {_long(f.labels) for f in mine} != of_atoms:
        return None
    return slot.token if jnp.issubdtype(slot.dtype, jnp.floating) else None


def _entries(atom: Atom, layout: GaussianLayout, term: Term) -> Labels:
    """The labels along which an atom has several coordinates."""
    _, labels = layout.labels(atom.latent, atom.labels)
    return _long(tuple(x for x in labels if _picked(x, term) is None))


def _long(labels: Labels) -> Labels:
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
    numbers = _random_numbers(terms, rng)
    moments = {
        each.name: _random_moments(each, rng)
        for each in structure.posterior_factors.values()
    }
    point = rng.normal(size=factor.shape)
    matrix = features.to_coefficients(tried, factor.shape[-1])
    there = np.linalg.solve(matrix, point[..., None])[..., 0]
    with jax.enable_x64(True):
        moved = features.apply(tried, jax.tree.map(jnp.asarray, numbers))
        after = jax.tree.map(np.asarray, moved)

    def values(
        numbers: Mapping[int | str, np.ndarray], place: np.ndarray
    ) -> np.ndarray:
        at_place = {"x": place, "xx": place[..., None] * place[..., None, :]}
        mine = {**moments, name: at_place}
        return np.array(
            [_value(structure, term.filled(numbers), mine) for term in terms]
        )

    first, second = values(numbers, point), values(after, there)
    size = np.abs(first).sum() + np.abs(second).sum()
    return bool(abs(first.sum() - second.sum()) <= _TOLERANCE * size)


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


def _random_numbers(
    terms: Sequence[Term], rng: np.random.Generator
) -> dict[int | str, np.ndarray]:
    """Numbers for the slots of terms; indices are zeros."""
    found: dict[int | str, np.ndarray] = {}
    for slot in dict.fromkeys(slot for term in terms for slot in term.slots):
        is_real = jnp.issubdtype(slot.dtype, jnp.floating)
        numbers = rng.normal(size=slot.shape) if is_real else np.zeros(slot.shape)
        found[slot.token] = numbers.astype(None if is_real else slot.dtype)
    return found


def _random_moments(
    factor: PosteriorFactor, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    shapes = factor.family.moment_shapes(factor.shape)
    return {name: rng.uniform(0.5, 1.5, shape) for name, shape in shapes.items()}


def standardised(
    features: Mapping[str, Features], standards: Standards, numbers: Numbers
) -> Numbers:
    """A row's numbers by token, with the features of all factors standardised."""
    for name, standard in standards.items():
        numbers = features[name].apply(standard, numbers)
    return numbers
