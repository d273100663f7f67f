"""Newton's method for a Normal posterior, where a density can be looked at freely.

At the best Normal q(z) = N(m, LLᵀ) for a log density f (Opper and Archambeau, 2009)

    E_q[∇f] = 0    and    E_q[-∇²f] = (LLᵀ)⁻¹.

In coordinates z = m + Lu, in which q is the standard Normal, these say that the mean
gradient ḡ is zero and the mean curvature A is the identity. A step takes m to
m + ρ·L·A⁻¹ḡ and the precision to (1-ρ)·1 + ρ·A, the natural gradient step of Khan and
Rue (2023), with the longest ρ of 1, ½, ¼, … that does not lower the ELBO. It does not
matter in which units the coordinates are, nor how strongly they are correlated.

Expectations are averages over draws u that stay the same while steps are compared, so
the ELBO is an ordinary function and its ascent comes to an end. Curvatures are secants
of the gradient over about one standard deviation: they are as good in single precision,
and right where f has itself been maximised over other variables and the gradient alone
is known.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

# Log density and its gradient at many points.
Target = Callable[
    [Float64[np.ndarray, "points size"]],
    tuple[Float64[np.ndarray, " points"], Float64[np.ndarray, "points size"]],
]

# Half the length of a secant, in standard deviations.
_SECANT = 0.5
# Curvatures, in units of the current precision, below which q is not widened further in
# a single step: ten times its standard deviation.
_LEAST_CURVATURE = 0.01
_FLAT = 1e-9
_FAR = 30.0
_SHORTEST_STEP = 2.0**-20
# What rounding, and curvatures at a few of the draws, may cost of the ELBO, in nats.
_SLACK = 0.01
_ROUNDING = 1e-7
# More than so many times the gain that a parabola promises is an error of rounding in
# the log density, far from where it is well-conditioned.
_MOST_GAIN = 10.0
# An iteration that moves the mean by less, in standard deviations, and the precision by
# less, as a share, is the last.
_STILL = 0.05
# A step that gains nothing is to move less than the one before by this factor. If not,
# steps go to and fro, and are held shorter from then on.
_CONTRACTION = 0.7
_SHORTEST_LIMIT = 0.125


class VectorNormal(NamedTuple):
    """A Normal distribution.

    Attributes:
      loc: Mean.
      tril: Lower triangular root of the covariance.
    """

    loc: Float64[np.ndarray, " size"]
    tril: Float64[np.ndarray, "size size"]

    def at(
        self, draws: Float64[np.ndarray, "draws size"]
    ) -> Float64[np.ndarray, "draws size"]:
        """The points that standard Normal draws stand for."""
        return self.loc + draws @ self.tril.T

    def moved(self, by: Float64[np.ndarray, "new size"]) -> "VectorNormal":
        """The distribution of a matrix times the vector, of as many numbers or less."""
        root = np.asarray(np.linalg.qr((by @ self.tril).T, mode="r")).T
        return VectorNormal(by @ self.loc, root * np.sign(np.diag(root)))

    def mixed(self, other: "VectorNormal", chance: float) -> "VectorNormal":
        """The Normal with the mean and the covariance of a mixture with another one.

        Args:
          other: The other one.
          chance: Its weight.
        """
        away = other.loc - self.loc
        covariance = (1.0 - chance) * self.tril @ self.tril.T
        covariance += chance * other.tril @ other.tril.T
        covariance += chance * (1.0 - chance) * np.outer(away, away)
        return VectorNormal(self.loc + chance * away, np.linalg.cholesky(covariance))

    @property
    def stddev(self) -> Float64[np.ndarray, " size"]:
        """The standard deviation of every coordinate, (size,)."""
        return np.sqrt(np.sum(self.tril**2, axis=1))

    @property
    def entropy(self) -> float:
        """The entropy of the Normal, in nats: Σ log L_ii + d/2 · log(2πe)."""
        log_scale = float(np.sum(np.log(np.diag(self.tril))))
        return log_scale + 0.5 * len(self.loc) * (1.0 + math.log(2.0 * math.pi))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draws:
    """The draws that stand for the standard Normal.

    Attributes:
      points: Where the log density and its gradient are averaged.
      bases: Around which secants are taken; each costs 2·size points.
    """

    points: Float64[np.ndarray, "points size"]
    bases: Float64[np.ndarray, "bases size"]

    @classmethod
    def of(
        cls, rng: np.random.Generator, size: int, *, points: int, bases: int
    ) -> "Draws":
        """Draws in pairs of opposite sign, each coordinate of unit variance.

        Args:
          rng: Where they come from.
          size: Number of coordinates.
          points: How many there are, an even number.
          bases: How many of them are bases; one stands for the mean alone.
        """
        half = rng.normal(size=(points // 2, size))
        half /= np.sqrt(np.mean(half**2, axis=0))
        pairs = np.stack([half, -half], axis=1).reshape(-1, size)
        return cls(points=pairs, bases=pairs[:bases] if bases > 1 else 0.0 * pairs[:1])


class Iterate(NamedTuple):
    """Where Newton's method stands.

    Attributes:
      normal: The current q.
      elbo: Its ELBO, averaged over the draws.
      moved: How far the step to it went: the mean in standard deviations, or the
        precision as a share, whichever is more.
    """

    normal: VectorNormal
    elbo: float
    moved: float

    @property
    def is_still(self) -> bool:
        """Whether another step would not change anything that matters."""
        return self.moved <= _STILL


def ascend(
    target: Target,
    start: VectorNormal,
    draws: Draws,
    *,
    diagonal: bool = False,
    patience: int = 20,
) -> Iterator[Iterate]:
    """Newton's method from a start, until nothing moves or no step helps.

    Args:
      target: The log density.
      start: Where it starts. Where the ELBO is not finite there, it is made narrower.
      draws: What expectations are averages over.
      diagonal: Whether q keeps a diagonal covariance, so that its precision becomes the
        diagonal of E_q[-∇²f].
      patience: How many steps in a row may gain nothing. With few draws curvatures are
        not quite those of the ELBO, and steps may creep.

    Yields:
      An iterate after every step; nothing where the log density is not finite at the
      start.
    """
    q = start
    values, gradients = target(q.at(draws.points))
    for _ in range(_MOST_NARROWINGS):
        if np.all(np.isfinite(values)):
            break
        q = q._replace(tril=0.1 * q.tril)
        values, gradients = target(q.at(draws.points))
    elbo = float(np.mean(values)) + q.entropy
    limit, moved, idle = 1.0, math.inf, 0
    while math.isfinite(elbo) and idle < patience:
        step = _Step.of(
            _slope(q, gradients),
            _curvature(target, q, draws.bases),
            diagonal=diagonal,
        )
        length = limit
        while length >= _SHORTEST_STEP:
            candidate = step.taken(q, length)
            values, gradients = target(candidate.at(draws.points))
            found = float(np.mean(values)) + candidate.entropy
            slack = _SLACK + _ROUNDING * abs(elbo)
            is_gain = elbo - slack <= found <= elbo + slack + _MOST_GAIN * step.gain
            if is_gain and np.all(np.isfinite(gradients)):
                break
            length /= 2.0
        else:
            return
        idle = 0 if found > elbo + slack else idle + 1
        if idle and step.distance > _CONTRACTION * moved:
            limit = max(_SHORTEST_LIMIT, limit / 2.0)
        q, elbo, moved = candidate, found, step.distance
        yield Iterate(q, elbo, step.distance)
        if step.distance <= _STILL:
            return


_MOST_NARROWINGS = 8


# Far out a log density may be as large as numbers get. A step that this leads astray is
# not taken, so a warning of it would be of no use.
_ignoring_overflow = np.errstate(over="ignore", invalid="ignore")


@_ignoring_overflow
def _slope(
    q: VectorNormal, gradients: Float64[np.ndarray, "points size"]
) -> Float64[np.ndarray, " size"]:
    """The mean of ∇f over draws, in coordinates in which q is standard."""
    return np.mean(gradients @ q.tril, axis=0)


@_ignoring_overflow
def _curvature(
    target: Target, q: VectorNormal, bases: Float64[np.ndarray, "bases size"]
) -> Float64[np.ndarray, "size size"]:
    """The mean of -∇²f over some draws, in coordinates in which q is standard."""
    count, size = bases.shape
    offsets = _SECANT * np.stack([np.eye(size), -np.eye(size)])
    points = bases[:, None, None, :] + offsets[None]
    _, gradients = target(q.at(points.reshape(-1, size)))
    upper, lower = np.moveaxis((gradients @ q.tril).reshape(count, 2, size, size), 1, 0)
    each = (lower - upper) / (2.0 * _SECANT)
    each = each[np.all(np.isfinite(each), axis=(1, 2))]
    if not len(each):
        # Far out on a cliff: as if q were ten times too wide.
        return 100.0 * np.eye(size)
    mean = np.mean(each, axis=0)
    return 0.5 * (mean + mean.T)


def in_batches(
    points: Float64[np.ndarray, "points size"], length: int
) -> Iterator[tuple[Float64[np.ndarray, "length size"], int]]:
    """Points in batches of one length, and how many of each batch are meant.

    A program for batches of one length is compiled once.
    """
    for start in range(0, len(points), length):
        batch = points[start : start + length]
        filling = np.repeat(batch[-1:], length - len(batch), axis=0)
        yield np.concatenate([batch, filling]), len(batch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Step:
    """A Newton step in coordinates in which q is standard.

    Attributes:
      direction: Where the mean goes.
      axes: Orthonormal axes of the precision.
      precisions: What the precision along them becomes.
      distance: See `Iterate.moved`.
      gain: What the full step would gain if the log density were a parabola, at most.
    """

    direction: Float64[np.ndarray, " size"]
    axes: Float64[np.ndarray, "size size"]
    precisions: Float64[np.ndarray, " size"]
    distance: float
    gain: float

    @classmethod
    @_ignoring_overflow
    def of(
        cls,
        slope: Float64[np.ndarray, " size"],
        curvature: Float64[np.ndarray, "size size"],
        *,
        diagonal: bool,
    ) -> "_Step":
        """The step from a Normal q, in coordinates in which q is standard.

        Args:
          slope: The gradient of the expected log density at the mean of q.
          curvature: Minus its expected second derivative.
          diagonal: Whether q is to keep independent coordinates.
        """
        found, axes = np.linalg.eigh(curvature)
        slopes = axes.T @ slope
        # Where the density is not log-concave a Newton step would go downhill. Where it
        # is nearly flat, a step follows its curvature for some standard deviations:
        # independent coordinates may be much narrower than their posterior is long.
        moves = slopes / np.maximum(abs(found), _FLAT)
        longest = np.maximum(_FAR, abs(slopes) / _LEAST_CURVATURE)
        direction = axes @ np.clip(moves, -longest, longest)
        if diagonal:
            found, axes = np.diag(curvature), np.eye(len(slope))
        precisions = np.maximum(found, _LEAST_CURVATURE)
        moved = max(np.max(abs(direction)), np.max(abs(precisions - 1.0)))
        return cls(
            direction=direction,
            axes=axes,
            precisions=precisions,
            distance=float(moved),
            gain=float(slope @ direction + 0.5 * np.sum(abs(precisions - 1.0))),
        )

    def taken(self, q: VectorNormal, length: float) -> VectorNormal:
        precisions = (1.0 - length) + length * self.precisions
        # A lower triangular root of the covariance, without squaring it.
        root: Any = np.linalg.qr((self.axes / np.sqrt(precisions)).T, mode="r")
        root = root.T * np.sign(np.diag(root))
        return VectorNormal(q.loc + length * (q.tril @ self.direction), q.tril @ root)
