"""Why the rows of a refused model act on each other, as far as its program shows."""

from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np

from numpyro_vips.jax_tools.jaxprs import without_dead_code
from numpyro_vips.model.distributions import shape_as_written
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.handler_stack import unvalidated
from numpyro_vips.model.meeting_rows import (
    PUBLIC_IN_ITS_PLACE,
    first_meeting,
    in_rows,
)
from numpyro_vips.model.trace import abstract_rows

_OWN_DRAWS = (
    "The model computes with other numbers each time that it runs, such as random "
    "numbers of NumPy. Draw them beforehand and pass them as an argument named in "
    "public=, or draw latents with numpyro.sample."
)


def why_rows_meet(graph: ModelGraph) -> str:
    """Says where rows meet in a model that has been refused, and what to do.

    Returns:
      Sentences; general ones where the program does not show it.
    """
    two, three, again = (_Densities(graph, count) for count in (2, 3, 2))
    if not _same(two.program, again.program):
        return _OWN_DRAWS
    for name, shapes in two.shapes.items():
        others = three.shapes[name]
        if sum(a != b for a, b in zip(shapes[-1], others[-1], strict=False)) > 1:
            value, given, together = map(in_rows, shapes, others)
            return (
                f"With N rows the value of {name!r} has shape {value} and its "
                f"distribution {given}, so that its log density has shape {together}: "
                "every value meets the parameters of every row. Make both (N,), the "
                "parameters for example with X @ w where w has shape (K,), and a "
                "column with X[:, 0] or .squeeze(-1)."
            )
    found = first_meeting(two.program, three.program)
    return PUBLIC_IN_ITS_PLACE if found is None else found.advice


def _same(one: jex_core.ClosedJaxpr, other: jex_core.ClosedJaxpr) -> bool:
    """Whether two traces of the model are one program, with the same numbers in it."""
    pairs = zip(one.consts, other.consts, strict=False)
    return str(one) == str(other) and all(np.array_equal(a, b) for a, b in pairs)


class _Densities:
    """The program of the log densities of what is under the unit plate.

    Attributes:
      program: The program of rows and latents.
      shapes: By site, those of its value, of its distribution as the model gave it, and
        of its log density.
    """

    def __init__(self, graph: ModelGraph, count: int):
        self.shapes: dict[str, tuple[tuple[int, ...], ...]] = {}
        latents = {}
        for name, site in graph.sites.items():
            if site.is_latent:
                shape = list(site.shape)
                if site.row_axis is not None:
                    shape[site.row_axis] = count
                latents[name] = jax.ShapeDtypeStruct(tuple(shape), site.dtype)

        def densities(rows: Any, latents: Any) -> list[Any]:
            messages, found = graph.run(rows, latents), []
            for name, site in graph.sites.items():
                if site.row_axis is None:
                    continue
                fn, value = messages[name]["fn"], messages[name]["value"]
                with unvalidated():
                    found.append(fn.log_prob(value))
                batch = jnp.ndim(value) - fn.event_dim
                shapes = jnp.shape(value)[:batch], shape_as_written(fn)
                self.shapes[name] = *shapes, found[-1].shape
            return found

        rows = abstract_rows(graph.arguments, count)
        self.program = without_dead_code(jax.make_jaxpr(densities)(rows, latents))
