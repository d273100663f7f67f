"""Newton steps of noisy residuals that see how the curvature changes on their way.

Factors of a logistic likelihood are asked for residuals in every step, and for their
curvature twice; see `conjugacy.structure.centring`. Where effects are strong the
curvature at the optimum is a tenth of that at the start, and a noisy matrix is held
away from zero, so steps by it stay short for as long as they lead in one direction. Two
things, both made of released numbers alone, mend that. They look at blocks of a few
steps, over which noise averages out.

- The way is the displacement u from the first block. Between two blocks a displacement
  s along u and the gradients G before and after it say what the curvature there is,
  sᵀ(G_before − G_after), where the matrix has sᵀAs. If that is less, steps go further
  along u, and along u alone, until the next block says better: secant steps, as of
  quasi-Newton methods (Nocedal and Wright, 2006, chapter 6). Noise in the gradients can
  only make them shorter. The block itself ends with all that its own gradient lacks.
- Sums from far away are not averaged with those at the optimum. While the gradient of a
  block points further along the way, by more than its noise, the average starts again.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Array, Float, Float64

# Arrays by factor, with the batch axes of the factor in front.
Vectors = Mapping[str, Float64[np.ndarray, "..."]]

# Steps in a block.
BLOCK = 5
# How far the curvature may lie below the matrix that steps go by.
MOST_STRETCH = 20.0
# By how many standard deviations of its noise the curvature along a displacement is
# taken for larger than it is seen.
_MARGIN = 2.0
# From how many standard deviations of its noise on a gradient along the way is one.
_STILL_ON_ITS_WAY = 2.5


class NewtonTarget(NamedTuple):
    """Where a full Newton step would lead, and what it is made of.

    Attributes:
      mean: The end of the step.
      covariance: The inverse A⁻¹ of the precision that it goes by.
      residual: The gradient of the rows' log density where they were asked.
      noise_stddev: Of the noise in an entry of it.
      curvature: The rows' information as it was released.
      curvature_noise: Standard deviations of the noise in its entries.
      prior_linear, prior_precision: Of the prior, given the other factors.
      silent: Directions of which rows say nothing, as orthonormal columns, the same in
        all of a batch; None if there are none.
      expected: What the rows' information is expected to be, up to a factor; None if
        nothing is.
      expected_there: The same where it was released.
      first, first_noise: The rows' information at zero, as it was released, and the
        noise in it; None if that is `curvature`, or not looked at.
      axes: The directions in which each latent of the model moves alone, as columns.
      most_known: The precision that rows add to the prior's of a latent at most; see
        `absent_columns`. None if nothing is known of it.
      absent: How probable it is that no row says anything of a latent.
    """

    mean: Float64[np.ndarray, "..."]
    covariance: Float64[np.ndarray, "..."]
    residual: Float64[np.ndarray, "..."]
    noise_stddev: Float64[np.ndarray, "..."]
    curvature: Float64[np.ndarray, "..."]
    curvature_noise: Float64[np.ndarray, "..."]
    prior_linear: Float64[np.ndarray, "..."]
    prior_precision: Float64[np.ndarray, "..."]
    silent: Float64[np.ndarray, "size directions"] | None = None
    expected: Float64[np.ndarray, "..."] | None = None
    expected_there: Float64[np.ndarray, "..."] | None = None
    first: Float64[np.ndarray, "..."] | None = None
    first_noise: Float64[np.ndarray, "..."] | None = None
    axes: Float64[np.ndarray, "..."] | None = None
    most_known: Float64[np.ndarray, "..."] | None = None
    absent: Float64[np.ndarray, "..."] | None = None

    def at(self, index: tuple[int, ...]) -> Self:
        """The target of one vector of a batch."""
        fields = {
            name: np.asarray(field)[index]
            for name, field in self._asdict().items()
            if name != "silent" and field is not None
        }
        return self._replace(**fields)

    def with_silent(
        self,
        place: Float64[np.ndarray, "*batch size"],
        silent: Float64[np.ndarray, "size directions"],
    ) -> Self:
        """The target without what noise says along directions of which rows say
        nothing.

        Args:
          place: Where the step begins. It stays there along these directions.
          silent: They, as orthonormal columns.
        """
        projection = np.eye(len(silent)) - silent @ silent.T
        return self._replace(
            mean=place + (self.mean - place) @ projection,
            residual=self.residual @ projection,
            curvature=projection @ self.curvature @ projection,
            silent=silent,
        )


def as_targets(
    found: Mapping[str, Mapping[str, Float[Array, "..."]]],
) -> dict[str, NewtonTarget]:
    """What `newton_targets` found, as NumPy's arrays of double precision."""
    return {
        name: NewtonTarget(**{key: np.asarray(array) for key, array in fields.items()})
        for name, fields in found.items()
    }


