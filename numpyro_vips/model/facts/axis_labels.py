"""What the entries of a global belong to: the columns of an encoded table.

A model sees an array of encoded rows and takes the length of its weights from it. Tried
on an array with a column more, the weights have an entry more, and nothing else has. So
an axis is known by what its length follows, and not by its length, which a plate of
groups may have by chance.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from numpyro_vips.handlers import private
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.row_chunks import shape_of
from numpyro_vips.model.trace import Trace

# By site, for each axis its labels, or None.
AxisLabels = Mapping[str, Sequence[Sequence[str] | None]]


def axis_labels(model: private, graph: ModelGraph) -> AxisLabels:
    """The columns that axes of globals belong to, by site; reads shapes alone.

    A model that cannot have a column more, as one that writes their number down, has
    axes without labels.
    """
    found: dict[str, list[Sequence[str] | None]] = {}
    for argument, encoding in graph.arguments.encodings.items():
        columns = encoding.design_columns
        wider = _shapes_if_wider(model, graph, argument)
        for site in graph.latents("global"):
            shape = wider.get(site.name, site.shape)
            if len(shape) != len(site.shape):
                continue
            labels = found.setdefault(site.name, [None] * len(shape))
            for axis, (length, now) in enumerate(zip(shape, site.shape, strict=True)):
                if (now, length) == (len(columns), len(columns) + 1):
                    labels[axis] = list(columns)
    return {site: labels for site, labels in found.items() if any(labels)}


def _shapes_if_wider(
    model: private, graph: ModelGraph, argument: str
) -> dict[str, tuple[int, ...]]:
    """Shapes of latents where an argument has one column more; none if it cannot."""
    leaf = graph.arguments.private[argument]
    rows, columns = shape_of(leaf)
    zeros = np.broadcast_to(np.zeros((), leaf.dtype), (rows, columns + 1))
    private_rows = {**graph.arguments.private, argument: zeros}
    widths = {k: v for k, v in graph.arguments.widths.items() if k != argument}
    arguments = dataclasses.replace(
        graph.arguments, private=private_rows, widths=widths
    )
    try:
        trace = Trace(model, arguments, 1)
        return {site.name: trace.shape(site.name) for site in graph.latents("global")}
    except Exception:
        # Whatever a model does with a width that it is not made for.
        return {}
