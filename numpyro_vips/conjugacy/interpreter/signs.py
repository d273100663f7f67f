"""Which constants of a program cannot be negative, whatever the rows hold.

Sums of factors that rows bring are legal only with the right sign: `-rate * abs(t)` is
the log density of something, `-rate * t` is not for a negative t. This also bounds how
far a row's statistic can move when the row is replaced, so that nothing is listed that
could be negative and finite. What is not finite never counts, such as 1 / -0.0.
"""

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np

# Never negative, whatever they are applied to.
_ALWAYS = {
    "abs", "and", "argmax", "argmin", "eq", "exp", "exp2", "ge", "gt", "is_finite",
    "le", "logistic", "lt", "ne", "not", "or", "sqrt", "square", "xor",
}  # fmt: skip
# Never negative if no operand is.
_PRESERVE = {
    "add", "add_any", "broadcast_in_dim", "ceil", "concatenate", "convert_element_type",
    "copy", "cumsum", "div", "dot_general", "expand_dims", "floor",
    "integer_pow", "log1p", "max", "min", "mul", "pow", "reduce_max", "reduce_min",
    "reduce_sum", "reshape", "rev", "round", "select_n", "slice", "split", "squeeze",
    "stack", "stop_gradient", "tile", "transpose", "unstack",
}  # fmt: skip
# Never negative if the first operand is not; the others are positions.
_FIRST_IS_ENOUGH = {"dynamic_slice"}


def is_nonnegative(eqn: Any, signs: Sequence[bool]) -> bool:
    """Whether the results of an operation are nonnegative.

    Args:
      eqn: The operation.
      signs: For each operand, whether it is nonnegative.
    """
    name = eqn.primitive.name
    # Integers may overflow and wrap around.
    exact = all(
        jnp.issubdtype(var.aval.dtype, jnp.floating)
        or jnp.issubdtype(var.aval.dtype, jnp.bool_)
        for var in eqn.outvars
    )
    if name in _ALWAYS:
        return exact
    if name in _FIRST_IS_ENOUGH:
        return signs[0]
    # An operand that may be -inf would let the other one through.
    finite = [s and _is_finite(v) for v, s in zip(eqn.invars, signs, strict=True)]
    if name == "clamp":
        return (finite[0] or (signs[0] and signs[1])) and signs[2]
    if name == "max":
        return any(finite) or all(signs)
    if name == "integer_pow" and eqn.params["y"] % 2 == 0:
        return exact
    if name == "select_n":
        return all(signs[1:])
    if name == "convert_element_type" and not exact:
        return False
    return exact and name in _PRESERVE and all(signs)


def _is_finite(var: Any) -> bool:
    return isinstance(var, jex_core.Literal) and bool(np.all(np.isfinite(var.val)))


def public_is_nonnegative(array: np.ndarray) -> bool:
    return array.dtype.kind in "biuf" and bool(np.all(array >= 0))
