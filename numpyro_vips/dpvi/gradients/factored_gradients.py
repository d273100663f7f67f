"""Gradients of a row in arrays that it uses affinely, kept as the product they are.

Where a program of one row uses an array w once, in a product with a vector a of the
row, as in x @ w or in a layer of a network, its gradient in w is a ⊗ r, with r the
gradient in the product: a few numbers instead of one for every entry of w. Where it
picks an entry, as in w[group], the gradient is r at that entry and zero elsewhere.

Either way the gradient has the norm of a few coordinates, r times the norm of a. They
are clipped in its place, and the sum over rows is one matrix product or one scatter.
Nothing cancels in such a norm, so it is never too small. What is not found to be of
this form has its gradient taken entry by entry. The norms are those of Goodfellow,
*Efficient per-example gradient computations* (2015).
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
from jaxtyping import Array, Float

from numpyro_vips.jax_tools.jaxprs import (
    apply_equation,
    aval_of,
    evaluate_and_note,
    inlined,
    only_use,
)
from numpyro_vips.jax_tools.row_sums import in_double

# These move the entries of an array, one to one.
_VIEWS = ("reshape", "squeeze", "transpose", "broadcast_in_dim", "copy", "copy_p")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AffineUse:
    """The only use that a program makes of one of its inputs.

    Attributes:
      views: Equations between the input and its use, which only move entries.
      equation: The product with, or the choice by, another operand of the row.
      side: Which operand of the equation the input is.
      is_given: Whether the other operand is another input, in which no gradient is
        taken, and not made of any.
    """

    views: tuple[jex_core.JaxprEqn, ...]
    equation: jex_core.JaxprEqn
    side: int
    is_given: bool

    @property
    def _is_product(self) -> bool:
        return self.equation.primitive.name == "dot_general"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row's coordinates, which is that of the equation's result."""
        return tuple(aval_of(self.equation.outvars[0]).shape)

    @property
    def dtype(self) -> Any:
        """Type of one row's coordinates."""
        return aval_of(self.equation.outvars[0]).dtype

    def others(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """What a row's gradient has to know: the vector a, or the indices."""
        return (*operands[: self.side], *operands[self.side + 1 :])

    @property
    def frame_size(self) -> int:
        """How many numbers `others` are."""
        return sum(
            math.prod(aval_of(x).shape) for x in self.others(self.equation.invars)
        )

    def isometric(
        self, others: Sequence[Any], cotangent: Float[Array, "*use"]
    ) -> tuple[tuple[Any, ...], Float[Array, "*use"]]:
        """A row's gradient as a frame and coordinates.

        Args:
          others: The values of `others` that the row's program computed.
          cotangent: The gradient in the equation's result.

        Returns:
          What `total` takes. The norm of the coordinates is that of the gradient, and
          not below it by rounding.
        """
        if not self._is_product:
            return tuple(others), cotangent
        (vector,) = others
        contracted, batch = self.equation.params["dimension_numbers"]
        frame, length = _unit(vector, contracted[1 - self.side])
        # The result has the batch axes first; all else of the length has size one.
        first = batch[1 - self.side]
        order = (*first, *(axis for axis in range(vector.ndim) if axis not in first))
        length = jnp.transpose(length, order)
        length = length.reshape(length.shape[: len(first)])
        length = length.reshape(length.shape + (1,) * (cotangent.ndim - length.ndim))
        return (frame,), cotangent * length

    def total(
        self, like: Any, frames: Any, coordinates: Float[Array, " rows *use"]
    ) -> Float[Array, "*like"]:
        """The sum of rows' gradients, in double precision where that is switched on.

        Args:
          like: The input, for its shape and dtype.
          frames, coordinates: Results of `isometric`, with a leading axis of rows.

        Guarantees:
          What a row adds is no longer than its coordinates, whatever its frame holds.
        """

        def of_row(value: Any, frame: Sequence[Any]) -> Float[Array, "*use"]:
            for view in self.views:
                (value,) = apply_equation(view, [value])
            operands = [*frame[: self.side], value, *frame[self.side :]]
            equation = self.equation
            if self._is_product:
                # Products of lower precision would be longer than was allowed for.
                precision = (jax.lax.Precision.HIGHEST,) * 2
                params = {**equation.params, "precision": precision}
                params["preferred_element_type"] = dtype
                equation = equation.replace(params=params)
            return apply_equation(equation, operands)[0]

        def of_rows(value: Any) -> Float[Array, " rows *use"]:
            return jax.vmap(of_row, in_axes=(None, 0))(value, frames)

        dtype = jnp.result_type(float)
        frames, coordinates = in_double((frames, coordinates))
        if self._is_product and not self.is_given:
            (contracted, _) = self.equation.params["dimension_numbers"]
            axes = tuple(axis + 1 for axis in contracted[1 - self.side])
            frames = tuple(_at_most_one(frame, axes) for frame in frames)
        shape = jax.ShapeDtypeStruct(like.shape, dtype)
        (found,) = jax.linear_transpose(of_rows, shape)(coordinates)
        return found


def _at_most_one(
    frames: Float[Array, " rows *shape"], axes: tuple[int, ...]
) -> Float[Array, " rows *shape"]:
    """Frames of which none is longer than one; zero where one is not finite.

    `_unit` makes them so. But XLA may work out a vector that the program makes anew for
    its length and for the quotient, and round it in two ways.
    """
    lengths = jnp.sqrt(jnp.sum(frames**2, axis=axes, keepdims=True))
    shortened = frames * (1.0 / jnp.maximum(lengths, 1.0))
    return jnp.where(jnp.isfinite(lengths), shortened, 0.0)


def _unit(
    vector: Float[Array, "*shape"], axes: Sequence[int]
) -> tuple[Float[Array, "*shape"], Float[Array, "*lengths"]]:
    """Vectors along some axes, none longer than one, and what they are to be times.

    Zero where a vector is not finite. The axes are kept.
    """
    precision = jnp.finfo(vector.dtype)
    axes = tuple(axes)

    def largest(array: Float[Array, "*shape"]) -> Float[Array, "*lengths"]:
        return jnp.max(jnp.abs(array), axis=axes, keepdims=True, initial=0.0)

    # A fixed power of two keeps clear of divisors whose inverse underflows, and of
    # squares that do.
    peak, half = largest(vector), 2.0 ** (precision.maxexp // 2)
    power = jnp.where(peak > half, 1 / half, jnp.where(peak < 1 / half, half, 1.0))
    moderate = vector * power
    peak = largest(moderate)
    moderate = moderate / jnp.where(peak > 0, peak, 1.0)
    norm = jnp.sqrt(jnp.sum(moderate**2, axis=axes, keepdims=True))
    # Room for the rounding of the norm itself.
    count = math.prod(vector.shape[axis] for axis in axes)
    norm = norm * (1 + precision.eps * (8 + count**0.5))
    unit = moderate / jnp.where(norm > 0, norm, 1.0)
    length = norm * peak / power
    return jnp.where(jnp.isfinite(length), unit, 0.0), length


class FactoredProgram:
    """A program of one row, and what it uses affinely.

    Attributes:
      uses: By number of the input, its one use. Nothing else depends on the input.
    """

    def __init__(self, program: jex_core.ClosedJaxpr, inputs: Iterable[int]) -> None:
        """Looks for uses of some inputs; `program` takes floats, integers and keys."""
        # Derivatives are taken of what runs here, so they stay their authors'.
        self._program = inlined(program, keep_rules=True)
        inputs = frozenset(inputs)
        others = [
            x for i, x in enumerate(self._program.jaxpr.invars) if i not in inputs
        ]
        found = {i: _only_use(self._program, i, others) for i in inputs}
        self.uses = {number: use for number, use in found.items() if use is not None}

    def __call__(
        self, arguments: Sequence[Any], taps: Mapping[int, Any]
    ) -> tuple[list[Any], dict[int, tuple[Any, ...]]]:
        """Runs the program.

        Args:
          arguments: Its inputs, flat.
          taps: For some of `uses`, what is added to the results of their equations:
            the gradient in it is what `AffineUse.isometric` asks for.

        Returns:
          The results, and `AffineUse.others` of every tap.
        """
        # A variable is the result of one equation.
        at = {self.uses[number].equation.outvars[0]: number for number in taps}

        def run(
            equation: jex_core.JaxprEqn, operands: Sequence[Any]
        ) -> tuple[list[Any] | None, list[tuple[int, tuple[Any, ...]]]]:
            number = at.get(equation.outvars[0]) if equation.outvars else None
            if number is None:
                return None, []
            results = apply_equation(equation, operands)
            others = self.uses[number].others(operands)
            return [results[0] + taps[number]], [(number, others)]

        results, others = evaluate_and_note(
            self._program, arguments, run, keep_rules=True
        )
        return results, dict(others)


def _only_use(
    program: jex_core.ClosedJaxpr, number: int, given: Sequence[Any]
) -> AffineUse | None:
    """The one affine use of an input; None if there is none or another beside it.

    Args:
      program: It has one level.
      number: That of the input.
      given: The inputs that no gradient is taken in, as those of the row.
    """
    var, views = program.jaxpr.invars[number], []
    if not jnp.issubdtype(aval_of(var).dtype, jnp.floating):
        return None
    while True:
        use = only_use(program, var)
        if use is None:
            return None
        equation, side = use
        name, (result, *_) = equation.primitive.name, equation.outvars
        if aval_of(result).dtype != aval_of(var).dtype:
            return None
        if name not in _VIEWS or aval_of(result).size != aval_of(var).size:
            break
        views.append(equation)
        var = result
    if not _is_isometric(equation, side):
        return None
    is_given = _is_one_of(given, equation.invars[1 - side], program)
    return AffineUse(
        views=tuple(views), equation=equation, side=side, is_given=is_given
    )


def _is_one_of(
    given: Sequence[Any], operand: Any, program: jex_core.ClosedJaxpr
) -> bool:
    """Whether an operand is one of some inputs, its entries moved at most."""
    made = {id(x): each for each in program.jaxpr.eqns for x in each.outvars}
    while id(operand) in made and made[id(operand)].primitive.name in _VIEWS:
        operand = made[id(operand)].invars[0]
    return any(operand is x for x in given)


def _is_isometric(equation: jex_core.JaxprEqn, side: int) -> bool:
    """Whether the gradient in an operand is a product or an entry; see the top."""
    name, mine = equation.primitive.name, aval_of(equation.invars[side])
    if name == "dot_general":
        # The other operand is one vector, but for batch axes of both.
        other = aval_of(equation.invars[1 - side])
        contracted, batch = equation.params["dimension_numbers"]
        used = (*contracted[1 - side], *batch[1 - side])
        free = [size for axis, size in enumerate(other.shape) if axis not in used]
        return math.prod(free) == 1 and other.dtype == mine.dtype
    if name == "gather":
        # Of several slices some might be the same.
        return side == 0 and math.prod(aval_of(equation.invars[1]).shape[:-1]) == 1
    return name == "dynamic_slice" and side == 0
