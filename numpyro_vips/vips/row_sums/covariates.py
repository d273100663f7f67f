"""Second moments of the covariates, released to simulate rows with.

A model does not say how its covariates are distributed, and rows cannot be simulated
without any. So a small part of the budget goes into Σ zzᵀ over all rows, z = (1, x),
with x all covariates of a row. Rows are simulated with Gaussian ones of this mean and
covariance: most of what rows leave open of their latents depends on these alone. Those
that a model takes only if they are positive, such as exposures, are log-normal.

Covariates that are features of a regression are taken in the units that these have
been given, see `features.py`: what is far from zero or large would hide the others.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int64, Shaped

from numpyro_vips.jax_tools.double_precision import trace_in_double
from numpyro_vips.jax_tools.materialized import materialized
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import COVARIATES
from numpyro_vips.vips.program.features import Standards
from numpyro_vips.vips.program.named_arrays import Rows, as_rows_know
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.bounded_sum import clipping_weights, where_rows

# By argument, the flat places of a row's covariates.
CovariatePlaces = Mapping[str, Int64[np.ndarray, " _entries"]]

# Covariates of a row beyond which their moments are not worth their noise.
MOST_COVARIATES = 20
# Directions in which covariates vary less, as a share of their largest variance, are
# taken to vary as much: noise may have left any number there.
_LEAST_VARIANCE = 1e-4


def moments_block(number: int) -> Block:
    """What the mechanism has to know of the moments of so many covariates."""
    shape = number + 1, number + 1
    return Block(name=COVARIATES, shape=shape, symmetric=True, geometry="psd")


class CovariateUnits(NamedTuple):
    """The units in which covariates x are taken, as (x - means) / scale.

    Attributes:
      means, scale: Public; of all covariates, in the order of their places.
    """

    means: Float[Array | np.ndarray, " covariates"]
    scale: Float[Array | np.ndarray, " covariates"]

    def matrix(self) -> Float64[np.ndarray, "one_more one_more"]:
        """The matrix that maps (1, x) in these units to (1, x) in their own."""
        found = np.diag([1.0, *np.asarray(self.scale)])
        found[1:, 0] = self.means
        return found

    def to_own(
        self, moments: Float64[np.ndarray, "one_more one_more"]
    ) -> Float64[np.ndarray, "one_more one_more"]:
        """Second moments of (1, x), from those in these units."""
        matrix = self.matrix()
        return matrix @ moments @ matrix.T

    def from_own(
        self, moments: Float64[np.ndarray, "one_more one_more"]
    ) -> Float64[np.ndarray, "one_more one_more"]:
        """Second moments in these units, from those of (1, x)."""
        matrix = np.linalg.inv(self.matrix())
        return matrix @ moments @ matrix.T


def covariates_that_are_features(
    program: ConjugateProgram, places: CovariatePlaces
) -> dict[int, tuple[str, int]]:
    """The covariates that are features themselves, such as columns of a regression.

    What a program of a row's constants makes equal to an argument for a few random rows
    is taken to be that argument.

    Args:
      program: The compiled model.
      places: By argument, which of its entries are covariates.

    Returns:
      By the number of a covariate, a factor and the number of its feature.
    """
    rng = np.random.default_rng(0)
    if not _can_be_tried(program, places):
        return {}
    same: dict[str, Bool[np.ndarray, "covariates features"]] = {}
    rows = [_random_row(program, rng) for _ in range(_ROWS_TRIED)]

    def features_of(row: Rows) -> dict[str, Float[Array, " _features"]]:
        numbers, _ = program.row_constants(row)
        return {name: of.flat(numbers) for name, of in program.features.items()}

    found_in = trace_in_double(features_of, rows[0])
    for row in rows:
        flat = [np.ravel(row[name])[mine] for name, mine in places.items()]
        covariates = np.concatenate(flat)
        for factor, flat_features in found_in(row).items():
            equal = covariates[:, None] == flat_features
            same[factor] = same.get(factor, True) & equal
    found: dict[int, tuple[str, int]] = {}
    for factor, is_same in same.items():
        for i, j in np.argwhere(is_same):
            found.setdefault(int(i), (factor, int(j)))
    return found


def positive_covariates(
    program: ConjugateProgram, places: CovariatePlaces
) -> Bool[np.ndarray, " covariates"]:
    """Which covariates of a row must be positive, or else the row counts as zero."""
    if not _can_be_tried(program, places):
        return np.zeros(sum(map(len, places.values())), bool)
    rng = np.random.default_rng(0)
    tried = [_random_row(program, rng) for _ in range(_ROWS_TRIED)]
    rows = {name: np.stack([row[name] for row in tried]) for name in tried[0]}
    counts = trace_in_double(jax.vmap(lambda row: program.row_constants(row)[1]), rows)
    usable = np.asarray(counts(rows))

    def is_positive(name: str, place: int) -> bool:
        if rows[name].dtype == bool:
            return False
        changed = rows[name].copy()
        flat = changed.reshape(_ROWS_TRIED, -1)
        flat[:, place] = -flat[:, place]
        still = np.asarray(counts({**rows, name: changed}))
        return bool(usable.any() and not still[usable].any())

    return np.array(
        [is_positive(name, i) for name, mine in places.items() for i in mine]
    )


def _can_be_tried(program: ConjugateProgram, places: CovariatePlaces) -> bool:
    """Whether rows are plain arrays, of which the program takes all covariates."""
    row = program.row_constants.row
    is_plain = len(jax.tree.leaves(dict(row))) == len(row)
    return bool(places) and is_plain and set(places) <= row.keys()


def _random_row(
    program: ConjugateProgram, rng: np.random.Generator
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """A row of labels and of positive numbers near 1; it may be none of the model."""
    return {
        name: np.asarray(rng.uniform(0.5, 2.0, aval.shape), aval.dtype)
        if jnp.issubdtype(aval.dtype, jnp.floating)
        else np.asarray(rng.integers(0, 2, aval.shape), aval.dtype)
        for name, aval in program.row_constants.row.items()
    }


# Of labels, that many are alike by chance once in four thousand times.
_ROWS_TRIED = 12


def covariate_units(
    number: int, found: Mapping[int, tuple[str, int]], standards: Standards
) -> CovariateUnits:
    """The units of so many covariates, some of which are standardised features."""
    means, scale = np.zeros(number), np.ones(number)
    inverses = {name: np.linalg.inv(of.matrix) for name, of in standards.items()}
    for i, (factor, j) in found.items():
        if factor in standards:
            means[i] = standards[factor].means[j]
            scale[i] = np.linalg.norm(inverses[factor][j])
    return CovariateUnits(as_rows_know(means), as_rows_know(scale))


def _with_one(
    rows: Rows, places: CovariatePlaces, units: CovariateUnits
) -> Float[Array, "rows one_more"]:
    """z of every row, in double precision."""
    flat = [
        jnp.asarray(rows[name], float).reshape(len(rows[name]), -1)[:, mine]
        for name, mine in places.items()
    ]
    means, scale = (jnp.asarray(of, float) for of in units)
    x = (jnp.concatenate(flat, 1) - means) / scale
    return jnp.concatenate([jnp.ones((len(x), 1)), x], 1)


def _norms(z: Float[Array, "rows one_more"]) -> Float[Array, " rows"]:
    """The L2 norm of each zzᵀ."""
    return jnp.sum(jnp.square(z), 1)


def moment_norms(
    rows: Rows, places: CovariatePlaces, units: CovariateUnits
) -> Float[Array, " rows"]:
    """The L2 norm of each row's zzᵀ; not finite where a covariate is not."""
    with double_precision():
        return _norms(_with_one(rows, places, units))


