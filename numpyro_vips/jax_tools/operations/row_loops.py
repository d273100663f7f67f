"""Loops that ask once in a turn whether to go on, so that a row ends by itself.

`jax.vmap` makes one loop of the loops of all rows. It goes on while any row does, and
asks again in each turn which rows these are: what has ended stays as it is. XLA need
not round both answers alike, since a product and a sum may become one operation in one
of them and stay two in the other. A row at the edge could so take a further turn if
another row goes on, and take none if it does not. Here the answer is worked out at the
end of a turn, and kept.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex_core


def asking_once(
    equation: jex_core.JaxprEqn,
    condition: jex_core.ClosedJaxpr,
    body: jex_core.ClosedJaxpr,
) -> Callable[..., list[Any]]:
    """What a `while` equation does, with the answer carried along.

    Args:
      equation: The loop.
      condition, body: Its programs.

    Returns:
      A function of the equation's operands.
    """
    params = equation.params
    first = params["cond_nconsts"]
    second = first + params["body_nconsts"]
    asks, turns = map(jex_core.jaxpr_as_fun, (condition, body))
    # Inside `jax.vmap` there is an answer for each entry, which `while_loop` takes for
    # an error and its primitive does not.
    of_condition, of_body = condition.in_avals[:first], body.in_avals
    like = _shapes([*of_condition, *of_body[: second - first], *condition.out_avals])
    like += _shapes(of_body[second - first :])

    def with_answer(of_condition: Any, state: Any) -> list[Any]:
        return [*asks(*of_condition, *state), *state]

    def turned(*operands: Any) -> list[Any]:
        state = turns(*operands[first:second], *operands[second + 1 :])
        return with_answer(operands[:first], state)

    def loop(*operands: Any) -> list[Any]:
        of_turns: dict[str, Any] = {
            **params,
            "cond_nconsts": 0,
            "cond_jaxpr": jax.make_jaxpr(lambda answer, *_: answer)(*like[second:]),
            "body_nconsts": second,
            "body_jaxpr": jax.make_jaxpr(turned)(*like),
        }
        start = with_answer(operands[:first], operands[second:])
        carried = equation.primitive.bind(*operands[:second], *start, **of_turns)
        return carried[1:]

    return loop


def _shapes(avals: Any) -> list[jax.ShapeDtypeStruct]:
    """Shapes and types of arrays, which JAX traces programs with."""
    return [
        jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))
        for x in avals
    ]
