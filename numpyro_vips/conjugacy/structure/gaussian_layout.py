"""How the sites of a Gaussian block fill its coordinates, and the way back."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra.terms import Labels

# Of NumPy or of JAX, as what is made of them.
_Coordinates = TypeVar("_Coordinates", jax.Array, np.ndarray)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianLayout:
    """How the sites of a Gaussian factor fill its coordinates.

    The block's mean has shape (*batch_shape, size): there is one independent Gaussian
    per entry of the batch axes, over the flattened block axes of all its sites.

    Attributes:
      shapes: Those of the sites, in the order in which they fill the coordinates.
      batch_axes: For each site, which of its axes are the batch axes.
    """

    shapes: Mapping[str, tuple[int, ...]]
    batch_axes: Mapping[str, tuple[int, ...]]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        first = next(iter(self.shapes))
        return tuple(self.shapes[first][axis] for axis in self.batch_axes[first])

    @property
    def size(self) -> int:
        return sum(math.prod(self.block_shape(site)) for site in self.shapes)

    def block_axes(self, site: str) -> tuple[int, ...]:
        axes = range(len(self.shapes[site]))
        return tuple(axis for axis in axes if axis not in self.batch_axes[site])

    def block_shape(self, site: str) -> tuple[int, ...]:
        return tuple(self.shapes[site][axis] for axis in self.block_axes(site))

    def span(self, site: str) -> slice:
        """Where a site's coordinates lie in the block."""
        sizes = {name: math.prod(self.block_shape(name)) for name in self.shapes}
        before = itertools.takewhile(lambda name: name != site, self.shapes)
        start = sum(sizes[name] for name in before)
        return slice(start, start + sizes[site])

    def places(self, site: str) -> range:
        """The numbers of a site's coordinates in the block."""
        span = self.span(site)
        return range(span.start, span.stop)

    def labels(self, site: str, labels: Labels) -> tuple[Labels, ...]:
        """A site's labels, split into those of batch and of block axes."""
        batch = tuple(labels[axis] for axis in self.batch_axes[site])
        block = tuple(labels[axis] for axis in self.block_axes(site))
        return batch, block

    def site(
        self, site: str, coordinates: _Coordinates, leading: int = 0
    ) -> _Coordinates:
        """One site's values in its own shape.

        Args:
          site: Its name.
          coordinates: The block's, of shape (*leading axes, *batch_shape, size).
          leading: How many axes stand in front, of draws or of rows.
        """
        shape, order = self.shapes[site], self._order(site)
        part = coordinates[..., self.span(site)]
        front = coordinates.shape[:leading]
        part = part.reshape((*front, *(shape[axis] for axis in order)))
        back = [leading + order.index(axis) for axis in range(len(order))]
        return part.transpose([*range(leading), *back])

    def sites(
        self, coordinates: _Coordinates, leading: int = 0
    ) -> dict[str, _Coordinates]:
        """The values of every site of the block, each as `site` returns them."""
        return {name: self.site(name, coordinates, leading) for name in self.shapes}

    def coordinates(self, values: Mapping[str, jax.Array]) -> jax.Array:
        """The coordinates of values of the sites; the way back of `sites`."""
        parts = []
        for name in self.shapes:
            value = jnp.transpose(values[name], self._order(name))
            parts.append(value.reshape((*self.batch_shape, -1)))
        return jnp.concatenate(parts, axis=-1)

    def _order(self, site: str) -> list[int]:
        return [*self.batch_axes[site], *self.block_axes(site)]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for a result's specification."""
        return {
            "shapes": {name: list(axes) for name, axes in self.shapes.items()},
            "batch_axes": {name: list(axes) for name, axes in self.batch_axes.items()},
        }

    @classmethod
    def from_dict(cls, specification: Mapping[str, Any]) -> "GaussianLayout":
        shapes, batch_axes = (
            {name: tuple(axes) for name, axes in specification[key].items()}
            for key in ("shapes", "batch_axes")
        )
        return cls(shapes=shapes, batch_axes=batch_axes)
