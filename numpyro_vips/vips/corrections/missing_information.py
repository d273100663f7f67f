"""What rows leave open of their own latents, as a part of the globals' posterior.

Rows release the statistics that they are expected to have. A posterior that takes these
for the statistics themselves is too narrow, by the information that is missing (Louis,
1982; for the factors of a variational posterior Giordano, Broderick and Jordan, 2018).
And the average over all steps still has a part of the sums of the first ones, which
belong to poor globals. Both follow from how rows answer to the globals.

With S the sums, n̄(S) the globals' expected natural parameters and F(S) the sums that
rows have at these, let G = ∂n̄/∂S and ∂F/∂S = K G, with K the missing information. An
error δ in the sums comes back as K G δ, so that in the end it is (I - K G)⁻¹ δ. Let
L Lᵀ = G, with Lᵀ K L = κ diagonal: κ is the share of the information that is missing,
by direction. With Σ the covariance of the noise in S, the covariance of n̄ is

    L D Lᵀ + L D Lᵀ Σ L D Lᵀ,    D = (I - κ)⁻¹.

The first term is what rows say. Of statistics that are known it would be L Lᵀ.

F is that of rows which are simulated at the released globals, so that K is the missing
information that the model expects. Nothing here reads a row, and all of it is made of
released numbers.
"""

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float64, Int64

from numpyro_vips.vips.steps.statistic_coordinates import Vector

# Whether something is so of each coordinate.
Choice = Bool[np.ndarray, " coordinates"]
Covariance = Float64[np.ndarray, "coordinates coordinates"]
# A vector of coordinates for each direction.
ByDirection = Float64[np.ndarray, "coordinates directions"]


def load_optimizers() -> None:
    """Imports what `observed` needs of SciPy.

    It takes a quarter of the time of importing this package, which models whose rows
    have no latents save. For others it is done before a fit is paid for.
    """
    importlib.import_module("scipy.optimize")


# Rounds at most of simulating rows, and of correcting the sums by what they say; and
# how small, in standard deviations of n̄, the last correction is.
_ROUNDS = 8
_STILL = 0.25
# How many standard deviations the last correction may be, and how often the first one
# any other: rounds that lead to the end may start with a wrong turn.
_SMALL = 3.0
_MOST_GROWTH = 2.0
# How small the smallest one is where rounds come near the end before they grow, and how
# small as a share of the first one.
_NEAR, _NEARER = 1.0, 0.25
# How far sums are corrected, in their sizes.
_MOST_MOVED = 30.0
# More of the information than this is missing only where components are alike, or by
# errors of slopes.
_ALL = 1.01
# The share of its information that a direction lacks at most, as far as sums are
# corrected, and as far as the posterior is widened: a correction is as noisy as it is
# long, and the linear answer that it goes by does not hold far from the sums.
_MOST_CORRECTED = 0.9
_MOST_MISSING = 0.999
# The same limit of the widening where corrections do not converge. With a half,
# intervals miss the truth far more often; with more than this, they are as wide as if
# rows had no information. The price is that predictions of rows get worse: which
# component has which label is open, and a product of factors gets as wide as that.
_MOST_MISSING_ASTRAY = 0.9
# More of it than this is missing where components overlap.
_OVERLAPPING = 0.5
# Steps of the differences that slopes are taken of: in the sums, in standard deviations
# of the noise and as a share of their size; and in the globals, in standard deviations.
_STEP_OF_SUMS = 0.3
_LEAST_STEP_OF_SUMS = 1e-4
_STEP_OF_GLOBALS = 0.5
# Directions of the globals with less of the variance are left out: shares that add up
# to one have such a direction, in which no row can move them.
_LEAST_VARIANCE = 1e-3
# How far slopes may be from symmetric, as shares of information.
_MOST_ASYMMETRY = 0.25
# How much the variances that sums are given are held to their own.
_HELD = 0.1