class StepAverages(NamedTuple):
    """Averages over some steps in a row.

    Attributes:
      num_steps: How many they are.
      place: Where residuals were asked for.
      gradient: Of the log joint density there, with noise.
    """

    num_steps: int
    place: Vectors
    gradient: Vectors

    def after(self, place: Vectors, gradient: Vectors) -> "StepAverages":
        """The block with another step in it."""
        weight = 1.0 / (self.num_steps + 1)

        def average(old: Vectors, new: Vectors) -> Vectors:
            return {name: old[name] + weight * (new[name] - old[name]) for name in new}

        return StepAverages(
            self.num_steps + 1,
            average(self.place, place),
            average(self.gradient, gradient),
        )


class Bend(NamedTuple):
    """The curvature along the way, as gradients have shown it.

    Attributes:
      way: The displacement u from the first block to a later one.
      curvature: uᵀIu, and some of the noise in what is known of it.
    """

    way: Vectors
    curvature: float

    def lacks(self, gradient: Vectors, targets: Mapping[str, NewtonTarget]) -> float:
        """What a step by the matrix lacks along the way, as a share of the way.

        Args:
          gradient: By which the step goes.
          targets: Those of the step.
        """
        of_matrix = _product(self.way, _bent(self.way, targets))
        if of_matrix <= self.curvature:
            return 0.0
        share = 1.0 / self.curvature - 1.0 / of_matrix
        return share * _product(self.way, gradient)


class Way(NamedTuple):
    """How far the steps have come.

    Attributes:
      block: The steps since the last whole block; None if there is none.
      before: The last whole block; None in the first.
      first: The first whole block.
      bend: The curvature as the last blocks have shown it; None if none has.
      kept: Share of the average's nominal weight that is left since it started again.
    """

    block: StepAverages | None = None
    before: StepAverages | None = None
    first: StepAverages | None = None
    bend: Bend | None = None
    kept: float = 1.0

    def weight(self, step_size: float) -> float:
        """The weight of the next sums in the average that may have started again.

        Args:
          step_size: Their weight in the average over all steps.
        """
        return step_size / self.kept_with(step_size)

    def kept_with(self, step_size: float) -> float:
        """`kept` once sums of this weight are in the average."""
        return (1.0 - step_size) * self.kept + step_size


def step_from(
    way: Way,
    place: Vectors,
    targets: Mapping[str, NewtonTarget],
    *,
    gain: float,
    step_size: float,
) -> tuple[dict[str, Float64[np.ndarray, "..."]], Way]:
    """Where residuals are asked for next, and the way to there.

    Args:
      way: The steps so far.
      place: Where they were asked for last.
      targets: What they say, by factor.
      gain: Which part of a step is taken.
      step_size: The weight of the last residuals in the average over all steps.
    """
    gradient = gradients(place, targets)
    block = (way.block or StepAverages(0, place, gradient)).after(place, gradient)
    way = way._replace(block=block, kept=way.kept_with(step_size))
    found = {
        name: place[name] + gain * (targets[name].mean - place[name])
        for name in targets
    }
    if block.num_steps < BLOCK:
        if way.bend is None:
            return found, way
        lacking = gain * way.bend.lacks(gradient, targets)
        return _further(found, way.bend.way, lacking), way
    if way.before is None or way.first is None:
        return found, way._replace(block=None, before=block, first=block)
    bend = _bend(way.first, way.before, block, targets) or way.bend
    if bend is not None:
        # Not back: what has gone too far is drawn back by the steps of the next block.
        lacking = max(bend.lacks(block.gradient, targets), 0.0)
        found = _further(found, bend.way, lacking)
    on_its_way = _is_on_its_way(way.first, way.before, block, targets)
    kept = 0.0 if on_its_way else way.kept
    return found, way._replace(block=None, before=block, bend=bend, kept=kept)


