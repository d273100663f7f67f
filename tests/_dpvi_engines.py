"""DPVI's engines of models, which tests share with what the engines have compiled."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.dpvi.options import DpviOptions
from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import ModelGraph, build_graph

# An engine's programs take tens of megabytes.
_MOST_KEPT = 8
_kept: dict[Any, DpviEngine] = {}


def new_engine(model: private, *rows: Any, **settings: Any) -> DpviEngine:
    """An engine that no other test has."""
    return engine_of_graph(
        build_graph(model, bind_arguments(model, rows, {})), **settings
    )


def engine_of_graph(graph: ModelGraph, **settings: Any) -> DpviEngine:
    """An engine with these settings, of `DPVI` or of the fit."""
    of_dpvi = {field.name for field in dataclasses.fields(DpviOptions)}
    options = {name: settings.pop(name) for name in of_dpvi & settings.keys()}
    return DpviEngine(graph, DpviOptions(**options), **settings)


def engine_for(model: private, *rows: Any, **settings: Any) -> DpviEngine:
    """One of those last asked for, or a new one; it does not depend on the rows.

    Args:
      model, settings: Of the engine.
      *rows: All of the model's arguments, private ones without a schema.
    """
    shapes = tuple((array.shape, array.dtype) for array in rows)
    loss = settings.get("loss")
    losses = {"loss": None if loss is None else (type(loss), loss.num_particles)}
    key = (model.fn, model.unit, shapes, *(settings | losses).items())
    key = (*key, jnp.result_type(float))
    _kept[key] = _kept.pop(key, None) or new_engine(model, *rows, **settings)
    while len(_kept) > _MOST_KEPT:
        del _kept[next(iter(_kept))]
    return _kept[key]
