"""The state of a fit by VIPS."""

import types
from collections.abc import Mapping
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Float64

from numpyro_vips.privacy.releases import ValidRows
from numpyro_vips.vips.program.features import Standardisation
from numpyro_vips.vips.program.named_arrays import (
    InDouble,
    MomentsByFactor,
    NewByStatistic,
    NewMomentsByFactor,
    NewSums,
)
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.steps.convergence import Trail
from numpyro_vips.vips.steps.newton_steps import Way
from numpyro_vips.vips.steps.released_sums import AskedPlace, Bound, Unclipped
from numpyro_vips.vips.units.frames import Frame, frames_of
from numpyro_vips.vips.units.whitening import zero_origins


class VipsState(NamedTuple):
    """Public quantities only.

    Attributes:
      statistics: Running average of each statistic, as an estimate of its sum over all
        rows: noisy, not projected.
      noise_stddev: Standard deviation of the noise in it, per isometric coordinate: one
        number, or one for each entry of those that have units.
      moments, natural: Moments and natural parameters of every global factor, in
        double precision.
      visited: The moments at which rows are asked next: those of the posterior, but for
        factors that take Newton steps under noise, see `conjugacy.structure.centring`.
      expected_natural: n̄, what the rows of a step need to know of the globals.
      covariates: The second moments of the covariates, as an estimate of their sum over
        all rows; None if they have not been released.
      asked: Where rows were asked for statistics that depend on the globals; see
        `released_sums`.
      released: Names of the statistics that have been released at least once.
      centre: The points about which statistics were taken, averaged like these; see
        `conjugacy.structure.centring`.
      origins: By recentred factor, the point about which its statistics were taken.
      standards: How features were standardised; see `features` and `whitening`.
      first_standards: How they were before any pilot.
      next_origins, next_standards: Those of the next release.
      start: Where a start has broken a symmetry, its moments; see `recentre`.
      kept: Share of the running average's weights that fell on releases about these.
      num_steps: Number of updates so far.
      to_wait: How many more steps some globals stay where they are; see
        `forgotten_steps`.
      has_waited: Whether some have stayed there.
      change: Largest relative change of the moments in the last step.
      drift: How far each statistic of the last step was from the average before it, as
        a root mean square in standard deviations of the noise of both.
      below_noise: See `m_step.Solution`.
      clipped: By statistic, how rows were clipped when it was released last.
      trail: Where steps without noise have led; None under noise.
      bounds: The evidence bounds of all starts of a fit without noise, best first.
      as_good: The globals that another start found elsewhere, with the same bound.
      way: How far Newton steps have come, see `newton_steps`.
      first_curvature: What was released first of the statistics that are curvatures of
        factors that take Newton steps; None if nothing was.
      curvature_places: By factor, where rows were asked for what was released last of
        these.
      valid_rows: How many rows do not count as zero.
      units: What entries of statistics are multiplied by where rows are clipped and
        noise is added, by the statistic's name; see `column_units`.
    """

    statistics: NewSums
    noise_stddev: dict[str, Float64[np.ndarray, "..."] | float]
    moments: InDouble
    natural: InDouble
    visited: InDouble
    expected_natural: NewByStatistic
    released: frozenset[str]
    centre: dict[str, Float64[np.ndarray, "..."]]
    origins: dict[str, Float64[np.ndarray, "..."]]
    next_origins: dict[str, Float64[np.ndarray, "..."]]
    standards: dict[str, Standardisation]
    first_standards: dict[str, Standardisation]
    next_standards: dict[str, Standardisation]
    start: InDouble
    valid_rows: ValidRows
    kept: float = 1.0
    num_steps: int = 0
    to_wait: int = 0
    has_waited: bool = False
    covariates: Float64[np.ndarray, "one_more one_more"] | None = None
    asked: tuple[AskedPlace, ...] = ()
    change: float = 0.0
    drift: Mapping[str, float] = types.MappingProxyType({})
    below_noise: Mapping[str, int] = types.MappingProxyType({})
    clipped: Mapping[str, Bound] = types.MappingProxyType({})
    trail: Trail | None = None
    bounds: tuple[float, ...] = ()
    as_good: tuple[str, ...] = ()
    way: Way = Way()
    first_curvature: Unclipped | None = None
    curvature_places: Mapping[str, Float64[np.ndarray, "..."]] = types.MappingProxyType(
        {}
    )
    units: Mapping[str, Float64[np.ndarray, " columns"]] = types.MappingProxyType({})


def is_noisy(deviations: Mapping[str, Float[np.ndarray, "..."] | float]) -> bool:
    return any(np.any(stddev) for stddev in deviations.values())


def numpy_doubles(arrays: MomentsByFactor) -> InDouble:
    """NumPy arrays, which JAX takes in whatever precision it is set to."""
    return jax.tree.map(lambda array: np.asarray(array, dtype=np.float64), arrays)


def as_arrays(
    arrays: Mapping[str, Mapping[str, Float[Array | np.ndarray, "..."]]],
) -> NewMomentsByFactor:
    """JAX's arrays, in the precision in which programs of rows run."""
    with np.errstate(over="ignore"):
        # Not by `jnp.asarray`, which compiles a program for each shape.
        return jax.tree.map(lambda array: jax.device_put(np.asarray(array)), arrays)


def frames_at(program: ConjugateProgram, state: VipsState) -> dict[str, Frame]:
    """The coordinates in which the statistics of a state were taken, by factor."""
    origins = zero_origins(state.standards, state.origins, state.centre)
    return frames_of(program.features, origins, state.standards)
