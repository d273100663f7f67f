"""Whether a model loops until a number of a row says stop.

`jax.lax.while_loop` may then take as long as a row wants, and never end at some row.
Whether a fit ends would depend on that row, and no noise is added to it. Solvers of
differential equations are written so, and end for all rows that their authors thought
of. So they are not refused: the caller is told, before anything is charged.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.extend.core as jex_core

from numpyro_vips.jax_tools.bounded_loops import is_bounded
from numpyro_vips.jax_tools.jaxprs import called_program, equations_of, evaluate
from numpyro_vips.model.graph import ModelGraph


class ProgramOfRows(NamedTuple):
    """A program that runs on single rows.

    Attributes:
      program: The program.
      of_row: For each of its inputs whether it is of the row.
    """

    program: jex_core.ClosedJaxpr
    of_row: Sequence[bool]


def program_of_model(graph: ModelGraph) -> ProgramOfRows:
    """The model's own program, of which densities are no part."""
    rows, *_ = graph.program_inputs
    count = len(graph.program.in_avals)
    return ProgramOfRows(graph.program, [n < len(rows) for n in range(count)])


def loops_until_rows_stop(of_rows: ProgramOfRows) -> bool:
    """Whether anything that a row has part in goes into a `while_loop`.

    Loops of globals and public arguments alone do not count, nor do those whose number
    of turns is in the program, as of `fori_loop` from 0 to a constant, nor those of
    samplers, which `simulated_rows` ends after a public number of turns.
    """
    found = False

    def rule(
        equation: jex_core.JaxprEqn, operands: Sequence[bool]
    ) -> list[bool] | None:
        nonlocal found
        if called_program(equation) is not None:
            return None
        is_of_row = any(operands)
        inside = (e for value in equation.params.values() for e in _equations(value))
        loops = (e for e in (equation, *inside) if e.primitive.name == "while")
        if is_of_row and not found:
            found = any(not is_bounded(loop) for loop in loops)
        return [is_of_row] * len(equation.outvars)

    evaluate(of_rows.program, of_rows.of_row, rule, constant=lambda _: False)
    return found


def _equations(value: object) -> list[jex_core.JaxprEqn]:
    """The equations of the programs in a parameter of an equation."""
    values = value if isinstance(value, tuple | list) else (value,)
    programs = [
        v for v in values if isinstance(v, jex_core.ClosedJaxpr | jex_core.Jaxpr)
    ]
    return [equation for program in programs for equation in equations_of(program)]


def warning_of_loops(until_rows_stop: bool) -> str | None:
    """What is said, before anything is charged, of loops that rows may keep going.

    Args:
      until_rows_stop: See `loops_until_rows_stop`.
    """
    if not until_rows_stop:
        return None
    return (
        "The model or guide has a jax.lax.while_loop whose length depends on a row. "
        "At some row it may take very long, or never end, so when the fit ends tells "
        "something about that row, without any noise. Give the loop a public largest "
        "number of turns, such as jax.lax.fori_loop from 0 to a constant. See 'Timing "
        "and side channels' in docs/privacy.md."
    )
