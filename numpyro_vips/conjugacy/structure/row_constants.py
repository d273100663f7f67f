"""What a row brings to the terms of a model, as one program of the row.

The model is interpreted once, on the variables of a row that is traced. The constants
that are found then are variables of the traced program. In the terms a `Slot` takes the
place of each; the number of that variable among the program's outputs is its token.
Two slots have one token only if they are one variable of this program, or two that are
made alike, and so the same function of the row, whatever the row holds.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra.terms import ArrayLike, Dense, OneHot, Slot
from numpyro_vips.jax_tools.jaxprs import (
    representatives,
    with_used_inputs,
    without_dead_code,
)


class ProductFactor(NamedTuple):
    """A factor of a product of constants.

    Attributes:
      token: Which constant.
      num_states: For indices, which then stand for indicators with one axis more, how
        many states there are; None for numbers.
      axes: For each of its axes, which axis of the product it is; None where it has one
        entry.
      is_free: Whether its numbers may be of any size.
    """

    token: int
    num_states: int | None
    axes: tuple[int | None, ...]
    is_free: bool

    def array(
        self, numbers: Mapping[int, jax.Array], shape: tuple[int, ...]
    ) -> jax.Array:
        """The factor as an array that broadcasts to the product's shape.

        Args:
          numbers: A row's constants by token.
          shape: The product's shape.
        """
        array = numbers[self.token]
        if self.num_states is not None:
            array = jax.nn.one_hot(array, self.num_states, dtype=float)
        own = [axis for axis in self.axes if axis is not None]
        array = jnp.reshape(array, [shape[axis] for axis in own])
        array = jnp.transpose(array, np.argsort(own).tolist())
        missing = [axis for axis in range(len(shape)) if axis not in own]
        return jnp.expand_dims(array, missing)


@dataclasses.dataclass(frozen=True)
class Product:
    """A number of a row that is a product of its constants.

    Attributes:
      token: Of a slot that stands for it; negative.
      parts: Its factors.
      shape: Its shape.
    """

    token: int
    parts: tuple[ProductFactor, ...]
    shape: tuple[int, ...]

    def of(self, numbers: Mapping[int, jax.Array]) -> jax.Array:
        """The product, from a row's constants by token."""
        found = jnp.ones(self.shape)
        for part in self.parts:
            found = found * part.array(numbers, self.shape)
        return found


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RowConstants:
    """The program of a row's constants; it holds no row.

    Attributes:
      program: From the leaves of a row to whether it may count, and to its constants.
      tokens: The token of each constant.
      row: What the program takes: shapes and types of a row's arrays.
      products: What is made of these constants beside them.
    """

    program: jex_core.ClosedJaxpr
    tokens: tuple[int, ...]
    row: Mapping[str, Any]
    products: tuple[Product, ...] = ()

    def with_products(self, numbers: Mapping[int, Any]) -> dict[int, Any]:
        """Constants by token, with their products, of which some are of others."""
        found = dict(numbers)
        for product in self.products:
            found[product.token] = product.of(found)
        return found

    def __call__(
        self, row: Mapping[str, Any]
    ) -> tuple[dict[int, jax.Array], jax.Array]:
        """A row's constants by token, and whether it may count.

        Args:
          row: One row of every private argument.
        """
        mine = {name: row[name] for name in self.row}
        leaves = [
            jnp.asarray(leaf, aval.dtype)
            for leaf, aval in zip(
                jax.tree.leaves(mine), self.program.in_avals, strict=True
            )
        ]
        valid, *arrays = jex_core.jaxpr_as_fun(self.program)(*leaves)
        return self.with_products(dict(zip(self.tokens, arrays, strict=True))), valid

    def zero_if_invalid(
        self, row: Mapping[str, Any]
    ) -> tuple[dict[int, jax.Array], jax.Array]:
        """A row's constants, all of them zero if the row may not count.

        Args:
          row: One row of every private argument.

        Returns:
          The constants by token, and whether the row may count: whether all that it
          holds is finite and what is observed lies in the support.
        """
        arrays, valid = self(row)
        zeroed = {
            token: jnp.where(valid, array, jnp.zeros((), array.dtype))
            for token, array in arrays.items()
        }
        return zeroed, valid