class Answers(Protocol):
    """How the globals answer to sums, and rows to the globals."""

    def inside(self, sums: Vector, margins: Vector) -> Vector:
        """Sums moved to where every statistic of one sign has that sign.

        Args:
          sums: Sums, in coordinates.
          margins: How far from zero coordinates of one sign are kept.
        """
        ...

    def sizes(self, sums: Vector) -> Vector:
        """For every coordinate the root mean square of the block that it is in."""
        ...

    def natural(self, sums: Vector) -> Vector | None:
        """n̄ in the coordinates of the sums; None if there is no posterior."""
        ...

    def rows(self, sums: Vector) -> Any:
        """Rows simulated where these sums lead; None if there is no posterior."""
        ...

    def sums(self, sums: Vector, rows: Any) -> Vector | None:
        """The whole sums of these rows at the globals of some sums.

        They are those of as many rows as the fit has; None if there is no posterior.
        """
        ...

    def early_sums(self, rows: Any) -> Vector:
        """The average of what these rows release where those of the fit were asked."""
        ...


class Observed(NamedTuple):
    """Sums with what is known of the rows' latents, and no more.

    Attributes:
      sums: The sums, less what is left in them of the errors of early steps.
      stddev: What they are uncertain by, beside what complete statistics leave open.
      stddev_of_rows: What is left of it without noise.
      missing: The largest share of the information in a direction that is missing.
      left: What is left of those errors, as the largest in standard deviations of n̄;
        None if nothing was corrected.
    """

    sums: Vector
    stddev: Vector
    stddev_of_rows: Vector
    missing: float
    left: float | None


def observed(
    sums: Vector,
    stddev: Vector,
    depends: Choice,
    answers: Answers,
    start: Vector | None = None,
    *,
    has_parted: bool = False,
) -> Observed | None:
    """The sums as rows know them; see the module.

    Args:
      sums: The average of all releases.
      stddev: Standard deviation of the noise in each coordinate.
      depends: Which coordinates depend on the globals at all.
      answers: The model's.
      start: Sums that are nearer to the truth, if there are such.
      has_parted: Whether the average has no part of steps before the components of a
        mixture had parted. Then little is left of early errors, and where components
        overlap, corrections are noise many times over: none are made.

    Returns:
      None if some sums on the way have no posterior. Where corrections lead nowhere,
      none are made: components of a mixture that are not all there, for instance, part
      on other ways than rows of such a mixture say.
    """
    if not depends.any():
        return None
    start = sums if start is None else start
    now, rounds, overlaps = start, list[_Correction](), False
    for _ in range(_ROUNDS):
        found = _correct(sums, now, stddev, depends, answers)
        if found is None:
            return None
        rounds.append(found)
        now = found.sums
        overlaps = has_parted and rounds[0].slopes.missing > _OVERLAPPING
        if overlaps or found.corrected < _STILL or _goes_astray(rounds):
            break
    farthest = _MOST_MOVED * (answers.sizes(start) + stddev)
    astray, last = _goes_astray(rounds), rounds[-1]
    astray |= bool(np.any(np.abs(last.sums - start) > farthest))
    nearest = min(rounds, key=lambda found: found.corrected)
    is_near = nearest.corrected < min(_NEAR, _NEARER * rounds[0].corrected)
    is_near &= bool(np.all(np.abs(nearest.sums - start) <= farthest))
    astray, is_near = astray or overlaps, is_near and not overlaps
    if astray and is_near and not nearest.slopes.lead_nowhere:
        # Further rounds go by answers that are more noise than slope.
        astray, last, now = False, nearest, nearest.sums
    slopes, left = last.slopes, last.left
    if astray:
        now, slopes, left = start, rounds[0].slopes, np.zeros_like(left)
        slopes.most_missing = _MOST_MISSING_ASTRAY
    of_rows = slopes.covariance_of_rows()
    total = of_rows + slopes.covariance_of_noise(stddev) + np.outer(left, left)
    if not np.isfinite(total).all():
        return None
    return Observed(
        sums=now,
        # What rows answer never takes noise away.
        stddev=np.maximum(
            slopes.stddev_of_sums(total, slopes.variances_of_sums(stddev)), stddev
        ),
        stddev_of_rows=slopes.stddev_of_sums(
            of_rows, slopes.variances_of_sums(np.zeros_like(stddev))
        ),
        missing=slopes.missing,
        left=None if astray else _largest(left, slopes.of_natural + total),
    )


class _Correction(NamedTuple):
    """One round of `observed`.

    Attributes:
      sums: The corrected sums.
      slopes: How rows answer near the sums before.
      corrected: By how much n̄ moved, in standard deviations.
      left: What it is still off by.
    """

    sums: Vector
    slopes: "_Slopes"
    corrected: float
    left: Vector


