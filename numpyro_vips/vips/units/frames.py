"""Coordinates in which the statistics of a Gaussian block are released.

The model speaks of w. Rows may be asked about v, with w = c + M v: c is near where w
is, and M belongs to standardised features; see `conjugacy.structure.centring` and
`features`. Both are public. A Gaussian over v is one over w.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from numpyro_vips.conjugacy.families.family import Moments, NewMoments
from numpyro_vips.conjugacy.families.positive_matrices import symmetric_part, times
from numpyro_vips.vips.program.features import Features, Standards

Point = Float[Array | np.ndarray, "*batch size"]
Square = Float[Array | np.ndarray, "*batch size size"]
# One matrix for each element of a batch, or one for all.
SharedMatrix = Float[Array | np.ndarray, "*#batch size size"]


class Frame(NamedTuple):
    """w = origin + matrix v.

    Attributes:
      origin: c.
      matrix, inverse: M and its inverse; None where M is the identity.
    """

    origin: Point
    matrix: Square | None = None
    inverse: Square | None = None

    @classmethod
    def of(cls, origin: Point, matrix: SharedMatrix | None) -> Self:
        """The frame with this origin and matrix M, which all elements may share."""
        if matrix is None:
            return cls(origin)
        return cls(origin, matrix, np.linalg.inv(matrix))

    def moments_in(self, moments: Moments) -> NewMoments:
        """Moments of v, from those of w."""
        return _turned(_shifted(moments, -jnp.asarray(self.origin)), self.inverse)

    def moments_from(self, moments: Moments) -> NewMoments:
        """Moments of w, from those of v."""
        return _shifted(_turned(moments, self.matrix), jnp.asarray(self.origin))

    def natural_in(self, natural: Moments) -> NewMoments:
        """Natural parameters of v, from those of w."""
        # A product of two latents may stand on one side of the diagonal alone.
        square = symmetric_part(natural["xx"])
        linear = natural["x"] + 2.0 * times(square, jnp.asarray(self.origin))
        return _turned({"x": linear, "xx": square}, _transposed(self.matrix))

    def natural_from(self, natural: Moments) -> NewMoments:
        """Natural parameters of w, from those of v."""
        found = _turned(natural, _transposed(self.inverse))
        square = symmetric_part(found["xx"])
        linear = found["x"] - 2.0 * times(square, jnp.asarray(self.origin))
        return {"x": linear, "xx": square}

    @property
    def origin_in(self) -> Float[np.ndarray, "*batch size"]:
        """The origin in units of v; asked for with every chunk of rows."""
        origin = np.asarray(self.origin)
        return origin if self.inverse is None else origin @ np.asarray(self.inverse).T

    def place_in(
        self, place: Float[np.ndarray, "*batch size"]
    ) -> Float[np.ndarray, "*batch size"]:
        """The v of a w."""
        away = place - np.asarray(self.origin)
        return away if self.inverse is None else away @ np.asarray(self.inverse).T

    def place_from(
        self, place: Float[np.ndarray, "*batch size"]
    ) -> Float[np.ndarray, "*batch size"]:
        """The w of a v."""
        away = place if self.matrix is None else place @ np.asarray(self.matrix).T
        return away + np.asarray(self.origin)

    def directions_in(
        self, directions: Float64[np.ndarray, "size directions"]
    ) -> Float64[np.ndarray, "size directions"]:
        """Orthonormal directions of v, from those of w; of a factor without batches."""
        if self.inverse is None:
            return directions
        return np.linalg.qr(np.asarray(self.inverse) @ directions)[0]

    def covariance_from(
        self, covariance: Float[np.ndarray, "*batch size size"]
    ) -> Float[np.ndarray, "*batch size size"]:
        """The covariance of w, from that of v."""
        if self.matrix is None:
            return covariance
        matrix = np.asarray(self.matrix)
        return matrix @ covariance @ matrix.T


def frames_of(
    features: Mapping[str, Features],
    origins: Mapping[str, Float[np.ndarray, "*batch size"]],
    standards: Standards,
) -> dict[str, Frame]:
    """The frames of recentred factors, by factor; see `VipsState`."""
    found = {}
    for name, origin in origins.items():
        matrix = None
        if name in standards:
            size = origin.shape[-1]
            matrix = features[name].to_coefficients(standards[name], size)
        found[name] = Frame.of(origin, matrix)
    return found


def _transposed(matrix: Square | None) -> Square | None:
    return None if matrix is None else jnp.swapaxes(jnp.asarray(matrix), -1, -2)


def _turned(of: Moments, matrix: Square | None) -> NewMoments:
    """A vector and a matrix in other coordinates."""
    if matrix is None:
        return dict(of)
    turn = jnp.broadcast_to(jnp.asarray(matrix), of["xx"].shape)
    across = jnp.swapaxes(turn, -1, -2)
    square = jnp.matmul(
        turn, jnp.matmul(of["xx"], across, precision="highest"), precision="highest"
    )
    return {"x": times(turn, of["x"]), "xx": square}


def _shifted(moments: Moments, point: Float[Array, "*batch size"]) -> NewMoments:
    """Moments of the same latents, with a point added."""
    mean = moments["x"]
    cross = mean[..., :, None] * point[..., None, :]
    cross = cross + jnp.swapaxes(cross, -1, -2)
    square = moments["xx"] + cross + point[..., :, None] * point[..., None, :]
    return {"x": mean + point, "xx": square}
