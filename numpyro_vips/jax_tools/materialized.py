"""Numbers that XLA works out once, however often they are read.

A row is clipped by its norm: its contribution is read for the norm, and again for the
sum. XLA merges operations into kernels, and works out anew in each what is cheap. Two
kernels need not round alike, since a product and a sum may become one operation in one
of them and stay two in the other. Of a row for which y − w x cancels, one may find zero
and the other any number, so that nothing would bound what the row adds to the sum.

`jax.lax.optimization_barrier` is no remedy: XLA takes barriers out before it merges
operations. What a loop returns lies in memory, and no kernel looks behind a loop whose
number of turns is not known. The loop here makes no turn: it goes on while the square
of a whole number is two or three more than a multiple of four, which none is, and XLA
does not know.
"""

import math
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped

# What such loops are called in programs, however often these are traced anew.
_SCOPE = "numpyro_vips.materialized"


def materialized(tree: Any) -> Any:
    """The same numbers, of which every use reads the same ones.

    Guarantees:
      In a compiled program, all that is computed from the result is computed from one
      copy of it in memory.

    Args:
      tree: Arrays of numbers and truth values. Derivatives in reverse are not taken
        through it.
    """
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    if any(leaf.size for leaf in leaves):
        with jax.named_scope(_SCOPE):
            leaves = jax.lax.while_loop(_is_never, _zeros, leaves)
    return jax.tree.unflatten(structure, leaves)


def makes_no_turn(loop: jex_core.JaxprEqn) -> bool:
    """Whether a `while` equation is one that `materialized` has made."""
    return _SCOPE in str(loop.source_info.name_stack)


def _zeros(leaves: list[Shaped[Array, "..."]]) -> list[Shaped[Array, "..."]]:
    return [jnp.zeros_like(leaf) for leaf in leaves]


def _is_never(leaves: list[Shaped[Array, "..."]]) -> Bool[Array, ""]:
    """Not true of any numbers, which depends on them as far as XLA can tell."""
    leaf = next(leaf for leaf in leaves if math.prod(leaf.shape))
    number = leaf[(0,) * leaf.ndim].astype(jnp.int32)
    return (number * number) & 2 != 0
