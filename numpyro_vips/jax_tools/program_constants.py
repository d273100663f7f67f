"""The arrays inside a traced program that are none of its arguments.

However a model got hold of an array (a closure, a file, a function compiled by
`jax.jit`), it enters the program as a constant, of the program itself or of one inside
it. Such constants are neither clipped nor subsampled, so they count as public.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import jax
import jax.extend.core as jex_core
import jax.scipy.special as special
import numpy as np

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.jax_tools.jaxprs import leaves_of, programs_in
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.random_keys import numbers_of, threefry_key

# What no variable of the caller's has a name for.
_UNNAMED = "an array of shape"
Array = jax.Array | np.ndarray


class Declared(Protocol):
    """What has to be known of a model's arguments."""

    @property
    def num_rows(self) -> int:
        """How many rows the private arguments have."""
        ...

    @property
    def public(self) -> Mapping[str, Any]:
        """The arguments that were declared public, by name."""
        ...


def constants_of(closed: jex_core.ClosedJaxpr | jex_core.Jaxpr) -> list[Array]:
    """The constants with at least one axis, of the program and of all inside it.

    Looked through are the constants of every inner program (of `jit`, `scan`, `cond`,
    `while_loop`, `checkpoint`, custom derivatives and whatever else has one among its
    parameters), array literals, and arrays and bytes among the parameters of
    operations. Not seen are constants of derivative rules that the program does not
    run, and of programs that were compiled ahead.

    Returns:
      Each object once; bytes are given as an array. A single random key is no array.
    """
    found: dict[int, Array] = {}
    for value in values_in(closed):
        if isinstance(value, bytes | bytearray):
            value = np.frombuffer(bytes(value), np.uint8)
        if np.ndim(value) > 0:
            found.setdefault(id(value), value)
    return list(found.values())


def refuse_program_constants(
    closed: jex_core.ClosedJaxpr,
    arguments: Declared,
    what: str = "model",
    *,
    looked_at: Iterable[Array] = (),
) -> None:
    """Refuses a program that holds an array with an axis as long as the data.

    Not meant are arguments that were declared public, and arrays without information,
    such as a prior's np.zeros(num_features) where there happen to be as many features
    as rows.

    Args:
      closed: The program. What the engines made up, such as a synthetic row, must be
        among its arguments.
      arguments: Of the model.
      what: Whose program it is, for the message: `"model"` or `"guide"`.
      looked_at: Arrays that may be among its constants.

    Raises:
      UnsafeModelError: There is such an array.
    """
    for array in constants_of(closed):
        if not has_length(np.shape(array), arguments.num_rows):
            continue
        is_known = any(_equal(array, other) for other in looked_at)
        if not (is_known or is_declared(array, arguments) or is_plain(array)):
            name = "an array inside it"
            refuse_length(name, np.shape(array), arguments.num_rows, what)


def refuse_length(
    name: str, shape: tuple[int, ...], num_rows: int, what: str = "model"
) -> None:
    """Refuses an array with an axis as long as the data; `name` is for the message."""
    if has_length(shape, num_rows):
        raise UnsafeModelError(
            f"The {what} captures {name} of shape {shape}, which has an axis of the "
            "length of the data. A captured array is not clipped and not subsampled. "
            "Pass it as an argument of the model instead (and name it in public= if it "
            "really is public)."
        )


def has_length(shape: tuple[int, ...], num_rows: int) -> bool:
    """Whether an axis is as long as the data; a single row is no length."""
    return num_rows > 1 and num_rows in shape


def unnamed(
    constants: list[Array], named: Mapping[str, Array], arguments: Declared
) -> dict[str, np.ndarray]:
    """The constants that are known neither by `named` nor by the arguments, by a name.

    Zeros, ones and other arrays without information are left out.
    """
    found: dict[str, np.ndarray] = {}
    known = [array for array in named.values() if isinstance(array, np.ndarray)]
    for array in constants:
        if is_declared(array, arguments) or is_plain(array, units_only=True):
            continue
        if any(_equal(array, other) for other in known):
            continue
        known.append(numbers_of(array))
        stem = f"{_UNNAMED} {tuple(np.shape(array))}"
        name, count = stem, 2
        while name in found:
            name, count = f"{stem} ({count})", count + 1
        found[name] = numbers_of(array)
    return found