def _further(
    place: Vectors, way: Vectors, share: float
) -> dict[str, Float64[np.ndarray, "..."]]:
    return {name: place[name] + share * way[name] for name in place}


def gradients(place: Vectors, targets: Mapping[str, NewtonTarget]) -> Vectors:
    """A(mean − place) of every factor."""
    return {
        name: _solved(target.covariance, target.mean - place[name])
        for name, target in targets.items()
    }


def _solved(
    matrices: Float64[np.ndarray, "..."], vectors: Float64[np.ndarray, "..."]
) -> Float64[np.ndarray, "..."]:
    """Vectors times the inverses of covariances.

    It is zero in directions that a covariance does not have: rounding may have left
    none, where a coordinate is known far better than the size that it has.
    """
    stddev = np.sqrt(np.maximum(np.diagonal(matrices, axis1=-2, axis2=-1), 0.0))
    inverse = np.divide(1.0, stddev, out=np.zeros_like(stddev), where=stddev > 0)
    correlation = inverse[..., :, None] * matrices * inverse[..., None, :]
    scaled = (inverse * vectors)[..., None]
    try:
        found = np.linalg.solve(correlation, scaled)
    except np.linalg.LinAlgError:
        found = np.linalg.pinv(correlation, hermitian=True) @ scaled
    return inverse * found[..., 0]


def _between(first: StepAverages, last: StepAverages) -> Vectors:
    return {name: last.place[name] - first.place[name] for name in last.place}


def _noise_along(
    direction: Vectors, block: StepAverages, targets: Mapping[str, NewtonTarget]
) -> float:
    """The variance of the noise in a block's gradient times a direction."""
    total = sum(
        float(np.sum((direction[name] * target.noise_stddev) ** 2))
        for name, target in targets.items()
    )
    return total / block.num_steps


def _product(one: Vectors, other: Vectors) -> float:
    return sum(float(np.sum(one[name] * other[name])) for name in one)


def _is_on_its_way(
    first: StepAverages,
    before: StepAverages,
    after: StepAverages,
    targets: Mapping[str, NewtonTarget],
) -> bool:
    """Whether a block's gradient points further along the way, beyond its noise.

    The way goes to the block before, so that its noise is another.
    """
    way = _between(first, before)
    stddev = math.sqrt(_noise_along(way, after, targets))
    return _product(way, after.gradient) > _STILL_ON_ITS_WAY * stddev


def _bent(
    vectors: Vectors, targets: Mapping[str, NewtonTarget]
) -> dict[str, Float64[np.ndarray, "..."]]:
    """Vectors times the matrices that steps go by."""
    return {name: _solved(targets[name].covariance, of) for name, of in vectors.items()}


def _bend(
    first: StepAverages,
    before: StepAverages,
    after: StepAverages,
    targets: Mapping[str, NewtonTarget],
) -> Bend | None:
    """The curvature between two blocks; None where they do not show it."""
    way = _between(first, after)
    bent = _bent(way, targets)
    of_matrix = _product(way, bent)
    if not of_matrix > 0:
        return None
    # All along the way: the displacement as a share of it, and the curvature seen.
    moved = _product(_between(before, after), bent) / of_matrix
    if not moved > 0:
        return None
    seen = _product(way, before.gradient) - _product(way, after.gradient)
    stddev = math.sqrt(
        _noise_along(way, before, targets) + _noise_along(way, after, targets)
    )
    at_most = (max(seen, 0.0) + _MARGIN * stddev) / moved
    return Bend(way, max(at_most, of_matrix / MOST_STRETCH))
