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

Which numbers of a row are features is found in `feature_detection`.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from numpyro_vips.vips.program.named_arrays import Numbers, as_rows_know

# Sums that are smaller, in standard deviations of their noise, count as that large.
_LEAST = 2.0
# The least variance of a direction, as a share of the largest.
_LEAST_SHARE = 1e-6


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
        """Returns the standardisation that gives coefficients priors of one width.

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
        means = standardisation.means
        # Columns may be stored in half precision, which means would not fit into.
        centred = self.flat(numbers).astype(means.dtype) - means
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
        number: float | None = None,
    ) -> Standardisation:
        """Returns the standardisation that makes features uncorrelated and of one size.

        Directions that noise hides are taken to be as large as the noise.

        Args:
          before: How they were standardised when moments were released.
          moments: Noisy sums over rows of ψψᵀ, in the block's coordinates, all times
            one positive number.
          noise_stddev: Standard deviations of the noise in them.
          number: What the squares of the intercepts add up to, where it is known from
            public facts; see `feature_detection.weight_of_intercepts`.
        """
        size = moments.shape[-1]
        sums = moments.reshape(-1, size, size).sum(0)
        noise = np.sqrt((noise_stddev**2).reshape(-1, size, size).sum(0))
        places, constant = list(self.places), list(self.constant)
        means = np.zeros(len(places))
        covariance, of_covariance = (x[np.ix_(places, places)] for x in (sums, noise))
        if constant:
            if number is None:
                number = float(sums[constant, constant].sum())
                error = math.sqrt((noise[constant, constant] ** 2).sum())
                if number <= _LEAST * error:
                    return before
            if number <= 0:
                return before
            means = sums[np.ix_(constant, places)].sum(0) / number
            errors = np.sqrt((noise[np.ix_(constant, places)] ** 2).sum(0)) / number
            # A mean that noise has made is none.
            sure = means**2 / np.where(means == 0, 1.0, means**2 + errors**2)
            means = sure * means
            covariance = covariance / number - np.outer(means, means)
            of_products = np.outer(np.abs(means), errors)
            of_covariance = np.sqrt(
                (of_covariance / number) ** 2 + of_products**2 + of_products.T**2
            )
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
    """The inverse root of a covariance whose directions stand out of the noise.

    Directions that do not stand out count as large as the noise, so that no row is made
    larger by what the noise has left of them. They are compared in units in which the
    noise is about equally large in all entries. In units of the features' own sizes it
    is largest in those of a small one, as of a rare category, and hides them all.
    """
    # No more unequal than single precision allows, where there is hardly any noise.
    variances = np.abs(np.diagonal(covariance))
    scale = np.sqrt(np.maximum(np.diagonal(noise_stddev), _LEAST_SHARE * variances))
    scale = np.where(scale > 0, scale, 1.0)
    covariance = covariance / np.outer(scale, scale)
    noise = noise_stddev / np.outer(scale, scale)
    spectral_norm = 2.0 * math.sqrt(np.max((noise**2).sum(1)))
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, max(spectral_norm, _LEAST_SHARE * float(values[-1])))
    return (vectors / np.sqrt(values)) @ vectors.T / scale


def standardised(
    features: Mapping[str, Features], standards: Standards, numbers: Numbers
) -> Numbers:
    """A row's numbers by token, with the features of all factors standardised."""
    for name, standard in standards.items():
        numbers = features[name].apply(standard, numbers)
    return numbers