def _goes_astray(rounds: Sequence[_Correction]) -> bool:
    """Whether corrections grow, are large in the end, or mean nothing there."""
    first, *_, last = sizes = [found.corrected for found in (rounds[0], *rounds)]
    if last < _STILL and rounds[-1].slopes.lead_nowhere:
        return True
    if max(sizes) > max(_SMALL, _MOST_GROWTH * first):
        return True
    return len(rounds) == _ROUNDS and last > _SMALL


def _correct(
    sums: Vector, now: Vector, stddev: Vector, depends: Choice, answers: Answers
) -> _Correction | None:
    """One round: sums less what is left in them of the errors of early steps.

    Rows are simulated where the sums lead; what they answer there replaces what they
    answered in the steps, and the slopes say how far that carries.

    Args:
      sums: The average of all releases.
      now: The sums as the last round has left them.
      stddev, depends, answers: As of `observed`.

    Returns:
      None where some sums on the way have no posterior, or slopes are not finite.
    """
    # Counts that noise has taken below zero count nothing: there no slope is seen.
    near = answers.inside(now, stddev)
    rows = answers.rows(near)
    slopes = None if rows is None else _slopes(near, stddev, depends, rows, answers)
    if slopes is None:
        return None
    early = answers.early_sums(rows)

    def error_of(there: Vector) -> Vector | None:
        # What rows answer now, for what they answered in the steps.
        late = answers.sums(there, rows)
        if late is None:
            return None
        return sums + np.where(depends, late - early, 0.0) - there

    error = error_of(now)
    if error is None or not np.isfinite(error).all():
        return None
    corrected = now + slopes.grown(error)
    left = error_of(corrected)
    if left is None:
        return None
    covariance = slopes.covariance_of_rows() + slopes.covariance_of_noise(stddev)
    covariance += slopes.of_natural
    return _Correction(
        sums=corrected,
        slopes=slopes,
        corrected=_largest(slopes.carried(error), covariance),
        left=slopes.carried(left),
    )


def _largest(change: Vector, covariance: Covariance) -> float:
    """The largest change, in standard deviations."""
    variances = np.diagonal(covariance)
    known = variances > 0
    return float(np.max(np.abs(change[known]) / np.sqrt(variances[known]), initial=0.0))


class _Slopes:
    """How n̄ and rows answer to the sums.

    Args:
      of_natural: G.
      root: Its columns r give G = Σ r rᵀ.
      answered: A column K r for each of these.

    Attributes:
      kappa: See the module.
      most_missing: What larger ones are taken for, as far as widths go.
    """

    def __init__(
        self, of_natural: Covariance, root: ByDirection, answered: ByDirection
    ):
        self.of_natural = of_natural
        self.most_missing = _MOST_MISSING
        both = root.T @ answered
        self.kappa, vectors = np.linalg.eigh((both + both.T) / 2.0)
        self._root, self._answered = root @ vectors, answered @ vectors

    @property
    def missing(self) -> float:
        """The largest share of the information in a direction that is missing."""
        return float(np.clip(np.max(self.kappa, initial=0.0), 0.0, 1.0))

    @property
    def lead_nowhere(self) -> bool:
        """Whether an error would come back as more than it was."""
        return bool(np.max(self.kappa, initial=0.0) > _ALL)

    def grown(self, error: Vector) -> Vector:
        """(I - K G)⁻¹ times an error in the sums, as far as is safe."""
        gain = 1.0 / (1.0 - np.minimum(self.kappa, _MOST_CORRECTED))
        return error + self._answered @ (gain * (self._root.T @ error))

    @property
    def _known(self) -> Float64[np.ndarray, " directions"]:
        return np.clip(self.kappa, 0.0, self.most_missing)

    def carried(self, error: Vector) -> Vector:
        """What n̄ is off by, if the sums have this error before rows answer to it."""
        return self._root @ ((self._root.T @ error) / (1.0 - self._known))

    def covariance_of_noise(self, stddev: Vector) -> Covariance:
        """The covariance of n̄ that comes from noise in the sums.

        Args:
          stddev: Standard deviation of the noise in each coordinate.
        """
        gained = self._root / (1.0 - self._known)
        carried = gained @ self._root.T * stddev
        return carried @ carried.T

    def covariance_of_rows(self) -> Covariance:
        """The covariance of n̄ that comes from what rows leave open."""
        gained = self._root * (self._known / (1.0 - self._known))
        return gained @ self._root.T

    def variances_of_sums(self, stddev: Vector) -> Vector:
        """What sums vary by in both ways, not counting that they vary together."""
        gain = 1.0 / (1.0 - self._known)
        grown = np.eye(len(stddev)) + (self._answered * gain) @ self._root.T
        of_noise = np.square(grown * stddev).sum(1)
        share = np.divide(gain, self._known, out=np.zeros_like(gain), where=gain > 1.0)
        return of_noise + (np.square(self._answered) * share).sum(1)

    def stddev_of_sums(self, covariance: Covariance, variances: Vector) -> Vector:
        """Independent noise in the sums that gives n̄ the variances of a covariance.

        The families read noise as independent.

        Args:
          covariance: That of n̄.
          variances: Those of the sums, which are kept as far as that leaves a choice.
        """
        from scipy.optimize import nnls  # See `load_optimizers`.

        wanted = np.diagonal(covariance)
        known, varying = wanted > 0, variances > 0
        if not varying.any():
            return np.zeros_like(variances)
        slopes = np.square(self.of_natural) * variances
        slopes = slopes[np.ix_(known, varying)] / wanted[known, None]
        held = _HELD * np.eye(int(varying.sum()))
        targets = np.concatenate([np.ones(known.sum()), _HELD * np.ones(len(held))])
        found = np.where(varying, 1.0, 0.0)
        # Their own variances will do, if none better are found.
        with contextlib.suppress(RuntimeError):
            found[varying], _ = nnls(np.concatenate([slopes, held]), targets)
        return np.sqrt(found * variances)


