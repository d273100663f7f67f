"""From iterates and releases to a posterior, and to what is known of how good it is."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from numpyro_vips.dpvi.compiler import CompiledModel
from numpyro_vips.dpvi.description import on_compared, on_hidden, on_turning
from numpyro_vips.dpvi.guides.posteriors import DrawsPosterior
from numpyro_vips.dpvi.guides.user_guides import drawing
from numpyro_vips.dpvi.iterates import (
    DpviState,
    drift_of_iterates,
    largest_by_name,
)
from numpyro_vips.dpvi.posterior.score_likelihood import NoiseAwareNormal
from numpyro_vips.dpvi.posterior.variational_newton import VectorNormal
from numpyro_vips.posterior import Posterior

_NOT_NOISE_AWARE = (
    "The posterior is the guide, whose intervals know nothing of the noise: with the "
    "released information the posterior would not be finite. A larger epsilon, more "
    "rows or priors that are less wide help."
)


def posterior_of(compiled: CompiledModel, state: DpviState) -> Posterior:
    """The guide at the averaged iterate, or a Normal that knows of the noise."""
    program, average = compiled.program, state.average
    points = program.constrained(average.params)
    found = _noise_aware_normal(compiled, state)
    if found is not None and compiled.noise_aware is not None:
        return compiled.noise_aware.posterior(found)
    if program.guide is not None:
        return program.guide.posterior(average.guide, points)
    assert program.user_guide is not None
    draw = drawing(program.user_guide, points)
    return DrawsPosterior.of(program.space.sites, points, draw)


def diagnostics_of(compiled: CompiledModel, state: DpviState) -> dict[str, Any]:
    """What is known of how good that posterior is, from the state alone.

    Returns:
      What `drift_of_iterates` or Newton's method says; `width_ratio`, how many times as
      wide noise makes intervals by site, of a posterior that knows of it; and
      `warnings`, see `Engine.diagnostics`.
    """
    more = [*on_compared(compiled.compared)]
    if state.is_noisy and compiled.noise_aware is not None:
        more += on_turning(compiled.noise_aware.turning)
    return _warned(_of_iterates(compiled, state), more)


def _of_iterates(compiled: CompiledModel, state: DpviState) -> dict[str, Any]:
    program = compiled.program
    if state.diagnostics is not None:
        return dict(state.diagnostics)
    if program.options.takes_newton_steps:
        return {}
    sizes = {x.name: math.prod(x.unconstrained_shape) for x in program.space.sites}
    found = _noise_aware_normal(compiled, state)
    if found is not None:
        normal = found.normal
        diagnostics = drift_of_iterates(state, sizes, normal.stddev, normal.loc)
        ratio = largest_by_name(
            state.variational, sizes, normal.stddev / found.data_stddev
        )
        return _warned({**diagnostics, "width_ratio": ratio}, on_hidden(ratio))
    log_scale = state.average.guide.get("log_scale", np.zeros(0))
    stddev = np.exp(np.asarray(log_scale, np.float64))
    diagnostics = drift_of_iterates(state, sizes, stddev)
    if state.information is not None:
        return _warned(diagnostics, [_NOT_NOISE_AWARE])
    return diagnostics


def _noise_aware_normal(
    compiled: CompiledModel, state: DpviState
) -> NoiseAwareNormal | None:
    """The posterior that knows of the noise.

    None before what it needs is known, or where it is not finite.
    """
    noise_aware = compiled.noise_aware
    if noise_aware is None or state.information is None:
        return None
    assert state.score is not None
    arrays = state.average.guide
    start = VectorNormal(
        np.asarray(arrays["loc"], np.float64),
        np.diag(np.exp(np.asarray(arrays["log_scale"], np.float64))),
    )
    try:
        found = noise_aware.normal(
            state.score, state.information, state.kept, start, state.coordinates
        )
    except np.linalg.LinAlgError:
        return None
    # As wide as noise makes it, a scale may overflow.
    if found is None or noise_aware.posterior(found).problems():
        return None
    return found


def _warned(found: dict[str, Any], more: Iterable[str]) -> dict[str, Any]:
    """Diagnostics with more warnings; the same if there are none."""
    texts = list(more)
    if not texts:
        return found
    return {**found, "warnings": [*found.get("warnings", ()), *texts]}
