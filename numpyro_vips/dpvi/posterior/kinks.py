"""Whether a log density has kinks, in which its second derivative is hidden.

The density of a Laplace distribution has a kink at its centre, and so have the check
loss of a quantile regression and the hinge loss of a classifier. Between kinks their
second derivatives are zero: all information is in the kinks, where none exists.

A kink is where a gradient jumps along the globals. To find one it is tried, on
synthetic rows and along random lines through the globals, whether the gradient is
another one right before and right after a choice: an absolute value, a maximum, a
comparison. No private value is read. Most choices make no kink. Those in
`log(1 + exp(x))` guard against overflow, and a Huber loss has the same slope on both
sides.

Not each kink hides information. In a mean that is made of rectified linear units one
row's gradient jumps up and another one's down, as their residuals have either sign, and
their sum is smooth. So only choices count that the density is a sum with: none that
also go through a square, an exponential, or another function that bends. Of these only
those count at which gradients jump down. They jump up at `maximum(log_density, -50)`,
by which a model says that nothing is known of outliers.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64

from numpyro_vips.jax_tools.jaxprs import aval_of, called_program, evaluate
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized

# What is a sum, or a product with something else.
_LINEAR = frozenset(
    (
        *("add", "add_any", "sub", "neg", "reduce_sum", "cumsum", "stack", "unstack"),
        *("broadcast_in_dim", "reshape", "squeeze", "transpose", "concatenate", "pad"),
        *("convert_element_type", "slice", "dynamic_slice", "gather", "copy", "rev"),
        *("expand_dims", "split", "reduce_precision", "real"),
    )
)
_PRODUCTS = frozenset(("mul", "dot_general"))
# What chooses by the size of its operands. A comparison that becomes a number does, and
# so does one that `select_n` chooses by.
_CHOICES = frozenset(
    (
        *("abs", "sign", "max", "min", "clamp", "select_n", "reduce_max", "reduce_min"),
        "convert_element_type",
    )
)
# What depends on no global but at single places, which a choice by it says nothing of.
_WITHOUT_DERIVATIVE = frozenset(("stop_gradient", "is_finite", "eq", "ne"))
_LINES = 8
# How far along a line it is looked, on both sides of its middle.
_AWAY = np.concatenate([[0.0], np.geomspace(1e-2, 1e3, 26)])
# Halvings of an interval in which a choice changes, and how far from there gradients
# are looked at.
_HALVINGS, _APART = 30, 1e-5
# A jump that is not rounding, over gradients nearby; and a step in the density itself.
_JUMP, _STEP = 1e-2, 1e-4
# At how many of the places at which a choice changes gradients have to jump down. At a
# few others have a kink, such as units of a network that are all zero before.
_OFTEN = 0.25


class _Made(NamedTuple):
    """What a number is made of.

    Attributes:
      of_globals: Whether the globals are part of it.
      summed: Numbers of the choices that it is a sum with.
      bent: Of those that it is another function of.
    """

    of_globals: bool
    summed: frozenset[int] = frozenset()
    bent: frozenset[int] = frozenset()


def hides_information(
    program: jex_core.ClosedJaxpr,
    num_globals: int,
    inputs: Callable[[Float[Array, " size"], Mapping[str, Any]], list[Any]],
    start: Float[Array, " size"],
    rows: Callable[[], Mapping[str, Any]],
) -> bool:
    """Whether a row's log density has such kinks.

    Args:
      program: The log density, and more outputs.
      num_globals: The number of the program's first inputs that are made of globals.
      inputs: The program's inputs at unconstrained globals and a row.
      start: Globals about which it is tried.
      rows: Makes synthetic rows.
    """
    numbers = sorted(_summed_choices(program, num_globals))
    if not numbers:
        return False
    with np.errstate(all="ignore"):
        found = _Trial(program, inputs, numbers, start, rows()).jumps()
    return any(each.down - each.up > _OFTEN * each.places for each in found)


# --- which choices a density is a sum with --------------------------------------------


def _summed_choices(program: jex_core.ClosedJaxpr, num_globals: int) -> frozenset[int]:
    """Numbers of the choices on the globals that the density is a sum with.

    Choices are numbered in the order of the program; see `_is_choice`.
    """
    counted = 0

    def rule(
        equation: jex_core.JaxprEqn, operands: Sequence[_Made]
    ) -> list[_Made] | None:
        nonlocal counted
        if called_program(equation) is not None:
            return None
        choice = frozenset((counted,)) if _is_choice(equation) else frozenset[int]()
        counted += len(choice)
        return _made(equation, operands, choice)

    inputs = [_Made(number < num_globals) for number in range(len(program.in_avals))]
    made, *_ = evaluate(program, inputs, rule, constant=lambda _: _Made(False))
    return made.summed - made.bent


def _is_choice(equation: jex_core.JaxprEqn) -> bool:
    """Whether an equation chooses. Choices are numbered as they come in a program."""
    if equation.primitive.name not in _CHOICES:
        return False
    if equation.primitive.name != "convert_element_type":
        return _is_real(equation.outvars[0])
    return _is_real(equation.outvars[0]) and not _is_real(equation.invars[0])


def _is_real(variable: Any) -> bool:
    return jnp.issubdtype(aval_of(variable).dtype, jnp.floating)


def _made(
    equation: jex_core.JaxprEqn, operands: Sequence[_Made], choice: frozenset[int]
) -> list[_Made]:
    """What the results of an equation are made of."""
    name = equation.primitive.name
    of_globals = any(operand.of_globals for operand in operands)
    if not of_globals or name in _WITHOUT_DERIVATIVE:
        return [_Made(False)] * len(equation.outvars)
    summed = frozenset[int]().union(*(operand.summed for operand in operands))
    bent = frozenset[int]().union(*(operand.bent for operand in operands))
    if name == "div":
        bent |= operands[1].summed
    elif name in _PRODUCTS:
        first, second = operands
        bent |= first.summed & second.summed
    elif not choice and name not in _LINEAR:
        bent |= summed
    if name == "select_n" and not operands[0].of_globals:
        choice = frozenset()
    return [
        _Made(True, summed | choice, bent) if _is_real(variable) else _Made(True)
        for variable in equation.outvars
    ]


# --- whether gradients jump there -----------------------------------------------------


class _Trial:
    """Synthetic rows along random lines through the globals, each row along each."""

    def __init__(
        self,
        program: jex_core.ClosedJaxpr,
        inputs: Callable[[Any, Mapping[str, Any]], list[Any]],
        numbers: Sequence[int],
        start: Float[Array, " size"],
        rows: Mapping[str, Any],
    ) -> None:
        """Compiles nothing yet.

        Args:
          program, inputs, start: See `hides_information`.
          numbers: The choices that are tried.
          rows: Synthetic rows.
        """
        rng, size = np.random.default_rng(7), len(start)
        middles = np.asarray(start) + rng.normal(size=(_LINES, size))
        lines = jnp.asarray(middles, start.dtype)
        directions = jnp.asarray(rng.normal(size=(_LINES, size)), start.dtype)
        run = jex_core.jaxpr_as_fun(program)

        def given(away: Any, line: Any, row: Mapping[str, Any]) -> list[Any]:
            middle, direction = line
            return inputs(middle + away * direction, row)

        def chosen(away: Any, line: Any, row: Mapping[str, Any]) -> list[Any]:
            choices = _choices(program, given(away, line, row))
            return [choices[number] for number in numbers]

        def value(away: Any, line: Any, row: Mapping[str, Any]) -> Any:
            return jnp.reshape(run(*given(away, line, row))[0], ())

        def on_all(function: Callable[..., Any]) -> Callable[[Any], Any]:
            of_lines = jax.vmap(function, in_axes=(0, 0, None))
            on_pairs = jit_unoptimized(jax.vmap(of_lines, in_axes=(0, None, 0)))
            return lambda away: on_pairs(away, (lines, directions), rows)

        self._chosen = on_all(chosen)
        self._slope = on_all(jax.value_and_grad(value))
        self._shape = len(next(iter(rows.values()))), _LINES
        self._dtype = start.dtype
        self._numbers = numbers

    def jumps(self) -> list["_Jumps"]:
        """How gradients jump where each choice becomes another one."""
        sides = [self._changes(sign) for sign in (1.0, -1.0)]
        counts = [[self._jumps_at(change) for change in side] for side in sides]
        return [
            _Jumps(*(x + y for x, y in zip(one, other, strict=True)))
            for one, other in zip(*counts, strict=True)
        ]

    def _at(self, away: Any) -> list[Bool[np.ndarray, "rows lines entries"]]:
        """What each choice is at a place of each line."""
        places = jnp.asarray(np.broadcast_to(away, self._shape), self._dtype)
        return [
            np.reshape(np.asarray(each), (*self._shape, -1))
            for each in self._chosen(places)
        ]

    def _changes(self, sign: float) -> list["_Change"]:
        """Where each choice first becomes another one, on one side of the middles."""
        before = self._at(0.0)
        near, far = np.full((2, len(before), *self._shape), np.nan)
        for one, other in itertools.pairwise(sign * _AWAY):
            after = self._at(other)
            for number, (x, y) in enumerate(zip(before, after, strict=True)):
                changes = np.any(x != y, axis=-1) & np.isnan(near[number])
                near[number, changes], far[number, changes] = one, other
            before = after
        return [
            _Change(near[number], far[number], self._place(number, *ends))
            for number, ends in enumerate(zip(near, far, strict=True))
        ]

    def _place(
        self,
        number: int,
        near: Float64[np.ndarray, "rows lines"],
        far: Float64[np.ndarray, "rows lines"],
    ) -> Float64[np.ndarray, "rows lines"]:
        """Where between two places a choice becomes another one."""
        if np.isnan(near).all():
            return near
        at_near = self._at(near)[number]
        for _ in range(_HALVINGS):
            middle = 0.5 * (near + far)
            differs = np.any(self._at(middle)[number] != at_near, axis=-1)
            near, far = np.where(differs, near, middle), np.where(differs, middle, far)
        return 0.5 * (near + far)

    def _jumps_at(self, change: "_Change") -> "_Jumps":
        places = int(np.sum(~np.isnan(change.place)))
        if not places:
            return _Jumps(0, 0, 0)
        # Not next to each other: each program rounds its own way.
        apart = _APART * (1.0 + abs(change.place))
        about = [change.place + times * apart for times in (-3.0, -1.0, 1.0, 3.0)]
        values, slopes = np.swapaxes(
            [
                self._slope(jnp.asarray(place, self._dtype))
                for place in (*about, change.near, change.far)
            ],
            0,
            1,
        )
        (_, before, after, *_), (first, left, right, last, *_) = values, slopes
        # Less what the gradient changes by on both sides, as it may be steep.
        jump = (right - left) - 0.5 * ((left - first) + (last - right))
        steepest = np.max(np.where(np.isfinite(slopes), abs(slopes), 0.0), axis=0)
        step = 4.0 * steepest * apart + _STEP * (abs(before) + abs(after))
        # Not where the density itself has a step: no derivative tells of it.
        kinks = np.isfinite(before + after + jump)
        kinks &= (abs(after - before) <= step) & (abs(jump) > _JUMP * steepest)
        down, up = np.sum(kinks & (jump < 0)), np.sum(kinks & (jump > 0))
        return _Jumps(places, int(down), int(up))


class _Jumps(NamedTuple):
    """The numbers of places at which a choice becomes another one, and gradients jump.

    Attributes:
      places: All of them.
      down, up: Those at which gradients jump, along their lines.
    """

    places: int
    down: int
    up: int


class _Change(NamedTuple):
    """Where a choice becomes another one; not a number where it never does.

    Attributes:
      near, far: Places before and after it.
      place: It.
    """

    near: Float64[np.ndarray, "rows lines"]
    far: Float64[np.ndarray, "rows lines"]
    place: Float64[np.ndarray, "rows lines"]


def _choices(program: jex_core.ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
    """What the choices of a program are, each as truth values or whole numbers."""
    found: list[Any] = []

    def rule(equation: jex_core.JaxprEqn, operands: list[Any]) -> None:
        if called_program(equation) is None and _is_choice(equation):
            found.append(_choice(equation, operands))

    evaluate(program, arguments, rule)
    return found


def _choice(equation: jex_core.JaxprEqn, operands: Sequence[Any]) -> Any:
    name, first = equation.primitive.name, operands[0]
    if name in ("select_n", "convert_element_type"):
        return first
    if name in ("abs", "sign"):
        return first > 0
    if name == "clamp":
        least, x, most = operands
        return jnp.where(x < least, -1, jnp.where(x > most, 1, 0))
    if name in ("max", "min"):
        return first > operands[1]
    largest = jnp.max if name == "reduce_max" else jnp.min
    axes = equation.params["axes"]
    return first == largest(first, axis=axes, keepdims=True)
