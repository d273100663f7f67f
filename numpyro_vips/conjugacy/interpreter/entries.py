"""Operations on sparse constants, by their entries.

An operation that treats all places along the last axis alike is done on a row's
entries, and once for all others. After any other, the constant is a dense array.
"""

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra.scatters import is_public_number
from numpyro_vips.conjugacy.algebra.terms import Origin, is_public, same_constant
from numpyro_vips.conjugacy.interpreter.values import Constant, Entries
from numpyro_vips.jax_tools.jaxprs import aval_of
from numpyro_vips.jax_tools.numpy_primitives import NUMPY
from numpyro_vips.model.sparse_rows import SparseRows, scattered


def constant_of(rows: SparseRows, origin: Origin) -> Constant:
    """The rows of a sparse argument as a private constant of the interpreter."""
    zero = np.zeros((), rows.dtype)
    entries = Entries(rows.indices, rows.values, zero, origin)
    return _constant(entries, rows.length, nonnegative=False)


def _constant(entries: Entries, length: int, *, nonnegative: bool) -> Constant:
    # Whatever nobody reads is left out when the program is compiled.
    array = scattered(entries.indices, entries.values, length, entries.elsewhere)
    return Constant(array, is_private=True, nonnegative=nonnegative, entries=entries)


def apply_to_entries(
    eqn: Any, operands: Sequence[Constant], *, elementwise: bool, nonnegative: bool
) -> Constant | None:
    """The result of an operation on constants, if entries are enough for it.

    Args:
      eqn: The operation.
      operands: Its operands, at least one of which has entries.
      elementwise: Whether it treats all places alike.
      nonnegative: Whether its result is.

    Returns:
      None if they are not; the arguments that have to be dense then know why.
    """
    name = eqn.primitive.name
    result: Constant | None = None
    if elementwise:
        result = _elementwise(eqn, operands, nonnegative)
    elif name in _RESHAPES:
        result = _reshaped(eqn, operands[0], nonnegative)
    elif name in _REDUCTIONS:
        result = _reduced(eqn, operands[0], nonnegative)
    if result is None:
        for operand in operands:
            if operand.entries is not None:
                operand.entries.origin.densify(f"{name!r}")
    return result


def _elementwise(
    eqn: Any, operands: Sequence[Constant], nonnegative: bool
) -> Constant | None:
    """An elementwise operation, done on a row's entries and once for all other places.

    Returns:
      None if another operand has no entries and is no public number, or has them at
      other places, or if the result has another shape.
    """
    sparse = [operand for operand in operands if operand.entries is not None]
    first = sparse[0].entries
    assert first is not None
    shape = sparse[0].array.shape
    if tuple(aval_of(eqn.outvars[0]).shape) != shape:
        return None
    values, others = [], []
    for operand, var in zip(operands, eqn.invars, strict=True):
        dtype = aval_of(var).dtype
        if operand.entries is not None:
            if not same_constant(operand.entries.indices, first.indices):
                return None
            values.append(operand.entries.values)
            others.append(operand.entries.elsewhere)
        elif operand.is_public and is_public_number(operand.array):
            number = np.asarray(operand.array.flat[0], dtype)
            values.append(jnp.full(first.values.shape, number, dtype))
            others.append(number)
        else:
            return None
    entries = Entries(
        first.indices,
        eqn.primitive.bind(*values, **eqn.params),
        apply_elementwise(eqn, others),
        first.origin,
    )
    return _constant(entries, shape[-1], nonnegative=nonnegative)


def apply_elementwise(eqn: Any, arrays: Sequence[Any]) -> Any:
    """An elementwise operation on arrays that broadcast; in NumPy if all are public."""
    all_public = all(map(is_public, arrays))
    dtypes = [aval_of(var).dtype for var in eqn.invars]
    function = NUMPY.get(eqn.primitive.name)
    if all_public and function is not None:
        typed = map(np.asarray, arrays, dtypes)
        with np.errstate(all="ignore"):
            result = function(eqn.params, *np.broadcast_arrays(*typed))
        return np.asarray(result, aval_of(eqn.outvars[0]).dtype)
    with jax.ensure_compile_time_eval() if all_public else contextlib.nullcontext():
        typed = jnp.broadcast_arrays(*map(jnp.asarray, arrays, dtypes))
        result = eqn.primitive.bind(*typed, **eqn.params)
        return np.asarray(result) if all_public else result


# Operations that may give or take axes of length 1, and leave the last one; also a
# slice that takes everything, as JAX 0.9 has in `x[:, 0]`.
_RESHAPES = {"broadcast_in_dim", "expand_dims", "reshape", "slice", "squeeze"}


def _reshaped(eqn: Any, operand: Constant, nonnegative: bool) -> Constant | None:
    before, after = operand.array.shape, tuple(aval_of(eqn.outvars[0]).shape)
    entries = operand.entries
    assert entries is not None
    same_last = after[-1:] == before[-1:] and before[-1] > 1
    if not same_last or np.prod(before) != np.prod(after):
        return None
    places = eqn.params.get("broadcast_dimensions", ())
    if list(places) != sorted(places):
        return None
    shape = (*after[:-1], entries.values.shape[-1])
    reshaped = Entries(
        jnp.reshape(entries.indices, shape),
        jnp.reshape(entries.values, shape),
        entries.elsewhere,
        entries.origin,
    )
    return _constant(reshaped, after[-1], nonnegative=nonnegative)


_REDUCTIONS = {
    "reduce_sum": jnp.add,
    "reduce_max": jnp.maximum,
    "reduce_min": jnp.minimum,
    "reduce_and": jnp.bitwise_and,
    "reduce_or": jnp.bitwise_or,
}


def _reduced(eqn: Any, operand: Constant, nonnegative: bool) -> Constant | None:
    """A sum, an extreme or a quantifier over all places, of a row's entries."""
    entries = operand.entries
    assert entries is not None
    shape, axes = operand.array.shape, eqn.params["axes"]
    if len(shape) - 1 not in axes:
        return None
    of_entries = eqn.primitive.bind(entries.values, **eqn.params)
    of_others = entries.elsewhere
    if eqn.primitive.name == "reduce_sum":
        width = shape[-1] - entries.values.shape[-1]
        count = width * math.prod(shape[i] for i in axes if i != len(shape) - 1)
        of_others = of_others * of_others.dtype.type(count)
    result = _REDUCTIONS[eqn.primitive.name](of_entries, of_others)
    dtype = aval_of(eqn.outvars[0]).dtype
    return Constant(result.astype(dtype), is_private=True, nonnegative=nonnegative)
