"""Fits without noise by Newton's method: of which models, from where, through which
states."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64

from numpyro_vips.dpvi.compiler import CompiledModel
from numpyro_vips.dpvi.guides.automatic_guides import LARGEST_SCALE
from numpyro_vips.dpvi.guides.public_ranges import PublicRanges
from numpyro_vips.dpvi.iterates import DpviState, Variational
from numpyro_vips.dpvi.posterior.variational_newton import Target, VectorNormal
from numpyro_vips.dpvi.posterior.without_noise import MOST_GLOBALS, fit_normal
from numpyro_vips.jax_tools.row_sums import ZERO_ROWS
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.graph import ModelGraph

# Newton's method has all rows in memory.
MOST_ROW_NUMBERS = 2**27
# Starts as far from the prior's centre as the prior is wide.
_NUM_FAR_STARTS = 5
# Distances of starts near the centre, and near zero, where the prior is not narrower.
# Priors may be far wider than the numbers at which rows are possible at all, as where
# a logarithm has a standard deviation of 1,000, and their centres as far out.
_NEAR_CENTRE = (1.0, 0.1, 0.01)
_NEAR_ZERO = (1.0, 0.1)
# Half of the way over which a curvature is looked at, in widths of the prior.
_SHORT = 1e-7


def may_take_newton_steps(graph: ModelGraph) -> bool:
    """Whether a model is small enough, and has no parameters beside its globals."""
    shapes = graph.arguments.row_shapes().values()
    per_row = sum(math.prod(row.shape) for row in shapes)
    return (
        not graph.params
        and graph.arguments.num_rows * per_row <= MOST_ROW_NUMBERS
        and graph.num_globals <= MOST_GLOBALS
    )


def newton_states(
    compiled: CompiledModel, state: DpviState, arguments: ModelArguments
) -> Iterator[DpviState]:
    """States on the way to the best Normal, the last one where nothing moves it.

    Args:
      compiled: A model that may take Newton steps, with a Normal guide.
      state: The initial state.
      arguments: The model's, with the rows.
    """
    program = compiled.program
    assert program.guide is not None
    # The key decides about starts and draws, as it does about jitter elsewhere.
    rng = np.random.default_rng(np.asarray(jax.random.key_data(state.key)))
    first = np.asarray(state.variational.guide["loc"], np.float64)
    around = _starts(np.asarray(program.start), program.prior_scale, rng)
    starts = [VectorNormal(first, around[-1].tril), *around]
    tried = np.stack([start.loc for start in starts])
    target, per_second, share = compiled.log_joint.with_rows(arguments, tried)
    target = _within(program.ranges, target)
    starts.append(_as_wide_as_rows_say(target, around[-1], np.asarray(program.start)))
    for fit in fit_normal(
        target,
        starts,
        rng,
        diagonal=program.guide.family == "mean_field",
        most_points=per_second,
    ):
        arrays = program.guide.arrays_of(fit.normal.loc, fit.normal.tril)
        variational = Variational(guide=arrays, params={})
        yield state._replace(
            variational=variational,
            average=variational,
            step=jnp.asarray(fit.num_steps),
            diagnostics=_with_zero_rows(fit.diagnostics, share),
        )


def _within(ranges: PublicRanges, target: Target) -> Target:
    """A log density that is that of impossible globals outside of the ranges.

    A step may lead far out, where a density has lost a part of itself to rounding and
    is larger than anywhere else: with the degrees of a NegativeBinomial2 beyond e^37
    NumPyro's has no mean any more.
    """

    def bounded(
        points: Float64[np.ndarray, "points size"],
    ) -> tuple[Float64[np.ndarray, " points"], Float64[np.ndarray, "points size"]]:
        values, gradients = target(points)
        away = np.any(abs(points - ranges.centre) > 0.5 * ranges.distance, axis=1)
        return np.where(away, -np.inf, values), gradients

    return bounded


def _as_wide_as_rows_say(
    target: Target, wide: VectorNormal, centre: Float[np.ndarray, " size"]
) -> VectorNormal:
    """A Normal at the prior's centre whose widths are those of rows, taken one by one.

    The coefficient of an income is a ten thousandth of one of an age: about a centre
    with one width for both no row is possible.

    Args:
      target: The log joint density.
      wide: As wide as the prior.
      centre: The prior's.
    """
    widths = wide.stddev
    away = np.diag(_SHORT * widths)
    _, gradients = target(np.concatenate([centre + away, centre - away]))
    upper, lower = np.diagonal(np.split(gradients, 2), axis1=1, axis2=2)
    with np.errstate(invalid="ignore"):
        curvature = (lower - upper) / (2.0 * _SHORT * widths)
        curvature = np.where(np.isfinite(curvature), curvature, 0.0)
    precision = np.maximum(curvature, widths**-2.0)
    return VectorNormal(np.asarray(centre, np.float64), np.diag(precision**-0.5))


def _with_zero_rows(
    diagnostics: dict[str, Any] | None, share: float
) -> dict[str, Any] | None:
    """Diagnostics of a fit, in which this share of the rows counted as zero."""
    if diagnostics is None or not share:
        return diagnostics
    return {**diagnostics, ZERO_ROWS: {"share": share, "stddev": 0.0}}


def _starts(
    centre: Float[np.ndarray, " size"],
    prior_scale: Float[np.ndarray, " size"],
    rng: np.random.Generator,
) -> list[VectorNormal]:
    """Narrow Normals near the prior's centre, near zero, and wherever the prior is."""
    zero = np.zeros_like(centre)
    around = [
        *((centre, np.minimum(prior_scale, near)) for near in _NEAR_CENTRE),
        *((zero, np.minimum(prior_scale, near)) for near in _NEAR_ZERO),
        *(_NUM_FAR_STARTS * [(centre, prior_scale)]),
    ]
    noise = rng.normal(size=(len(around), len(centre)))
    return [
        VectorNormal(place + scale * mine, np.diag(LARGEST_SCALE * scale))
        for (place, scale), mine in zip(around, noise, strict=True)
    ]
