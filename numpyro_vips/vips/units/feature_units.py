"""Units of features, from how large rows were seen to be.

Where the features of one vector are columns of a table, ages beside incomes, noise is
as large in the squares of ages as in those of incomes, and a pilot says nothing of
ages. The same is true of the features of several latents, as in a + b age + c income,
where rows are so few that their products share a norm; see `StatisticRoles.together`.
So a histogram of each column comes first (`fitting.bounds.column_histogram`), and
features are divided by the sizes that it has found.

Where an intercept and coefficients are entries of one vector, as in w[0] + w[1] x,
their products Σ ψψᵀ are one block, and noise is as large in the intercept's entry, the
number of rows, as in that of squares of heights in centimetres. A pilot then says
neither how many rows it has seen nor what their mean is, so that nothing can be
standardised; see `features`. But the histogram that comes before it says how large ψψᵀ
is. What it is larger by than in rows of unit size belongs to the features, as the
intercept's 1 is known. So they are divided by its root. Blocks that share a norm are as
one here, too.

Both are changes of variables by released numbers.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from numpyro_vips.privacy.releases import COVARIATES, Together
from numpyro_vips.vips.program.features import Features, Standardisation, Standards
from numpyro_vips.vips.program.named_arrays import InDouble
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.units.column_units import narrower

# Features that are larger than the intercept by less stay as they are: a bin of the
# histogram is wide, and synthetic rows are of unit size only on average.
_LARGEST_RATIO = 4.0


class FeatureGroup(NamedTuple):
    """Features whose products share a norm.

    Attributes:
      factor: The factor of their coefficients.
      indices: Which of its features.
      reference: The norm of them together in rows of unit size.
    """

    factor: str
    indices: tuple[int, ...]
    reference: float


def columns_of_features(
    program: ConjugateProgram, factors: Collection[str], together: Sequence[Together]
) -> dict[str, FeatureGroup]:
    """By the norm of their products, features that share it.

    Args:
      program: The compiled model.
      factors: Those whose features are standardised.
      together: The statistics that share a norm.
    """
    found = {}
    for name in sorted(factors & program.features.keys()):
        places = program.features[name].places
        for products in _products(program, name, together):
            indices = tuple(i for i, p in enumerate(places) if p in products.places)
            reference = 1.0
            if name in program.structure.newton:
                if len(products.latents) == 1:
                    continue  # Its residuals are counted; see `column_units`.
                # Each is as large as an intercept whose square is released with theirs.
                reference = math.sqrt(len(indices))
            if len(indices) > 1:
                found[products.name] = FeatureGroup(name, indices, reference)
    return found


def units_of_sizes(
    standards: Mapping[str, Standardisation],
    columns: Mapping[str, FeatureGroup],
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
        name, indices, _ = columns[statistic]
        matrix = np.array(found[name].matrix, np.float64)
        matrix[list(indices)] /= of_columns[:, None]
        found[name] = found[name]._replace(matrix=matrix).as_rows_know()
    return found


def narrower_start(
    program: ConjugateProgram,
    columns: Mapping[str, FeatureGroup],
    moments: InDouble,
    sizes: Mapping[str, Float64[np.ndarray, " _columns"]],
) -> InDouble:
    """Moments of the globals at the start, once the sizes of features are known.

    See `column_units.narrower`.

    Args:
      program: The compiled model.
      columns: By the name of a norm, its features.
      moments: Those before, by factor.
      sizes: By the name of a norm, how large its features are; see `units_of_sizes`.
    """
    found = dict(moments)
    for norm, of_columns in sizes.items():
        name, indices, _ = columns[norm]
        places = [program.features[name].places[index] for index in indices]
        found[name] = narrower(found[name], places, of_columns)
    return found


def units_of_norms(
    program: ConjugateProgram,
    standards: Mapping[str, Standardisation],
    ratios: Mapping[str, float],
    together: Sequence[Together],
) -> tuple[dict[str, Standardisation], dict[str, float]]:
    """Standardisations in which features are about as large as their intercept.

    Args:
      program: The compiled model.
      standards: By recentred factor, how features are standardised so far.
      ratios: By the name of a norm, that of rows over that of rows of unit size.
      together: The statistics that share a norm where rows are few.

    Returns:
      The standardisations, and by statistic the norm in them over that of before; it is
      left out where it is the same.
    """
    found, by = dict(standards), {}
    for name, standard in standards.items():
        beside = [
            products
            for products in _products(program, name, together)
            if products.has_both(program.features[name])
            and ratios.get(products.name, 1.0) > _LARGEST_RATIO
        ]
        if not beside:
            continue
        largest = max(beside, key=lambda products: ratios[products.name])
        ratio = ratios[largest.name]
        found[name] = Standardisation(
            standard.means, np.asarray(standard.matrix) / math.sqrt(ratio)
        ).as_rows_know()
        # Features of such rows have the norm of unit size; the intercept's square and
        # its products with them may have as much.
        square = 2.0 / ratio
        for statistic in program.structure.statistics:
            power = sum(latent in largest.latents for latent in statistic.latents)
            if power:
                by[statistic.name] = square ** (power / 2)
    return found, by


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
            if place in layout.places(latent)
        }
        for statistic in program.structure.statistics:
            power = sum(latent in with_features for latent in statistic.latents)
            if power:
                found[statistic.name] = longest**power
        found[COVARIATES] = max(found.get(COVARIATES, 1.0), longest**2)
    return found


class _Products(NamedTuple):
    """All products of some coordinates of a factor, which share a norm.

    Attributes:
      name: What the norm is called.
      latents: Those that the coordinates belong to.
      places: The coordinates.
    """

    name: str
    latents: frozenset[str]
    places: frozenset[int]

    def has_both(self, features: Features) -> bool:
        """Whether some coordinates are those of intercepts, and others of features."""
        return not (
            self.places.isdisjoint(features.constant)
            or self.places.isdisjoint(features.places)
        )


def _products(
    program: ConjugateProgram, name: str, together: Sequence[Together]
) -> Iterator[_Products]:
    """Yields the products of each latent's coordinates, and of several latents'."""
    structure = program.structure
    layout = structure.posterior_factors[name].layout
    assert layout is not None
    places = {latent: frozenset(layout.places(latent)) for latent in layout.shapes}
    of_statistics = {
        statistic.name: [latent for latent in statistic.latents if latent in places]
        for statistic in structure.statistics
    }
    for statistic in structure.statistics:
        own = frozenset(of_statistics[statistic.name])
        if statistic.matrix is None or len(own) != 1 or statistic.summed:
            continue
        yield _Products(statistic.name, own, places[min(own)])
    for shared in together:
        own = frozenset(
            latent for block in shared.blocks for latent in of_statistics[block]
        )
        # Only products of two coefficients have directions.
        if own and shared.directions is not None:
            all_places = frozenset[int]().union(*(places[latent] for latent in own))
            yield _Products(shared.name, own, all_places)
