"""Products of a row with what rows share, which come out the same for any place of it.

Mapped over rows, a product `shared @ matrix` with a matrix in each row becomes one of
the shared matrix and all rows' columns side by side. XLA takes some of these columns by
other means than the others, so that a row's product depends on where the row stands:
leaving another row out rounds it otherwise. With rows on the left they are rows of the
product, which are all taken alike.
"""

import dataclasses
from typing import Any

import jax
import jax.extend.core as jex_core
from jax import lax
from jaxtyping import Array, Shaped

# Of the left and of the right operand.
_Axes = tuple[tuple[int, ...], tuple[int, ...]]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class DotGeneral:
    """`lax.dot_general` with its settings, as the equation of a program has them.

    Attributes:
      contracted, batch: Axes of the left and of the right operand.
      precision: Of the operands, as one thing or by operand.
      dtype: Of the result.
    """

    contracted: _Axes
    batch: _Axes
    precision: Any
    dtype: Any

    @classmethod
    def of(cls, equation: jex_core.JaxprEqn) -> "DotGeneral":
        """That of an equation."""
        contracted, batch = equation.params["dimension_numbers"]
        given = equation.params
        return cls(
            contracted, batch, given["precision"], given["preferred_element_type"]
        )

    def __call__(
        self, left: Shaped[Array, "..."], right: Shaped[Array, "..."]
    ) -> Shaped[Array, "..."]:
        """The product: axes of the batch, of the left operand, and of the right one."""
        return lax.dot_general(
            left,
            right,
            (self.contracted, self.batch),
            precision=self.precision,
            preferred_element_type=self.dtype,
        )

    def exchanged(
        self, left: Shaped[Array, "..."], right: Shaped[Array, "..."]
    ) -> Shaped[Array, "..."]:
        """The same, computed as a product of the right operand and the left one."""
        by_operand = isinstance(self.precision, tuple)
        other = DotGeneral(
            (self.contracted[1], self.contracted[0]),
            (self.batch[1], self.batch[0]),
            self.precision[::-1] if by_operand else self.precision,
            self.dtype,
        )
        found = other(right, left)
        first = len(self.batch[1])
        last = right.ndim - len(self.contracted[1])
        order = [*range(first), *range(last, found.ndim), *range(first, last)]
        return lax.transpose(found, order)


@jax.custom_batching.custom_vmap
def row_product(
    product: DotGeneral, left: Shaped[Array, "..."], right: Shaped[Array, "..."]
) -> Shaped[Array, "..."]:
    """A product, which `jax.vmap` maps with rows on the left where one side has any."""
    return product(left, right)


@row_product.def_vmap
def with_rows_on_the_left(
    axis_size: int,
    in_batched: Any,
    product: DotGeneral,
    left: Shaped[Array, "..."],
    right: Shaped[Array, "..."],
) -> tuple[Shaped[Array, "rows ..."], bool]:
    """The rule by which `row_product` is mapped."""
    _, is_left, is_right = in_batched
    if is_left:
        axes = (0, 0 if is_right else None)
        return jax.vmap(product, axes)(left, right), True
    return jax.vmap(product.exchanged, (None, 0))(left, right), True
