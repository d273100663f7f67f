"""Whether the iterates of a fit still drift, compared with how much they fluctuate.

Two stretches late in the run are compared as if they were chains (Dhaka, Catalina,
Andersen, Magnusson, Huggins and Vehtari, 2020): iterates that fluctuate about a place
have an R̂ near one, and those that move on in a line one of 2.6. Iterates are made of
released numbers, and nothing else is looked at.

How long a run will be is not known while it goes on. So iterates are added up in blocks
of equal length; when there are too many blocks, each two become one.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from numpyro_vips.errors import quoted

_MOST_BLOCKS = 8
# With fewer blocks than these a stretch is no longer late in the run.
_FEWEST_BLOCKS = 4
_FEWEST_STEPS = 4


class IterateSums(NamedTuple):
    """Sums over some iterates, of them and of their squares."""

    number: int
    total: Float64[np.ndarray, " size"]
    squares: Float64[np.ndarray, " size"]

    def joined(self, other: "IterateSums") -> "IterateSums":
        """Sums over the iterates of both, which have none in common."""
        return IterateSums(
            self.number + other.number,
            self.total + other.total,
            self.squares + other.squares,
        )


class Drift(NamedTuple):
    """Sums over blocks of iterates, by which R̂ compares them.

    Attributes:
      origin: What iterates are compared with, so that squares do not cancel.
      length: How many iterates a block has.
      blocks: Those that are full, in order.
      open: The one that is being filled.
    """

    origin: Float64[np.ndarray, " size"]
    length: int
    blocks: tuple[IterateSums, ...]
    open: IterateSums

    @classmethod
    def of(cls, origin: Float64[np.ndarray, " size"]) -> "Drift":
        """A run without iterates yet, which are going to be compared with `origin`."""
        return cls(origin, 1, (), _empty(origin))

    def with_iterate(self, iterate: Float64[np.ndarray, " size"]) -> "Drift":
        """The run with one more iterate, in the open block.

        A block that is full then joins the others, of which each two become one when
        there are too many.
        """
        away = iterate - self.origin
        block = self.open.joined(IterateSums(1, away, away**2))
        if block.number < self.length:
            return self._replace(open=block)
        length, blocks = self.length, (*self.blocks, block)
        if len(blocks) == _MOST_BLOCKS:
            length *= 2
            blocks = tuple(
                one.joined(two)
                for one, two in zip(blocks[::2], blocks[1::2], strict=True)
            )
        return Drift(self.origin, length, blocks, _empty(self.origin))

    def r_hat(self) -> Float64[np.ndarray, " size"] | None:
        """R̂ of every coordinate; None after too few steps."""
        if len(self.blocks) < _FEWEST_BLOCKS or self.length < _FEWEST_STEPS:
            return None
        means = np.stack([block.total / block.number for block in self.blocks[-2:]])
        share = (self.length - 1) / self.length
        within = self._within()
        between = np.var(means, axis=0, ddof=1)
        # Where nothing moves, nothing drifts.
        ratio = between / np.where(within > 0, within, 1.0)
        return np.sqrt(share + ratio)

    def fluctuation(self) -> Float64[np.ndarray, " size"]:
        """The standard deviation of every coordinate late in the run."""
        return np.sqrt(self._within())

    def apart(self) -> Float64[np.ndarray, " size"]:
        """How far the means of the two stretches are apart, over the root of 2."""
        means = [block.total / block.number for block in self.blocks[-2:]]
        return abs(means[1] - means[0]) / math.sqrt(2.0)

    def _within(self) -> Float64[np.ndarray, " size"]:
        variances = []
        for block in self.blocks[-2:]:
            mean = block.total / block.number
            variances.append(np.maximum(block.squares / block.number - mean**2, 0.0))
        return np.mean(variances, axis=0) * self.length / max(1, self.length - 1)


def _empty(like: Float64[np.ndarray, " size"]) -> IterateSums:
    return IterateSums(0, np.zeros_like(like), np.zeros_like(like))


# Of iterates that fluctuate without privacy, after Dhaka et al. (2020).
LARGEST_STILL = 1.1
# Noise makes iterates wander: they return to their place within some tens of steps.
LARGEST_NOISY = 2.2
# In standard deviations of the posterior. Without noise the average over a hundred
# iterates is then within one of the place that they fluctuate about. Noise makes them
# wander, so that few of them are independent, and where the log density bends within
# their reach, that place itself is another. The first limit is reasoned. The second was
# chosen on fits of logistic models that no benchmark repeats.
LARGEST_FLUCTUATION = 10.0
LARGEST_NOISY_FLUCTUATION = 5.0
# Of a posterior that is made of the scores where iterates were: it is not where their
# average is, and may be right where they fluctuate by more. This limit, and that of
# small drifts, were chosen on fits of count, probit and ordered regressions that no
# benchmark repeats.
LARGEST_SCORED_FLUCTUATION = 10.0
# Iterates that fluctuate by more deviations of such a posterior, near its mean, wander
# with the noise, and two stretches of a random walk differ: no R̂ says more of them.
WANDERING, NEAR = 2.0, 1.5
# Nor does it where two stretches are apart by no more of these deviations: over so
# short a way the log density mostly is a parabola. The last steps are short, and
# fluctuate less than they drift. Degrees of freedom of a Student t are an exception,
# of which R̂ does not tell good fits from bad ones; see docs/intervals.md.
SMALL_DRIFT = 4.0
# By how many of its standard deviations a posterior may differ from the averages of the
# iterates, along any direction: it is made of the rows' scores and curvature there. In
# 40 fits of eight models that were right it was 2.8 at most, and in five regressions on
# raw heights whose scale was off by 5 to 14 standard deviations it was 4.7 to 12.
LARGEST_DISTANCE = 4.0
# Components that may change places part by ways along which the log density bends: one
# that is drawn into two clusters drifts over a few deviations. So small drifts count,
# and smaller distances do. In 24 fits of three overlapping Normals at epsilon 1 five
# were off by more than 3.5 deviations, all of which this finds. Of the other 19 six
# still drifted.
LARGEST_DISTANCE_OF_COMPONENTS = 3.0


def drift_diagnostics(
    r_hat: Mapping[str, float] | None,
    fluctuation: Mapping[str, float],
    apart: Mapping[str, float],
    *,
    num_steps: int,
    is_private: bool,
    distance: Mapping[str, float] | None = None,
    has_components: bool = False,
) -> dict[str, Any]:
    """What the iterates say of a fit, JSON-able.

    Args:
      r_hat: The largest R̂ by name of what is fitted; None if there is none.
      fluctuation: The largest fluctuation by name, in standard deviations of the
        posterior.
      apart: How far the two stretches are apart, in the same unit.
      num_steps: How many steps there were.
      is_private: Whether there was noise.
      distance: How far the posterior's mean is from the averages of the iterates, by
        name, in standard deviations of the posterior along its principal directions;
        None where it is that average.
      has_components: Whether entries of some globals could change places and had to
        part, under noise that makes intervals much wider.
    """
    limit = LARGEST_NOISY if is_private else LARGEST_STILL
    found = {
        "num_steps": num_steps,
        "r_hat": r_hat,
        "fluctuation": None if r_hat is None else dict(fluctuation),
        "converged": False,
    }
    if distance is not None:
        found["distance"] = dict(distance)
    if r_hat is None:
        text = (
            f"{num_steps} steps are too few to tell whether the fit has converged. "
            "Pass a larger num_steps=."
        )
        return found | {"warnings": [text]}
    knows_scores = is_private and distance is not None
    wanders = {
        name
        for name, away in (distance or {}).items()
        if knows_scores
        and away <= NEAR
        and (
            fluctuation.get(name, 0.0) >= WANDERING
            or (apart.get(name, 0.0) <= SMALL_DRIFT and not has_components)
        )
    }
    moving = [
        name
        for name, value in r_hat.items()
        if not value <= limit and (name not in wanders or not math.isfinite(value))
    ]
    if moving:
        text = _on_moving(moving, max(r_hat.values()), limit, num_steps, is_private)
        return found | {"warnings": [text]}
    largest = LARGEST_NOISY_FLUCTUATION if is_private else LARGEST_FLUCTUATION
    if knows_scores:
        largest = LARGEST_SCORED_FLUCTUATION
    wild = [k for k, v in fluctuation.items() if not v <= largest]
    if wild:
        text = _on_wild(wild, max(fluctuation.values()), num_steps, is_private)
        return found | {"warnings": [text]}
    distance = distance or {}
    most = LARGEST_DISTANCE_OF_COMPONENTS if has_components else LARGEST_DISTANCE
    far = [k for k, v in distance.items() if not v <= most]
    if far:
        text = _on_far(far, max(distance.values()), num_steps, is_private)
        return found | {"warnings": [text]}
    return found | {"converged": True, "warnings": []}


def _on_moving(
    names: Sequence[str], r_hat: float, limit: float, num_steps: int, is_private: bool
) -> str:
    """What is said of a fit whose iterates still drift, and what helps."""
    if not math.isfinite(r_hat):
        return (
            "The fit has not converged: its iterates are not finite. Scale the rows, "
            "or choose tighter priors or a smaller learning rate."
        )
    text = (
        f"The fit has not converged: after {num_steps} steps "
        f"{quoted(names)} still drifted, "
        f"by more than {'the noise explains' if is_private else 'they fluctuate'} "
        f"(R̂ up to {r_hat:.3g}, above {limit}). Means may be off by more than their "
        "intervals say. "
    )
    if not is_private:
        return text + "What helps: more steps (num_steps=)."
    return text + (
        "What helps: arguments scaled to about -1 to 1, with priors in these units; "
        "more rows, a larger epsilon or tighter priors."
    )


def _on_wild(
    names: Sequence[str], fluctuation: float, num_steps: int, is_private: bool
) -> str:
    """What is said of a fit whose iterates are far from their average."""
    text = (
        f"The fit has not converged: after {num_steps} steps "
        f"{quoted(names)} went to and fro by up to "
        f"{fluctuation:.3g} standard deviations of the posterior."
    )
    if not is_private:
        return text + (
            " What helps: a smaller learning rate, DPVI(optimizer=optax.adam(0.01))."
        )
    return text + (
        " The noise drives them, or they are still on their way. Means may be off by "
        "more than their intervals say. What helps: more rows, a larger epsilon, "
        "tighter priors or fewer globals."
    )


def _on_far(
    names: Sequence[str], distance: float, num_steps: int, is_private: bool
) -> str:
    """What is said of a posterior whose mean is far from where rows were asked."""
    return (
        f"The fit has not converged: after {num_steps} steps the posterior's "
        f"mean of {quoted(names)} lies up to "
        f"{distance:.3g} of its standard deviations from the "
        "average of the iterates, at which it was computed. So far away it may be "
        "wrong, and scales more so. What helps: "
        + ("columns from which public means are subtracted, or " if is_private else "")
        + "more steps (num_steps=)."
    )
