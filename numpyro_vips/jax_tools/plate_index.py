"""What a model does with the index of its unit plate.

`with numpyro.plate("patients", n) as i` gives the positions of the rows. The engines
draw the rows themselves and run the model on one at a time, so the index may only pick
rows of the private arguments (`X[i]`, which changes nothing). A captured array that it
indexes would be read at the wrong rows, and would escape clipping.
"""

from collections.abc import Sequence

import jax.extend.core as jex_core

from numpyro_vips.jax_tools.jaxprs import called_program, evaluate

_ROWS, _INDEX = "rows", "index"
_PICKS = ("gather", "dynamic_slice")


def picks_rows_only(
    program: jex_core.ClosedJaxpr, *, has_rows: Sequence[bool], is_index: Sequence[bool]
) -> bool:
    """Whether the plate's index is used for nothing but picking rows.

    Args:
      program: A model's program.
      has_rows: For each input, whether it has one entry per row, as private arguments
        and latents under the plate do.
      is_index: For each input, whether it is the index.
    """
    inputs = [
        frozenset(kind for kind, holds in ((_ROWS, r), (_INDEX, i)) if holds)
        for r, i in zip(has_rows, is_index, strict=True)
    ]
    outputs = evaluate(program, inputs, _origin, constant=lambda _: frozenset())
    return all(_INDEX not in output for output in outputs)


def _origin(
    equation: jex_core.JaxprEqn, operands: Sequence[frozenset[str]]
) -> list[frozenset[str]] | None:
    """What the results were made from: rows, the index, both or neither."""
    if called_program(equation) is not None:
        return None
    made_from = frozenset().union(*operands)
    if equation.primitive.name in _PICKS and _ROWS in operands[0]:
        # Picking rows by the index gives rows, and nothing else of the index.
        made_from = operands[0]
    return [made_from] * len(equation.outvars)
