"""Whether a program's array indices lie in range, where JAX itself does not check.

JAX clamps an index that is out of range: `beta[8]` of a vector of length 8 is its last
entry. A row with such an id would be counted as if it had another one. The engines
let it count as zero instead.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jax.lax import GatherScatterMode

from numpyro_vips.jax_tools.jaxprs import aval_of, inlined, with_results


def indices_in_range(
    program: jex_core.ClosedJaxpr, arguments: Sequence[Any]
) -> jax.Array:
    """Evaluates `program` and returns whether it indexes within its arrays.

    Seen are `x[i]`, slices that start at `i` and whatever clamps its index. Not judged
    are the spellings that fill in a value instead, such as `jnp.take`, whose NaN is
    found by other means, nor indexing inside loops and branches. A negative index
    counts from the end, as in Python, and is in range down to minus the length.

    Args:
      program: A traced program.
      arguments: Its inputs, flat; they may be tracers.

    Returns:
      A boolean. Compiled, it costs no more than the computation of the indices.
    """
    flat = inlined(program)
    looked_up = [
        (equation.invars[position], largest)
        for equation in flat.jaxpr.eqns  # Loops and branches are not looked into.
        if equation.params.get("mode") is not GatherScatterMode.FILL_OR_DROP
        for position, largest in index_operands(equation)
    ]
    indices = with_results(flat, [index for index, _ in looked_up])
    found = jex_core.jaxpr_as_fun(indices)(*arguments)
    in_range = jnp.ones((), bool)
    for index, (_, largest) in zip(found, looked_up, strict=True):
        in_range &= jnp.all(is_in_range(index, largest))
    return in_range


def index_operands(equation: jex_core.JaxprEqn) -> list[tuple[int, np.ndarray]]:
    """The operands of an equation that say where in an array it looks.

    Returns:
      The position of each such operand, and the largest index that is in range for it,
      which broadcasts against it; the smallest is 0.
    """
    name = equation.primitive.name
    if name not in ("gather", "dynamic_slice"):
        return []
    array, sizes = aval_of(equation.invars[0]), equation.params["slice_sizes"]
    if name == "gather":
        axes = equation.params["dimension_numbers"].start_index_map
        return [(1, np.asarray([array.shape[a] - sizes[a] for a in axes]))]
    largest = [length - size for length, size in zip(array.shape, sizes, strict=True)]
    return [(1 + axis, np.asarray(last)) for axis, last in enumerate(largest)]


def is_in_range(index: Any, largest: np.ndarray) -> Any:
    """Whether each index is in range; see `index_operands`."""
    dtype = jnp.result_type(index)
    # No index of a small type is beyond what its type holds.
    last = np.minimum(largest, np.iinfo(dtype).max).astype(dtype)
    return (index >= 0) & (index <= last)
