"""Features made uncorrelated, by pilots that are repeated.

Ages near 50 and incomes far from zero are nearly one direction, and noise that is as
large in all directions hides the others. So pilots release the second moments Σ ψψᵀ of
features, or the curvature Σ ω ψψᵀ of a logistic likelihood, and after each of them
features x become x' = A (x - m), see `features`. One alone does not do: what it has
hidden is made as large as its noise, and shows in the next, in which the other
directions are no larger (as in Biswas, Dong, Kamath and Ullman, 2020). In a table
with ages and incomes the third direction has far less curvature than the first, which
each pilot makes more nearly equal.

Of a logistic likelihood these come before the first residuals, and what they have said
is used for this alone: later curvatures are of other features, and noise in the old
ones is not independent in the new coordinates.
"""

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from jaxtyping import Float64

from numpyro_vips.vips.program.features import Features, Standardisation, Standards
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.units.column_units import units_of

# Pilots of a regression with features, each with a histogram of norms after it.
PILOTS = 3
# Pilots of the curvature of a logistic likelihood, whose features keep their size.
CURVATURE_PILOTS = 2
# With fewer rows than so many times d^1.5, noise in the moments of d features hides all
# correlations between them (its spectral norm is √d times that of an entry, which is in
# proportion to the rows' squared norm, d); with more, a single pilot shows them all.
_FEWEST_ROWS, _MOST_ROWS = 50.0, 1e5
# The same of the curvature of a logistic likelihood, where this was tried.
_FEWEST_ROWS_OF_CURVATURE = 30.0
# Multiplications in a pass over the rows, beyond which features stay as they are: with
# so many rows noise is small.
_MOST_PRODUCTS = 1e9
# Sums of squares that are smaller, in standard deviations of their noise, are unknown.
_LEAST = 2.0


def whitened_factors(program: ConjugateProgram, num_rows: int) -> frozenset[str]:
    """The factors that take Newton steps and whose features may be standardised.

    Args:
      program: The compiled model.
      num_rows: Public number of rows.
    """
    candidates = program.structure.newton & program.features.keys()
    number = {name: len(program.features[name].places) for name in candidates}
    return frozenset(
        name
        for name, d in number.items()
        if of_several_pilots(d, num_rows, fewest=_FEWEST_ROWS_OF_CURVATURE)
        and num_rows * d**2 <= _MOST_PRODUCTS
    )


def of_several_pilots(
    num_features: int, num_rows: int, *, fewest: float = _FEWEST_ROWS
) -> bool:
    """Whether several pilots of a regression show correlations that one would hide.

    Args:
      num_features: Features of a factor.
      num_rows: Public number of rows.
      fewest: Rows for each d^1.5, d being the number of features.
    """
    return fewest <= num_rows / num_features**1.5 <= _MOST_ROWS


def features_in_units(
    program: ConjugateProgram,
    factors: Collection[str],
    squares: Mapping[str, str],
    units: Mapping[str, Float64[np.ndarray, "..."]],
    before: Standards | None = None,
) -> tuple[dict[str, Standardisation], dict[str, Float64[np.ndarray, "..."]]]:
    """Standardisations of features, which take over the units of their residuals.

    Products of features with intercepts are in these units, too, then.

    Args:
      program: The compiled model.
      factors: Those whose features pilots standardise.
      squares: See `columns_with_squares`.
      units: By statistic, see `column_units`.
      before: By factor, how features are standardised so far; not at all if left out.

    Returns:
      The standardisations of these factors, and the units that are left.
    """
    structure = program.structure
    left, found = dict(units), {}
    for name in factors:
        features = program.features[name]
        layout = structure.posterior_factors[name].layout
        assert layout is not None
        of_coordinates = np.ones(layout.size)
        for statistic in structure.statistics:
            latent = statistic.atoms[0][0]
            if statistic.name not in squares or structure.factor_of[latent] != name:
                continue
            span = layout.span(latent)
            if not set(layout.places(latent)) <= set(features.places):
                continue  # Of columns that are no features, residuals keep their units.
            of_coordinates[span] = units[statistic.name]
            ones = np.ones_like(units[statistic.name])
            left |= units_of(statistic.name, squares[statistic.name], ones)
        scale = of_coordinates[[*features.places]]
        means, matrix = (
            (np.zeros(len(scale)), np.eye(len(scale)))
            if before is None
            else before[name]
        )
        standard = Standardisation(means, scale[:, None] * np.asarray(matrix))
        found[name] = standard.as_rows_know()
    return found, left


def of_the_same_size(
    features: Features,
    first: Standardisation,
    before: Standardisation,
    after: Standardisation,
    moments: Float64[np.ndarray, "*batch size size"],
    noise_stddev: Float64[np.ndarray, "*batch size size"],
    alone: Sequence[int] = (),
) -> Standardisation:
    """A standardisation in which each feature has the mean square that it had at first.

    So norms that were found before stay about right, and rows of a rare category, whose
    column is small on average, are made no larger. A column whose spread about its mean
    was below the noise at first has become smaller, and gets its size back when a later
    pilot shows the spread.

    Args:
      features: Of the factor.
      first: How features were standardised before any pilot.
      before, after: How they were for the moments, and will be, up to the size that
        each has.
      moments: Noisy Σ ω ψψᵀ, in the coordinates of before.
      noise_stddev: Of the noise in its entries.
      alone: Features whose coefficients are latents of their own. They become as large
        as each other, as those of one vector do by `column_units`.

    Returns:
      It; or that of before, where noise hides how large the features are.
    """
    size = moments.shape[-1]
    sums = moments.reshape(-1, size, size).sum(0)
    variance = (noise_stddev**2).reshape(-1, size, size).sum(0)
    # What whitening has taken for the second moments of first, up to a factor.
    inverse = np.linalg.inv(after.matrix @ np.linalg.inv(first.matrix))
    away = first.matrix @ (after.means - first.means)
    taken = np.sum(inverse**2, axis=1) + away**2
    if alone:
        taken[[*alone]] = np.mean(taken[[*alone]])
    sized = after._replace(matrix=np.sqrt(taken)[:, None] * after.matrix)
    # Rows have ψ' = Tᵀψ where coordinates are v = T v'.
    to_before, to_sized = (features.to_coefficients(s, size) for s in (before, sized))
    turn = np.linalg.solve(to_before, to_sized)
    places, totals = [*features.places], []
    for by in (np.eye(size), turn):
        squares = np.diagonal(by.T @ sums @ by)[places] / taken
        noise = np.diagonal((by**2).T @ variance @ by**2)[places] / taken**2
        totals.append((squares.sum(), math.sqrt(noise.sum())))
    (old, old_noise), (new, new_noise) = totals
    if old <= _LEAST * old_noise:
        return before
    return sized._replace(matrix=math.sqrt(old / max(new, new_noise)) * sized.matrix)


def zero_origins(
    standards: Standards,
    origins: Mapping[str, Float64[np.ndarray, "..."]],
    means: Mapping[str, Float64[np.ndarray, "..."]],
) -> dict[str, Float64[np.ndarray, "..."]]:
    """Origins of all factors with standards: zero, for those that have none.

    Args:
      standards: Of all factors with features.
      origins: Of recentred factors.
      means: Arrays of the shapes of the others' origins.
    """
    zeros = {n: np.zeros_like(means[n]) for n in standards if n not in origins}
    return {**zeros, **origins}