def bounded_moments(
    rows: Rows,
    mask: Bool[Array | np.ndarray, " rows"],
    places: CovariatePlaces,
    units: CovariateUnits,
    scale: float | Float[Array, ""],
    clipping_norm: float | Float[Array, ""],
) -> Float[Array, "one_more one_more"]:
    """The sum of the rows' zzᵀ, each clipped in L2 norm; not yet private.

    Guarantees:
      Adding or removing one row changes the sum, times `scale`, by at most
      `clipping_norm` in L2 norm, and replacing one by √2 times that: what rows add is
      positive semidefinite. A row with a covariate that is not finite adds zero.
    """
    with double_precision():
        z = materialized(_with_one(rows, places, units))
        norms = materialized(jnp.asarray(scale, float) * _norms(z))
        weights, usable = clipping_weights(norms, jnp.asarray(mask), clipping_norm)
        z = where_rows(usable, z)
        return jnp.einsum("r,ri,rj->ij", weights, z, z)


class Covariates(NamedTuple):
    """A distribution of the covariates of a row: Gaussian, some after the exponential.

    Attributes:
      mean: That of the Gaussian.
      root: A square root of its covariance.
      positive: Which covariates are log-normal.
    """

    mean: Float64[np.ndarray, " covariates"]
    root: Float64[np.ndarray, "covariates covariates"]
    positive: Bool[np.ndarray, " covariates"]

    @classmethod
    def with_moments(
        cls,
        moments: Float64[np.ndarray, "one_more one_more"],
        num_rows: int,
        units: CovariateUnits,
        positive: Bool[np.ndarray, " covariates"],
    ) -> Self:
        """The distribution of covariates that has given moments, which may be noisy.

        Args:
          moments: The sum over the rows of (1, x)(1, x)ᵀ.
          num_rows: How many there are, as is public.
          units: Those in which variances are compared.
          positive: Which covariates are positive. The mean of one that reads smaller
            than its standard deviation is taken to be as large as that.
        """
        moments = units.from_own(moments)
        mean = moments[0, 1:] / num_rows
        covariance = moments[1:, 1:] / num_rows - np.outer(mean, mean)
        # Noise may have left more of a mean than there is of its square.
        values, vectors = np.linalg.eigh(covariance)
        least = max(_LEAST_VARIANCE * float(values[-1]), 0.0)
        root = vectors * np.sqrt(np.maximum(values, least))
        means, scale = map(np.asarray, units)
        mean, root = means + scale * mean, scale[:, None] * root
        # The logarithm has the standard deviation √log(1 + (deviation / mean)²).
        deviation = np.linalg.norm(root, axis=1)
        centre = np.where(positive, np.maximum(mean, deviation), 1.0)
        centre = np.where(centre > 0, centre, 1.0)
        of_log = np.sqrt(np.log1p((deviation / centre) ** 2))
        narrower = of_log / np.where(deviation > 0, deviation, 1.0)
        return cls(
            np.where(positive, np.log(centre) - 0.5 * of_log**2, mean),
            np.where(positive, narrower, 1.0)[:, None] * root,
            positive,
        )

    def drawn(self, count: int, seed: int) -> Float64[np.ndarray, "count covariates"]:
        """Draws for so many rows; the same for the same seed."""
        normal = np.random.default_rng(seed).normal(size=(count, len(self.mean)))
        found = self.mean + normal @ self.root.T
        return np.where(self.positive, np.exp(np.where(self.positive, found, 0)), found)
