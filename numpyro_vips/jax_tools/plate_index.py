"""What a model does with the index of its unit plate.

`with numpyro.plate("patients", n) as i` gives the positions of the rows. The engines
draw the rows themselves and run the model on one at a time, so the index may only pick
rows of the private arguments (`X[i]`, which changes nothing). A captured array that it
indexes would be read at the wrong rows, and would escape clipping.
"""

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex_core

_ROWS, _INDEX = "rows", "index"
# Programs inside programs that run exactly once, with the same inputs.
_INNER_PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_CALLS = (
    *("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
)
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
    return all(_INDEX not in output for output in _origins(program.jaxpr, inputs))


def _origins(jaxpr: Any, inputs: Sequence[frozenset]) -> list[frozenset]:
    """What each output was made from: rows, the index, both or neither."""
    nothing: frozenset = frozenset()
    known: dict[Any, frozenset] = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(var: Any) -> frozenset:
        return nothing if isinstance(var, jex_core.Literal) else known.get(var, nothing)

    for eqn in jaxpr.eqns:
        operands = [read(var) for var in eqn.invars]
        results = [frozenset().union(*operands)] * len(eqn.outvars)
        inner = next((eqn.params[k] for k in _INNER_PROGRAMS if k in eqn.params), None)
        if eqn.primitive.name in _CALLS and inner is not None:
            results = _origins(getattr(inner, "jaxpr", inner), operands)
        elif eqn.primitive.name in _PICKS and _ROWS in operands[0]:
            # Picking rows by the index gives rows, and nothing else of the index.
            results = [operands[0]]
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]