def listed(names: Iterable[str]) -> list[str]:
    """How explanations and statements refer to captured arrays."""
    return [n if n.startswith(_UNNAMED) else f"the array {n!r}" for n in names]


def is_declared(array: Array, arguments: Declared) -> bool:
    """Whether it is an argument that was declared public."""
    return any(_equal(array, public) for public in arguments.public.values())


def is_plain(array: Array, *, units_only: bool = False) -> bool:
    """Whether it says nothing of data.

    That is one number throughout, 0, 1, ..., an identity matrix, or coefficients of a
    function of JAX.

    Args:
      array: The array in question.
      units_only: Whether the one number must be 0 or 1.
    """
    values = numbers_of(array)
    if values.size == 0 or values.dtype == object:
        return values.size == 0
    if bool(np.all(values == values.flat[0])):
        return not units_only or values.flat[0] in (0, 1)
    if values.dtype.kind not in "biuf":
        return False
    if values.ndim == 1:
        is_index = bool(np.all(values == np.arange(values.size)))
        return is_index or any(_equal(values, known) for known in _coefficients())
    is_square = values.ndim == 2 and values.shape[0] == values.shape[1]
    return is_square and bool(np.all(values == np.eye(len(values))))


@functools.cache
def _coefficients() -> list[Array]:
    """The arrays inside functions that JAX computes by polynomials and tables."""
    # Not every version of JAX has all of them.
    names = ["dawsn", "erfcx", "expi", "fresnel", "ndtri", "sici", "spence", "wofz"]
    functions = [getattr(special, name) for name in names if hasattr(special, name)]
    with double_precision():
        number, key = np.float64(0.5), threefry_key(0)
        programs = [jax.make_jaxpr(f)(number) for f in functions]
        if hasattr(special, "owens_t"):
            programs.append(jax.make_jaxpr(special.owens_t)(number, number))
        programs.append(jax.make_jaxpr(jax.random.binomial)(key, 9.0, number))
    return [array for program in programs for array in constants_of(program)]


def _equal(array: Array, other: Any) -> bool:
    """Whether they hold the same numbers, in the precision of the first."""
    if array is other:
        return True
    left, right = numbers_of(array), numbers_of(other)
    if left.shape != right.shape:
        return False
    if left.dtype.kind not in "biufc" or right.dtype.kind not in "biufc":
        return bool(np.array_equal(left, right))
    with np.errstate(all="ignore"):
        return bool(np.array_equal(left, right.astype(left.dtype), equal_nan=True))


def values_in(closed: jex_core.ClosedJaxpr | jex_core.Jaxpr) -> Iterator[Any]:
    """Every array and string of bytes in a program and in those inside it."""
    for program in programs_in(closed):
        equations = program.jaxpr.eqns
        atoms = [*program.jaxpr.outvars]
        atoms += [operand for equation in equations for operand in equation.invars]
        yield from _arrays_in(program.consts)
        yield from _arrays_in([x.val for x in atoms if isinstance(x, jex_core.Literal)])
        yield from _arrays_in([equation.params for equation in equations])


def _arrays_in(value: Any) -> Iterator[Any]:
    """Every array and string of bytes in a parameter of an operation."""
    for leaf in leaves_of(value):
        if isinstance(leaf, jax.Array | np.ndarray | bytes | bytearray):
            yield leaf
        # Such as the arrays of NumPy that JAX has wrapped; not shapes without values.
        elif hasattr(type(leaf), "__array__") and hasattr(leaf, "shape"):
            yield np.asarray(leaf)
