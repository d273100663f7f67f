"""Second moments of the covariates, released to simulate rows with.

A model does not say how its covariates are distributed, and rows cannot be simulated
without any. So a small part of the budget goes into Σ zzᵀ over all rows, z = (1, x),
with x all covariates of a row. Rows are simulated with Gaussian ones of this mean and
covariance: most of what rows leave open of their latents depends on these alone.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int64

from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import COVARIATES
from numpyro_vips.vips.bounded_sum import clipping_weights, where_rows
from numpyro_vips.vips.named_arrays import Rows

# By argument, the flat places of a row's covariates.
Places = Mapping[str, Int64[np.ndarray, " _entries"]]

# Covariates of a row beyond which their moments are not worth their noise.
MOST_COVARIATES = 20
# Directions in which covariates vary less, as a share of their largest variance, are
# taken to vary as much: noise may have left any number there.
_LEAST_VARIANCE = 1e-4


def moments_block(number: int) -> Block:
    """What the mechanism has to know of the moments of so many covariates."""
    shape = number + 1, number + 1
    return Block(name=COVARIATES, shape=shape, symmetric=True, geometry="psd")


def _with_one(rows: Rows, places: Places) -> Float[Array, "rows one_more"]:
    """z of every row, in double precision."""
    flat = [
        jnp.asarray(rows[name], float).reshape(len(rows[name]), -1)[:, mine]
        for name, mine in places.items()
    ]
    return jnp.concatenate([jnp.ones((len(flat[0]), 1)), *flat], 1)


def _norms(z: Float[Array, "rows one_more"]) -> Float[Array, " rows"]:
    """The L2 norm of each zzᵀ."""
    return jnp.sum(jnp.square(z), 1)


def moment_norms(rows: Rows, places: Places) -> Float[Array, " rows"]:
    """The L2 norm of each row's zzᵀ; not finite where a covariate is not."""
    with jax.enable_x64(True):
        return _norms(_with_one(rows, places))


def bounded_moments(
    rows: Rows,
    mask: Bool[Array | np.ndarray, " rows"],
    places: Places,
    scale: float | Float[Array, ""],
    clipping_norm: float | Float[Array, ""],
) -> Float[Array, "one_more one_more"]:
    """The sum of the rows' zzᵀ, each clipped in L2 norm; not yet private.

    Guarantees:
      Adding or removing one row changes the sum, times `scale`, by at most
      `clipping_norm` in L2 norm, and replacing one by √2 times that: what rows add is
      positive semidefinite. A row with a covariate that is not finite adds zero.
    """
    with jax.enable_x64(True):
        z = _with_one(rows, places)
        norms = jnp.asarray(scale, float) * _norms(z)
        weights, usable = clipping_weights(norms, jnp.asarray(mask), clipping_norm)
        z = where_rows(usable, z)
        return jnp.einsum("r,ri,rj->ij", weights, z, z)


class Covariates(NamedTuple):
    """A Gaussian over the covariates of a row.

    Attributes:
      mean: Its mean.
      root: A square root of its covariance.
    """

    mean: Float64[np.ndarray, " covariates"]
    root: Float64[np.ndarray, "covariates covariates"]

    @classmethod
    def with_moments(
        cls, moments: Float64[np.ndarray, "one_more one_more"], num_rows: int
    ) -> Self:
        """That with these moments, which may be noisy.

        Args:
          moments: The sum of zzᵀ over the rows.
          num_rows: How many there are, as is public.
        """
        mean = moments[0, 1:] / num_rows
        covariance = moments[1:, 1:] / num_rows - np.outer(mean, mean)
        # Noise may have left more of a mean than there is of its square.
        values, vectors = np.linalg.eigh(covariance)
        least = max(_LEAST_VARIANCE * float(values[-1]), 0.0)
        return cls(mean, vectors * np.sqrt(np.maximum(values, least)))

    def drawn(self, count: int, seed: int) -> Float64[np.ndarray, "count covariates"]:
        """Draws for so many rows; the same for the same seed."""
        normal = np.random.default_rng(seed).normal(size=(count, len(self.mean)))
        return self.mean + normal @ self.root.T
