"""Rows of which what is observed is drawn anew, from the model at a step's globals.

A row keeps its covariates. So where the globals are those that rows follow, a redrawn
row has the same distribution as the row itself, given these.
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, PRNGKeyArray, Shaped

from numpyro_vips.dpvi.gradients.clipped_gradients import Redraw
from numpyro_vips.dpvi.guides.unconstrained import UnconstrainedSpace
from numpyro_vips.model.facts.row_weights import weights_of_rows
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.synthetic.simulated_rows import RowSimulator


def redrawing(graph: ModelGraph, space: UnconstrainedSpace) -> Redraw | None:
    """What draws rows anew; None where the model does not say how they are drawn.

    A density may have no sampler, or what is observed may be no draw, as a censored
    time is none whose likelihood `numpyro.factor` adds; see `drawn_observations`. Nor
    are rows with weights of their own drawn by the model: a weight lets a row stand for
    units that were not sampled, so a response may depend on its weight.

    Args:
      graph: The model.
      space: The globals, in which gradients are taken.
    """
    if weights_of_rows(graph):
        return None
    simulator = RowSimulator.of(graph)
    if simulator is None or not simulator.draws_observations:
        return None

    def redraw(
        tree: Any, row: Mapping[str, Any], key: PRNGKeyArray
    ) -> Mapping[str, Shaped[Array, "..."]]:
        free, _ = tree
        return simulator.row_at(row, space.values(free), key)

    return redraw
