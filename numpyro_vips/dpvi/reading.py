"""From iterates and releases to a posterior, and to what is known of how good it is."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64

from numpyro_vips.dpvi.compiler import CompiledModel
from numpyro_vips.dpvi.description import (
    on_compared,
    on_hidden,
    on_turning,
    on_unclear,
)
from numpyro_vips.dpvi.guides.posteriors import DrawsPosterior
from numpyro_vips.dpvi.guides.user_guides import drawing
from numpyro_vips.dpvi.iterates import (
    DpviState,
    drift_of_iterates,
    largest_by_name,
)
from numpyro_vips.dpvi.posterior.clear_information import clarity
from numpyro_vips.dpvi.posterior.clipped_slope import variance_if_gaussian
from numpyro_vips.dpvi.posterior.information_equality import (
    WORTH_A_WARNING,
    Excess,
    largest_excess,
)
from numpyro_vips.dpvi.posterior.score_likelihood import NoiseAwareNormal
from numpyro_vips.dpvi.posterior.variational_newton import VectorNormal
from numpyro_vips.errors import quoted
from numpyro_vips.posterior import Posterior
from numpyro_vips.uncertainty import on_widths_of_prior

# How many times as wide as rows alone would make them intervals are from which on the
# log density of components bends within them. Below it drifts are as harmless as
# others: six fits of two Normals in two dimensions at epsilon 1, at 1.4 to 1.9, were
# right, and three would have warned.
_BENT = 2.0

_NOT_NOISE_AWARE = (
    "Intervals do not allow for the noise, and are too narrow: with the released "
    "information matrix the posterior would not be finite, so the guide is returned. "
    "What helps: a larger epsilon, more rows or narrower priors."
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
      What `drift_of_iterates` or Newton's method says; of a posterior that knows of the
      noise `width_ratio`, how many times as wide noise makes intervals by site,
      `clarity`, see `clear_information.py`, of sites that are not real, and `excess`,
      see `information_equality.py`; and `warnings`, see `Engine.diagnostics`.
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
        ratio = largest_by_name(
            state.variational, sizes, normal.stddev / found.data_stddev
        )
        # A way of a few deviations is a long one for what the rows alone would say.
        is_bent = program.is_late.any() and max(ratio.values()) >= _BENT
        diagnostics = drift_of_iterates(
            state,
            sizes,
            normal.stddev,
            normal,
            unseen=found.unseen,
            has_components=bool(is_bent),
        )
        excess = _excess(compiled, state, normal.loc)
        diagnostics["excess"] = None if excess is None else excess.factor
        assert compiled.noise_aware is not None
        widths = compiled.noise_aware.widths_over_prior(normal)
        texts = [*on_hidden(ratio), *on_widths_of_prior(_least(widths, sizes))]
        assert state.information is not None
        clear = clarity(state.information, state.coordinates, normal)
        real = {site.name for site in program.space.sites if site.is_real}
        of_shapes = {
            name: value
            for name, value in _least(clear, sizes).items()
            if name not in real and math.isfinite(value)
        }
        # The texts before say as much of other globals.
        texts = texts or [*on_unclear(of_shapes)]
        texts += _on_excess(excess, state, sizes)
        return _warned(
            {**diagnostics, "width_ratio": ratio, "clarity": of_shapes}, texts
        )
    log_scale = state.average.guide.get("log_scale", np.zeros(0))
    stddev = np.exp(np.asarray(log_scale, np.float64))
    diagnostics = drift_of_iterates(state, sizes, stddev)
    if state.information is not None:
        return _warned(diagnostics, [_NOT_NOISE_AWARE])
    return diagnostics


def _least(
    of_coordinates: Float64[np.ndarray, " read"], sizes: Mapping[str, int]
) -> dict[str, float]:
    """The least entry of each site, of those with all their coordinates there.

    Args:
      of_coordinates: By unconstrained coordinate, of the first ones.
      sizes: How many each global is, in the guide's order.
    """
    ends = np.cumsum(list(sizes.values()))
    return {
        name: float(np.min(of_coordinates[end - size : end]))
        for (name, size), end in zip(sizes.items(), ends, strict=True)
        if size and end <= len(of_coordinates)
    }


def _excess(
    compiled: CompiledModel, state: DpviState, mean: Float64[np.ndarray, " size"]
) -> Excess | None:
    """How much more rows vary than the model says; None where it was not released."""
    if state.second is None or state.information is None or state.coordinates is None:
        return None
    units, information = state.coordinates.units, state.information
    if state.is_slope and state.kept is not None:
        # What clipping has left of the slope, over all directions.
        information = information.times(1.0 / state.kept.slope)
    return largest_excess(
        state.second,
        information,
        units,
        mean[: len(units)],
        compiled.program.graph.arguments.public_num_rows,
    )


def _on_excess(
    excess: Excess | None, state: DpviState, sizes: Mapping[str, int]
) -> Iterable[str]:
    """What follows where rows vary more about the model than it says.

    Args:
      excess: How much more.
      state: The state after the last step.
      sizes: How many unconstrained numbers each global is, in the guide's order.
    """
    if excess is None or excess.factor < WORTH_A_WARNING:
        return
    direction = np.zeros(sum(sizes.values()))
    direction[: len(excess.direction)] = abs(excess.direction)
    shares = largest_by_name(state.variational, sizes, direction)
    largest = max(shares.values())
    sites = [name for name, share in shares.items() if share >= 0.5 * largest]
    yield (
        "Rows vary more about the model than it says: in what they say of "
        f"{quoted(sites)} their variance is at least "
        f"{excess.factor:.2g} times the model's. "
        "Intervals are too narrow, and rows that surprise the model are clipped, which "
        "draws the posterior towards the others. What helps: a likelihood with room "
        "for it, such as NegativeBinomial2 for Poisson, StudentT for Normal, a spread "
        "that depends on the covariates, or an effect of each row."
    )


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
            state.score,
            state.information,
            _variance_per_slope(compiled, state),
            start,
            state.coordinates,
            state.second,
        )
    except np.linalg.LinAlgError:
        return None
    # As wide as noise makes it, a scale may overflow.
    if found is None or noise_aware.posterior(found).problems():
        return None
    return found


def _variance_per_slope(compiled: CompiledModel, state: DpviState) -> float | None:
    """The variance of clipped differences over their slope, if the slope was released.

    Returns:
      None if nothing was released, or another information.
    """
    if not state.is_slope or state.information is None:
        return None
    if state.kept is not None:
        return state.kept.variance_per_slope
    if state.gradient_norm is None:
        return 1.0
    num_rows = compiled.program.graph.arguments.public_num_rows
    return variance_if_gaussian(state.information, state.gradient_norm, num_rows)


def _warned(found: dict[str, Any], more: Iterable[str]) -> dict[str, Any]:
    """Diagnostics with more warnings; the same if there are none."""
    texts = list(more)
    if not texts:
        return found
    return {**found, "warnings": [*found.get("warnings", ()), *texts]}
