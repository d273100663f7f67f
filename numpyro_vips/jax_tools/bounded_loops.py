"""Loops that end after a public number of turns, whatever they wait for.

A sampler that rejects draws until one fits loops until numbers say stop. At numbers
that its author did not think of it may loop for ever: NumPyro's Binomial does so at a
negative chance, and its Hurdle where the counts are never positive. Where the numbers
are of a private row, whether the program ends would depend on it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp

from numpyro_vips.jax_tools.jaxprs import equations_of, evaluate, scan_sizes
from numpyro_vips.jax_tools.materialized import makes_no_turn
from numpyro_vips.jax_tools.operations import incomplete_beta
from numpyro_vips.jax_tools.user_lines import is_traced_from

# What loops in the place of bounded ones are called in programs.
_SCOPE = "numpyro_vips.bounded"


def with_bounded_loops(
    function: Callable[..., Any], most_turns: int
) -> Callable[..., Any]:
    """The function, with at most so many turns of each `while_loop` in it.

    A loop that would have gone on ends with what it has by then. All others give what
    they gave: the same numbers to the last bit. Loops inside of operations that JAX
    does not take apart, such as `custom_root`, stay as they are; `is_bounded` tells. So
    do those that no program shows, as of `jax.random.gamma`, which end by themselves.

    Args:
      function: Of arrays, which may refer to others that are being traced. Derivatives
        that its operations have by rules of their own are lost.
      most_turns: A public number.
    """

    def run(*arguments: Any) -> Any:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        found = _bounded(program, jax.tree.leaves(arguments), most_turns)
        return jax.tree.unflatten(jax.tree.structure(shapes), found)

    return run


def is_bounded(loop: jex_core.JaxprEqn) -> bool:
    """Whether a `while` equation is one of `with_bounded_loops`, `materialized` or
    `incomplete_beta`, or stands in the place of one; see `as_bounded`."""
    files = __file__, incomplete_beta.__file__
    if any(is_traced_from(loop, file) for file in files) or makes_no_turn(loop):
        return True
    return _SCOPE in str(loop.source_info.name_stack)


def as_bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does what a bounded loop does: `is_bounded` tells of its loop."""

    def run(*operands: Any) -> Any:
        with jax.named_scope(_SCOPE):
            return function(*operands)

    return run


def _bounded(
    program: jex_core.ClosedJaxpr, arguments: Sequence[Any], most_turns: int
) -> list[Any]:
    def rule(equation: jex_core.JaxprEqn, operands: list[Any]) -> Sequence[Any] | None:
        of_loop = _RULES.get(equation.primitive.name)
        if of_loop is None or not _has_while(equation):
            return None
        return of_loop(equation, operands, most_turns)

    return evaluate(program, arguments, rule)


def _has_while(equation: jex_core.JaxprEqn) -> bool:
    if equation.primitive.name == "while":
        return True
    programs = jax.tree.leaves(
        [equation.params.get("jaxpr"), equation.params.get("branches")],
        is_leaf=lambda x: isinstance(x, jex_core.ClosedJaxpr | jex_core.Jaxpr),
    )
    return any(e.primitive.name == "while" for p in programs for e in equations_of(p))


def _while(
    equation: jex_core.JaxprEqn, operands: list[Any], most_turns: int
) -> list[Any]:
    params = equation.params
    first, second = params["cond_nconsts"], params["body_nconsts"]
    of_condition, of_body = operands[:first], operands[first : first + second]

    def wanted(state: list[Any]) -> Any:
        given = [*of_condition, *state]
        (more,) = _bounded(params["cond_jaxpr"], given, most_turns)
        return more

    def goes_on(carry: tuple[Any, list[Any]]) -> Any:
        turn, state = carry
        return (turn < most_turns) & jnp.any(wanted(state))

    def turned(carry: tuple[Any, list[Any]]) -> tuple[Any, list[Any]]:
        turn, state = carry
        found = _bounded(params["body_jaxpr"], [*of_body, *state], most_turns)
        (answer,) = params["cond_jaxpr"].out_avals
        if answer.shape:
            # The loop was mapped. Entries that have ended wait for the others.
            found = list(map(functools.partial(_chosen, wanted(state)), found, state))
        return turn + 1, found

    start = jnp.zeros((), jnp.int32), operands[first + second :]
    return jax.lax.while_loop(goes_on, turned, start)[1]


def _chosen(which: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    shape = (*which.shape, *(1,) * (new.ndim - which.ndim))
    return jnp.where(which.reshape(shape), new, old)


def _scan(
    equation: jex_core.JaxprEqn, operands: list[Any], most_turns: int
) -> list[Any]:
    params, (num_constants, num_carried) = equation.params, scan_sizes(equation)
    constants, rest = operands[:num_constants], operands[num_constants:]

    def step(carried: list[Any], here: list[Any]) -> tuple[list[Any], list[Any]]:
        given = [*constants, *carried, *here]
        found = _bounded(params["jaxpr"], given, most_turns)
        return found[:num_carried], found[num_carried:]

    carried, entries = jax.lax.scan(
        step,
        rest[:num_carried],
        rest[num_carried:],
        length=params["length"],
        reverse=params["reverse"],
    )
    return [*carried, *entries]


def _cond(
    equation: jex_core.JaxprEqn, operands: list[Any], most_turns: int
) -> list[Any]:
    index, *rest = operands

    def branch(program: jex_core.ClosedJaxpr) -> Callable[..., list[Any]]:
        return lambda *given: _bounded(program, given, most_turns)

    return jax.lax.switch(index, [*map(branch, equation.params["branches"])], *rest)


_RULES: dict[str, Callable[[jex_core.JaxprEqn, list[Any], int], list[Any]]] = {
    "while": _while,
    "scan": _scan,
    "cond": _cond,
}
