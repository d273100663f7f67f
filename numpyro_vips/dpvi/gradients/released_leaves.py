"""Which entries of which gradients make up a released block."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from numpyro_vips.privacy.gaussian_mechanism import Block


class ReleasedLeaves(NamedTuple):
    """A released block: which leaves of the tree that gradients are taken in.

    `length` is how many leading entries of its one leaf are released. None for all of
    the leaves; several are joined as flat vectors.
    """

    block: Block
    leaves: tuple[int, ...]
    length: int | None = None

    def cut(self, gradient: Float[Array, "..."]) -> Float[Array, "..."]:
        """The part of a leaf's gradient that is released: its leading entries."""
        return gradient if self.length is None else gradient[: self.length]

    def joined(self, leaves: Mapping[int, Float[Array, "..."]]) -> Float[Array, "..."]:
        """The block, from the gradients in the released entries of its leaves."""
        flat = jnp.concatenate([jnp.ravel(leaves[leaf]) for leaf in self.leaves])
        return flat.reshape(self.block.shape)

    def place(
        self, leaves: list[Float[Array, "..."]], value: Float[Array, "..."]
    ) -> None:
        """Puts the block where it belongs among all leaves."""
        if self.length is not None:
            (leaf,) = self.leaves
            leaves[leaf] = leaves[leaf].at[: self.length].set(value)
            return
        start = 0
        for leaf in self.leaves:
            stop = start + leaves[leaf].size
            leaves[leaf] = jnp.ravel(value)[start:stop].reshape(leaves[leaf].shape)
            start = stop