class HasConstants(Protocol):
    """Something made of terms, such as a log joint density."""

    def with_arrays(self, replace: Callable[[Dense | OneHot], ArrayLike]) -> Self:
        """A copy in which `replace` has given another array to each constant.

        Constants whose values are public stay.
        """
        ...


Found = TypeVar("Found", bound=HasConstants)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Traced(Generic[Found]):
    """What a trace returns: variables, and what they are constants of.

    The first of `private` is whether the row may count. A slot in what is found has the
    number of its variable, private and public ones being numbered apart.
    """

    private: Sequence[Any]
    public: Sequence[Any]
    found: Found = dataclasses.field(metadata={"static": True})


def with_slots(
    interpret: Callable[[Mapping[str, Any]], tuple[Found, Any]], rows: Mapping[str, Any]
) -> tuple[Found, RowConstants]:
    """Traces an interpretation of one row and separates its terms from its constants.

    Constants that are not private are evaluated here, after a look at the program: it
    must not read the row for them.

    Args:
      interpret: From rows with a leading axis of length 1 to what is found, and to
        whether they may count.
      rows: Such rows, of which only shapes and types are looked at.

    Returns:
      What is found, its constants public or slots, and the program that fills these.
    """

    def traced(row: Mapping[str, Any]) -> _Traced[Found]:
        found, valid = interpret(jax.tree.map(lambda x: x[None], dict(row)))
        private, public = [valid], []

        def numbered(factor: Dense | OneHot) -> Slot:
            arrays = private if factor.is_private else public
            arrays.append(factor.array)
            return Slot(len(arrays) - 1, factor.array.shape, factor.array.dtype)

        return _Traced(private, public, found.with_arrays(numbered))

    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), dict(rows))
    closed, shapes = jax.make_jaxpr(traced, return_shape=True)(row)
    count = len(shapes.private)
    tokens = _tokens(closed, count)
    public = _evaluated(closed, count)

    def final(factor: Dense | OneHot) -> ArrayLike:
        if not factor.is_private:
            return public[factor.array.token]
        return dataclasses.replace(factor.array, token=tokens[factor.array.token])

    kept = sorted({0, *tokens})
    program = without_dead_code(
        closed, [i in kept for i in range(len(closed.out_avals))]
    )
    constants = RowConstants(program=program, tokens=tuple(kept[1:]), row=row)
    return shapes.found.with_arrays(final), constants


def _tokens(closed: jex_core.ClosedJaxpr, count: int) -> list[int]:
    """A number for each constant of a program: equal ones are the same function.

    The number is the place of the first output that `representatives` calls made alike.
    So constants have one token only if they agree for every row.

    Args:
      closed: The program of a row, which first returns whether the row may count.
      count: How many of its outputs are private; the rest have no tokens.

    Returns:
      A token for each of these outputs. The first output and every literal have tokens
      that no other has.
    """
    made, first = representatives(closed), dict[Any, int]()
    return [
        i
        if i == 0 or isinstance(x, jex_core.Literal)
        else first.setdefault(made.get(x, x), i)
        for i, x in enumerate(closed.jaxpr.outvars[:count])
    ]


def _evaluated(closed: jex_core.ClosedJaxpr, start: int) -> list[np.ndarray]:
    """The values of public constants, which are computed without a row.

    Args:
      closed: The program of a row.
      start: From which of its outputs on they are public.

    Raises:
      AssertionError: One of them depends on the row.
    """
    wanted = [i >= start for i in range(len(closed.out_avals))]
    if not any(wanted):
        return []
    program, used = with_used_inputs(closed, wanted)
    if any(used):
        raise AssertionError("a constant that is called public depends on the row")
    with jax.ensure_compile_time_eval():
        return [np.asarray(x) for x in jex_core.jaxpr_as_fun(program)()]
