"""Double precision in which products are exact to double precision, too.

JAX has a setting of how exactly it multiplies matrices, `jax_default_matmul_precision`.
A caller who asks for `"F32_F32_F32"` or `"BF16_BF16_F32"` there, for the sake of a
network, gets products of double precision with the digits of those types as well. The
bounds on rounding that sensitivities count hold for sums in double precision, and a
row's weight that is rounded up makes it longer than it was clipped to.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """JAX computes in double precision, products of matrices included.

    Everything that adds rows up, or takes norms of them, is traced within.
    """
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        yield


class Precision(NamedTuple):
    """How exactly a caller has JAX compute, which is how a model runs on single rows.

    Attributes:
      is_double: Whether in double precision.
      of_products: The setting of how exactly matrices are multiplied.
    """

    is_double: bool
    of_products: str | None

    @classmethod
    def of_caller(cls) -> Self:
        """The precision outside `double_precision`."""
        products = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009
        return cls(jnp.result_type(float) == jnp.float64, products)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """JAX computes like this, also within `double_precision`."""
        with (
            jax.enable_x64(self.is_double),
            jax.default_matmul_precision(self.of_products),
        ):
            yield