def _slopes(
    sums: Vector, stddev: Vector, depends: Choice, rows: Any, answers: Answers
) -> _Slopes | None:
    """Central differences; None without a posterior nearby, or an answer of rows."""
    steps = np.maximum(
        _STEP_OF_SUMS * stddev, _LEAST_STEP_OF_SUMS * answers.sizes(sums)
    )
    of_natural = np.zeros((len(sums), len(sums)))
    for number in np.flatnonzero(steps):
        there = np.zeros_like(sums)
        there[number] = steps[number]
        after, before = answers.natural(sums + there), answers.natural(sums - there)
        if after is None or before is None:
            return None
        of_natural[:, number] = (after - before) / (2.0 * steps[number])
    of_natural = (of_natural + of_natural.T) / 2.0
    # In units of the coordinates' own standard deviations.
    units = np.sqrt(np.maximum(np.diagonal(of_natural), 0.0))
    inverse = np.divide(1.0, units, out=np.zeros_like(units), where=units > 0)
    values, vectors = np.linalg.eigh(inverse[:, None] * of_natural * inverse)
    moving = values > _LEAST_VARIANCE
    roots, vectors = np.sqrt(values[moving]), vectors[:, moving]
    root = units[:, None] * vectors * roots
    answered = np.zeros_like(root)
    for number, size in enumerate(roots):
        # It moves n̄ by so many standard deviations along a column of `root`.
        there = _STEP_OF_GLOBALS * inverse * vectors[:, number] / size
        after, before = (answers.sums(sums + s * there, rows) for s in (1.0, -1.0))
        if after is None or before is None:
            return None
        change = (after - before) / (2.0 * _STEP_OF_GLOBALS)
        answered[:, number] = np.where(depends, change, 0.0)
    if not np.isfinite(answered).all():
        return None
    kept = _consistent(root.T @ answered)
    return _Slopes(of_natural, root[:, kept], answered[:, kept])


def _consistent(
    both: Float64[np.ndarray, "directions directions"],
) -> Int64[np.ndarray, " kept"]:
    """The directions in which Lᵀ K L is symmetric, as slopes of a bound are.

    Where it is not, the step of the differences has led to where a sum cannot be read
    as it is, and they are no slopes.
    """
    kept = np.arange(len(both))
    while len(kept):
        among = both[np.ix_(kept, kept)]
        apart = np.abs(among - among.T)
        if np.max(apart) <= _MOST_ASYMMETRY:
            break
        kept = np.delete(kept, np.argmax(np.sum(np.square(apart), 1)))
    return kept
