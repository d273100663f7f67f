"""Units of features, from how large rows were seen to be.

Where the features of one vector are columns of a table, ages beside incomes, noise is
as large in the squares of ages as in those of incomes, and a pilot says nothing of
ages. Where rows are many, a histogram of each column comes first
(`fitting.bounds.column_histogram`), and features are divided by the sizes that it has
found.

Where an intercept and coefficients are entries of one vector, as in w[0] + w[1] x,
their products Σ ψψᵀ are one block, and noise is as large in the intercept's entry, the
number of rows, as in that of squares of heights in centimetres. A pilot then says
neither how many rows it has seen nor what their mean is, so that nothing can be
standardised; see `features`. But the histogram that comes before it says how large ψψᵀ
is. What it is larger by than in rows of unit size belongs to the features, as the
intercept's 1 is known. So they are divided by its root.

Both are changes of variables by released numbers.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.privacy.releases import COVARIATES
from numpyro_vips.vips.program.features import Features, Standardisation, Standards
from numpyro_vips.vips.program.program import ConjugateProgram

# Features that are larger than the intercept by less stay as they are: a bin of the
# histogram is wide, and synthetic rows are of unit size only on average.
_LARGEST_RATIO = 4.0


class FeatureColumns(NamedTuple):
    """The features that a latent's coefficients are multiplied by.

    Attributes:
      factor: The recentred factor.
      indices: Which of its features.
    """

    factor: str
    indices: tuple[int, ...]


def columns_of_features(
    program: ConjugateProgram, factors: Collection[str]
) -> dict[str, FeatureColumns]:
    """By the statistic of their products, features that share a norm.

    Args:
      program: The compiled model.
      factors: The recentred factors.
    """
    found = {}
    for name in sorted(factors & program.features.keys()):
        places = program.features[name].places
        for statistic, _, span in _squares_of_latents(program, name):
            own = range(span.start, span.stop)
            indices = tuple(i for i, place in enumerate(places) if place in own)
            if len(indices) > 1:
                found[statistic.name] = FeatureColumns(name, indices)
    return found


def units_of_sizes(
    standards: Mapping[str, Standardisation],
    columns: Mapping[str, FeatureColumns],
    sizes: Mapping[str, Float64[np.ndarray, " _columns"]],
) -> dict[str, Standardisation]:
    """Standardisations in which features are of one size.

    Args:
      standards: By factor, how features are standardised so far.
      columns: By statistic, its features.
      sizes: By statistic, how large each of them is, over what it would be in rows of
        unit size.
    """
    found = dict(standards)
    for statistic, of_columns in sizes.items():
        name, indices = columns[statistic]
        matrix = np.array(found[name].matrix, np.float64)
        matrix[list(indices)] /= of_columns[:, None]
        found[name] = found[name]._replace(matrix=matrix).as_rows_know()
    return found


def units_of_norms(
    program: ConjugateProgram,
    standards: Mapping[str, Standardisation],
    ratios: Mapping[str, float],
) -> tuple[dict[str, Standardisation], dict[str, float]]:
    """Standardisations in which features are about as large as their intercept.

    Args:
      program: The compiled model.
      standards: By recentred factor, how features are standardised so far.
      ratios: By statistic, the norm of its rows over that of rows of unit size.

    Returns:
      The standardisations, and by statistic the norm in them over that of before; it is
      left out where it is the same.
    """
    found, by = dict(standards), {}
    for name, standard in standards.items():
        beside = _squares_beside_intercept(program, name)
        ratio = 1.0 if beside is None else ratios.get(beside.squares, 1.0)
        if beside is None or ratio <= _LARGEST_RATIO:
            continue
        found[name] = Standardisation(
            standard.means, np.asarray(standard.matrix) / math.sqrt(ratio)
        ).as_rows_know()
        # Features of such rows have the norm of unit size; the intercept's square and
        # its products with them may have as much.
        square = 2.0 / ratio
        for statistic in program.structure.statistics:
            power = sum(latent == beside.latent for latent, *_ in statistic.atoms)
            if power:
                by[statistic.name] = square ** (power / 2)
    return found, by


class _BesideIntercept(NamedTuple):
    """A latent of which some coordinates are coefficients, and one is an intercept.

    Attributes:
      latent: The latent.
      squares: The name of the products of all its coordinates.
    """

    latent: str
    squares: str


def growth_of_norms(
    program: ConjugateProgram, before: Standards, after: Standards
) -> dict[str, float]:
    """By statistic, how much larger its rows may be of features in other coordinates.

    Those of statistics without features are left out. That of covariates' moments is
    always there, since features may be among these.

    Args:
      program: The compiled model.
      before, after: How features are standardised, by factor.
    """
    found = {}
    for name, standard in after.items():
        matrix = standard.matrix @ np.linalg.inv(before[name].matrix)
        longest = float(np.linalg.norm(matrix, 2))
        layout = program.structure.posterior_factors[name].layout
        assert layout is not None
        with_features = {
            latent
            for latent in layout.shapes
            for place in program.features[name].places
            if place in range(layout.size)[layout.span(latent)]
        }
        for statistic in program.structure.statistics:
            latents = [latent for latent, *_ in statistic.atoms]
            power = sum(latent in with_features for latent in latents)
            if power:
                found[statistic.name] = longest**power
        found[COVARIATES] = max(found.get(COVARIATES, 1.0), longest**2)
    return found


def _squares_beside_intercept(
    program: ConjugateProgram, name: str
) -> _BesideIntercept | None:
    """What has an intercept beside coefficients, of a factor with features."""
    for statistic, latent, span in _squares_of_latents(program, name):
        if _has_both(program.features[name], span):
            return _BesideIntercept(latent, statistic.name)
    return None


def _squares_of_latents(
    program: ConjugateProgram, name: str
) -> Iterator[tuple[Statistic, str, slice]]:
    """The statistics with all products of one latent's coordinates, of a factor.

    Each with the latent, and where its coordinates are in the factor.
    """
    structure = program.structure
    layout = structure.posterior_factors[name].layout
    assert layout is not None
    for statistic in structure.statistics:
        own = {latent for latent, *_ in statistic.atoms if latent in layout.shapes}
        if statistic.matrix is None or len(own) != 1 or statistic.summed:
            continue
        (latent,) = own
        yield statistic, latent, layout.span(latent)


def _has_both(features: Features, span: slice) -> bool:
    """Whether coordinates in this span are an intercept, and others features."""
    own = range(span.start, span.stop)
    return any(c in own for c in features.constant) and any(
        place in own for place in features.places
    )
